"""Tuning: the learning rate and momentum that reach the target soonest, from the same lattice for every algorithm.

The lattice is geometric, four points per step of the coarse grid. The coarse grid (geomspace(1e-3, 4, 25) x momenta) is tried first; where
its best lies at an edge it is extended on that side; then the lattice points around the best are tried. A predictor that trains
for real brings its own, smaller grid (`settings(cluster)`) and is asked once. All of it on one Schedule, that of the first seed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.cluster.spec import Cluster
from hetsim.convergence.predictor import Curve, Predictor, Setting, Target
from hetsim.schedule.table import Schedule

COARSE = 25  # learning rates between LOWEST and HIGHEST: the grid of the reference tables
LOWEST, HIGHEST = 1e-3, 4.0
STEP = (HIGHEST / LOWEST) ** (1.0 / (COARSE - 1))
FINE = 4  # lattice points per coarse step, 9 % apart
EXTENSION = 8  # coarse steps, a factor of 16, added at an edge that holds the best; at most TRIES times [our choice]
TRIES = 3
MOMENTA = (0.0, 0.5, 0.9)  # without, and with less for methods whose delay makes momentum dear [our choice]
SLACK = 1.1  # a setting that took 10 % more updates than another cannot be the best


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best setting and its curve. `setting` is None where the predictor gives the same for all; `at_edge`: a wider grid may hold better."""

    setting: Setting | None
    curve: Curve
    seconds: float
    at_edge: bool = False


def learning_rate(point: int) -> float:
    """The lattice, point 0 the coarse grid's lowest."""
    return float(LOWEST * STEP ** (point / FINE))


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
    accepted = inspect.signature(predictor.curves).parameters
    early = {"target": target.value, "slack": slack}
    return predictor.curves(
        schedule, cluster, settings, seed=seed, **{key: value for key, value in early.items() if key in accepted}
    )


class Tuner:
    """Tries settings on one Schedule and remembers the best: soonest at the target, else the lowest loss at the end."""

    def __init__(self, predictor: Predictor, schedule: Schedule, cluster: Cluster, target: Target, seed: int) -> None:
        self.predictor, self.schedule, self.cluster, self.target, self.seed = predictor, schedule, cluster, target, seed
        self.best: tuple[tuple[float, float, float, float], Setting, Curve] | None = None
        self.scores: set[tuple[float, float]] = set()

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

    def points(self, points: Sequence[int], at: Sequence[float]) -> None:
        """Try lattice points at some momenta."""
        self.settings([Setting(learning_rate=learning_rate(p), momentum=m) for p in points for m in at])

    def _score(self, curve: Curve) -> tuple[float, float]:
        met = curve.crossing(self.target.value)
        if met is not None:
            return met[1], 0.0
        return math.inf, math.inf if curve.diverged or not len(curve.loss) else float(curve.loss[-1])

    def result(self, at_edge: bool) -> Tuned:
        """What was found."""
        assert self.best is not None
        key, setting, curve = self.best
        indifferent = len(self.scores) == 1 and math.isfinite(key[0])
        return Tuned(
            setting=None if indifferent else setting, curve=curve, seconds=key[0], at_edge=at_edge and not indifferent
        )

    @property
    def chosen(self) -> Setting:
        """The best so far."""
        assert self.best is not None
        return self.best[1]


def tune(predictor: Predictor, schedule: Schedule, cluster: Cluster, target: Target, *, seed: int) -> Tuned:
    """The best setting for one Schedule."""
    tuner = Tuner(predictor, schedule, cluster, target, seed)
    own = getattr(predictor, "settings", None)
    if own is not None:
        grid: list[Setting] = own(cluster)
        tuner.settings(grid)
        rates = {s.learning_rate for s in grid}
        return tuner.result(len(rates) > 1 and tuner.chosen.learning_rate in (min(rates), max(rates)))
    low, high = 0, (COARSE - 1) * FINE
    tuner.points(range(low, high + 1, FINE), momenta(cluster))
    if len(tuner.scores) == 1:
        return tuner.result(False)
    for _ in range(TRIES):
        point = _point(tuner.chosen)
        if low < point < high:
            break
        wider = EXTENSION * FINE
        span = range(low - wider, low, FINE) if point <= low else range(high + FINE, high + wider + 1, FINE)
        tuner.points(span, momenta(cluster))
        low, high = min(low, span[0]), max(high, span[-1])
    centre = _point(tuner.chosen)
    fine = [p for p in range(centre - FINE + 1, centre + FINE) if p != centre]
    tuner.points(fine, momenta(cluster))
    return tuner.result(not low < _point(tuner.chosen) < high)


def _point(setting: Setting) -> int:
    return round(FINE * math.log(setting.learning_rate / LOWEST) / math.log(STEP))
