"""The recorder: one packed row per operation, in the order in which things happened.

`struct.pack_into` into a fixed block costs a fifth of a microsecond per row and no conversion afterwards (appending to Python lists
and converting costs twice that), which is what lets the full Schedule be recorded at simulation speed. What always comes together is
kept together and only taken apart by `columns`, in numpy: a worker that joins a transfer at the end of a gradient leaves both in one
row, and the waits that end in one release are one record.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.errors import ProgramError, RunTooLongError
from hetsim.schedule.kinds import Kind, WaitCause

DTYPE = np.dtype(
    [
        ("kind", "<i1"),
        ("worker", "<i4"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("state", "<i4"),
        ("parent", "<i4"),
        ("source", "<i4"),
        ("slot", "<i4"),
        ("samples", "<i8"),
        ("first", "<i8"),
        ("scale", "<f8"),
        ("code", "<i1"),
    ]
)  # the columns of a Schedule
ROW = struct.Struct("<ddqqiiiidibbxx")  # a row in the making, every field aligned
_PLACES = {
    "start_s": 0,
    "end_s": 8,
    "samples": 16,
    "first": 24,
    "worker": 32,
    "state": 36,
    "slot": 40,
    "source": 44,
    "scale": 48,
    "parent": 56,
    "kind": 60,
    "code": 61,
}
RAW = np.dtype(
    {
        "names": list(_PLACES),
        "formats": [DTYPE[name] for name in _PLACES],
        "offsets": list(_PLACES.values()),
        "itemsize": ROW.size,
    }
)
GRAD = struct.Struct("<ddqqiii")  # the fields up to `slot`; the others are in the block as a gradient has them
BLANK = ROW.pack(0.0, 0.0, 0, 0, -1, -1, -1, -1, 1.0, -1, Kind.GRAD, 0)
# A worker that joins a transfer at the end of a gradient: the transfer and the samples of the JOIN go into the GRAD row, in
# `source` and `scale`, which a gradient has no use for.
JOINED = struct.Struct("<id")
JOINED_AT = _PLACES["source"]
BLOCK_ROWS = 2_048  # 128 kB: what `columns` takes apart stays in the second-level cache
MOST_BLOCKS_AT_ONE_INSTANT = (
    1_024  # [our choice] 2 million rows without the clock moving: 200 for each of 10,000 workers
)
MOST_ROWS = 16_000_000  # [our choice] twice what 100 updates of 10,000 workers take; checking so many takes some 3 GB


class Log:
    """Rows of one run as they happen; `columns()` gives them as one contiguous array per column.

    `block`, `at` and `flush` are open to the runtime's inner loop, which packs its rows in place.
    """

    def __init__(self, workers: int, most: int | None = None) -> None:
        self._most = MOST_ROWS if most is None else most
        self._blocks: list[NDArray[Any]] = []
        self._blank = BLANK * BLOCK_ROWS
        self.block = bytearray(self._blank)
        self.at = 0
        self.end = ROW.size * BLOCK_ROWS
        self.polls = [bytearray() for _ in range(workers)]
        self.outcomes = [array("d") for _ in range(workers)]
        # row it comes before, time, source, cause, how many wake
        self._releases: list[tuple[int, float, int, int, int]] = []
        self._released = array("i")
        self._since = array("d")
        self._causes: dict[tuple[int, int], str] = {}

    def add(
        self,
        kind: int,
        worker: int,
        start_s: float,
        end_s: float,
        state: int = -1,
        parent: int = -1,
        source: int = -1,
        slot: int = -1,
        samples: int = 0,
        first: int = 0,
        scale: float = 1.0,
        code: int = 0,
    ) -> None:
        """Append one row; see `hetsim.schedule.kinds` for the meaning of the columns."""
        ROW.pack_into(
            self.block, self.at, start_s, end_s, samples, first, worker, state, slot, source, scale, parent, kind, code
        )
        self.at += ROW.size
        if self.at == self.end:
            self.flush()

    def flush(self) -> None:
        """Put the full block aside. Raises RunTooLongError where a run leaves more than memory should hold."""
        if len(self) + len(self._released) > self._most:
            raise RunTooLongError(self._most)
        rows = np.frombuffer(bytes(memoryview(self.block)[: self.at]), dtype=RAW)
        since = self._blocks[-MOST_BLOCKS_AT_ONE_INSTANT] if len(self._blocks) >= MOST_BLOCKS_AT_ONE_INSTANT else None
        if since is not None and len(rows) and since["end_s"][0] == rows["end_s"][-1]:
            raise ProgramError(
                f"{MOST_BLOCKS_AT_ONE_INSTANT * BLOCK_ROWS:,} operations at {rows['end_s'][-1]:.6g} s without the clock moving: "
                "passes that take no time cannot wait for a network that does"
            )
        self._blocks.append(rows)
        self.block[:] = self._blank
        self.at = 0

    def released(
        self, now_s: float, source: int, ranks: array[int], since_s: list[float], cause: int, causes: dict[int, str]
    ) -> None:
        """Many workers wake at once: kept as one record, expanded into WAIT rows at this place by `columns`."""
        place = len(self._blocks) * BLOCK_ROWS + self.at // ROW.size
        for rank, why in causes.items():
            self._causes[len(self._releases), rank] = why
        self._releases.append((place, now_s, source, cause, len(ranks)))
        self._released += ranks
        self._since.extend(since_s)

    def _waits(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Row positions and WAIT rows of all releases."""
        if not self._releases:
            return np.zeros(0, np.int64), np.zeros(0, RAW)
        *columns, counts = (np.array(column) for column in zip(*self._releases, strict=True))
        place, now_s, source, cause = (np.repeat(column, counts) for column in columns)
        rows = np.zeros(len(place), RAW)
        rows["kind"], rows["end_s"] = Kind.WAIT, now_s
        rows["worker"], rows["start_s"] = self._released, self._since
        rows["state"] = rows["parent"] = rows["slot"] = -1
        rows["source"], rows["scale"], rows["code"] = source, 1.0, cause
        if self._causes:
            begin = np.concatenate(([0], np.cumsum(counts)))
            for (release, rank), why in self._causes.items():
                mine = slice(begin[release], begin[release + 1])
                rows["code"][mine][rows["worker"][mine] == rank] = WaitCause[why.upper()]
        real = rows["end_s"] > rows["start_s"]
        return place[real].astype(np.int64), rows[real]

    def __len__(self) -> int:
        """Rows packed so far; what `columns` gives has more."""
        return len(self._blocks) * BLOCK_ROWS + self.at // ROW.size

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column as a contiguous array, rows in the order of `seq`. The log is emptied on the way to save memory."""
        self.flush()
        places, waits = self._waits()
        blocks, self._blocks = self._blocks[::-1], []
        total = len(waits) + sum(len(block) + int(np.count_nonzero(_joined(block))) for block in blocks)
        out = {name: np.empty(total, DTYPE[name]) for name in DTYPE.names or ()}
        done = packed = woven = 0
        while blocks:
            block = blocks.pop()
            last = len(waits) if not blocks else int(np.searchsorted(places, packed + len(block)))
            rows = _apart(block, places[woven:last] - packed, waits[woven:last])
            for name, column in out.items():
                column[done : done + len(rows)] = rows[name]
            done, packed, woven = done + len(rows), packed + len(block), last
        return out


def _joined(block: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are a gradient with the JOIN that follows it."""
    return np.asarray((block["kind"] == Kind.GRAD) & (block["source"] >= 0))


