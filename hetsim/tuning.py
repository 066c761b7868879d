"""Tuning: the learning rate and momentum that reach the target soonest, from the same lattice for every algorithm.

The lattice is geometric, four points per step of the coarse grid. The coarse grid (lr·h = geomspace(1e-3, 4, 25), h the largest curvature
known of the workload, x momenta) is tried first; where its best lies at an edge it is extended on that side; then the lattice points
around the best are tried at its momentum. A predictor that trains for real brings its own, smaller grid (`settings(cluster)`) and is
asked once. All of it on one Schedule, that of the first seed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim.cluster.spec import Cluster
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Curve, Predictor, Setting, Target
from hetsim.convergence.progress import progress_of
from hetsim.schedule.table import Schedule

COARSE = (
    25  # learning rates between LOWEST/h and HIGHEST/h: the grid of the reference tables, past every stability bound
)
LOWEST, HIGHEST = 1e-3, 4.0
STEP = (HIGHEST / LOWEST) ** (1.0 / (COARSE - 1))
FINE = 4  # lattice points per coarse step, 9 % apart
EXTENSION = 8  # coarse steps, a factor of 16, added at an edge that holds the best; at most TRIES times [our choice]
TRIES = 3
MOMENTA = (0.0, 0.5, 0.9)  # without, and with less for methods whose delay makes momentum dear [our choice]
SLACK = 1.1  # a setting that took 10 % more updates than another cannot be the best


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where a curve meets the target: seconds and samples interpolated, updates the first at or below it."""

    seconds: float
    samples: float
    updates: int


def end_of(schedule: Schedule) -> int:
    """Samples at the last point of the schedule's curve."""
    return int(progress_of(schedule).samples.sum())


def crossing(curve: Curve, target: Target, end_samples: int) -> Crossing | None:
    """None where the target is never met, or only by the run's last point.

    The batch or round at the end of the samples is a torso, and the loss after it says nothing of a run that goes on: with a few local
    steps instead of many it may fall by half.
    """
    met = curve.crossing(target.value)
    if met is None:
        return None
    first = int(np.flatnonzero(curve.loss <= target.value)[0])
    if first and curve.samples[first] >= end_samples:
        return None
    return Crossing(seconds=met[1], samples=met[0], updates=int(curve.updates[first]))


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best setting and its curve.

    `setting` is None where the predictor gives the same for all. `at_edge`: a wider grid may hold better. `fall`: the lowest loss of any
    setting half-way, over the lowest at the end.
    """

    setting: Setting | None
    curve: Curve
    crossing: Crossing | None
    at_edge: bool = False
    fall: float = 1.0


def momenta(cluster: Cluster) -> tuple[float, ...]:
    """Those of the grid and the profile's own."""
    return tuple(sorted({*MOMENTA, cluster.training.momentum}))


def predict(
    predictor: Predictor,
    schedule: Schedule,
    cluster: Cluster,
    settings: Sequence[Setting],
    target: Target,
    *,
    seed: int,
    slack: float | None = None,
) -> list[Curve]:
    """The predictor's curves, ended at the target where the predictor can do that."""
    early = {"target": target.value, "slack": slack} if takes_target(predictor) else {}
    return predictor.curves(schedule, cluster, settings, seed=seed, **early)


def takes_target(predictor: Predictor) -> bool:
    """Whether its curves can end at a target given by the caller (keywords `target` and `slack`)."""
    return {"target", "slack"} <= inspect.signature(predictor.curves).parameters.keys()


