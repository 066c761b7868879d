"""What a live run records: every rank its own rows by the wall clock, merged into one Schedule at the end.

A rank numbers states and accumulators by itself. When merged, what replicas share gets one id: the state reached from one state by one
transfer, as in the simulator. Transfers have the same number on every rank, because all launch them in the same order. Rows are ordered by
their ends; a transfer's row comes after the last rank has joined it and before anybody uses it, which a common clock gives by itself.
"""

from __future__ import annotations

import heapq
import io
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abs_sgd.runtime.clock import Time
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind, Payload, PointRule
from hetsim.schedule.log import DTYPE

Rows = NDArray[Any]
Row = tuple[Any, ...]  # a Schedule's columns in their order
NAMES = DTYPE.names or ()
KIND, WORKER, START, END, STATE, PARENT, SOURCE, SLOT, SAMPLES, FIRST, SCALE, CODE = range(len(NAMES))


@dataclass
class RankLog:
    """Rows of one rank, polls and other outcomes, and when it first saw each transfer complete."""

    rank: int
    rows: list[Row] = field(default_factory=list)
    polls: bytearray = field(default_factory=bytearray)
    outcomes: array[float] = field(default_factory=lambda: array("d"))
    seen_s: dict[int, float] = field(default_factory=dict)

    def add(
        self,
        kind: Kind,
        start: Time,
        end: Time,
        *,
        state: int = -1,
        parent: int = -1,
        source: int = -1,
        slot: int = -1,
        samples: int = 0,
        first: int = 0,
        scale: float = 1.0,
        code: int = 0,
        worker: int | None = None,
    ) -> None:
        """Append one row; see `hetsim.schedule.kinds`. Times that are not known yet must be when it is packed."""
        rank = self.rank if worker is None else worker
        self.rows.append((kind, rank, start, end, state, parent, source, slot, samples, first, scale, code))

    def sort(self) -> None:
        """Rows that several threads wrote, in the order in which they end."""
        self.rows.sort(key=lambda row: float(row[END]))

    def pack(self) -> bytes:
        """As bytes, to be sent to another rank."""
        out = io.BytesIO()
        np.savez(
            out,
            rank=np.array(self.rank),
            rows=np.array(self.rows, dtype=DTYPE),
            polls=np.frombuffer(bytes(self.polls), np.uint8),
            outcomes=np.array(self.outcomes, np.float64),
            seen=np.array(list(self.seen_s.items()), np.float64).reshape(-1, 2),
        )
        return out.getvalue()

    @staticmethod
    def unpack(data: bytes) -> RankLog:
        """What `pack` made."""
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            return RankLog(
                int(held["rank"]),
                held["rows"].tolist(),
                bytearray(held["polls"].tobytes()),
                array("d", held["outcomes"].tolist()),
                {int(number): at for number, at in held["seen"].tolist()},
            )


class _Numbers:
    """One number for each key, in the order in which they come."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._known: dict[Any, int] = {}

    def __call__(self, key: Any) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._next
            self._next += 1
        return number


class _Merge:
    def __init__(self, logs: Sequence[RankLog], *, server: bool = False) -> None:
        self.logs = logs
        self.server = server
        self.sources = _Numbers(0)
        self.states = _Numbers(1)
        self.slots = _Numbers(0)
        self.known: list[dict[int, int]] = [{0: 0, -1: -1} for _ in logs]  # per rank: its state -> everybody's
        if server:  # workers use the server's numbers
            self.known = [self.known[-1]] * len(logs)
        self.joined: dict[int, list[Row]] = {}
        self.queue: list[
            tuple[float, int, int]
        ] = []  # end, rank (-1: a transfer), place among the rank's rows or transfer
        self.reduces: dict[int, Row] = {}

    def run(self) -> list[Row]:
        out: list[Row] = []
        for log in self.logs:
            self._push(log.rank, 0)
        while self.queue:
            _, rank, place = heapq.heappop(self.queue)
            if rank < 0:
                out.append(self.reduces[place])
                continue
            row = self._renamed(rank, self.logs[rank].rows[place])
            out.append(row)
            if row[KIND] == Kind.JOIN and not self.server:
                self._join(row)
            self._push(rank, place + 1)
        return out

    def _push(self, rank: int, place: int) -> None:
        rows = self.logs[rank].rows
        if place < len(rows):
            heapq.heappush(self.queue, (rows[place][END], rank, place))

    def _join(self, row: Row) -> None:
        """After the last rank's join the transfer's own row takes its place in time."""
        number = row[SOURCE]
        joined = self.joined.setdefault(number, [])
        joined.append(row)
        seen = [log.seen_s[number] for log in self.logs if number in log.seen_s]
        if len(joined) < len(self.logs) or not seen:
            return
        start_s = max(j[END] for j in joined)
        end_s = max(start_s, min(seen))
        payload = Payload.PARAMETERS if joined[0][STATE] >= 0 else Payload.GRADIENT
        samples = sum(j[SAMPLES] for j in joined)
        self.reduces[number] = (Kind.REDUCE, -1, start_s, end_s, -1, -1, number, -1, samples, 0, 1.0, payload)
        heapq.heappush(self.queue, (end_s, -1, number))

    def _renamed(self, rank: int, row: Row) -> Row:
        fields: list[Any] = list(row)
        known = self.known[rank]
        kind, state, parent, slot = row[KIND], row[STATE], row[PARENT], row[SLOT]
        fields[PARENT] = known[parent]
        if kind in (Kind.STEP, Kind.MIX, Kind.PREDICT):
            alone: Any = None
            if kind == Kind.STEP and row[SOURCE] < 0:
                alone = rank, state
            elif kind == Kind.PREDICT and row[CODE] != PointRule.LOOK_AHEAD:
                alone = rank
            known[state] = self.states((kind, row[SOURCE], fields[PARENT], alone))
        fields[STATE] = known[state]
        if kind == Kind.MIX:
            fields[SLOT] = known[slot]
        elif slot >= 0:
            fields[SLOT] = self.slots((rank, slot))
        if self.server and row[SOURCE] >= 0:
            fields[SOURCE] = self.sources(row[SOURCE])
        return tuple(fields)

    def messages(self) -> array[float]:
        """What the server was told, by the transfers' numbers in the Schedule."""
        told = (round(each) for each in self.logs[-1].outcomes)
        return array("d", [self.sources(t) if t >= 0 else -1 - self.sources(-1 - t) for t in told])


def merge(logs: Iterable[RankLog], *, server: bool = False) -> dict[str, Any]:
    """Columns of the one Schedule of all ranks' rows, with their polls and outcomes; `server`: the last log is the server's.

    Raises ScheduleError where a rank is missing.
    """
    logs = sorted(logs, key=lambda log: log.rank)
    if [log.rank for log in logs] != list(range(len(logs))):
        raise ScheduleError(f"a run's ranks are not all there: {[log.rank for log in logs]}")
    merging = _Merge(logs, server=server)
    rows = np.array(merging.run(), dtype=DTYPE)
    columns: dict[str, Any] = {name: np.ascontiguousarray(rows[name]) for name in NAMES}
    workers = logs[:-1] if server else logs
    columns["polls"] = (*(bytes(log.polls) for log in workers), b"")
    columns["outcomes"] = (*(log.outcomes for log in workers), merging.messages() if server else array("d"))
    return columns
