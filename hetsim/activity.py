"""What each worker did in a stretch of a run: it computed, it had nothing to do while bytes travelled, or it waited for somebody.

    spans    one after the other, for a drawing
    shares   summed up by worker, for a table

A wait for a collective is a wait for the last to join until that one has, and for the network from then on; both are told apart here as
`hetsim.metrics` does, whose figures over its own window these are. Read from a Schedule alone, predicted or measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetsim.metrics import WAITS, Floats, clipped, last_joins, update_times
from hetsim.schedule.kinds import Kind, WaitCause
from hetsim.schedule.table import Schedule

Name = Literal["compute", "communication", "waiting"]
TRAVELLING = ("network", "push", "pull")  # a worker has nothing to do while its bytes are on their way
EVERYBODY = -1  # in place of a rank: collectives


@dataclass(frozen=True, kw_only=True)
class Span:
    """One stretch of one worker (rank -1: a collective, on its own). `cause`: of the idle ones, as in `metrics.WAITS`; `whom`: the rank
    that is waited for, -1 where it is none; `samples`: of a pass or a collective."""

    activity: Name
    rank: int
    start_s: float
    end_s: float
    cause: str = ""
    whom: int = -1
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Shares:
    """One worker over a window, as shares of it.

    `communication` + `waiting` are the idle time by what it is spent on (`causes`), `other` is what is left (updates, or being gone);
    `hidden`: computing while an all-reduce is under way, part of `compute`. `waits_for`: the worker it waits for longest, and how long.
    `samples`: of the passes that ended in the window.
    """

    worker: str
    compute: float
    communication: float
    waiting: float
    other: float
    hidden: float
    causes: Mapping[str, float]
    waits_for: tuple[str, float] | None
    samples: int


def update_window(schedule: Schedule, first: int, last: int) -> tuple[float, float]:
    """Seconds from the end of the update before `first` (counted from 1) to the end of `last`, within the updates that there are."""
    times, _ = update_times(schedule)
    if not len(times):
        return 0.0, schedule.horizon_s
    first = min(max(first, 1), len(times))
    last = min(max(last, first), len(times))
    return (float(times[first - 2]) if first > 1 else 0.0), float(times[last - 1])


def spans(schedule: Schedule, begin_s: float, end_s: float, ranks: Collection[int]) -> list[Span]:
    """What can be seen of these workers, and of collectives, in [begin_s, end_s], cut at its edges, in order of the log.

    Where several transfers overlap, as exchanges of pairs do, one shows from where the one before has ended.
    """
    s = schedule
    when, who = last_joins(s)
    wanted = np.isin(s.worker, [*ranks, EVERYBODY])
    seen = np.flatnonzero(wanted & (s.end_s > begin_s) & (s.start_s < end_s) & (s.end_s > s.start_s))
    out: list[Span] = []
    free_s = begin_s
    for row in seen.tolist():
        kind, rank = int(s.kind[row]), int(s.worker[row])
        start, stop = max(float(s.start_s[row]), begin_s), min(float(s.end_s[row]), end_s)
        samples = int(s.samples[row])
        if kind == Kind.GRAD:
            out.append(Span(activity="compute", rank=rank, start_s=start, end_s=stop, samples=samples))
        elif kind == Kind.REDUCE and rank == EVERYBODY:
            start, free_s = max(start, free_s), stop
            if stop > start:
                out.append(Span(activity="communication", rank=rank, start_s=start, end_s=stop, samples=samples))
        elif kind == Kind.WAIT:
            cause = WaitCause(int(s.code[row]))
            if cause == WaitCause.COLLECTIVE:
                source = int(s.source[row])
                joined, whom = float(min(max(when[source], start), stop)), int(who[source])
                out += _idle(rank, start, joined, "peers", whom) + _idle(rank, joined, stop, "network")
            else:
                out += _idle(rank, start, stop, cause.name.lower())
    return out


def _idle(rank: int, start_s: float, end_s: float, cause: str, whom: int = -1) -> list[Span]:
    if end_s <= start_s:
        return []
    activity: Name = "communication" if cause in TRAVELLING else "waiting"
    return [Span(activity=activity, rank=rank, start_s=start_s, end_s=end_s, cause=cause, whom=whom)]


def shares(schedule: Schedule, begin_s: float, end_s: float) -> list[Shares]:
    """Every worker in [begin_s, end_s]; a window of no length has no shares (all 0)."""
    s, n = schedule, schedule.n
    window = end_s - begin_s
    if window <= 0:
        return [_shares(name, 0.0, 0.0, dict.fromkeys(WAITS, 0.0), None, 0, other=0.0) for name in s.header.workers]

    def by_worker(rows: NDArray[Any], seconds: NDArray[Any]) -> Floats:
        found: Floats = np.bincount(s.worker[rows], weights=seconds, minlength=n + 1)[:n].astype(np.float64)
        return found

    grads, waits = s.rows(Kind.GRAD), s.rows(Kind.WAIT)
    waits = waits[s.worker[waits] < n]
    compute = by_worker(grads, clipped(s, grads, begin_s, end_s)) / window
    hidden = by_worker(grads, _under_way(s, grads, begin_s, end_s)) / window
    ended = grads[(s.end_s[grads] > begin_s) & (s.end_s[grads] <= end_s)]
    samples = by_worker(ended, s.samples[ended])
    causes, for_whom = _waits(s, waits, begin_s, end_s)
    out = []
    for rank, name in enumerate(s.header.workers):
        idle = {cause: float(causes[cause][rank]) / window for cause in WAITS}
        most = int(for_whom[rank].argmax())
        longest = float(for_whom[rank, most]) / window
        waits_for = (s.header.workers[most], longest) if longest > 0 else None
        out.append(_shares(name, float(compute[rank]), float(hidden[rank]), idle, waits_for, int(samples[rank])))
    return out


def _shares(
    worker: str,
    compute: float,
    hidden: float,
    causes: Mapping[str, float],
    waits_for: tuple[str, float] | None,
    samples: int,
    other: float | None = None,
) -> Shares:
    travelling = sum(causes[cause] for cause in TRAVELLING)
    waiting = sum(share for cause, share in causes.items() if cause not in TRAVELLING)
    rest = max(0.0, 1.0 - compute - travelling - waiting) if other is None else other
    return Shares(
        worker=worker,
        compute=compute,
        communication=travelling,
        waiting=waiting,
        other=rest,
        hidden=hidden,
        causes=causes,
        waits_for=waits_for,
        samples=samples,
    )


def _waits(
    s: Schedule, waits: NDArray[Any], begin_s: float, end_s: float
) -> tuple[dict[str, Floats], NDArray[np.float64]]:
    """Seconds by cause and worker, shapes (n,); and by worker and the worker that is waited for, shape (n, n)."""
    n = s.n
    when, who = last_joins(s)
    collective = waits[s.code[waits] == WaitCause.COLLECTIVE]
    source = s.source[collective]
    whole = clipped(s, collective, begin_s, end_s)
    for_peers = clipped(s, collective, begin_s, np.minimum(end_s, when[source]))

    def by_worker(rows: NDArray[Any], seconds: NDArray[Any]) -> Floats:
        found: Floats = np.bincount(s.worker[rows], weights=seconds, minlength=n).astype(np.float64)
        return found

    causes = {"peers": by_worker(collective, for_peers), "network": by_worker(collective, whole - for_peers)}
    for cause in WaitCause:
        if cause != WaitCause.COLLECTIVE:
            rows = waits[s.code[waits] == cause]
            causes[cause.name.lower()] = by_worker(rows, clipped(s, rows, begin_s, end_s))
    for_whom = np.zeros((n, n))
    named = (who[source] >= 0) & (who[source] < n)
    np.add.at(for_whom, (s.worker[collective][named], who[source][named]), for_peers[named])
    return causes, for_whom


def _under_way(s: Schedule, rows: NDArray[Any], begin_s: float, end_s: float) -> Floats:
    """Seconds of each row's span inside the window in which any collective is on the wire."""
    reduces = s.rows(Kind.REDUCE)
    reduces = reduces[s.worker[reduces] == EVERYBODY]
    if not len(reduces):
        return np.zeros(len(rows))
    order = np.argsort(s.start_s[reduces], kind="stable")
    start, end = s.start_s[reduces][order], np.maximum.accumulate(s.end_s[reduces][order])
    start = np.maximum(start, np.concatenate(([-np.inf], end[:-1])))  # what overlaps counts once
    on_wire = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, end - start))))

    def until(at: Floats) -> Floats:
        """Seconds on the wire before `at`."""
        k = np.searchsorted(start, at, side="right")
        last = np.maximum(k - 1, 0)
        inside = np.where(k > 0, np.minimum(at, end[last]) - start[last], 0.0)
        found: Floats = on_wire[last] + np.maximum(0.0, inside)
        return found

    a, b = np.maximum(s.start_s[rows], begin_s), np.minimum(s.end_s[rows], end_s)
    found: Floats = np.where(b > a, until(np.maximum(a, b)) - until(a), 0.0)
    return found
