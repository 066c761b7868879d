"""Fused against unfused training in virtual time.

    python benchmarks/fused_training.py

One Schedule (one update of delay, four workers, shares 12:8:4:2 in micro-batches of 2) per compute point and model, float64, one
thread, processor time. `current` fuses the passes of all workers into one per update, `local-prediction` those of one worker. Prints
passes, seconds (best of three), their ratio, and how far the parameters have come apart after 200 updates.
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table

from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads import get
from hetsim.schedule import Header, Kind, Payload, PointRule, Schedule
from hetsim.schedule.log import Log

SHARES = (12, 8, 4, 2)
MICRO = 2
REPEATS = 3


def delayed(updates: int, rule: PointRule) -> Schedule:
    """One update of delay with fixed shares, logged as the simulator does."""
    log, first, n = Log(len(SHARES)), 0, len(SHARES)
    points, fresh = [0] * n, updates + 1
    for k in range(updates + 1):
        for i, share in enumerate(SHARES if k < updates else ()):
            for _ in range(share // MICRO):
                log.add(Kind.GRAD, i, k, k + 1.0, state=points[i], slot=k * n + i, samples=MICRO, first=first)
                first += MICRO
        if k > 0:
            for i in range(n):
                log.add(Kind.STEP, i, k, k, state=k, parent=k - 1, source=k - 1, samples=sum(SHARES), first=sum(SHARES))
        if k == updates:
            break
        for i, share in enumerate(SHARES):
            log.add(Kind.JOIN, i, k + 1.0, k + 1.0, source=k, slot=k * n + i, samples=share)
        for i in range(n):
            points[i] = k
            if rule != PointRule.CURRENT:
                points[i], fresh = fresh, fresh + 1
                log.add(
                    Kind.PREDICT, i, k + 1.0, k + 1.0, state=points[i], parent=k, source=k, slot=k * n + i, code=rule
                )
        log.add(Kind.REDUCE, -1, k + 1.0, k + 2.0, source=k, samples=sum(SHARES), code=Payload.GRADIENT)
    names = tuple(f"w{i}" for i in range(n))
    header = Header(algorithm="abs-sgd", options={}, seed=0, workers=names, dataset_samples=10**9)
    return Schedule(header=header, **log.columns())


def measure(schedule: Schedule, workload: str, fused: bool, updates: int) -> tuple[float, int, torch.Tensor]:
    """Seconds (best of three), passes, and the last parameters."""
    trainer = InProcess(schedule, get(workload, dtype=torch.float64), fused=fused)
    rule = UpdateRule(learning_rate=0.02, momentum=0.9)
    seconds, last = [], {}

    def keep(identity: int, state: State) -> None:
        if identity == updates:
            last[0] = state.parameters_P

    for _ in range(REPEATS):
        start = time.process_time()
        trainer.train(rule, evaluate_every_samples=0, observe=keep)
        seconds.append(time.process_time() - start)
    return min(seconds), trainer.plan.passes, last[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    updates = parser.parse_args().updates
    torch.set_num_threads(1)
    table = Table("model", "compute point", "passes", "fused", "s", "fused s", "ratio", "distance")
    for workload in ("digits-mlp", "digits-cnn"):
        for rule in (PointRule.CURRENT, PointRule.LOCAL_PREDICTION):
            schedule = delayed(updates, rule)
            slow, many, theirs = measure(schedule, workload, False, updates)
            quick, few, mine = measure(schedule, workload, True, updates)
            distance = float((mine - theirs).norm() / theirs.norm())
            table.add_row(
                workload, rule.name.lower().replace("_", "-"), str(many), str(few), f"{slow:.3f}", f"{quick:.3f}",
                f"{slow / quick:.1f}x", f"{distance:.0e}",
            )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
