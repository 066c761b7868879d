"""The short way of a cell: a few hundred updates simulated, the rest from their steady state.

1. every algorithm is simulated over `UPDATES` updates and tuned on the steady state of their last two thirds (`hetsim.convergence.steady`),
   over the grid of `hetsim.tuning`
2. where that meets the target within what was simulated, the simulated schedule is tuned as `compare` does it: exactly
3. seconds and samples follow from the mean period of the window; how far an algorithm is followed is `compare`'s rule (`hetsim.contest`)

What tuning finds depends on delays and noise alone and not on seconds, so it is kept by their numbers: in a sweep over bandwidths most
algorithms are tuned once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Cluster
from hetsim.contest import FAIR, MOST, PATIENCE, Task, first_length
from hetsim.convergence.constants import NODES, WorkloadConstants, constants_of
from hetsim.convergence.doubling import after, soonest
from hetsim.convergence.nqm import JOINT_NODES
from hetsim.convergence.predictor import Setting
from hetsim.convergence.progress import Progress, progress_of
from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.steady import Steady, steady_state
from hetsim.labels import Contender
from hetsim.simulate import Result, simulate
from hetsim.tuning import (
    COARSE,
    EXTENSION,
    FINE,
    LOWEST,
    STEP,
    TRIES,
    Crossing,
    crossing,
    end_of,
    momenta,
    predict,
    tune,
)

UPDATES = 160  # simulated of every algorithm [our choice]: what this costs in accuracy stands in docs/sweeps.md
ROUNDS = 48  # of those that average parameters [our choice]
ENDING = 2  # points at the end of a run that are no part of its steady state
STEADY, FULL = "steady", "full"
KEPT = 4096  # tunings kept per process [our choice]


@dataclass(frozen=True, kw_only=True)
class Short:
    """What one algorithm gave: the run, the setting, the crossing if there is one, and how it was found (`FULL`: as `compare` finds it)."""

    result: Result
    setting: Setting | None
    crossing: Crossing | None
    method: str


def is_short(cluster: Cluster, predictor: str) -> bool:
    """Whether a cluster has a steady state that the short way finds: nothing changes while it runs, and the noise does not depend on the
    loss."""
    network = cluster.network
    links = [*network.links, *network.node_links.values()]
    links += [link for link in (network.intra_node, network.server) if link is not None]
    changes = any(w.slowdowns or w.trace for w in cluster.workers) or any(link.changes for link in links)
    known = constants_of(cluster.workload)
    return predictor == "nqm" and not changes and not cluster.training.warmup_updates and not known.nqm.noise_power


def short(
    task: Task, contender: Contender, seed: int, setting: Setting | None = None, best_s: float = math.inf
) -> Short | None:
    """One algorithm on one seed, tuned, or at a setting found on another seed; None where no steady state is known.

    It is followed as far as `compare` would where another takes `best_s`, and by less than as far again.
    """
    cluster = task.cluster
    algorithm = contender.algorithm(cluster.options)
    averaging = algorithm.name == "local-sgd"
    result = simulate(cluster, algorithm, seed=seed, updates=ROUNDS if averaging else UPDATES, verify=False)
    points = progress_of(result.schedule)
    window = steady_window(points, cluster)
    steady = None if window is None else steady_state(result.schedule, cluster.training, window)
    if window is None or steady is None:
        return None
    known = constants_of(cluster.workload)
    raw = known.ratio(task.target.value)
    line = _Line.through(points, window)
    most = allowed(task, best_s, line.samples_per_point / line.s_per_point) / line.samples_per_point
    found = tuned(steady, cluster, known, raw, most) if setting is None else at(steady, known, raw, most, setting)
    if found is None:
        return None
    best, updates = found
    if updates <= len(points.time_s):
        exact = _exact(task, result, seed, setting)
        if exact is not None:
            return exact
    met = line.crossing(updates) if math.isfinite(updates) else None
    return Short(result=result, setting=best, crossing=met, method=STEADY)


def _exact(task: Task, result: Result, seed: int, setting: Setting | None) -> Short | None:
    """The simulated schedule alone, as `compare` does it; None where it does not meet the target."""
    schedule, cluster, model = result.schedule, task.cluster, task.model()
    if setting is None:
        found = tune(model, schedule, cluster, task.target, seed=seed)
        best, met = found.setting, found.crossing
    else:
        (curve,) = predict(model, schedule, cluster, [setting], task.target, seed=seed)
        best, met = setting, crossing(curve, task.target, end_of(schedule))
    return None if met is None else Short(result=result, setting=best, crossing=met, method=FULL)


def allowed(task: Task, best_s: float, samples_per_s: float) -> float:
    """Samples over which `compare` would follow an algorithm, where the fastest takes `best_s` (infinite: none is there yet)."""
    limit = task.cluster.training.max_samples
    if not math.isfinite(best_s):
        return float(limit)
    patient = max(FAIR * best_s * samples_per_s, min(PATIENCE * best_s * samples_per_s, limit))
    return max(min(patient, MOST * limit), first_length(task))


# ---- the window --------------------------------------------------------------------------------------------------------------------------


def steady_window(points: Progress, cluster: Cluster) -> tuple[int, int] | None:
    """Points [begin, end) without start and end of the run: whole epochs where two ends of epochs lie in it, for the batch at the end of an
    epoch is smaller. None for a run too short."""
    begin, end = len(points.samples) // 3, len(points.samples) - ENDING
    if end - begin < 8:
        return None
    total = np.cumsum(points.samples)
    ends = np.flatnonzero(total % cluster.workload.dataset_samples == 0) + 1
    ends = ends[(ends >= begin) & (ends <= end)]
    return (
        (int(ends[0]), int(ends[-1])) if len(ends) >= 2 and ends[-1] - ends[0] >= (end - begin) // 2 else (begin, end)
    )


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Seconds and samples of later points, by the means of the window from its end on."""

    point: int
    at_s: float
    at_samples: float
    s_per_point: float
    samples_per_point: float

    @classmethod
    def through(cls, points: Progress, window: tuple[int, int]) -> _Line:
        begin, end = window
        samples: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(points.samples)))
        seconds = np.concatenate(([0.0], points.time_s))
        return cls(
            point=end,
            at_s=float(seconds[end]),
            at_samples=float(samples[end]),
            s_per_point=float(seconds[end] - seconds[begin]) / (end - begin),
            samples_per_point=float(samples[end] - samples[begin]) / (end - begin),
        )

    def crossing(self, updates: float) -> Crossing:
        further = updates - self.point
        return Crossing(
            seconds=self.at_s + further * self.s_per_point,
            samples=self.at_samples + further * self.samples_per_point,
            updates=math.ceil(updates),
        )


