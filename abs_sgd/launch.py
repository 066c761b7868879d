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

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abs_sgd.run_folder import LiveRun, facts_of, read, write_run
from hetsim.algorithms import make
from hetsim.cluster.spec import Cluster
from hetsim.errors import HetsimError, SimulationError, UsageError

if TYPE_CHECKING:
    from abs_sgd.runtime.keeping import Keeping
    from abs_sgd.runtime.run import Limits, Pacing
    from abs_sgd.update import UpdateRule

__all__ = ["Job", "LiveRun", "RankFailedError", "launch", "read"]

STOP_BY_ITSELF_S = (
    4.0  # what is left of a run whose rank failed sees the broken connection at once, or at its next poll
)
STOP_ON_SIGNAL_S = 2.0  # with the four seconds above and process start-up well under ten [our choice]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class RankFailedError(SimulationError):
    """A rank of a live run failed or died; the message names it. `again`: a new attempt may go better, as after a death."""

    again = False


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
    backend: str = "gloo"
    devices: tuple[str, ...] = ()  # by rank; none: CPU
    keeping: Keeping | None = None


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
    backend: str = "gloo",
    device: str = "cpu",
    checkpoint_every: int = 0,
    resume: bool = False,
    restarts: int = 0,
) -> LiveRun:
    """Train live on this machine: a process for each worker of `cluster` (a Profile or a Cluster), over the loopback interface.

    `workload`: what to train (default: the profile's), built with `task_options` (`dtype` by name: "float64"). `rule`: default the
    profile's. Ends after `updates` or `samples`, else the profile's samples. `hosts`: a network namespace per rank, of a `NetLab`
    that is up; the store stays on this machine's own loopback. `backend`, `device`: as `abs_sgd.devices`; ranks may share a GPU over
    gloo.

    `checkpoint_every`: updates between two checkpoints, 0 for none, in `folder`; `resume`: go on from the newest one there (from the
    beginning where there is none); `restarts`: how many times a run whose rank died is started again from its newest checkpoint by itself.
    Raises UsageError, RankFailedError.
    """
    from abs_sgd.devices import device_of
    from abs_sgd.predictor import rule_of
    from abs_sgd.runtime.keeping import keeping_of
    from abs_sgd.runtime.run import Limits, Pacing, check_live
    from hetsim.convergence.predictor import Setting

    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    merged = {**resolved.options.get(algorithm, {}), **(options or {})}
    made = make(algorithm, merged)
    check_live(made)
    for name, value in (("updates", updates), ("samples", samples)):
        if value is not None and value < 1:
            raise UsageError(f"{name}: a run needs at least one")
    devices = tuple(str(device_of(rank, resolved.n, backend, device)) for rank in range(resolved.n))
    training = resolved.training
    setting = Setting(learning_rate=training.learning_rate, momentum=training.momentum)
    if resume and folder is None:
        raise UsageError("resume: name the folder of the run that is to go on")
    with _folder(folder) as path:
        job = Job(
            cluster=resolved,
            algorithm=algorithm,
            options=merged,
            workload=workload or resolved.workload.name,
            task_options=dict(task_options or {}),
            rule=rule or rule_of(training, setting),
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
                with _store() as port:
                    _run_all(replace(job, port=port, keeping=keeping))
                return read(path)
            except RankFailedError as error:
                if not (restarts and error.again):
                    raise
                print(f"{error}; starting again", file=sys.stderr, flush=True)
                restarts, resume = restarts - 1, True


# ---- the launching process -----------------------------------------------------------------------------------------------


@contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hetsim-run-") as made:
        yield Path(made)


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


def _run_all(job: Job) -> None:
    context = multiprocessing.get_context("spawn")
    names = [w.name for w in job.cluster.workers]
    steps = context.RawArray("q", job.cluster.n)
    ranks = [
        context.Process(target=_rank_process, args=(job, rank, steps), name=f"rank {rank}", daemon=True)
        for rank in range(job.cluster.n)
    ]
    for rank in range(job.cluster.n):
        _error_file(job.folder, rank).unlink(missing_ok=True)
    try:
        with _environment({"OMP_NUM_THREADS": "1"}):
            for process in ranks:
                process.start()
        failed = _watch(ranks)
    finally:
        _end(ranks)
    if failed:
        _tidy(job)
        raise _verdict(job, names, [p.exitcode for p in ranks], failed, list(steps))


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


def _watch(ranks: Sequence[Any]) -> list[int]:
    """Wait until all have ended; after the first failure those that are left have a moment. Ranks in the order in which they failed."""
    failed: list[int] = []
    until = float("inf")
    while True:
        codes = [p.exitcode for p in ranks]  # asked once a round: a sentinel may be ready before the exit code is
        for rank, code in enumerate(codes):
            if code and rank not in failed:
                failed.append(rank)
                until = min(until, time.monotonic() + STOP_BY_ITSELF_S)
        left = [p.sentinel for p, code in zip(ranks, codes, strict=True) if code is None]
        patience = None if until == float("inf") else until - time.monotonic()
        if not left or (patience is not None and patience <= 0):
            break
        wait(left, patience)
    return failed


def _end(ranks: Sequence[Any]) -> None:
    """No process is left behind."""
    started = [p for p in ranks if p.pid is not None]
    for process in started:
        if process.exitcode is None:
            process.terminate()
    until = time.monotonic() + STOP_ON_SIGNAL_S
    for process in started:
        process.join(max(0.0, until - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()


def _verdict(
    job: Job, names: Sequence[str], codes: Sequence[int | None], failed: Sequence[int], steps: list[int]
) -> RankFailedError:
    """Which rank broke the run: one that died without a word, else one whose own error it was, else the first."""
    from abs_sgd.checkpoint import last_checkpoint

    said = {rank: _error_of(job.folder, rank) for rank in failed}
    silent = [rank for rank in failed if said[rank] is None]
    own = [rank for rank in failed if (error := said[rank]) is not None and not error["peer"]]
    culprit = [*silent, *own, *failed][0]
    error, code = said[culprit], codes[culprit]
    if error is not None:
        what = f"failed: {error['message']}"
    elif code is not None and code < 0:
        what = f"was killed by {signal.Signals(-code).name}"
    else:
        what = f"ended with exit code {code}"
    saved = f"; {last_checkpoint(job.keeping.folder)}" if job.keeping else ""
    verdict = RankFailedError(
        f"rank {culprit} ({names[culprit]}) {what}; its last update was {steps[culprit]}{saved}; the run has stopped, no process is left"
    )
    verdict.again = error is None or not error["final"]
    return verdict


def _tidy(job: Job) -> None:
    """Nothing half-written is left once all ranks have ended."""
    from abs_sgd.checkpoint import discard_unfinished

    if job.keeping:
        discard_unfinished(job.keeping.folder)
    for path in Path(job.folder).glob(".*.tmp"):
        path.unlink()


def _error_file(folder: str, rank: int) -> Path:
    return Path(folder, f"rank-{rank}.error.json")


def _error_of(folder: str, rank: int) -> dict[str, Any] | None:
    try:
        return dict(json.loads(_error_file(folder, rank).read_text()))
    except FileNotFoundError:
        return None


# ---- a rank process ------------------------------------------------------------------------------------------------------


def _rank_process(job: Job, rank: int, steps: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the launching process ends the ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _run(job, rank, steps)
    except BaseException as error:
        from abs_sgd.runtime.wire import PeerLostError

        peer = isinstance(error, PeerLostError)
        message = str(error) if isinstance(error, HetsimError) else f"{type(error).__name__}: {error}"
        _write_text(
            _error_file(job.folder, rank),
            json.dumps(
                {"rank": rank, "peer": peer, "final": isinstance(error, HetsimError) and not peer, "message": message}
            ),
        )
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
    from abs_sgd.devices import FOREVER, join
    from abs_sgd.namespaces import enter
    from abs_sgd.netlab import DATA_DEVICE
    from abs_sgd.presence import assemble
    from abs_sgd.runtime.run import meet, run_rank
    from abs_sgd.update import Progress

    torch.set_num_threads(1)
    options = dict(job.task_options)
    if isinstance(options.get("dtype"), str):
        options["dtype"] = getattr(torch, options["dtype"])
    if job.devices and job.devices[rank] != "cpu":
        options["device"] = job.devices[rank]
    own = job.cluster.workload
    task = workloads.get(own if job.workload == own.name else job.workload, **options)

    def note(progress: Progress) -> None:
        steps[rank] = progress.updates

    assemble(_tcp_store(job.port, is_master=False), rank, [w.name for w in job.cluster.workers])
    group, store = (_tcp_store(job.port, is_master=False) for _ in range(2))
    if (
        job.hosts
    ):  # connections made until now are on the loopback of the launching process, the group's on the shaped link
        enter(job.hosts[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = DATA_DEVICE
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    join(job.backend, options.get("device", "cpu"), store=group, rank=rank, world_size=job.cluster.n, timeout=FOREVER)
    algorithm = make(job.algorithm, job.options)
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
        facts = facts_of(job.workload, job.task_options, job.rule, job.pacing, job.backend)
        write_run(job.folder, result, cluster=job.cluster, algorithm=algorithm, facts=facts)
    meet()  # nobody leaves, and with it its connections, before the files are there
    dist.destroy_process_group()


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
