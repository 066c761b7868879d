"""Speed of the simulator against bare simpy, in one process, turn by turn, processor time, the best of several.

    OMP_NUM_THREADS=1 python benchmarks/simulator_speed.py

S-SGD: iterations/s with the whole Schedule recorded and its columns made, against a simpy process that yields `AllOf` over one timeout per
worker and then one more timeout (the least a simulation of it in simpy can do). ABS-SGD: commands/s, columns included, against a simpy
process that yields bare timeouts. Goals: a third, and a half.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import simpy

from hetsim.algorithms import make
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.runtime import Simulation
from hetsim.schedule.kinds import Kind

MICRO_BATCH = 16
TIMEOUTS = 200_000
GOAL_SYNCHRONOUS, GOAL_OPEN = 1 / 3, 1 / 2


def cluster(workers: int) -> Cluster:
    """Workers of 100, 101, 102 … samples/s on links of 10 Gbit/s, gradients of 40 MB, streamed during the backward pass."""
    return Cluster(
        name=f"{workers} workers",
        workers=tuple(
            Worker(rank=i, name=f"w{i:05d}", group="w", node=f"w{i}", samples_per_s=100.0 + i) for i in range(workers)
        ),
        network=Network(links=(Link(bytes_per_s=1.25e9, latency_s=5e-5),) * workers, collective="tree"),
        workload=Workload(name="model of 40 MB", gradient_bytes=4e7, dataset_samples=10**9),
        training=Training(global_batch_samples=MICRO_BATCH * workers, micro_batch_samples=MICRO_BATCH),
    )


def bare_iterations(workers: int, iterations: int) -> float:
    """Iterations/s of the bare loop."""
    env = simpy.Environment()

    def loop() -> simpy.events.ProcessGenerator:
        for _ in range(iterations):
            yield env.all_of([env.timeout(1.0 + i * 0.001) for i in range(workers)])
            yield env.timeout(0.5)

    env.process(loop())
    begun = time.process_time()
    env.run()
    return iterations / (time.process_time() - begun)


def bare_timeouts() -> float:
    """Timeouts/s of one simpy process."""
    env = simpy.Environment()

    def loop() -> simpy.events.ProcessGenerator:
        for _ in range(TIMEOUTS):
            yield env.timeout(1.0)

    env.process(loop())
    begun = time.process_time()
    env.run()
    return TIMEOUTS / (time.process_time() - begun)


def s_sgd(workers: int, iterations: int) -> float:
    """Iterations/s, the Schedule's columns included."""
    simulation = Simulation(cluster(workers), make("s-sgd"), max_updates=iterations)
    begun = time.process_time()
    simulation.run().columns()
    return iterations / (time.process_time() - begun)


def abs_sgd(workers: int, updates: int) -> float:
    """Commands/s, the Schedule's columns included. Counted in the Schedule: a compute per GRAD; a poll per recorded outcome; an all_reduce,
    a wait and an apply per JOIN; a predict per PREDICT."""
    simulation = Simulation(cluster(workers), make("abs-sgd"), max_updates=updates)
    begun = time.process_time()
    log = simulation.run()
    polls = sum(len(outcomes) for outcomes in log.polls)
    columns = log.columns()
    seconds = time.process_time() - begun
    rows = np.bincount(columns["kind"], minlength=len(Kind))
    commands = polls + rows[Kind.GRAD] + 3 * rows[Kind.JOIN] + rows[Kind.PREDICT]
    return float(commands / seconds)


def best(simpy_rate: Callable[[], float], our_rate: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Best rate of each, measured in turns so that both meet the same machine."""
    pairs = [(simpy_rate(), our_rate()) for _ in range(rounds)]
    return max(a for a, _ in pairs), max(b for _, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    print(f"{'':<9}{'workers':>8}{'unit':>14}{'bare simpy':>12}{'hetsim':>12}{'ratio':>7}{'goal':>6}")
    for workers, iterations in ((16, 1000), (128, 150), (1024, 20)):
        bare, ours = best(partial(bare_iterations, workers, iterations), partial(s_sgd, workers, iterations), rounds)
        print(
            f"{'s-sgd':<9}{workers:>8}{'iterations/s':>14}{bare:>12,.0f}{ours:>12,.0f}{ours / bare:>7.3f}{GOAL_SYNCHRONOUS:>6.2f}",
            flush=True,
        )
    for workers, updates in ((16, 1500), (128, 200)):
        bare, ours = best(bare_timeouts, partial(abs_sgd, workers, updates), rounds)
        print(
            f"{'abs-sgd':<9}{workers:>8}{'commands/s':>14}{bare:>12,.0f}{ours:>12,.0f}{ours / bare:>7.3f}{GOAL_OPEN:>6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
