"""Pieces of work on several processes, results in the order of the work whatever the number of processes.

joblib's loky starts fresh interpreters, so that it works alike on every system. Numeric libraries get one thread per process. On an
interruption or an error the processes are ended, none is left behind. Clusters are reached through joblib's own backends for dask and ray.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hetsim.errors import UsageError, nearest

T = TypeVar("T")
Piece = tuple[Callable[..., T], tuple[Any, ...]]
Done = Callable[[int, T], None]
LOKY = "loky"
BACKENDS = (LOKY, "dask", "ray")


def job_count(jobs: int | None) -> int:
    """`jobs`, or one per CPU this process may use."""
    if jobs is not None:
        if jobs < 1:
            raise UsageError(f"{jobs} processes cannot do anything; jobs is at least 1")
        return jobs
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def split_backend(text: str) -> tuple[str, str]:
    """(name, address) of `loky`, `dask`, `dask:tcp://host:8786`, `ray`, `ray:address`. Raises UsageError for anything else."""
    name, _, address = text.partition(":")
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r} ({nearest(name, BACKENDS)})")
    if address and name == LOKY:
        raise UsageError(f"{text}: loky works on this machine and takes no address")
    return name, address


def run_pieces(
    pieces: Sequence[Piece[T]], jobs: int | None, done: Done[T] | None = None, backend: str = LOKY
) -> list[T]:
    """Run every (function, arguments). `done(index, result)` is called here, as each comes in.

    `jobs`: None for all of a cluster's workers; with loky a number. `backend`: see `split_backend`.
    """
    results: dict[int, T] = {}

    def note(index: int, result: T) -> None:
        results[index] = result
        if done is not None:
            done(index, result)

    if backend == LOKY and (jobs == 1 or len(pieces) < 2):
        for index, (function, arguments) in enumerate(pieces):
            note(index, function(*arguments))
    elif pieces:
        _spread(pieces, -1 if jobs is None else min(jobs, len(pieces)), note, backend)
    return [results[index] for index in range(len(pieces))]


def _spread(pieces: Sequence[Piece[T]], jobs: int, note: Done[T], backend: str) -> None:
    from joblib import Parallel, delayed

    with _configured(backend):
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
        arriving = pool(delayed(_numbered)(index, *piece) for index, piece in enumerate(pieces))
        try:
            for index, result in arriving:
                note(index, result)
        finally:
            arriving.close()  # before the last result this ends the worker processes, at work or not


@contextmanager
def _configured(backend: str) -> Iterator[None]:
    """joblib with that backend. Raises UsageError where its package or its cluster is missing."""
    from joblib import parallel_config

    name, address = split_backend(backend)
    if name == LOKY:
        with parallel_config(backend=LOKY, inner_max_num_threads=1):
            yield
        return
    try:
        if name == "ray":
            import ray  # type: ignore[import-not-found, unused-ignore]
            from ray.util.joblib import register_ray  # type: ignore[import-not-found, unused-ignore]

            ray.init(address=address or None, ignore_reinit_error=True)
            register_ray()
            configured = parallel_config(backend="ray")
        else:
            configured = parallel_config(backend="dask", **({"scheduler_host": address} if address else {}))
    except ImportError:
        package = "dask[distributed]" if name == "dask" else name
        raise UsageError(f"backend {name} needs a package that is not installed: pip install '{package}'") from None
    except (ValueError, OSError, ConnectionError) as error:
        hint = "name its scheduler: dask:tcp://host:8786" if name == "dask" else "name its address: ray:address"
        raise UsageError(f"backend {name}: no cluster found ({hint}): {str(error).splitlines()[0]}") from None
    with configured:
        yield


def _numbered(index: int, function: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[int, T]:
    """In a worker process: the interruption of a terminal's whole process group is for the parent to handle."""
    if threading.current_thread() is threading.main_thread():  # elsewhere (a thread of dask's) nobody may set it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return index, function(*arguments)