class Tuner:
    """Tries settings on one Schedule and remembers the best: soonest at the target, else the lowest loss at the end."""

    def __init__(self, predictor: Predictor, schedule: Schedule, cluster: Cluster, target: Target, seed: int) -> None:
        self.predictor, self.schedule, self.cluster, self.target, self.seed = predictor, schedule, cluster, target, seed
        self.lowest = LOWEST / constants_of(cluster.workload).nqm.quadratic().largest_curvature
        self.best: tuple[tuple[float, float, float, float], Setting, Curve] | None = None
        self.scores: set[tuple[float, float]] = set()
        self.half_way = math.inf
        self.end_samples = end_of(schedule)

    def settings(self, settings: Sequence[Setting]) -> None:
        """Try settings."""
        curves = predict(
            self.predictor, self.schedule, self.cluster, settings, self.target, seed=self.seed, slack=SLACK
        )
        for setting, curve in zip(settings, curves, strict=True):
            score = self._score(curve)
            self.scores.add(score)
            key = (*score, setting.momentum, setting.learning_rate)  # ties go to less momentum and the lower rate
            if self.best is None or key < self.best[0]:
                self.best = key, setting, curve
            if not curve.diverged and len(curve.loss):
                self.half_way = min(self.half_way, float(curve.loss[len(curve.loss) // 2]))

    def points(self, points: Sequence[int], at: Sequence[float]) -> None:
        """Try lattice points at some momenta."""
        rates = [self.lowest * STEP ** (point / FINE) for point in points]
        self.settings([Setting(learning_rate=rate, momentum=m) for rate in rates for m in at])

    def _score(self, curve: Curve) -> tuple[float, float]:
        met = crossing(curve, self.target, self.end_samples)
        if met is not None:
            return met.seconds, 0.0
        return math.inf, math.inf if curve.diverged or not len(curve.loss) else float(curve.loss[-1])

    def result(self, at_edge: bool) -> Tuned:
        """What was found."""
        assert self.best is not None
        (seconds, loss, *_), setting, curve = self.best
        indifferent = self.indifferent and math.isfinite(seconds)
        return Tuned(
            setting=None if indifferent else setting,
            curve=curve,
            crossing=crossing(curve, self.target, self.end_samples),
            at_edge=at_edge and not indifferent,
            fall=self.half_way / loss if 0.0 < loss < self.half_way < math.inf else 1.0,
        )

    @property
    def indifferent(self) -> bool:
        """Every setting gave the same."""
        return len(self.scores) == 1

    @property
    def reached(self) -> bool:
        """Some setting reached the target."""
        return self.best is not None and math.isfinite(self.best[0][0])

    @property
    def chosen(self) -> Setting:
        """The best so far."""
        assert self.best is not None
        return self.best[1]

    @property
    def point(self) -> int:
        """Where on the lattice that is."""
        return round(FINE * math.log(self.chosen.learning_rate / self.lowest) / math.log(STEP))


def tune(
    predictor: Predictor, schedule: Schedule, cluster: Cluster, target: Target, *, seed: int, last: bool = True
) -> Tuned:
    """The best setting for one Schedule. Unless it is the `last`, the search ends where the coarse grid misses the target."""
    tuner = Tuner(predictor, schedule, cluster, target, seed)
    own = getattr(predictor, "settings", None)
    if own is not None:
        grid: list[Setting] = own(cluster)
        tuner.settings(grid)
        rates = {s.learning_rate for s in grid}
        return tuner.result(len(rates) > 1 and tuner.chosen.learning_rate in (min(rates), max(rates)))
    low, high = 0, (COARSE - 1) * FINE
    tuner.points(range(low, high + 1, FINE), momenta(cluster))
    if tuner.indifferent or not (last or tuner.reached):
        return tuner.result(False)
    for _ in range(TRIES):
        if low < tuner.point < high:
            break
        wider = EXTENSION * FINE
        span = range(low - wider, low, FINE) if tuner.point <= low else range(high + FINE, high + wider + 1, FINE)
        tuner.points(span, momenta(cluster))
        low, high = min(low, span[0]), max(high, span[-1])
    centre = tuner.point
    at_edge = not low < centre < high
    if tuner.reached or last:
        tuner.points([p for p in range(centre - FINE + 1, centre + FINE) if p != centre], [tuner.chosen.momentum])
    return tuner.result(at_edge)
