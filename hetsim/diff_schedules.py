"""Where two Schedules part: the first row that differs in anything, and the first that does something else, whenever it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hetsim import wording
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule

TIMES = ("start_s", "end_s")
COLUMNS = ("kind", "worker", *TIMES, "state", "parent", "source", "slot", "samples", "first", "scale", "code")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One row: `columns` that differ, as (a, b), and the row of each side in words; None where a side has ended."""

    row: int
    columns: Mapping[str, tuple[float, float]]
    a: str | None
    b: str | None


@dataclass(frozen=True, kw_only=True)
class Parted:
    """`first`: the first row that differs; `first_operation`: the first that differs in more than its times; None where none does."""

    rows_a: int
    rows_b: int
    same: bool
    first: Difference | None
    first_operation: Difference | None


def parted(a: Schedule, b: Schedule) -> Parted:
    """Row by row, in the order of the log."""
    first = _difference(a, b, COLUMNS)
    operation = _difference(a, b, tuple(name for name in COLUMNS if name not in TIMES))
    return Parted(rows_a=len(a), rows_b=len(b), same=first is None, first=first, first_operation=operation)


def _difference(a: Schedule, b: Schedule, columns: tuple[str, ...]) -> Difference | None:
    both = min(len(a), len(b))
    row = both
    for name in columns:
        unlike = np.flatnonzero(getattr(a, name)[:row] != getattr(b, name)[:row])
        row = int(unlike[0]) if len(unlike) else row
    if row == both and len(a) == len(b):
        return None
    values = (
        {name: (float(getattr(a, name)[row]), float(getattr(b, name)[row])) for name in COLUMNS} if row < both else {}
    )
    unequal = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    return Difference(row=row, columns=unequal, a=described(a, row), b=described(b, row))


def described(s: Schedule, row: int) -> str | None:
    """`grad of a, 16 samples from 320 on, 1.2 s to 1.3 s`; None past the end."""
    if row >= len(s):
        return None
    kind, worker = Kind(int(s.kind[row])), int(s.worker[row])
    who = "all" if worker < 0 else "the server" if worker >= s.n else s.header.workers[worker]
    samples = int(s.samples[row])
    what = f", {samples:,} samples" if samples else ""
    what += f" from {int(s.first[row]):,} on" if kind is Kind.GRAD else ""
    start, end = float(s.start_s[row]), float(s.end_s[row])
    when = f"at {wording.seconds(start)}" if start == end else f"{wording.seconds(start)} to {wording.seconds(end)}"
    return f"{kind.name.lower()} of {who}{what}, {when}"
