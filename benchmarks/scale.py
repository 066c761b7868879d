"""Ten thousand workers: 100 updates of ABS-SGD with a tree all-reduce, the whole Schedule recorded, in a process of its own.

Speeds differ by a factor of two, and a gradient is so large that the fastest workers compute 8 micro-batches per update (`most` counts them
in the Schedule). `columns` is the size of the Schedule in GiB; `verified` runs check every invariant as well. Goal: a peak within 2 GiB.

    OMP_NUM_THREADS=1 python benchmarks/scale.py
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from hetsim import simulate
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.schedule.kinds import Kind

LIMIT_GIB = 2.0
MICRO_BATCH = 16


def large_cluster(workers: int) -> Cluster:
    """Workers of 500 to 1,000 samples/s on 1 GB/s links: micro-batches of 16 to 32 ms."""
    return Cluster(
        name=f"{workers:,} workers",
        workers=tuple(
            Worker(
                rank=i,
                name=f"w{i:05d}",
                group="w",
                node=f"w{i:05d}",
                samples_per_s=500.0 + 500.0 * ((i * 7919) % workers) / workers,
            )
            for i in range(workers)
        ),
        network=Network(links=(Link(bytes_per_s=1e9, latency_s=5e-5),) * workers, collective="tree"),
        workload=Workload(name="model of 44 MB", gradient_bytes=4.4e7, dataset_samples=10**9),
        training=Training(global_batch_samples=MICRO_BATCH * workers, micro_batch_samples=MICRO_BATCH),
    )


def measure(workers: int, updates: int, verify: bool) -> None:
    """One run, one row of the table."""
    cluster = large_cluster(workers)
    before = time.perf_counter()
    schedule = simulate(cluster, "abs-sgd", updates=updates, verify=verify).schedule
    seconds = time.perf_counter() - before
    grads = schedule.rows(Kind.GRAD)
    passes = np.bincount(schedule.slot[grads])
    columns = sum(
        getattr(schedule, c).nbytes for c in schedule.__dataclass_fields__ if c not in ("header", "polls", "outcomes")
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{workers:>8,} {updates:>8,} {len(schedule):>12,} {passes.mean():>8.2f} {passes.max():>5} {'yes' if verify else 'no':>8} "
        f"{seconds:>8.1f} {columns / 2**30:>9.2f} {peak:>9.2f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--child", choices=["plain", "verified"], help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.child:
        measure(o.workers, o.updates, o.child == "verified")
        return
    print(
        f"{'workers':>8} {'updates':>8} {'rows':>12} {'passes':>8} {'most':>5} {'verified':>8} {'seconds':>8} "
        f"{'columns':>9} {'peak GiB':>9}",
        flush=True,
    )
    for child in ("plain", "verified"):
        command = [sys.executable, __file__, "--child", child, "--workers", str(o.workers), "--updates", str(o.updates)]
        subprocess.run(command, check=True)
    print(f"goal: within {LIMIT_GIB:g} GiB")


if __name__ == "__main__":
    main()
