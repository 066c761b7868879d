"""Where a Schedule's curve has its points: every update of a sequence, or every averaging of replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule


@dataclass(frozen=True, eq=False)
class Progress:
    """T points after the start: when, samples since the point before, and steps each replica took since then.

    `rows` are the rows of the Schedule that reach the points; `averaging` says that the points are averages of replicas.
    """

    rows: NDArray[np.int64]
    time_s: NDArray[np.float64]
    samples: NDArray[np.int64]
    steps: NDArray[np.float64]
    averaging: bool


def progress_of(schedule: Schedule) -> Progress:
    """The points of a Schedule: its updates where there are any, else its averages (first replica to have each)."""
    updates = schedule.updates
    mixes = schedule.rows(Kind.MIX)
    if len(updates) and not len(mixes):
        return Progress(updates.row, updates.time_s, updates.samples, np.ones(len(updates)), False)
    _, first = np.unique(schedule.source[mixes], return_index=True)
    rows = mixes[np.sort(first)].astype(np.int64)
    steps = schedule.rows(Kind.STEP)
    samples = np.concatenate(([0], np.cumsum(schedule.samples[steps])))
    number = np.concatenate(([0], np.arange(1, len(steps) + 1)))
    at = np.searchsorted(steps, rows)
    per_replica = np.diff(number[at], prepend=0) / max(len(np.unique(schedule.worker[steps])), 1)
    return Progress(rows, schedule.end_s[rows], np.diff(samples[at], prepend=0), np.maximum(per_replica, 1e-12), True)
