"""Live runs on one machine: one process per worker of a profile, started here and never left behind.

    from abs_sgd.launch import launch

    if __name__ == "__main__":
        run = launch(load_profile("mixed-gpu-4"), "abs-sgd", workload="digits-mlp", updates=200)
        print(run.schedule, run.parameters_P)

Rank processes end with the process that launched them, however that ends. One that fails takes the run with it: the others stop within
ten seconds and the error names it and its last update. Results come back as files (Parquet, tensors, JSON), written under another name and
renamed, in `folder` where one is given.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abs_sgd import processes
from abs_sgd.processes import LOOPBACK, RankFailedError, folder_or_temporary
from abs_sgd.run_folder import LiveRun, facts_of, read, write_run
from hetsim.algorithms import make
from hetsim.cluster.spec import Cluster
from hetsim.errors import UsageError

if TYPE_CHECKING:
    from abs_sgd.runtime.keeping import Keeping
    from abs_sgd.runtime.run import Limits, Pacing
    from abs_sgd.update import UpdateRule

__all__ = ["Job", "LiveRun", "RankFailedError", "launch", "read"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a rank process needs to know."""

    cluster: Cluster
    algorithm: str
    options: dict[str, Any]
    workload: str
    task_options: dict[str, Any]
    rule: UpdateRule
    seed: int
    limits: Limits
    pacing: Pacing
    profile_yaml: str
    folder: str
    port: int = 0
    hosts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # control groups, by rank
    backend: str = "gloo"
    devices: tuple[str, ...] = ()  # by rank; none: CPU
    keeping: Keeping | None = None

    @property
    def names(self) -> list[str]:
        """Of the ranks: the workers, and the parameter server where there is one."""
        server = ["server"] if make(self.algorithm, self.options).has_server else []
        return [*(w.name for w in self.cluster.workers), *server]


def launch(
    cluster: Any,
    algorithm: str,
    *,
    options: Mapping[str, Any] | None = None,
    workload: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    rule: UpdateRule | None = None,
    seed: int = 0,
    updates: int | None = None,
    samples: int | None = None,
    pacing: Pacing | None = None,
    folder: str | Path | None = None,
    hosts: Sequence[str] = (),
    cpu_shares: Sequence[float] = (),
    backend: str = "gloo",
    device: str = "cpu",
    checkpoint_every: int = 0,
    resume: bool = False,
    restarts: int = 0,
    progress: Callable[[int], None] | None = None,
) -> LiveRun:
    """Train live on this machine: a process for each worker of `cluster` (a Profile or a Cluster) and for the parameter
    server where there is one, over the loopback interface.

    `workload`: what to train (default: the profile's), built with `task_options` (`dtype` by name: "float64"). `rule`: default the
    profile's. Ends after `updates` or `samples`, else the profile's samples. `hosts`: a network namespace per rank, the server's last, of
    a `NetLab` that is up; the store stays on this machine's own loopback. `cpu_shares`: of a
    core for each rank. `backend`, `device`: as `abs_sgd.devices`; ranks may share
    a GPU over gloo.

    `checkpoint_every`: updates between two checkpoints, 0 for none, in `folder`; `resume`: go on from the newest one there (from the
    beginning where there is none); `restarts`: how many times a run whose rank died is started again from its newest checkpoint by itself.
    `progress` is told how many updates the rank that is furthest has made, when that changes.
    Raises UsageError, RankFailedError.
    """
    from abs_sgd.cpu_shares import groups
    from abs_sgd.devices import device_of
    from abs_sgd.predictor import rule_of
    from abs_sgd.runtime.keeping import keeping_of
    from abs_sgd.runtime.run import Limits, Pacing, check_live, ranks_of
    from hetsim.convergence.predictor import Setting

    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    merged = {**resolved.options.get(algorithm, {}), **(options or {})}
    made = make(algorithm, merged)
    check_live(made)
    for name, value in (("updates", updates), ("samples", samples)):
        if value is not None and value < 1:
            raise UsageError(f"{name}: a run needs at least one")
    world = ranks_of(resolved, made)
    if cpu_shares and len(cpu_shares) != world:
        raise UsageError(f"{len(cpu_shares)} CPU shares for {world} ranks")
    devices = tuple(str(device_of(rank, world, backend, device)) for rank in range(world))
    training = resolved.training
    if resume and folder is None:
        raise UsageError("resume: name the folder of the run that is to go on")
    with folder_or_temporary(folder) as path:
        job = Job(
            cluster=resolved,
            algorithm=algorithm,
            options=merged,
            workload=workload or resolved.workload.name,
            task_options=dict(task_options or {}),
            rule=rule or rule_of(training, Setting.of(training)),
            seed=seed,
            limits=Limits(updates=updates, samples=samples),
            pacing=pacing or Pacing(),
            profile_yaml="" if isinstance(cluster, Cluster) else cluster.to_yaml(),
            folder=str(path),
            hosts=tuple(hosts),
            backend=backend,
            devices=devices,
        )
        named = (made, job.workload, job.task_options, job.rule, seed)
        while True:
            keeping = keeping_of(path, checkpoint_every, resume, resolved, *named)
            try:
                with groups(cpu_shares) as made_groups, _store() as port:
                    _run_all(replace(job, port=port, keeping=keeping, groups=tuple(map(str, made_groups))), progress)
                return read(path)
            except RankFailedError as error:
                if not (restarts and error.again):
                    raise
                print(f"{error}; starting again", file=sys.stderr, flush=True)
                restarts, resume = restarts - 1, True


