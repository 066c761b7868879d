"""A live run on shaped links: the ranks of `abs_sgd.launch`, each inside its host of a `NetLab`.

A rank process is started like any other, opens its connections to the job's store over the loopback interface, and then moves into its
host's network namespace (setns(2)); what torch.distributed opens from then on is on the shaped link, and the store stays off it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abs_sgd import launch as live
from abs_sgd.namespaces import NetLabError
from abs_sgd.netlab import DATA_DEVICE, NetLab

if TYPE_CHECKING:
    from abs_sgd.update import UpdateRule

CLONE_NEWNET = 0x40000000  # sched.h
NAMES = Path("/var/run/netns")  # where `ip netns` mounts them


def enter(namespace: str) -> None:
    """Move the calling thread, and every thread it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(NAMES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            raise NetLabError(f"{namespace}: cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def run_inside(lab: NetLab, job: live.Job) -> None:
    """Run a job with rank r on host r of `lab`, which is up. Raises RankFailedError."""
    context = multiprocessing.get_context("spawn")
    names = [w.name for w in job.cluster.workers]
    steps = context.RawArray("q", job.cluster.n)
    ranks = [
        context.Process(
            target=_rank_on_host, args=(lab.namespace(rank), job, rank, steps), name=f"rank {rank}", daemon=True
        )
        for rank in range(job.cluster.n)
    ]
    for rank in range(job.cluster.n):
        live._error_file(job.folder, rank).unlink(missing_ok=True)
    try:
        with live._environment({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DATA_DEVICE}):
            for process in ranks:
                process.start()
        failed = live._watch(ranks)
    finally:
        live._end(ranks)
    if failed:
        raise live.RankFailedError(live._verdict(job, names, [p.exitcode for p in ranks], failed, list(steps)))


def _rank_on_host(namespace: str, job: live.Job, rank: int, steps: Any) -> None:
    """A rank process: its two connections to the store first, since the host cannot reach it."""
    stores = [live._tcp_store(job.port, is_master=False) for _ in range(2)]
    _first_update(job.rule)
    enter(namespace)
    live._tcp_store = lambda port, *, is_master: stores.pop()
    live._rank_process(job, rank, steps)


def _first_update(rule: UpdateRule) -> None:
    """An update nobody sees, before the clock starts: torch loads its compiler with the first one, which takes seconds."""
    import torch

    from abs_sgd.update import State, Updater

    torch.set_num_threads(1)
    zeros_P = torch.zeros(1)
    Updater(rule).step(State(parameters_P=zeros_P), zeros_P.clone(), divisor=1, samples=1, scale=1.0)
