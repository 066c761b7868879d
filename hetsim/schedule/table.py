"""Schedule: the totally ordered log of a run, predicted or measured, that everything else reads.

The simulator predicts one, a real run records one, executors train from one, figures are drawn from one. Rows are columns of numpy
arrays in the order of `seq` (the row number); `hetsim.schedule.kinds` says what they mean. Executors run the log, never the program.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.schedule.kinds import Kind
from hetsim.schedule.updates import Updates, extract_updates

SCHEDULE_VERSION = 1
IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a Schedule is of, enough to reproduce it."""

    algorithm: str
    options: dict[str, Any]
    seed: int
    workers: tuple[str, ...]
    dataset_samples: int
    profile_yaml: str = ""
    origin: str = "predicted"  # or "measured"
    server: bool = False
    outer: dict[str, float] = field(
        default_factory=dict
    )  # learning rate, momentum and fragments of the outer optimizer where there is one
    versions: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEDULE_VERSION


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The log of one run. Columns are arrays of equal length, one entry per operation, in total order."""

    header: Header
    kind: IntArray
    worker: IntArray
    start_s: FloatArray
    end_s: FloatArray
    state: IntArray
    parent: IntArray
    source: IntArray
    slot: IntArray
    samples: IntArray
    first: IntArray
    scale: FloatArray
    code: IntArray
    polls: tuple[bytes, ...] = ()
    outcomes: tuple[array[float], ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def n(self) -> int:
        """Number of workers (the server, where there is one, has number n)."""
        return len(self.header.workers)

    @property
    def horizon_s(self) -> float:
        """Time of the last operation."""
        return float(self.end_s[-1]) if len(self) else 0.0

    def rows(self, kind: Kind) -> IntArray:
        """Row numbers of one kind, in order."""
        return self._rows_by_kind[kind]

    @cached_property
    def _rows_by_kind(self) -> dict[Kind, IntArray]:
        return {k: np.flatnonzero(self.kind == k) for k in Kind}

    @cached_property
    def updates(self) -> Updates:
        """The updates in order of their first application: samples, weights, staleness, times. Empty for pure averaging."""
        return extract_updates(self)

    def worker_names(self, ranks: Sequence[int]) -> list[str]:
        """Names of ranks, "server" for the server and "all" for a collective."""
        names = [*self.header.workers, "server", "all"]
        return [names[r] for r in ranks]
