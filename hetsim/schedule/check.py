"""The invariants every Schedule keeps, predicted or measured, checked when it is built or loaded.

columns   of one length, every code and number known, the ids that a row needs are there
samples   every one handed out is in exactly one applied update, still in flight at the end, or discarded with a reason; ranges are
          disjoint, without gaps, and never cross an epoch's end
causality nothing uses a gradient or parameters before they were computed
clock     rows end in order; a worker does one thing at a time; what it does covers its time from 0 on without gap or overlap
sums      an update's samples are those of its contributions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import DiscardReason, JoinRule, Kind, MixRule, Payload, PointRule, StepRule, WaitCause
from hetsim.schedule.log import DTYPE

if TYPE_CHECKING:
    from hetsim.schedule.table import Schedule

OUTER = ("learning_rate", "momentum", "fragments")
MOST_SAMPLES = 2**53  # sums of them are exact in float64, and far from where int64 wraps round


@dataclass(frozen=True, kw_only=True)
class SampleAccount:
    """Where the samples went; the three parts sum to `handed_out`."""

    handed_out: int
    applied: int
    in_flight: int
    discarded: int


def check(schedule: Schedule) -> SampleAccount:
    """Raise ScheduleError at the first broken invariant; return where the samples went."""
    check_columns(schedule)
    check_clock(schedule)
    check_ranges(schedule)
    check_causality(schedule)
    return account(schedule)


def _fail(rows: NDArray[Any], text: str) -> None:
    if len(rows):
        raise ScheduleError(f"row {int(rows[0])}: {text}" + (f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""))


_IDS = {  # what a row of each kind cannot do without
    Kind.GRAD: ("state", "slot"),
    Kind.JOIN: ("source",),
    Kind.REDUCE: ("source",),
    Kind.STEP: ("state", "parent"),
    Kind.MIX: ("state", "parent", "source"),
    Kind.COPY: ("state", "source"),
    Kind.PREDICT: ("state", "parent", "source"),
}
_CODES = {
    Kind.JOIN: JoinRule,
    Kind.REDUCE: Payload,
    Kind.STEP: StepRule,
    Kind.MIX: MixRule,
    Kind.PREDICT: PointRule,
    Kind.DISCARD: DiscardReason,
    Kind.WAIT: WaitCause,
}


def check_columns(s: Schedule) -> None:
    """Every number is one that can stand there, so that what follows (and every executor) may index with it."""
    if s.header.dataset_samples < 1 or not s.n:
        raise ScheduleError("a schedule needs workers and a data set with samples")
    if s.header.dataset_samples > MOST_SAMPLES:
        raise ScheduleError(f"a data set of more than {MOST_SAMPLES:,} samples")
    lengths = {len(getattr(s, name)) for name in DTYPE.names or ()}
    if len(lengths) != 1:
        raise ScheduleError(f"columns of unequal length: {sorted(lengths)}")
    if lengths == {0}:
        raise ScheduleError("a schedule without a single operation")
    _fail(np.flatnonzero((s.kind < 0) | (s.kind > max(Kind))), "a kind of row that is not known")
    _fail(np.flatnonzero((s.worker < -1) | (s.worker > s.n - (not s.header.server))), "no such worker")
    _fail(np.flatnonzero((s.worker < 0) & (s.kind != Kind.REDUCE)), "done by nobody")
    _fail(np.flatnonzero(~np.isfinite(s.scale)), "a weight that is not finite")
    _fail(np.flatnonzero(s.samples < 0), "fewer than no samples")
    _fail(
        np.flatnonzero((s.samples > MOST_SAMPLES) | (s.first > MOST_SAMPLES) | (s.first < -MOST_SAMPLES)),
        "more samples than can be counted",
    )
    for name in ("state", "parent", "source", "slot"):
        column = getattr(s, name)
        _fail(np.flatnonzero(column < -1), f"{name} below -1")
        _fail(np.flatnonzero(column > len(s)), f"{name} beyond what so few rows can number")
    _check_outer(s)
    for kind, names in _IDS.items():
        rows = s.rows(kind)
        for name in names:
            _fail(rows[getattr(s, name)[rows] < 0], f"{kind.name} without its {name}")
    for kind, codes in _CODES.items():
        rows = s.rows(kind)
        _fail(rows[(s.code[rows] < 0) | (s.code[rows] > max(codes))], f"{kind.name} with a code that is not known")


def _check_outer(s: Schedule) -> None:
    """Averages by an outer optimizer say what it is, and are of a fragment that there is."""
    mixes = s.rows(Kind.MIX)
    outer = mixes[s.code[mixes] == MixRule.OUTER]
    if not len(outer):
        return
    try:
        rate, momentum, fragments = (float(s.header.outer[name]) for name in OUTER)
    except (KeyError, TypeError, ValueError):
        raise ScheduleError(f"averages by an outer optimizer without its {', '.join(OUTER)}") from None
    if not (0 <= rate <= 1e6 and 0 <= momentum < 1 and fragments == int(fragments) and 1 <= fragments <= 1e6):
        raise ScheduleError(
            f"no outer optimizer: learning rate {rate:g}, momentum {momentum:g}, {fragments:g} fragments"
        )
    _fail(outer[(s.first[outer] < 0) | (s.first[outer] >= fragments)], "no such fragment")


def check_clock(s: Schedule) -> None:
    """Rows end in order, nothing ends before it starts, and every worker's spans abut exactly."""
    _fail(np.flatnonzero(~(np.isfinite(s.start_s) & np.isfinite(s.end_s))), "a time is not finite")
    _fail(np.flatnonzero(s.end_s < s.start_s), "ends before it starts")
    _fail(np.flatnonzero(np.diff(s.end_s) < 0) + 1, "ends before the row above it: the clock runs backwards")
    spans = np.flatnonzero(
        (s.kind == Kind.GRAD)
        | (s.kind == Kind.WAIT)
        | ((s.worker >= 0) & (s.kind != Kind.REDUCE) & (s.end_s > s.start_s))
    )
    spans = spans[s.worker[spans] < s.n]
    order = spans[np.lexsort((spans, s.worker[spans]))]
    same = s.worker[order][1:] == s.worker[order][:-1]
    _fail(order[1:][same & (s.start_s[order][1:] < s.end_s[order][:-1])], "a worker does two things at once")
    if s.header.origin == "predicted":
        _fail(order[:1][s.start_s[order[:1]] > 0], "time of a worker is unaccounted for")
        _fail(order[1:][~same & (s.start_s[order][1:] > 0)], "time of a worker is unaccounted for")
        _fail(order[1:][same & (s.start_s[order][1:] > s.end_s[order][:-1])], "time of a worker is unaccounted for")


