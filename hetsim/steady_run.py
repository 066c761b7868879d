"""A run by its steady state: some hundred updates simulated, the rest from what they keep doing.

1. every algorithm is simulated over a few hundred updates; the last two thirds of them are the steady state (`hetsim.convergence.steady`)
2. a setting is judged, and the best one found, by the powers of one linear map (`hetsim.steady_tuning`)
3. where that meets the target within what was simulated, the simulated schedule is tuned as `compare` does it: exactly
4. seconds and samples follow from the mean period of the window; how far an algorithm is followed is `compare`'s rule (`hetsim.contest`)

`hetsim.sweeps` computes its cells so, `hetsim.quick` whole comparisons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.algorithms.base import Algorithm
from hetsim.batch_means import relative_error
from hetsim.cluster.spec import Cluster
from hetsim.contest import FAIR, MOST, PATIENCE, Task, first_length
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Curve, Setting
from hetsim.convergence.progress import Progress, progress_of
from hetsim.convergence.steady import Steady, steady_state
from hetsim.errors import RunTooLongError
from hetsim.labels import Contender
from hetsim.simulate import Result, simulate
from hetsim.steady_tuning import Found, at, tuned
from hetsim.tuning import Crossing, crossing, end_of, predict, tune

UPDATES = 160  # simulated of every algorithm [our choice]: what this costs in accuracy stands in docs/sweeps.md
ROUNDS = 48  # of those that average parameters [our choice]
MOST_ROWS, ROWS_EACH = 300_000, 40  # [our choice] a second or two; of a worker's update it is ten or so as a rule
ENDING = 2  # points at the end of a run that are no part of its steady state
STEADY, FULL = "steady", "full"


@dataclass(frozen=True, kw_only=True)
class Short:
    """What one algorithm gave: the run, the setting, the crossing if there is one, and how it was found (`FULL`: as `compare` finds it).

    `curve` where the setting was judged on the simulated schedule; `phase`: see `hetsim.steady_tuning.Found`.
    """

    result: Result
    setting: Setting | None
    crossing: Crossing | None
    method: str
    curve: Curve | None = None
    phase: int = 0
    at_edge: bool = False


def is_short(cluster: Cluster, predictor: str) -> bool:
    """Whether a cluster has a steady state that the short way finds: nothing changes while it runs, the noise does not depend on the loss,
    and no weights lengthen."""
    network = cluster.network
    links = [*network.links, *network.node_links.values()]
    links += [link for link in (network.intra_node, network.server) if link is not None]
    changes = any(w.slowdowns or w.trace for w in cluster.workers) or any(link.changes for link in links)
    known = constants_of(cluster.workload).nqm
    steady = not known.noise_power and known.weight_square is None
    return predictor == "nqm" and not changes and not cluster.training.warmup_updates and steady


def first_updates(algorithm: Algorithm) -> int:
    """How many updates tell enough: fewer where an update is a round of local steps."""
    return ROUNDS if algorithm.counts_rounds else UPDATES


def beginning(cluster: Cluster, algorithm: Algorithm, seed: int, updates: int) -> Result:
    """The first updates. Raises RunTooLongError where they are no short run: workers compute on for very long during one transfer."""
    most = MOST_ROWS + ROWS_EACH * updates * cluster.n
    return simulate(cluster, algorithm, seed=seed, updates=updates, verify=False, most_rows=most)


def short(
    task: Task, contender: Contender, seed: int, setting: Setting | None = None, best_s: float = math.inf
) -> Short | None:
    """One algorithm on one seed, tuned, or at a setting found on another seed; None where no steady state is known, or not soon.

    It is followed as far as `compare` would where another takes `best_s`, and by less than as far again.
    """
    algorithm = contender.algorithm(task.cluster.options)
    try:
        result = beginning(task.cluster, algorithm, seed, first_updates(algorithm))
    except RunTooLongError:
        return None
    run = SteadyRun.of(task, result)
    return None if run is None else run.follow(seed, setting, best_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class SteadyRun:
    """A short run and the steady state of its last two thirds."""

    task: Task
    result: Result
    points: Progress
    steady: Steady
    line: Line

    @classmethod
    def of(cls, task: Task, result: Result) -> SteadyRun | None:
        """None where no steady state is known."""
        points = progress_of(result.schedule)
        window = steady_window(points, task.cluster)
        steady = None if window is None else steady_state(result.schedule, task.cluster.training, window)
        if window is None or steady is None:
            return None
        return cls(task=task, result=result, points=points, steady=steady, line=Line.through(points, window))

    def most(self, best_s: float) -> float:
        """Updates over which it is followed, where another algorithm takes `best_s`."""
        line = self.line
        return allowed(self.task, best_s, line.samples_per_point / line.s_per_point) / line.samples_per_point

    def at(self, updates: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Samples and seconds after so many updates: as simulated up to the end of the window, by the line beyond."""
        line, points = self.line, self.points
        further = np.maximum(updates - line.point, 0)
        inside = np.minimum(updates, line.point)
        samples = np.concatenate(([0.0], np.cumsum(points.samples)))[inside] + further * line.samples_per_point
        return samples, np.concatenate(([0.0], points.time_s))[inside] + further * line.s_per_point

    def follow(self, seed: int, setting: Setting | None = None, best_s: float = math.inf) -> Short | None:
        """Tuned, or at one setting; None where the steady state does not close on itself."""
        cluster, most = self.task.cluster, self.most(best_s)
        known = constants_of(cluster.workload)
        raw = known.ratio(self.task.target.value)
        found: Found | None
        if setting is None:
            found = tuned(self.steady, cluster, known, raw, most)
        else:
            found = at(self.steady, known, raw, most, setting)
        if found is None:
            return None
        if found.updates <= len(self.points.time_s):
            exact = self._exact(seed, setting)
            if exact is not None:
                return exact
        met = self.line.crossing(found.updates) if math.isfinite(found.updates) else None
        return Short(result=self.result, setting=found.setting, crossing=met, method=STEADY, phase=found.phase)

    def _exact(self, seed: int, setting: Setting | None) -> Short | None:
        """The simulated schedule alone, as `compare` does it; None where it does not meet the target."""
        task, schedule = self.task, self.result.schedule
        if setting is None:
            best = tune(task.model(), schedule, task.cluster, task.target, seed=seed)
            if best.crossing is None:
                return None
            return Short(
                result=self.result,
                setting=best.setting,
                crossing=best.crossing,
                method=FULL,
                curve=best.curve,
                at_edge=best.at_edge,
            )
        (curve,) = predict(task.model(), schedule, task.cluster, [setting], task.target, seed=seed)
        met = crossing(curve, task.target, end_of(schedule))
        if met is None:
            return None
        return Short(result=self.result, setting=setting, crossing=met, method=FULL, curve=curve)


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
class Line:
    """Seconds and samples of later points, by the means of the window from its end on; `error`: ± share of the seconds per point."""

    point: int
    at_s: float
    at_samples: float
    s_per_point: float
    samples_per_point: float
    error: float | None

    @classmethod
    def through(cls, points: Progress, window: tuple[int, int]) -> Line:
        """The line from the end of a window on."""
        begin, end = window
        samples: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(points.samples)))
        seconds = np.concatenate(([0.0], points.time_s))
        return cls(
            point=end,
            at_s=float(seconds[end]),
            at_samples=float(samples[end]),
            s_per_point=float(seconds[end] - seconds[begin]) / (end - begin),
            samples_per_point=float(samples[end] - samples[begin]) / (end - begin),
            error=relative_error(seconds[begin : end + 1]),
        )

    def crossing(self, updates: float) -> Crossing:
        """Where it is after so many points, a fraction of one included."""
        further = updates - self.point
        return Crossing(
            seconds=max(0.0, self.at_s + further * self.s_per_point),  # before the first update, rounding may go below
            samples=max(0.0, self.at_samples + further * self.samples_per_point),
            updates=math.ceil(updates),
        )
