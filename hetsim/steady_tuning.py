"""Tuning on a steady state: the grid of `hetsim.tuning`, each setting judged by the powers of one linear map.

What is found depends on delays and noise alone and not on seconds, so it is kept by their numbers: where only bandwidth or speeds change,
most algorithms are tuned once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hetsim.cluster.spec import Cluster
from hetsim.convergence.constants import NODES, WorkloadConstants
from hetsim.convergence.doubling import after, soonest
from hetsim.convergence.nqm import JOINT_NODES
from hetsim.convergence.predictor import Setting
from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.steady import Steady
from hetsim.kept import Kept
from hetsim.tuning import COARSE, EXTENSION, FINE, LOWEST, STEP, TRIES, momenta

KEPT = 4096  # tunings kept per process [our choice]


@lru_cache(maxsize=64)
def quadratic_of(known: WorkloadConstants, nodes: int) -> Quadratic:
    """The model of a workload on so many nodes."""
    return known.nqm.quadratic(nodes)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A setting, the updates it takes to the target (infinite: not reached), and how far into a period they are counted from."""

    setting: Setting
    updates: float
    phase: int


Score = tuple[tuple[float, float, float, float], Setting]
_tunings: Kept[Found | None] = Kept(KEPT)


def tuned(steady: Steady, cluster: Cluster, known: WorkloadConstants, ratio: float, most: float) -> Found | None:
    """The setting that is at the target soonest, else the one with the lowest loss, and its updates; by the grid of `hetsim.tuning`."""
    octaves = math.ceil(math.log2(max(most, 1.0)))
    key = (steady.key, known, ratio, momenta(cluster), octaves)
    return _tunings.get(key, lambda: _Search(steady, known, ratio, 2.0**octaves).run(momenta(cluster)))


def at(steady: Steady, known: WorkloadConstants, ratio: float, most: float, setting: Setting) -> Found | None:
    """Updates of one setting."""
    search = _Search(steady, known, ratio, 2.0 ** math.ceil(math.log2(max(most, 1.0))))
    search.settings([setting], JOINT_NODES)
    search.find_phase()
    search.best = {}
    search.settings([setting], search.fine)
    return search.found()


def nodes_of(steady: Steady) -> int:
    """Nodes of the spectrum on which the engines that run whole schedules work."""
    return NODES if steady.plan is not None else JOINT_NODES


class _Search:
    """Tries settings and remembers the best of each momentum, on the lattice of `hetsim.tuning.Tuner`.

    First every other rate of the coarse grid on a coarse spectrum, further where the best lies at an edge; then, at the phase where the
    loss of the best is lowest, its neighbours on the coarse grid, and last the lattice points around the best. Time to target has one
    minimum in the learning rate, so that rates far from it can be left out.
    """

    def __init__(self, steady: Steady, known: WorkloadConstants, ratio: float, most: float) -> None:
        self.steady, self.known, self.ratio, self.most = steady, known, ratio, most
        self.fine = nodes_of(steady)
        self.lowest = LOWEST / quadratic_of(known, NODES).largest_curvature
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
        if not self.best:
            return None
        return Found(setting=self.top[1], updates=self.top[0][0], phase=self.phase)

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
        quadratic, period = quadratic_of(self.known, nodes), self.steady.updates
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
        quadratic, self.phase = quadratic_of(self.known, JOINT_NODES), 0
        maps = self.steady.maps(quadratic, np.array([chosen.learning_rate]), np.array([chosen.momentum]))
        if maps is not None:
            reached = updates if math.isfinite(updates) else self.most
            moments = after(maps, quadratic, 1, max(1, int(reached // self.steady.updates)))
            self.phase = self.steady.lowest_phase(quadratic, chosen.learning_rate, chosen.momentum, moments)
