"""The recorder: one packed row per operation, in the order in which things happened.

`struct.pack_into` into a fixed block costs a fifth of a microsecond per row and no conversion afterwards (appending to Python lists
and converting costs twice that), which is what lets the full Schedule be recorded at simulation speed.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.schedule.kinds import Kind, WaitCause

ROW = struct.Struct("<biddiiiiqqdb")
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
)
assert DTYPE.itemsize == ROW.size
BLOCK_ROWS = 16_384


class Log:
    """Rows of one run as they happen; `columns()` gives them as one contiguous array per column.

    `block`, `at` and `flush` are open to the runtime's inner loop, which packs its rows in place.
    """

    def __init__(self, workers: int) -> None:
        self._blocks: list[NDArray[Any]] = []
        self.block = bytearray(ROW.size * BLOCK_ROWS)
        self.at = 0
        self.end = ROW.size * BLOCK_ROWS
        self.polls = [bytearray() for _ in range(workers)]
        self.outcomes = [array("d") for _ in range(workers)]
        self._releases: list[tuple[int, float, int, int]] = []
        self._counts: list[int] = []
        self._released: list[int] = []
        self._since: list[float] = []
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
            self.block, self.at, kind, worker, start_s, end_s, state, parent, source, slot, samples, first, scale, code
        )
        self.at += ROW.size
        if self.at == self.end:
            self.flush()

    def flush(self) -> None:
        """Put the full block aside."""
        self._blocks.append(np.frombuffer(bytes(self.block[: self.at]), dtype=DTYPE))
        self.at = 0

    def released(
        self, now_s: float, source: int, ranks: list[Any], since_s: list[float], cause: int, causes: dict[int, str]
    ) -> None:
        """Many workers wake at once: kept as one record, expanded into WAIT rows at this place by `columns`."""
        self._releases.append((len(self._blocks) * BLOCK_ROWS + self.at // ROW.size, now_s, source, cause))
        self._released += [rank.rank for rank in ranks]
        self._since += since_s
        self._counts.append(len(ranks))
        for rank, why in causes.items():
            self._causes[len(self._counts) - 1, rank] = why

    def _waits(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Row positions and WAIT rows of all releases."""
        counts = np.array(self._counts, np.int64)
        place, now_s, source, cause = (np.repeat(np.array(c), counts) for c in zip(*self._releases, strict=True))
        rows = np.zeros(len(place), DTYPE)
        rows["kind"], rows["worker"], rows["start_s"], rows["end_s"] = Kind.WAIT, self._released, self._since, now_s
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
        return len(self._blocks) * BLOCK_ROWS + self.at // ROW.size

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column as a contiguous array, rows in the order of `seq`. The log is emptied to save memory."""
        self.flush()
        blocks, self._blocks = self._blocks, []
        places, waits = self._waits() if self._releases else (np.zeros(0, np.int64), np.zeros(0, DTYPE))
        out = {}
        for name in DTYPE.names or ():
            column = np.concatenate([b[name] for b in blocks])
            out[name] = np.insert(column, places, waits[name]) if len(places) else column
        return out
