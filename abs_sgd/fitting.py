"""What a short real training says of the convergence predictors' constants: `hetsim fit`.

1. Synchronous SGD without delay at some batches and learning rates, until the target or `samples`: loss curves.
2. On the way, at points spread over one of them: the largest curvature (`curvature`), the squared norm of the weights that normalisations
   leave free (`weight_lengths`), and the gradient noise scale from unequal batches (`hetsim.convergence.noise_scale`).
3. The noisy quadratic model fitted to the curves (`hetsim.convergence.training_fit`), its steepest direction taken from 2.

No other algorithm is trained. The steepest curvature is that of the **mean Hessian** over the points of a training with the smallest batch
at the highest learning rate, nearest to where delayed training is, at the edge of what is stable. The steepest direction turns while a
network trains: what is unstable at one point is not what was unstable at the last, and the largest curvature at a point overstates, up to
several times, what limits a delayed training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from abs_sgd.curvature import largest_curvatures
from abs_sgd.gradients import FlatModel
from abs_sgd.update import State, Updater, UpdateRule
from abs_sgd.weight_lengths import lengths
from abs_sgd.workloads.task import Batch, Task
from hetsim.cluster.spec import Convergence
from hetsim.convergence.noise_scale import estimate_noise
from hetsim.convergence.short_run import ShortRun
from hetsim.convergence.training_fit import Estimate, QuadraticFit, fit_quadratic
from hetsim.errors import UsageError

POINTS = 8  # of a training at which curvature and noise are measured [our choice]
FEWEST_POINTS = 3
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, normal law
KEPT_STATES = 2 * POINTS  # at most this many parameter vectors are held
CURVATURE_SAMPLES = 256  # of the batch whose Hessian is taken [our choice]
SHARES = (
    1,
    2,
    3,
    4,
    1,
    2,
    3,
    4,
)  # of the unequal batches that show the noise, in eighths of the reference batch [our choice]
NOISE_FROM = 10**9  # running number of the first sample of those: none that training sees
SEED_STRIDE = 7919  # between the seeds of the runs, the first one included: comparisons train with 0, 1, 2 ...
SAMPLES_PER_BATCH = 400  # default length of a run, in reference batches [our choice]
DONE = 0.9  # of the target: where a run ends, so that the target is crossed and not just met [our choice]

Told = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train. Empty: batches of half and twice the task's reference; the three learning rates in the middle of its grid.

    `samples`: at most so many a run (None: 400 reference batches). `seeds`: runs of each setting."""

    batches: tuple[int, ...] = ()
    learning_rates: tuple[float, ...] = ()
    momentum: float | None = None
    samples: int | None = None
    seeds: int = 3
    target_loss: float | None = None

    def of(self, task: Task) -> Settings:
        """Everything filled in from the task. Raises UsageError for what cannot be."""
        reference = task.reference_batch_samples
        rates, middle = task.learning_rates, len(task.learning_rates) // 2
        full = Settings(
            batches=self.batches or (max(1, reference // 2), 2 * reference),
            learning_rates=self.learning_rates or rates[max(0, middle - 1) : middle + 2],
            momentum=0.9 if self.momentum is None else self.momentum,
            samples=SAMPLES_PER_BATCH * reference if self.samples is None else self.samples,
            seeds=self.seeds,
            target_loss=task.target_loss if self.target_loss is None else self.target_loss,
        )
        if any(b < 1 for b in full.batches) or any(not 0 < lr < math.inf for lr in full.learning_rates):
            raise UsageError("batches and learning rates must be above 0")
        if len(set(full.batches)) < 2:
            raise UsageError("one batch size says nothing of the noise: give at least two")
        if full.seeds < 1 or full.momentum is None or not 0 <= full.momentum < 1:
            raise UsageError("at least one seed and a momentum from 0 to below 1 are needed")
        if full.target_loss is None or not 0 < full.target_loss < math.inf:
            raise UsageError(f"{task.name} has no target of its own: give the loss that counts as trained")
        if full.samples is None or full.samples < 2 * max(full.batches):
            raise UsageError(f"a run of {full.samples} samples is less than two batches of {max(full.batches)}")
        return full


@dataclass(frozen=True, kw_only=True)
class Point:
    """The noise at one point of a training: tr Σ, and over |G|² in samples (None where |G|² drowned in it)."""

    samples: int
    loss: float
    trace: float
    noise: float | None


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The fit, what was measured on the way, and what the runs took."""

    quadratic: QuadraticFit
    curvature: Estimate
    weight_square: Estimate | None
    noise_scale: Estimate
    min_updates: Estimate
    points: tuple[Point, ...]
    runs: tuple[ShortRun, ...]
    settings: Settings
    samples_trained: int

    def convergence(self, task: str) -> Convergence:
        """The constants as a profile states them."""
        v = self.quadratic.values
        return Convergence(
            initial_loss=_short(self.quadratic.initial_loss),
            floor_loss=_short(v["floor_loss"].value),
            target_loss=self.quadratic.target_loss,
            curvature=_short(v["curvature"].value),
            exponent=_short(v["exponent"].value),
            directions=max(2, round(v["directions"].value)),
            noise=_short(v["noise"].value),
            noise_power=_short(v["noise_power"].value),
            largest_curvature=_short(self.quadratic.steepest),
            min_updates=_short(self.min_updates.value),
            noise_scale_samples=_short(self.noise_scale.value),
            weight_square=None if self.weight_square is None else _short(self.weight_square.value),
            source=f"fitted to {len(self.runs)} short runs of S-SGD on {task}, {self.samples_trained:,} samples in all; "
            f"updates to the target off by {self.quadratic.residual_at_target:.0%} rms there",
        )


def fit(task: Task, settings: Settings | None = None, *, told: Told | None = None) -> Fitted:
    """Train, measure, fit. `told(text, done, total)` hears of progress.

    Raises UsageError where the runs are too short, diverge, or say nothing of the noise."""
    asked = (settings or Settings()).of(task)
    assert asked.target_loss is not None
    plan = [(b, lr, s) for s in range(asked.seeds) for b in asked.batches for lr in asked.learning_rates]
    runs: list[ShortRun] = []
    points: list[Point] = []
    curvatures: list[float] = []
    squares: list[float] = []
    probed = min(asked.batches), max(asked.learning_rates)
    for number, (batch, rate, seed) in enumerate(plan):
        if told is not None:
            told(f"batch {batch}, learning rate {rate:g}", number, len(plan))
        states = _States() if (batch, rate) == probed else None
        runs.append(train(task, batch, rate, asked, seed=SEED_STRIDE * (seed + 1), states=states))
        if states is not None:
            usable = [each for each in states.spread() if math.isfinite(each[1])]
            if len(usable) >= FEWEST_POINTS:
                places = [parameters_P for *_, parameters_P in usable]
                found = lengths(task, places, probes(task, batch))
                squares += [] if found.square is None else [found.square]
                curvatures.append(mean_curvature(task, places, found.ratios))
                points += [measure(task, *each) for each in usable]
    if not curvatures or min(curvatures) <= 0:
        raise UsageError(
            f"the runs are too short to measure on: fewer than {FEWEST_POINTS} evaluations of the loss at a curvature above 0"
        )
    curvature = _median(curvatures)
    square = _median(squares) if squares else None
    quadratic = fit_quadratic(
        runs,
        target_loss=asked.target_loss,
        largest=curvature.value,
        weight_square=None if square is None else square.value,
    )
    noise = _noise_scale(points)
    return Fitted(
        quadratic=quadratic,
        curvature=curvature,
        weight_square=square,
        noise_scale=noise,
        min_updates=_min_updates(runs, quadratic, noise.value),
        points=tuple(points),
        runs=tuple(runs),
        settings=asked,
        samples_trained=sum(int(run.updates[-1]) * run.batch_samples for run in runs),
    )


def train(
    task: Task,
    batch: int,
    learning_rate: float,
    settings: Settings,
    *,
    seed: int,
    states: _States | None = None,
) -> ShortRun:
    """One synchronous training without delay; ends at .9 of the target, where it diverges, or after `samples`."""
    assert settings.samples is not None and settings.target_loss is not None and settings.momentum is not None
    model = FlatModel(task.make_model(seed))
    model.model.train()
    updater = Updater(UpdateRule(learning_rate=learning_rate, momentum=settings.momentum))
    state = State(parameters_P=model.parameters_P.clone())
    updates, losses, due, taken = [], [], 0, 0
    while True:
        last = taken + batch > settings.samples
        if taken >= due or last:
            model.load(state.parameters_P)
            losses.append(task.evaluate(model.model))
            updates.append(taken // batch)
            due = (taken // task.evaluate_every_samples + 1) * task.evaluate_every_samples
            if states is not None:
                states.add(taken, losses[-1], state.parameters_P)
            gone = not math.isfinite(losses[-1]) or losses[-1] > 4 * losses[0] > 0
            if last or gone or losses[-1] <= DONE * settings.target_loss:
                break
        model.load(state.parameters_P)
        data = task.batch(np.arange(taken, taken + batch), seed)
        total_P = model.gradient_sum(lambda m, data=data: task.loss_sum(m, data))  # type: ignore[misc]
        state = updater.step(state, total_P, divisor=batch, samples=batch)
        taken += batch
    return ShortRun(
        batch_samples=batch,
        learning_rate=learning_rate,
        momentum=settings.momentum,
        updates=np.array(updates, np.int64),
        loss=np.nan_to_num(np.array(losses), nan=1e9, posinf=1e9),
    )


def probes(task: Task, batch: int) -> list[Batch]:
    """CURVATURE_SAMPLES in batches, of samples that the training does not see in this order."""
    ends = range(NOISE_FROM, NOISE_FROM + max(CURVATURE_SAMPLES, batch), batch)
    return [task.batch(np.arange(first, first + batch), 0) for first in ends]


def mean_curvature(task: Task, points: Sequence[Tensor], ratios: Sequence[float]) -> float:
    """The largest curvature of the mean Hessian over parameter vectors, on samples that the training does not see in this order; each as at
    the length that its weights began with: a Hessian falls with their squared norm, which has grown by `ratios`."""
    models = []
    for parameters_P in points:
        models.append(FlatModel(task.make_model(0)))
        models[-1].load(parameters_P)
    probe = task.batch(np.arange(NOISE_FROM, NOISE_FROM + CURVATURE_SAMPLES), 0)
    return float(largest_curvatures(task, [model.model for model in models], probe, weights=ratios)[0])


def measure(task: Task, samples: int, loss: float, parameters_P: Tensor) -> Point:
    """The noise at one point, from unequal batches of samples that the training does not see in this order."""
    model = FlatModel(task.make_model(0))
    model.model.train()
    model.load(parameters_P)
    squares, sizes, at = [], [], NOISE_FROM
    total_P: Tensor | None = None
    for share in SHARES:
        size = max(2, share * task.reference_batch_samples // 2)
        data = task.batch(np.arange(at, at + size), 0)
        sum_P = model.gradient_sum(lambda m, data=data: task.loss_sum(m, data))  # type: ignore[misc]
        squares.append(float(sum_P.double().square().sum()))
        sizes.append(size)
        total_P = sum_P if total_P is None else total_P + sum_P
        at += size
    assert total_P is not None
    found = estimate_noise(squares, sizes, float(total_P.double().square().sum()))
    assert found.trace is not None
    return Point(samples=samples, loss=loss, trace=found.trace, noise=found.scale)


class _States:
    """Parameters on the way: all of them, then every second, every fourth ... so that memory stays bounded."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, float, Tensor]] = []
        self.step = 1
        self.seen = 0

    def add(self, samples: int, loss: float, parameters_P: Tensor) -> None:
        if self.seen % self.step == 0:
            self.kept.append((samples, loss, parameters_P.clone()))
            if len(self.kept) > KEPT_STATES:
                self.kept = self.kept[::2]
                self.step *= 2
        self.seen += 1

    def spread(self) -> list[tuple[int, float, Tensor]]:
        """POINTS of them, evenly, the first and last included."""
        count = min(POINTS, len(self.kept))
        return [self.kept[round(i)] for i in np.linspace(0, len(self.kept) - 1, count).tolist()]


def _median(values: Sequence[float]) -> Estimate:
    """The median and its standard error, 1.2533 σ / sqrt(n) (normal law); none from a single value."""
    if len(values) < 2:
        return Estimate(value=float(values[0]), error=None, reason="a single value")
    error = MEDIAN_ERROR * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(value=float(np.median(values)), error=error)


def _noise_scale(points: Sequence[Point]) -> Estimate:
    """The median over the points: the scale grows while the loss falls, and single estimates scatter widely."""
    scales = [p.noise for p in points if p.noise is not None]
    if not scales:
        raise UsageError(
            "the gradient is lost in its noise at every point: no noise scale; a larger reference batch may show it"
        )
    return _median(scales)


def _min_updates(runs: Sequence[ShortRun], fitted: QuadraticFit, noise: float) -> Estimate:
    """S_min so that S = S_min (1 + B_n/B) gives the fewest updates of each batch to the target, in the mean of the logarithms.

    Where no run got there, to the lowest loss of the runs: then it is too small, and the fit says that it extrapolates."""
    level = np.array([max(fitted.target_loss, fitted.lowest_loss)])
    fewest: dict[int, list[float]] = {}
    for run in runs:
        met = float(run.crossings(level)[0])
        if math.isfinite(met):
            fewest.setdefault(run.batch_samples, []).append(met)
    logs = [math.log(min(each) / (1.0 + noise / batch)) for batch, each in fewest.items()]
    mean = math.exp(float(np.mean(logs)))
    if len(logs) < 2:
        return Estimate(value=mean, error=None, reason="a single batch got there")
    return Estimate(value=mean, error=mean * float(np.std(logs, ddof=1)) / math.sqrt(len(logs)))


def _short(value: float) -> float:
    return float(f"{value:.5g}")
