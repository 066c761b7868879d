"""Runs that are as long as it takes to know their period.

An algorithm is simulated over some updates; while batch means (`hetsim.batch_means`) do not put the period within a hundredth, again over
more of them, the same run from its start, until that takes too long.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hetsim.cluster.spec import Cluster, Training
from hetsim.convergence.progress import progress_of
from hetsim.errors import RunTooLongError
from hetsim.kept import Kept
from hetsim.labels import Contender
from hetsim.schedule.table import Schedule
from hetsim.simulate import Result
from hetsim.steady_run import Line, beginning, steady_window

WITHIN = 0.01  # ± share of the period that is good enough
FIRST_UPDATES, FIRST_ROUNDS = (
    96,
    36,
)  # of the first try [our choice]: more than a pattern (`hetsim.convergence.steady`), and its start
SERVED = 160, 320  # the same at a parameter server, and at most there [our choice]: a tenth of a second or two
WORK = 2_400  # updates times workers that are simulated at most elsewhere, unless the first try has more [our choice]
GROWTH = 1.5, 4.0  # the next try is at least and at most this many times as long [our choice]
RUNS = 32  # schedules kept per process, a megabyte or some each [our choice]
TIMED = ("global_batch_samples", "micro_batch_samples")  # what of training decides when things happen

_schedules: Kept[Schedule] = Kept(RUNS)


def run_of(cluster: Cluster, contender: Contender, seed: int, profile_yaml: str = "") -> Result:
    """One algorithm simulated until its period is known; its Schedule carries the profile.

    Kept by what time depends on: a learning rate, a momentum or a target changes nothing when things happen."""
    training = replace(Training(), **{name: getattr(cluster.training, name) for name in TIMED})
    timed = replace(cluster, name="", description="", sources={}, training=training)
    schedule = _schedules.get(
        (repr(timed), contender.label, seed), lambda: until_known(cluster, contender, seed).schedule
    )
    carrying = replace(schedule, header=replace(schedule.header, profile_yaml=profile_yaml))
    return Result(carrying, cluster, contender.algorithm(cluster.options), seed)


def until_known(cluster: Cluster, contender: Contender, seed: int) -> Result:
    """One algorithm simulated until its period is known within `WITHIN`, or as far as `WORK` and `SERVED` go.

    Raises RunTooLongError where already the first updates take more operations than a short run has (`hetsim.steady_run.beginning`).
    """
    algorithm = contender.algorithm(cluster.options)
    updates, most = FIRST_ROUNDS if algorithm.counts_rounds else FIRST_UPDATES, WORK // cluster.n
    if algorithm.has_server:
        updates, most = SERVED
    known: Result | None = None
    while True:
        try:
            known = beginning(cluster, algorithm, seed, updates)
        except RunTooLongError:
            if known is None:
                raise
            return known
        points = progress_of(known.schedule)
        window = steady_window(points, cluster)
        error = None if window is None else Line.through(points, window).error
        if (error is not None and error <= WITHIN) or updates >= most:
            return known
        least, largest = GROWTH
        wanted = least if error is None else 1.2 * (error / WITHIN) ** 2  # the error falls with the root of the updates
        updates = min(most, math.ceil(updates * min(max(wanted, least), largest)))
