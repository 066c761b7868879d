"""`virtual`: what a Schedule would have trained, by training it in process with torch (prediction.md calls it the
reference).

The profile's own workload may need data and hours. Unless asked for by name, it is then replaced by a **stand-in**: a
small real task on the profile's timing, thinned so that one training sample stands for as many of the profile's as
put the stand-in's batch where people train it. A stand-in shows what delay, batch and weights do to a real,
non-convex model; it does not predict the profile's own loss. Every curve says so.

Importing this loads no torch.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hetsim.cluster.spec import Cluster, Training
from hetsim.convergence.predictor import Curve, Setting, Target
from hetsim.errors import MissingExtraError, UsageError
from hetsim.schedule import Schedule

if TYPE_CHECKING:
    from abs_sgd.update import UpdateRule
    from abs_sgd.workloads import Task

STAND_IN = "digits-mlp"  # seconds on a CPU, no download
RACE_MARGIN = 1.25  # times the best time so far: slower settings are not going to be chosen [our choice]
RACE_HALF = 0.5  # from this share of the best time on ... [our choice]
RACE_BEHIND = 2.0  # ... a loss this many times the best run's at the same time is too far behind [our choice]


class VirtualTraining:
    """Training in virtual time as a predictor.

    `workload`: name or "auto" (the profile's own where it can be trained as it is: a user's `model` and `dataset`, or
    a known workload that needs no data; else the stand-in digits-mlp). `data`: folder with CIFAR-10 where the
    workload needs it. `thinning`: samples of the profile per training sample; None: 1 for the profile's own workload,
    else batch over the stand-in's reference batch.

    `race`: settings of one call are cut when they cannot be chosen any more: past 1.25 times the best time to target so
    far, or, from half of it on, at twice the loss that the best run had at that time.
    """

    name = "virtual"
    trains = True  # takes as long as training does: what must be quick refuses it

    def __init__(
        self,
        *,
        workload: str = "auto",
        data: str | os.PathLike[str] | None = None,
        thinning: int | None = None,
        device: str = "cpu",
        race: bool = True,
    ) -> None:
        self.workload = workload
        self.data = data
        self.thinning = thinning
        self.device = device
        self.race = race

    def target(self, cluster: Cluster) -> Target:
        """training.target_loss for the profile's own workload, else the stand-in's own target."""
        task, stands_in = self._task(cluster)
        stated = None if stands_in else cluster.training.target_loss
        value = task.target_loss if stated is None else stated
        if not math.isfinite(value):
            raise UsageError(f"{task.name}: set training.target_loss, this workload has no target of its own")
        return Target(metric=f"{task.metric} of {task.name}", value=value)

    def settings(self, cluster: Cluster) -> list[Setting]:
        """The tuning grid that suits the task: its learning rates, at the profile's momentum and without."""
        task, _ = self._task(cluster)
        momenta = sorted({0.0, cluster.training.momentum})
        return [Setting(learning_rate=lr, momentum=m) for m in momenta for lr in task.learning_rates]

    def curves(
        self,
        schedule: Schedule,
        cluster: Cluster,
        settings: Sequence[Setting],
        *,
        seed: int = 0,
        target: float | None = None,
        slack: float | None = None,
    ) -> list[Curve]:
        """One curve per setting, from the same initial parameters and sample order; each ends at the target, at
        divergence or with the log.

        `target` replaces the predictor's own; `slack` is the race's margin in place of 1.25.
        """
        task, stands_in = self._task(cluster)
        from abs_sgd.replay.inprocess import InProcess

        thinning = self._thinning(task, cluster.training, stands_in)
        goal = self.target(cluster).value if target is None else target
        with _one_thread(task):
            trainer = InProcess(schedule, task, seed=seed, thinning=thinning)
            curves: dict[int, Curve] = {}
            race = Race(goal, slack or RACE_MARGIN)
            for index in _likely_first(settings, task):
                curve = trainer.train(
                    rule_of(cluster.training, settings[index]),
                    stop_at=goal,
                    give_up=race.give_up if self.race else None,
                    assumptions=self._assumptions(task, cluster, schedule, thinning, stands_in),
                )
                race.finish(curve)
                curves[index] = curve
        return [curves[index] for index in range(len(settings))]

    def _task(self, cluster: Cluster) -> tuple[Task, bool]:
        """The task, and whether it stands in for the profile's workload."""
        try:
            from abs_sgd import workloads
        except ImportError as error:
            raise MissingExtraError("training in virtual time", "train") from error

        own = cluster.workload
        options: dict[str, object] = {"device": self.device}
        if self.workload == "auto" and own.model and own.dataset:
            options["reference_batch_samples"] = cluster.training.global_batch_samples
            return workloads.get(own, **options), False
        name = self.workload
        if name == "auto":
            trainable = own.name in workloads.BUILDERS and own.name not in workloads.NEEDS_DATA
            name = own.name if trainable else STAND_IN
        if name in workloads.NEEDS_DATA:
            options["data"] = self.data
        return workloads.get(name, **options), name != own.name

    def _thinning(self, task: Task, training: Training, stands_in: bool) -> int:
        if self.thinning is not None:
            return self.thinning
        if not stands_in:
            return 1
        wanted = training.global_batch_samples // task.reference_batch_samples
        return max(1, min(wanted, training.micro_batch_samples))  # a micro-batch keeps one sample at least

    def _assumptions(
        self, task: Task, cluster: Cluster, schedule: Schedule, thinning: int, stands_in: bool
    ) -> tuple[str, ...]:
        said = [f"trained in virtual time: true gradients of {task.name} ({task.source}), the Schedule's clock"]
        if stands_in:
            said.append(
                f"{task.name} stands in for {cluster.workload.name}: timing is the profile's, loss and target are the stand-in's; "
                "ask for the profile's own workload by name where its data are at hand"
            )
        if thinning > 1:
            said.append(
                f"one training sample stands for {thinning} of the profile's, so that a batch of "
                f"{cluster.training.global_batch_samples} trains as {cluster.training.global_batch_samples / thinning:g} do"
            )
        if task.samples != schedule.header.dataset_samples:
            said.append(
                f"an epoch is the task's {task.samples:,} samples, not the profile's {schedule.header.dataset_samples:,}"
            )
        return tuple(said)


