"""A Schedule as real distributed training: one process per worker (and one for the server), gloo or nccl, on this machine.

    replayed = replay(schedule, "digits-mlp", UpdateRule(learning_rate=0.05), pace=1.0)
    replayed.parameters_P[0]

The ranks take the same gradients over the same samples at the same points and make the same updates as the log says, in its order;
nothing here knows any algorithm. Paced, an operation does not end before its time in the Schedule; otherwise the ranks run as
fast as they can. Evaluation happens afterwards, from snapshots.

With checkpoints a run that broke goes on from the last one and ends with the very parameters of one that did not: a checkpoint
is a cut through all ranks at one row of the log (`cuts`), and what follows depends on nothing else.

Limits. BatchNorm: each rank keeps its own running statistics, and every snapshot is evaluated with their average at the end of
the run, so that only the last loss of such a model is the one of a run in one process; parameters do not depend on them. Bits equal
to those of one process need `exact`, one thread per pass, which every rank has, and CPUs; `exact=False` sums as the backend does.
Pacing holds an operation back and cannot speed one up: `late_s` says how far behind its time the furthest one was; writing a
checkpoint takes time of the run and waits for what is in flight. Ranks are processes of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from abs_sgd import workloads
from abs_sgd.checkpoint import CHECKPOINTS, discard_unfinished, newest
from abs_sgd.devices import device_of
from abs_sgd.predictor import VirtualTraining, rule_of
from abs_sgd.processes import folder_or_temporary
from abs_sgd.replay.cuts import lead_rows
from abs_sgd.replay.job import Job, task_of
from abs_sgd.replay.orders import make_orders
from abs_sgd.replay.ranks import run_ranks
from abs_sgd.replay.results import Replayed, collect
from abs_sgd.update import UpdateRule
from hetsim.cluster.spec import Cluster
from hetsim.convergence.predictor import Setting
from hetsim.errors import UsageError
from hetsim.schedule import Schedule
from hetsim.schedule.check import check
from hetsim.schedule.store import save

EVALUATIONS = 50  # of a run, every 2 % of it


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What is to be replayed and how.

    `workload` is built by name on every rank with `task_options` (JSON values; `dtype` by name). `exact`: gradients are added in rank
    order, for the very result of one process; else by all-reduce. `pace`: seconds here per second of the Schedule, None for as
    fast as it goes. `evaluations`: how often the loss is taken besides start and end. `backend`, `device`: as `abs_sgd.devices`.
    `checkpoint_every`: updates between checkpoints, 0 for none. `resume`: go on from the newest one, from the start where there is none.
    `taught`: as `abs_sgd.replay.comparison`.
    """

    schedule: Schedule
    workload: str
    rule: UpdateRule
    task_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    thinning: int = 1
    exact: bool = True
    pace: float | None = None
    evaluations: int = 0
    backend: str = "gloo"
    device: str = "cpu"
    checkpoint_every: int = 0
    resume: bool = False
    taught: bool = False
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.thinning < 1:
            raise UsageError("thinning must be at least 1")
        if self.pace is not None and not (math.isfinite(self.pace) and self.pace > 0):
            raise UsageError("pace must be a positive number of seconds per second")
        if self.checkpoint_every < 0:
            raise UsageError("checkpoint_every must be a number of updates, or 0 for no checkpoints")


def replay(
    schedule: Schedule, workload: str, rule: UpdateRule, *, folder: str | Path | None = None, **options: Any
) -> Replayed:
    """Execute `schedule` on as many processes as it has workers. Options: the fields of `Request`.

    `folder` is kept, else temporary; checkpoints need one. Raises ScheduleError before anything is started, UsageError, RankFailedError.
    """
    request = Request(schedule=schedule, workload=workload, rule=rule, **options)
    if folder is None and (request.checkpoint_every or request.resume):
        raise UsageError("checkpoints need a folder that stays")
    with folder_or_temporary(folder) as path:
        return _run(path, [request], [path])[0]


def replay_all(requests: Sequence[Request], folder: str | Path | None = None) -> list[Replayed]:
    """One after the other on the same processes, which are started once: for many short ones. `folder` gets one for each."""
    if not requests:
        return []
    with folder_or_temporary(folder) as path:
        folders = [path / f"run-{number}" for number in range(len(requests))]
        return _run(path, requests, folders)


