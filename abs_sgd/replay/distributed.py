"""A Schedule as real distributed training: one process per worker (and one for the server), gloo, this machine's CPUs.

    replayed = replay(schedule, "digits-mlp", UpdateRule(learning_rate=0.05), pace=1.0)
    replayed.parameters_P[0]

The ranks take the same gradients over the same samples at the same points and make the same updates as the log says, in its order;
nothing here knows any algorithm. Paced, an operation does not end before its time in the Schedule; otherwise the ranks run as
fast as they can. Evaluation happens afterwards, from snapshots.

Limits. BatchNorm: each rank keeps its own running statistics, and every snapshot is evaluated with their average at the end of
the run, so that only the last loss of such a model is the one of a run in one process; parameters do not depend on them. Bits equal
to those of one process need `exact` and one thread per pass, which every rank has; `exact=False` sums as the backend does.
Pacing holds an operation back and cannot speed one up: `late_s` says how far behind its time the furthest one was. Ranks are
processes of this machine on CPUs; they do not resume, a replay that broke is started again.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd import workloads
from abs_sgd.gradients import FlatModel, average_buffers
from abs_sgd.predictor import VirtualTraining, rule_of
from abs_sgd.replay.orders import Orders, make_orders
from abs_sgd.replay.rank import Job, write
from abs_sgd.replay.ranks import run_ranks
from abs_sgd.update import UpdateRule
from abs_sgd.workloads.task import Task
from abs_sgd.workloads.user import user_task
from hetsim.cluster.spec import Cluster
from hetsim.convergence.predictor import Curve, Setting
from hetsim.errors import UsageError
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.check import check
from hetsim.schedule.store import save

EVALUATIONS = 50  # of a run, every 2 % of it
DIVERGED_FACTOR = 2.0  # times the initial loss at the end [our choice]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """What a replay found, by rank: the state each ended with and its parameters. `late_s`: the furthest any operation was
    behind its time (0 unless paced). `curve`: loss at snapshots, against wall-clock seconds."""

    final: tuple[int, ...]
    parameters_P: tuple[Tensor, ...]
    wall_s: float
    late_s: float
    curve: Curve


def replay(
    schedule: Schedule,
    workload: str,
    rule: UpdateRule,
    *,
    task_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    thinning: int = 1,
    exact: bool = True,
    pace: float | None = None,
    evaluations: int = 0,
    folder: str | Path | None = None,
    assumptions: tuple[str, ...] = (),
) -> Replayed:
    """Execute `schedule` on as many processes as it has workers.

    `workload` is built by name on every rank with `task_options` (JSON values; `dtype` by name). `exact`: gradients are added in rank
    order, for the very result of one process; else by all-reduce. `pace`: seconds here per second of the Schedule, None for as
    fast as it goes. `evaluations`: how often the loss is taken besides start and end. `folder`: kept, else temporary.
    Raises ScheduleError before anything is started, UsageError, RankFailedError.
    """
    if thinning < 1:
        raise UsageError("thinning must be at least 1")
    if pace is not None and not (math.isfinite(pace) and pace > 0):
        raise UsageError("pace must be a positive number of seconds per second")
    orders = make_orders(schedule)
    check(schedule)
    options = dict(task_options or {})
    task = task_of(workload, options)
    job = Job(
        workload=workload,
        rule=asdict(rule),
        task_options=options,
        seed=seed,
        thinning=thinning,
        exact=exact,
        pace=pace,
        snapshots=_spread(_lead_states(schedule, orders), evaluations),
    )
    names = schedule.worker_names(range(orders.ranks))
    with _folder(folder) as path:
        for stale in [*path.glob("rank-*"), *path.glob("state-*")]:
            stale.unlink()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        save(schedule, path / "schedule.parquet")
        write(path / "job.json", {**asdict(job), "port": store.port})
        run_ranks(path, names)
        return _collect(path, orders, task, job, assumptions)


def replay_on(
    schedule: Schedule,
    cluster: Cluster,
    trainer: VirtualTraining,
    setting: Setting,
    *,
    seed: int = 0,
    pace: float | None = None,
    evaluations: int = EVALUATIONS,
) -> Replayed:
    """What `trainer` would train in process (its workload or stand-in, its thinning), on as many processes."""
    task, stands_in = trainer._task(cluster)
    thinning = trainer._thinning(task, cluster.training, stands_in)
    own, workload, options = cluster.workload, task.name, dict[str, Any]()
    if trainer.workload == "auto" and own.model and own.dataset:
        workload = f"{own.model} {own.dataset}"
        options["reference_batch_samples"] = cluster.training.global_batch_samples
    elif task.name in workloads.NEEDS_DATA:
        options["data"] = str(trainer.data)
    said = trainer._assumptions(task, cluster, schedule, thinning, stands_in)
    return replay(
        schedule,
        workload,
        rule_of(cluster.training, setting),
        task_options=options,
        seed=seed,
        thinning=thinning,
        pace=pace,
        evaluations=evaluations,
        assumptions=(f"trained by {schedule.n} processes on this machine; seconds are its own", *said[1:]),
    )


def task_of(workload: str, options: Mapping[str, Any]) -> Task:
    """The task of a name, `module:function module:function` for a user's own model and data."""
    built = dict(options)
    if isinstance(built.get("dtype"), str):
        built["dtype"] = getattr(torch, built["dtype"])
    model, _, dataset = workload.partition(" ")
    if dataset:
        return user_task(model, dataset, **built)
    return workloads.get(workload, **built)


@contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hetsim-replay-") as made:
        yield Path(made)


def _lead_states(schedule: Schedule, orders: Orders) -> list[int]:
    """States of the parameter sequence as its first maker makes them: steps on transfers, and averages of the first worker."""
    rows = np.flatnonzero(
        ((schedule.kind == Kind.STEP) & (schedule.source >= 0)) | ((schedule.kind == Kind.MIX) & (schedule.worker == 0))
    )
    return list(dict.fromkeys(schedule.state[rows].tolist()))


def _spread(states: list[int], count: int) -> tuple[int, ...]:
    """At most `count` of them at equal distances, the last one among them."""
    if count < 1 or not states:
        return ()
    picked = np.linspace(len(states), 0, num=min(count, len(states)), endpoint=False)
    return tuple(states[i] for i in sorted({round(x) - 1 for x in picked.tolist()}))


def _collect(folder: Path, orders: Orders, task: Task, job: Job, assumptions: tuple[str, ...]) -> Replayed:
    facts = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(orders.ranks)]
    tensors = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(orders.ranks)]
    model = FlatModel(task.make_model(job.seed))
    points = [(0, 0, 0.0, task.evaluate(model.model))]
    trained = [(t["buffers"], f["seen"]) for t, f in zip(tensors, facts, strict=True) if t.get("buffers") and f["seen"]]
    if trained:
        model.load_buffers(average_buffers([b for b, _ in trained], [s for _, s in trained]))
    for identity in job.snapshots:
        said = json.loads((folder / f"state-{identity}.json").read_text())
        model.load(torch.load(folder / f"state-{identity}.pt", weights_only=True)["parameters_P"])
        points.append((said["updates"], said["samples"], said["time_s"], task.evaluate(model.model)))
    points.sort(key=lambda point: point[2])
    updates, samples, time_s, loss = zip(*points, strict=True)
    curve = Curve(
        updates=np.array(updates, np.int64),
        samples=np.array(samples, np.int64),
        time_s=np.array(time_s),
        loss=np.array(loss),
        diverged=not math.isfinite(loss[-1]) or loss[-1] > DIVERGED_FACTOR * loss[0] > 0.0,
        assumptions=assumptions,
    )
    return Replayed(
        final=tuple(f["state"] for f in facts),
        parameters_P=tuple(t["parameters_P"] for t in tensors),
        wall_s=max(f["wall_s"] for f in facts),
        late_s=max(f["late_s"] for f in facts),
        curve=curve,
    )