def rule_of(training: Training, setting: Setting) -> UpdateRule:
    """The update rule of a profile at one point of the tuning grid."""
    from abs_sgd.update import UpdateRule

    return UpdateRule(
        learning_rate=setting.learning_rate,
        optimizer=training.optimizer,
        momentum=setting.momentum,
        nesterov=training.nesterov,
        weight_decay=training.weight_decay,
        lr_rule=training.lr_rule,
        reference_batch_samples=training.global_batch_samples,
        warmup_samples=training.warmup_updates * training.global_batch_samples,
        clip_norm=training.clip_norm,
    )


class Race:
    """Which settings are still worth training, given the best run to the target so far."""

    def __init__(self, target: float, margin: float = RACE_MARGIN) -> None:
        self.margin = margin
        self.target = target
        self.best_s = math.inf
        self.best: Curve | None = None

    def give_up(self, time_s: float, loss: float) -> bool:
        """Whether a run with this loss at this time has lost."""
        if self.best is None or time_s >= self.margin * self.best_s:
            return self.best is not None
        if time_s < RACE_HALF * self.best_s:
            return False
        at = bisect.bisect_right(self.best.time_s.tolist(), time_s) - 1
        return loss > RACE_BEHIND * max(float(self.best.loss[at]), self.target)

    def finish(self, curve: Curve) -> None:
        """Take a run into account."""
        reached = curve.crossing(self.target)
        if reached is not None and reached[1] < self.best_s:
            self.best, self.best_s = curve, reached[1]


def _likely_first(settings: Sequence[Setting], task: Task) -> list[int]:
    """Order in which settings are tried: nearest to the middle of the task's own grid in lr / (1 - momentum), as ratios.

    A good one early cuts the rest early; the result does not depend on the order, but for what is cut.
    """
    middle = task.learning_rates[len(task.learning_rates) // 2] / (1.0 - max(task.momenta))
    reach = [s.learning_rate / max(1.0 - s.momentum, 1e-3) for s in settings]
    return sorted(range(len(settings)), key=lambda i: (abs(math.log(max(reach[i], 1e-12) / middle)), i))


@contextlib.contextmanager
def _one_thread(task: Task) -> Iterator[None]:
    """Small models are fastest on one thread, and compare runs several processes; others keep torch's setting."""
    import torch

    before = torch.get_num_threads()
    if task.name.startswith(("resnet18", "cifar10")):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