# ---- the launching process -----------------------------------------------------------------------------------------------


@contextmanager
def _store() -> Iterator[int]:
    """The job's store, held by the launching process; its port is one that was free."""
    store = _tcp_store(0, is_master=True)
    try:
        yield store.port
    finally:
        del store


def _tcp_store(port: int, *, is_master: bool) -> Any:
    """A connection to the store at `port` of this machine; the master serves it, at a free port where `port` is 0."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", port, is_master=is_master, wait_for_workers=False)  # type: ignore[attr-defined]


def _run_all(job: Job, progress: Callable[[int], None] | None) -> None:
    context = multiprocessing.get_context("spawn")
    names = job.names
    steps = context.RawArray("q", len(names))
    ranks = [
        context.Process(target=_rank_process, args=(job, rank, steps), name=f"rank {rank}", daemon=True)
        for rank in range(len(names))
    ]
    processes.forget_words(job.folder, len(ranks))

    def codes() -> list[int | None]:
        return [p.exitcode for p in ranks if p.pid is not None]

    told = 0

    def tell() -> None:
        nonlocal told
        if progress is not None and (now := max(steps)) > told:
            told = now
            progress(told)

    try:
        with _environment({"OMP_NUM_THREADS": "1"}):
            for process in ranks:
                process.start()
        failed = processes.watch(codes, tell)
    finally:
        processes.end([p for p in ranks if p.pid is not None], codes)
    if failed:
        _tidy(job)
        raise _verdict(job, names, codes(), failed, list(steps))


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _verdict(
    job: Job, names: Sequence[str], codes: Sequence[int | None], failed: Sequence[int], steps: Sequence[int]
) -> RankFailedError:
    from abs_sgd.checkpoint import last_checkpoint

    broke = processes.culprit(job.folder, failed, codes)
    saved = f"; {last_checkpoint(job.keeping.folder)}" if job.keeping else ""
    verdict = RankFailedError(
        f"rank {broke.rank} ({names[broke.rank]}) {broke.what}; its last update was {steps[broke.rank]}{saved}; the run has stopped, no "
        "process is left"
    )
    verdict.again = broke.again
    return verdict


def _tidy(job: Job) -> None:
    """Nothing half-written is left once all ranks have ended."""
    from abs_sgd.checkpoint import discard_unfinished

    if job.keeping:
        discard_unfinished(job.keeping.folder)
    for path in Path(job.folder).glob(".*.tmp"):
        path.unlink()


# ---- a rank process ------------------------------------------------------------------------------------------------------


def _rank_process(job: Job, rank: int, steps: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the launching process ends the ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _run(job, rank, steps)
    except BaseException as error:
        processes.leave_word(job.folder, rank, error)
        os._exit(1)  # a group with a broken connection may hang while it is taken down
    os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(job: Job, rank: int, steps: Any) -> None:
    import torch
    import torch.distributed as dist

    from abs_sgd import workloads
    from abs_sgd.cpu_shares import enter as enter_group
    from abs_sgd.devices import FOREVER, join
    from abs_sgd.namespaces import enter
    from abs_sgd.netlab import DATA_DEVICE
    from abs_sgd.presence import assemble
    from abs_sgd.runtime.run import meet, run_rank
    from abs_sgd.update import Progress

    torch.set_num_threads(1)
    device = job.devices[rank] if job.devices else "cpu"
    options = workloads.options_of(job.task_options, device)
    own = job.cluster.workload
    task = workloads.get(own if job.workload == own.name else job.workload, **options)

    def note(progress: Progress) -> None:
        steps[rank] = progress.updates

    assemble(_tcp_store(job.port, is_master=False), rank, job.names)
    group, store = (_tcp_store(job.port, is_master=False) for _ in range(2))
    if (
        job.hosts
    ):  # connections made until now are on the loopback of the launching process, the group's on the shaped link
        enter(job.hosts[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = DATA_DEVICE
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    join(job.backend, device, store=group, rank=rank, world_size=len(job.names), timeout=FOREVER)
    algorithm = make(job.algorithm, job.options)
    if job.groups:
        enter_group(job.groups[rank])
    result = run_rank(
        job.cluster,
        algorithm,
        task,
        job.rule,
        store=store,
        seed=job.seed,
        limits=job.limits,
        pacing=job.pacing,
        profile_yaml=job.profile_yaml,
        progress=note,
        keeping=job.keeping,
    )
    if result.schedule is not None:
        facts = facts_of(job.workload, options, job.rule, job.pacing, job.backend)
        write_run(job.folder, result, cluster=job.cluster, algorithm=algorithm, facts=facts)
    meet()  # nobody leaves, and with it its connections, before the files are there
    dist.destroy_process_group()
