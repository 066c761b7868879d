"""The noisy quadratic model as a predictor: E loss after every update of a Schedule, for a grid of settings at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Cluster
from hetsim.convergence.constants import NODES, WorkloadConstants, constants_of
from hetsim.convergence.joint import run_joint
from hetsim.convergence.operations import compile_schedule
from hetsim.convergence.plan import compensated, plan_of, point_scales, reweighted
from hetsim.convergence.predictor import Curve, Setting, Target
from hetsim.convergence.progress import progress_of
from hetsim.convergence.sequence import Losses, Rule, run_sequence
from hetsim.convergence.stability import Caution, Circumstances, cautions
from hetsim.schedule.kinds import PointRule
from hetsim.schedule.table import Schedule

COMPENSATION = (
    "In compensated steps g⊙g is replaced by its expectation, on the model's scale of gradients and not a network's."
)
JOINT_NODES = 24  # the general engine costs rows² per node; error of the loss under .5 % (tests)


class NoisyQuadratic:
    """SGD on independent directions with gradient noise (Zhang et al. 2019), at the batches, weights, delays and points of the Schedule.

    Exact second moments, so there is no sampling noise; `seed` changes nothing (seeds enter through the Schedule's jitter).
    """

    name = "nqm"

    def target(self, cluster: Cluster) -> Target:
        """training.target_loss where given, else the loss that stands for the workload's metric (`constants`)."""
        return constants_of(cluster.workload).target(cluster)

    def grid(self, cluster: Cluster, rates: int = 25, momenta: Sequence[float] = (0.0, 0.5, 0.9)) -> list[Setting]:
        """Settings to tune on, the same for every algorithm: lr·h from .001 to 4 for the model's largest curvature h, past every bound."""
        largest = constants_of(cluster.workload).nqm.quadratic().largest_curvature
        values = np.geomspace(0.001, 4.0, rates) / largest
        return [Setting(learning_rate=float(lr), momentum=m) for m in momenta for lr in values]

    def cautions(self, schedule: Schedule, cluster: Cluster, setting: Setting) -> list[Caution]:
        """Warnings for one setting on one Schedule: stability at its mean delay and compute point, batch against the noise scale.

        Replicas that step on their own are judged without delay."""
        known = constants_of(cluster.workload)
        points = progress_of(schedule)
        batch = float(np.mean(points.samples / points.steps)) if len(points.samples) else None
        return cautions(
            learning_rate=setting.learning_rate,
            momentum=setting.momentum,
            largest_curvature=known.nqm.quadratic().largest_curvature,
            circumstances=circumstances(schedule, cluster),
            batch_samples=batch,
            critical_batch_samples=known.noise_scale.noise_scale_samples,
            lengthens=known.nqm.weight_square is not None,
        )

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
        """One curve per setting.

        With `target` (on the scale of `Curve.loss`) a setting ends where it reaches it; with `slack` as well, all end at `slack` times the
        updates the fastest took, which is what tuning needs.
        """
        known = constants_of(cluster.workload)
        training = cluster.training
        sequence = schedule.updates.is_sequence and not reweighted(schedule) and not compensated(schedule)
        quadratic = known.nqm.quadratic(NODES if sequence else JOINT_NODES)
        raw_target = None if target is None else known.ratio(target) * quadratic.initial_loss
        rates = np.array([s.learning_rate for s in settings], np.float64)
        momenta = np.array([s.momentum for s in settings], np.float64)
        rule = Rule(training.weight_decay, training.nesterov, raw_target, slack)
        if sequence:
            losses = run_sequence(plan_of(schedule, training), quadratic, rates, momenta, rule)
        else:
            losses = run_joint(compile_schedule(schedule, training), quadratic, rates, momenta, rule)
        points = progress_of(schedule)
        samples = np.concatenate(([0], np.cumsum(points.samples)))
        time_s = np.concatenate(([0.0], points.time_s))
        said = assumptions(known, cluster) + ((COMPENSATION,) if compensated(schedule) else ())
        return as_curves(losses, samples, time_s, known, quadratic.initial_loss, said)


def circumstances(schedule: Schedule, cluster: Cluster) -> Circumstances:
    """Mean delay and compute point of a Schedule; replicas that step on their own are taken as without delay."""
    updates = schedule.updates
    if not len(updates) or not updates.is_sequence:
        return Circumstances()
    delay = float(np.average(updates.staleness, weights=updates.part_samples))
    if not updates.predicted.any():
        return Circumstances(delay=delay)
    return Circumstances(
        delay=delay,
        point=PointRule(int(updates.rule[updates.predicted][0])),
        scale=float(point_scales(schedule)[updates.predicted][0]),
        several=schedule.n > 1,
    )


def as_curves(
    losses: Losses,
    samples: NDArray[np.int64],
    time_s: NDArray[np.float64],
    known: WorkloadConstants,
    initial: float,
    sentences: tuple[str, ...],
) -> list[Curve]:
    """Curves on the workload's loss scale, each as long as its setting was run."""
    numbers = np.arange(len(samples), dtype=np.int64)
    out = []
    for s, length in enumerate(losses.length.tolist()):
        ratio = losses.loss[:length, s] / initial
        out.append(
            Curve(
                updates=numbers[:length],
                samples=samples[:length],
                time_s=time_s[:length],
                loss=known.floor_loss + (known.initial_loss - known.floor_loss) * ratio,
                diverged=bool(losses.diverged[s]),
                assumptions=sentences,
            )
        )
    return out


def assumptions(known: WorkloadConstants, cluster: Cluster) -> tuple[str, ...]:
    """What a reader must know before believing the curve."""
    nqm = known.nqm
    sentences = [
        f"Noisy quadratic model: {nqm.directions} independent directions, curvature j^-{nqm.exponent:g}, additive gradient noise.",
        f"Its constants: {nqm.source}",
        "Expected loss over the gradient noise; seeds enter only through the schedule (jitter).",
        f"The model's loss is mapped to {known.initial_loss:.3g} at the start and {known.floor_loss:.3g} at the optimum.",
    ]
    if nqm.weight_square is not None:
        sentences.append(
            "Weights before normalisations lengthen with every step, which slows training like a decaying learning rate."
        )
    if cluster.training.optimizer != "sgd":
        sentences.append(f"The optimizer {cluster.training.optimizer} is treated as SGD with momentum.")
    if cluster.training.clip_norm is not None:
        sentences.append("Gradient clipping is ignored.")
    return tuple(sentences)