def _apart(block: NDArray[Any], places: NDArray[np.int64], waits: NDArray[Any]) -> NDArray[Any]:
    """The rows of a block one by one: JOIN after its GRAD, waits before the row they are placed at."""
    size, joined = len(block), _joined(block)
    joins_before = np.concatenate(([0], np.cumsum(joined)))
    if not joins_before[-1] and not len(waits):
        return block
    waits_before = np.cumsum(np.bincount(places, minlength=size + 1))[:size]
    own = np.arange(size) + joins_before[:-1] + waits_before
    joins = own[joined] + 1
    order = np.empty(size + len(joins) + len(waits), np.intp)
    order[own] = np.arange(size)
    order[joins] = np.flatnonzero(joined)
    order[places + joins_before[places] + np.arange(len(waits))] = size + np.arange(len(waits))
    words = np.concatenate((_words(block), _words(waits)))  # moved as whole rows, not field by field
    rows = words.take(order, axis=0).reshape(-1).view(RAW)
    rows["kind"][joins] = Kind.JOIN
    rows["start_s"][joins] = rows["end_s"][joins]
    rows["samples"][joins] = rows["scale"][joins]
    rows["state"][joins] = -1
    rows["first"][joins] = 0
    rows["source"][joins - 1] = -1
    rows["scale"][joins - 1] = rows["scale"][joins] = 1.0
    return rows


def _words(rows: NDArray[Any]) -> NDArray[np.int64]:
    return rows.view(np.int64).reshape(-1, ROW.size // 8)
