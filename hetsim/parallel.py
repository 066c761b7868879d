"""Pieces of work on several processes, results in the order of the work whatever the number of processes.

joblib's loky starts fresh interpreters, so that it works alike on every system. Numeric libraries get one thread per process. On an
interruption or an error the processes are ended, none is left behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hetsim.errors import UsageError

T = TypeVar("T")
Piece = tuple[Callable[..., T], tuple[Any, ...]]
Done = Callable[[int, T], None]


def job_count(jobs: int | None) -> int:
    """`jobs`, or one per CPU this process may use."""
    if jobs is not None:
        if jobs < 1:
            raise UsageError(f"{jobs} processes cannot do anything; jobs is at least 1")
        return jobs
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def run_pieces(pieces: Sequence[Piece[T]], jobs: int, done: Done[T] | None = None) -> list[T]:
    """Run every (function, arguments). `done(index, result)` is called here, as each comes in."""
    results: dict[int, T] = {}

    def note(index: int, result: T) -> None:
        results[index] = result
        if done is not None:
            done(index, result)

    if jobs == 1 or len(pieces) < 2:
        for index, (function, arguments) in enumerate(pieces):
            note(index, function(*arguments))
    else:
        _spread(pieces, min(jobs, len(pieces)), note)
    return [results[index] for index in range(len(pieces))]


def _spread(pieces: Sequence[Piece[T]], jobs: int, note: Done[T]) -> None:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
        arriving = pool(delayed(_numbered)(index, *piece) for index, piece in enumerate(pieces))
        try:
            for index, result in arriving:
                note(index, result)
        finally:
            arriving.close()  # before the last result this ends the worker processes, at work or not


def _numbered(index: int, function: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[int, T]:
    """In a worker process: the interruption of a terminal's whole process group is for the parent to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return index, function(*arguments)