# ---- tuning ------------------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _quadratic(known: WorkloadConstants, nodes: int) -> Quadratic:
    return known.nqm.quadratic(nodes)


Found = tuple[Setting, float]
Score = tuple[tuple[float, float, float, float], Setting]
_tunings: OrderedDict[tuple[object, ...], Found | None] = OrderedDict()


def tuned(steady: Steady, cluster: Cluster, known: WorkloadConstants, ratio: float, most: float) -> Found | None:
    """The setting that is at the target soonest, else the one with the lowest loss, and its updates; by the grid of `hetsim.tuning`."""
    octaves = math.ceil(math.log2(max(most, 1.0)))
    key = (steady.key, known, ratio, momenta(cluster), octaves)
    if key in _tunings:
        _tunings.move_to_end(key)
    else:
        _tunings[key] = _Search(steady, known, ratio, 2.0**octaves).run(momenta(cluster))
        if len(_tunings) > KEPT:
            _tunings.popitem(last=False)
    return _tunings[key]


def at(steady: Steady, known: WorkloadConstants, ratio: float, most: float, setting: Setting) -> Found | None:
    """Updates of one setting."""
    search = _Search(steady, known, ratio, 2.0 ** math.ceil(math.log2(max(most, 1.0))))
    search.settings([setting], JOINT_NODES)
    search.find_phase()
    search.best = {}
    search.settings([setting], search.fine)
    return search.found()


