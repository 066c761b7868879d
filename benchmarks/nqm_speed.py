"""Speed and memory of the noisy quadratic model: 10,000 updates of 1,000 directions at several delays, and a tuning grid.

    OMP_NUM_THREADS=1 python benchmarks/nqm_speed.py

Seconds are processor time. Promise: every delay up to 32 within 2 s and 500 MB on one core.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from hetsim.cluster.spec import Training
from hetsim.convergence.plan import make_plan
from hetsim.convergence.quadratic import power_law
from hetsim.convergence.sequence import run_sequence
from hetsim.schedule.updates import Updates

UPDATES, DIRECTIONS, BATCH = 10_000, 1_000, 64
DELAYS = (0, 1, 4, 15, 32)


def constant_delay(count: int, batch: int, delay: int) -> Updates:
    """One worker's updates, each `delay` old once there are that many."""
    number = np.arange(count)
    staleness = np.minimum(number, delay)
    samples = np.full(count, batch)
    zeros = np.zeros(count, np.int64)
    return Updates(
        row=number,
        state=number + 1,
        parent=number,
        time_s=number + 1.0,
        samples=samples,
        divisor=samples,
        scale=np.ones(count),
        source=number,
        begin=np.arange(count + 1),
        worker=zeros,
        slot=number,
        part_samples=samples,
        point=number - staleness,
        staleness=staleness,
        predicted=np.zeros(count, bool),
        rule=zeros,
        is_sequence=True,
    )


def peak_mb() -> float:
    """Largest resident size so far; kilobytes on Linux, bytes on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def measure(delay: int, model_nodes: int | None, rates: int, momenta: tuple[float, ...]) -> tuple[float, float]:
    """(seconds for the plan, seconds for the recursion)."""
    quadratic = power_law(DIRECTIONS)
    if model_nodes is not None:
        quadratic = quadratic.compressed(model_nodes)
    began = time.process_time()
    plan = make_plan(constant_delay(UPDATES, BATCH, delay), Training())
    planned = time.process_time()
    lr = np.tile(np.geomspace(1e-4, 1e-3, rates), len(momenta))
    run_sequence(plan, quadratic, lr, np.repeat(momenta, rates))
    return planned - began, time.process_time() - planned


def main() -> None:
    """Print the tables."""
    print(f"{UPDATES:,} updates, {DIRECTIONS:,} directions, one setting")
    print(f"{'delay':>6} {'plan s':>8} {'moments s':>10} {'peak MB':>8}")
    for delay in DELAYS:
        plan_s, run_s = measure(delay, None, 1, (0.5,))
        print(f"{delay:>6} {plan_s:>8.2f} {run_s:>10.2f} {peak_mb():>8.0f}")
    print(f"\n{UPDATES:,} updates, 48 nodes, 25 learning rates x 3 momenta, none dropped")
    for delay in (0, 1, 4):
        plan_s, run_s = measure(delay, 48, 25, (0.0, 0.5, 0.9))
        print(f"{delay:>6} {plan_s:>8.2f} {run_s:>10.2f} {peak_mb():>8.0f}")


if __name__ == "__main__":
    main()
