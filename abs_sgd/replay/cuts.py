"""Where a replay can be cut in two: rows of the log at which a checkpoint is written.

All ranks follow the log's one order. Cut after row R, each has done its operations up to R and none of those behind it, so every
transfer was launched by all of its members or by none. What is in flight then is waited for and belongs to the cut.

    updates   0 ──── 1 ──── 2 ──── 3 ──── 4 ──── 5      a cut after every second one:
    rank 0    ggg LA ggg LA ggg │LA ggg LA ggg │LA      each rank comes to it when it does
    rank 1    g   LA g   LA g   │LA g   LA g   │LA
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abs_sgd.replay.plan import Mix, Pass, Step, make_plan
from hetsim.schedule import Kind, Schedule


@dataclass(frozen=True, kw_only=True)
class Cut:
    """After the row that first makes the parameters of `update` updates."""

    update: int
    row: int
    time_s: float


def lead_rows(schedule: Schedule) -> list[int]:
    """Rows that first make a state of the sequence that is trained: steps on transfers, and averages of the first worker."""
    made_by_all = (schedule.kind == Kind.STEP) & (schedule.source >= 0)
    averages = (schedule.kind == Kind.MIX) & (schedule.worker == 0)
    rows = np.flatnonzero(made_by_all | averages)
    _, first = np.unique(schedule.state[rows], return_index=True)
    return [int(row) for row in rows[np.sort(first)]]


def cuts(schedule: Schedule, every: int) -> list[Cut]:
    """A cut wherever the number of updates reaches or passes the next multiple of `every` (0: none)."""
    if every < 1:
        return []
    updates = updates_behind(schedule)
    found: list[Cut] = []
    done = 0
    for row in lead_rows(schedule):
        update = updates[int(schedule.state[row])]
        if update // every > done // every:
            found.append(Cut(update=update, row=row, time_s=float(schedule.end_s[row])))
            done = update
    return found


def updates_behind(schedule: Schedule) -> dict[int, int]:
    """How many updates lie behind every state, as its `Progress` counts them."""
    updates = {0: 0}
    for action in make_plan(schedule, fused=False).actions:
        if isinstance(action, Pass):
            continue
        updates[action.state] = updates.get(action.parent, 0)
        if isinstance(action, Step):
            updates[action.state] += action.samples > 0 and action.divisor > 0
        elif isinstance(action, Mix):
            updates[action.state] = max(updates[action.state], *(updates.get(state, 0) for state, _ in action.parts), 0)
    return updates
