"""Small clusters for live runs, and the parameters a recorded Schedule gives when it is executed in process."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from abs_sgd.launch import LiveRun
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads.digits import digits_mlp
from abs_sgd.workloads.task import Task
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.schedule import Kind

SPEEDS = (512.0, 256.0)
RULE = UpdateRule(learning_rate=0.05, momentum=0.9)  # stable: sums in another order stay within rounding
FLOAT64 = {"dtype": "float64"}


def two_workers(speeds: tuple[float, ...] = SPEEDS, **training: object) -> Cluster:
    settings = {"global_batch_samples": 24, "micro_batch_samples": 4, **training}
    return Cluster(
        name="live",
        workers=tuple(
            Worker(rank=i, name=f"w{i}", group="w", node=f"n{i}", samples_per_s=v) for i, v in enumerate(speeds)
        ),
        network=Network(links=(Link(bytes_per_s=2.0**20),) * len(speeds)),
        workload=Workload(name="digits-mlp", gradient_bytes=2.0**15, dataset_samples=1437),
        training=dataclasses.replace(Training(), **settings),  # type: ignore[arg-type]
    )


def deviation(run: LiveRun, rule: UpdateRule = RULE, task: Task | None = None) -> float:
    """Largest distance, over the ranks, of the live parameters from those that the run's own Schedule gives, over their norm; where there
    is a server its parameters are the ones that count."""
    schedule, seen = run.schedule, {}  # type: ignore[var-annotated]
    task = task or digits_mlp(dtype=run.parameters_P.dtype)
    InProcess(schedule, task, seed=schedule.header.seed).train(rule, observe=seen.__setitem__)
    ends: list[State] = []
    for rank in [schedule.n] if schedule.header.server else range(schedule.n):
        rows = np.flatnonzero((schedule.worker == rank) & np.isin(schedule.kind, (Kind.STEP, Kind.MIX)))
        ends.append(seen[int(schedule.state[rows[-1]])])
    norm = torch.linalg.vector_norm(run.parameters_P)
    return max(float(torch.linalg.vector_norm(e.parameters_P - run.parameters_P) / norm) for e in ends)