class _Search:
    """Tries settings and remembers the best of each momentum, on the lattice of `hetsim.tuning.Tuner`.

    First every other rate of the coarse grid on a coarse spectrum, further where the best lies at an edge; then, at the phase where the
    loss of the best is lowest, its neighbours on the coarse grid, and last the lattice points around the best. Time to target has one
    minimum in the learning rate, so that rates far from it can be left out.
    """

    def __init__(self, steady: Steady, known: WorkloadConstants, ratio: float, most: float) -> None:
        self.steady, self.known, self.ratio, self.most = steady, known, ratio, most
        self.fine = NODES if steady.plan is not None else JOINT_NODES
        self.lowest = LOWEST / _quadratic(known, NODES).largest_curvature
        self.best: dict[float, Score] = {}
        self.phase = 0

    def run(self, at: Sequence[float]) -> Found | None:
        """The whole search."""
        step, low, high = 2 * FINE, 0, (COARSE - 1) * FINE
        if self.steady.updates > 1:  # a first look, for the phase
            self.points(range(low, high + 1, 2 * step), [sorted(at)[len(at) // 2]], JOINT_NODES)
            self.find_phase()
            self.best = {}
        self.points(range(low, high + 1, step), at, JOINT_NODES)
        for _ in range(TRIES):
            if not self.best or low < self.point() < high:
                break
            wider = EXTENSION * FINE
            span = range(low - wider, low, step) if self.point() <= low else range(high + step, high + wider + 1, step)
            self.points(span, at, JOINT_NODES)
            low, high = min(low, span[0]), max(high, span[-1])
        if not self.best:
            return None
        self.find_phase()
        centres = {momentum: self.point(momentum) for momentum in self.best}
        self.best = {}
        near = [(c + offset, momentum) for momentum, c in centres.items() for offset in (-FINE, 0, FINE)]
        self.settings([self.setting(point, momentum) for point, momentum in near], self.fine)
        centre = self.point()
        around = [p for p in range(centre - FINE + 1, centre + FINE) if p != centre]
        self.points(around, [self.top[1].momentum], self.fine)
        return self.found()

    def found(self) -> Found | None:
        """The best setting and its updates."""
        return (self.top[1], self.top[0][0]) if self.best else None

    @property
    def top(self) -> Score:
        """The best of all."""
        return min(self.best.values(), key=lambda score: score[0])

    def point(self, momentum: float | None = None) -> int:
        """Where on the lattice the best is, of all or at one momentum."""
        setting = (self.top if momentum is None else self.best[momentum])[1]
        return round(FINE * math.log(setting.learning_rate / self.lowest) / math.log(STEP))

    def points(self, points: Sequence[int], at: Sequence[float], nodes: int) -> None:
        """Try lattice points at some momenta."""
        self.settings([self.setting(point, momentum) for point in points for momentum in at], nodes)

    def setting(self, point: int, momentum: float) -> Setting:
        """A point of the lattice."""
        return Setting(learning_rate=self.lowest * STEP ** (point / FINE), momentum=momentum)

    def settings(self, settings: Sequence[Setting], nodes: int) -> None:
        """Try settings on a spectrum of so many nodes."""
        rates, at = (np.array([getattr(s, name) for s in settings]) for name in ("learning_rate", "momentum"))
        quadratic, period = _quadratic(self.known, nodes), self.steady.updates
        maps = self.steady.maps(quadratic, rates, at, self.phase)
        if maps is None:
            return
        found = soonest(maps, quadratic, len(settings), self.ratio * quadratic.initial_loss, self.most / period)
        for setting, periods, loss in zip(settings, found.periods.tolist(), found.loss.tolist(), strict=True):
            key = (periods * period, 0.0 if math.isfinite(periods) else loss, setting.momentum, setting.learning_rate)
            if setting.momentum not in self.best or key < self.best[setting.momentum][0]:
                self.best[setting.momentum] = key, setting

    def find_phase(self) -> None:
        """Where in the period the loss is lowest when the best setting is near the target."""
        if self.steady.updates == 1 or not self.best:
            return
        (updates, *_), chosen = self.top
        quadratic, self.phase = _quadratic(self.known, JOINT_NODES), 0
        maps = self.steady.maps(quadratic, np.array([chosen.learning_rate]), np.array([chosen.momentum]))
        if maps is not None:
            reached = updates if math.isfinite(updates) else self.most
            moments = after(maps, quadratic, 1, max(1, int(reached // self.steady.updates)))
            self.phase = self.steady.lowest_phase(quadratic, chosen.learning_rate, chosen.momentum, moments)