def check_ranges(s: Schedule) -> None:
    """Sample ranges are disjoint and without gaps, positive, and stay within one epoch."""
    grads = s.rows(Kind.GRAD)
    if not len(grads):
        return
    first, count = s.first[grads], s.samples[grads]
    _fail(grads[count <= 0], "a gradient over no samples")
    order = np.argsort(first, kind="stable")
    if first[order[0]] < 0:
        _fail(grads[order[:1]], "a sample number below 0")
    gap = first[order][1:] - (first + count)[order][:-1]
    _fail(grads[order[1:][gap < 0]], "samples handed out twice")
    size = s.header.dataset_samples
    _fail(grads[first // size != (first + count - 1) // size], "a range crosses the end of an epoch")
    if s.header.origin == "predicted":
        _fail(grads[order[:1][first[order[:1]] > 0]], "samples before this range were never computed")
        _fail(grads[order[1:][gap > 0]], "samples before this range were never computed")


def check_causality(s: Schedule) -> None:
    """Gradients are computed before they are used, once; parameters exist before they are read."""
    slots = int(s.slot.max(initial=-1)) + 1
    grads = s.rows(Kind.GRAD)
    last_row = np.full(slots, -1, np.int64)
    last_row[s.slot[grads]] = grads  # later rows overwrite earlier ones
    owner = np.full(slots, -1, np.int64)
    owner[s.slot[grads]] = s.worker[grads]
    _fail(grads[owner[s.slot[grads]] != s.worker[grads]], "an accumulator of two workers")
    steps = s.rows(Kind.STEP)
    joins = s.rows(Kind.JOIN)
    discards = s.rows(Kind.DISCARD)
    users = np.concatenate([joins[s.slot[joins] >= 0], steps[s.slot[steps] >= 0], discards[s.slot[discards] >= 0]])
    _fail(users[last_row[s.slot[users]] < 0], "uses a gradient that was never computed")
    _fail(users[last_row[s.slot[users]] > users], "uses a gradient before it is complete")
    used = np.bincount(s.slot[users], minlength=slots) if slots else np.zeros(0)
    _fail(users[used[s.slot[users]] > 1] if slots else users[:0], "a gradient is used twice")

    makes = np.flatnonzero(np.isin(s.kind, (Kind.STEP, Kind.MIX, Kind.PREDICT)))
    states = int(max(s.state.max(initial=0), s.parent.max(initial=0))) + 1
    born_row = np.full(states, np.iinfo(np.int64).max)
    np.minimum.at(born_row, s.state[makes], makes)
    born_row[0] = -1
    reads = np.flatnonzero((s.kind == Kind.GRAD) | (s.kind == Kind.COPY) | ((s.kind == Kind.JOIN) & (s.state >= 0)))
    _fail(reads[born_row[s.state[reads]] >= reads], "reads parameters that do not exist yet")
    _fail(makes[born_row[s.parent[makes]] >= makes], "starts from parameters that do not exist yet")
    born_s = np.where(born_row < len(s), s.start_s[np.clip(born_row, 0, max(len(s) - 1, 0))], 0.0)
    born_s[0] = -np.inf
    _fail(grads[s.start_s[grads] < born_s[s.state[grads]]], "takes a gradient at parameters from the future")

    sources = int(s.source.max(initial=-1)) + 1
    reduces = s.rows(Kind.REDUCE)
    done_row = np.full(sources, np.iinfo(np.int64).max)
    done_row[s.source[reduces]] = reduces
    applies = np.concatenate([steps[s.source[steps] >= 0], s.rows(Kind.MIX)])
    _fail(applies[done_row[s.source[applies]] > applies], "applies a transfer before it is complete")
    late = joins[done_row[s.source[joins]] < joins]
    _fail(late, "joins a transfer that is already complete")


def account(s: Schedule) -> SampleAccount:
    """Where the samples went. Raises where an update's total is not the sum of its contributions."""
    u = s.updates
    if len(u):
        if np.any(np.diff(np.sort(u.source)) == 0):
            raise ScheduleError("a transfer is applied in two different updates")
        parts = np.diff(np.concatenate(([0], np.cumsum(u.part_samples)))[u.begin])  # an update may have none
        _fail(u.row[parts != u.samples], "an update's samples are not those of its contributions")
    grads = s.rows(Kind.GRAD)
    slots = int(s.slot.max(initial=-1)) + 1
    computed = (
        np.bincount(s.slot[grads], weights=s.samples[grads], minlength=slots).astype(np.int64)
        if slots
        else np.zeros(0, np.int64)
    )
    users = np.flatnonzero(((s.kind == Kind.JOIN) | (s.kind == Kind.STEP) | (s.kind == Kind.DISCARD)) & (s.slot >= 0))
    _fail(users[computed[s.slot[users]] != s.samples[users]], "hands over other samples than were computed")
    own = s.rows(Kind.STEP)
    applied = int(u.samples.sum()) + int(s.samples[own[s.source[own] < 0]].sum())
    discards = s.rows(Kind.DISCARD)
    discarded = int(s.samples[discards].sum())
    handed_out = int(s.samples[grads].sum())
    in_flight = handed_out - applied - discarded
    if in_flight < 0:
        raise ScheduleError(f"{-in_flight} samples more were applied or discarded than handed out")
    return SampleAccount(handed_out=handed_out, applied=applied, in_flight=in_flight, discarded=discarded)