def replay_on(
    schedule: Schedule,
    cluster: Cluster,
    trainer: VirtualTraining,
    setting: Setting,
    *,
    folder: str | Path | None = None,
    evaluations: int = EVALUATIONS,
    **options: Any,
) -> Replayed:
    """What `trainer` would train in process (its workload or stand-in, its thinning), on as many processes; options as `replay`."""
    task, stands_in = trainer._task(cluster)
    thinning = trainer._thinning(task, cluster.training, stands_in)
    own, workload, built = cluster.workload, task.name, dict[str, Any]()
    if trainer.workload == "auto" and own.model and own.dataset:
        workload = f"{own.model} {own.dataset}"
        built["reference_batch_samples"] = cluster.training.global_batch_samples
    elif task.name in workloads.NEEDS_DATA:
        built["data"] = str(trainer.data)
    said = trainer._assumptions(task, cluster, schedule, thinning, stands_in)
    return replay(
        schedule,
        workload,
        rule_of(cluster.training, setting),
        folder=folder,
        task_options=built,
        thinning=thinning,
        evaluations=evaluations,
        assumptions=(f"trained by {schedule.n} processes on this machine; seconds are its own", *said[1:]),
        **options,
    )


def _run(folder: Path, requests: Sequence[Request], folders: Sequence[Path]) -> list[Replayed]:
    prepared = [_prepare(request, path) for request, path in zip(requests, folders, strict=True)]
    for (job, request), path in zip(prepared, folders, strict=True):
        _lay_out(path, job, request)
    names = [r.schedule.worker_names(range(job.ranks)) for job, r in prepared]
    run_ranks(folder, folders, names)
    return [collect(path, job, r.assumptions) for (job, r), path in zip(prepared, folders, strict=True)]


def _prepare(request: Request, folder: Path) -> tuple[Job, Request]:
    """Everything that can be refused is refused here, before a file is written."""
    schedule = request.schedule
    ranks = make_orders(schedule).ranks
    check(schedule)
    devices = tuple(str(device_of(rank, ranks, request.backend, request.device)) for rank in range(ranks))
    task_of(request.workload, request.task_options, devices[0])
    job = Job(
        workload=request.workload,
        rule=asdict(request.rule),
        task_options=dict(request.task_options),
        seed=request.seed,
        thinning=request.thinning,
        exact=request.exact,
        pace=request.pace,
        snapshots=_spread([int(schedule.state[row]) for row in lead_rows(schedule)], request.evaluations),
        backend=request.backend,
        devices=devices,
        checkpoint_every=request.checkpoint_every,
        taught=request.taught,
    )
    return replace(job, resume=_resumed(folder / CHECKPOINTS, job, request)), request


def _resumed(checkpoints: Path, job: Job, request: Request) -> int:
    """The update whose checkpoint the run goes on from, 0 for the start. Raises UsageError where it is another run's."""
    found = newest(checkpoints)
    if found is None:
        return 0
    if not request.resume:
        raise UsageError(
            f"{found.folder} holds a checkpoint of update {found.update}: resume, or remove it to start again"
        )
    now, then = job.same_run(request.schedule), found.meta.get("run", {})
    other = [name for name in sorted(now) if now[name] != then.get(name)]
    if other:
        raise UsageError(f"{found.folder} holds a checkpoint of another run: other {', '.join(other)}")
    return found.update


def _lay_out(folder: Path, job: Job, request: Request) -> None:
    """The folder as the ranks expect it: of a run that goes on, snapshots and checkpoints stay."""
    folder.mkdir(parents=True, exist_ok=True)
    stale = [*folder.glob("rank-*"), *([] if job.resume else folder.glob("state-*")), *folder.glob(".*.tmp")]
    for path in stale:
        path.unlink()
    discard_unfinished(folder / CHECKPOINTS)
    save(request.schedule, folder / "schedule.parquet")
    job.save(folder)


def _spread(states: list[int], count: int) -> tuple[int, ...]:
    """At most `count` of them at equal distances, the last one among them."""
    if count < 1 or not states:
        return ()
    picked = np.linspace(len(states), 0, num=min(count, len(states)), endpoint=False)
    return tuple(states[i] for i in sorted({round(x) - 1 for x in picked.tolist()}))
