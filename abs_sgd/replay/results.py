"""What the ranks of a replay found, read from the folder they wrote it to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from abs_sgd.gradients import FlatModel, average_buffers
from abs_sgd.replay.inprocess import DIVERGED_FACTOR
from abs_sgd.replay.job import Job, task_of
from hetsim.convergence.predictor import Curve


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """The largest ‖Δ‖/‖x‖ of `compared` states from the teacher's, found at `state`."""

    value: float
    state: int
    compared: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """What a replay found, by rank: the state each ended with and its parameters. `late_s`: the furthest any operation was
    behind its time (0 unless paced). `curve`: loss at snapshots, against wall-clock seconds. `resumed_from`: the update whose checkpoint it
    went on from, 0 for the start. `deviation`: from the teacher, where there was one."""

    final: tuple[int, ...]
    parameters_P: tuple[Tensor, ...]
    wall_s: float
    late_s: float
    curve: Curve
    resumed_from: int = 0
    deviation: Deviation | None = None


def collect(folder: Path, job: Job, assumptions: tuple[str, ...]) -> Replayed:
    """Read what every rank wrote, and take the loss at the snapshots."""
    facts = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(job.ranks)]
    tensors = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(job.ranks)]
    worst = max(facts, key=lambda f: f["deviation"] if math.isfinite(f["deviation"]) else math.inf)
    return Replayed(
        final=tuple(f["state"] for f in facts),
        parameters_P=tuple(t["parameters_P"] for t in tensors),
        wall_s=max(f["wall_s"] for f in facts),
        late_s=max(f["late_s"] for f in facts),
        curve=_curve(
            folder, job, [(t.get("buffers", []), f["seen"]) for t, f in zip(tensors, facts, strict=True)], assumptions
        ),
        resumed_from=job.resume,
        deviation=Deviation(
            value=worst["deviation"], state=worst["deviates_at"], compared=sum(f["compared"] for f in facts)
        )
        if job.taught
        else None,
    )


def _curve(folder: Path, job: Job, replicas: list[tuple[list[Tensor], int]], assumptions: tuple[str, ...]) -> Curve:
    task = task_of(job.workload, job.task_options, job.devices[0])
    model = FlatModel(task.make_model(job.seed))
    points = [(0, 0, 0.0, task.evaluate(model.model))]
    trained = [(buffers, seen) for buffers, seen in replicas if buffers and seen]
    if trained:
        model.load_buffers(average_buffers([b for b, _ in trained], [s for _, s in trained]))
    for identity in job.snapshots:
        said = json.loads((folder / f"state-{identity}.json").read_text())
        model.load(torch.load(folder / f"state-{identity}.pt", weights_only=True)["parameters_P"])
        points.append((said["updates"], said["samples"], said["time_s"], task.evaluate(model.model)))
    points.sort(key=lambda point: point[2])
    updates, samples, time_s, loss = zip(*points, strict=True)
    return Curve(
        updates=np.array(updates, np.int64),
        samples=np.array(samples, np.int64),
        time_s=np.array(time_s),
        loss=np.array(loss),
        diverged=not math.isfinite(loss[-1]) or loss[-1] > DIVERGED_FACTOR * loss[0] > 0.0,
        assumptions=assumptions,
    )
