"""A live run as one rank sees it: set up, drive, compare replicas, bring the recorded rows together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd.checkpoint import blaming
from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.clock import stopwatch
from abs_sgd.runtime.computing import numbers_of
from abs_sgd.runtime.keeper import Keeper
from abs_sgd.runtime.keeping import Keeping, Kept, together
from abs_sgd.runtime.offsets import ClockOffset, causal, clock_offsets, machine
from abs_sgd.runtime.pacing import Pace
from abs_sgd.runtime.post import Post, server_group
from abs_sgd.runtime.rank import LiveRank
from abs_sgd.runtime.record import RankLog, merge
from abs_sgd.runtime.samples import Clerk, PromptDispenser, Range, SampleDispenser, SharedCount, Store
from abs_sgd.runtime.served import ServedRank
from abs_sgd.runtime.server import LiveServer
from abs_sgd.runtime.wire import Wire
from abs_sgd.update import LAST_MEAN, Progress, State, Updater, UpdateRule
from abs_sgd.workloads.task import Task
from hetsim import commands as cmd
from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster
from hetsim.convergence.noise_scale import NoiseEstimate
from hetsim.errors import SimulationError, UsageError
from hetsim.runtime.driver import share_of, speed_of
from hetsim.schedule.table import Header, Schedule
from hetsim.simulate import versions

WITHOUT_LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a run ends: after so many updates or samples, whichever is given; neither: the profile's training.max_samples."""

    updates: int | None = None
    samples: int | None = None

    def budget(self, cluster: Cluster) -> int:
        """Samples that are handed out at most."""
        if self.samples is not None:
            return self.samples
        return cluster.training.max_samples if self.updates is None else WITHOUT_LIMIT


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """`profile`: passes take the profile's time, an error where one takes longer by more than `tolerance` (a share). `pad`: gradients are
    padded to the profile's bytes."""

    profile: bool = False
    pad: bool = False
    tolerance: float = 0.05


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """Where a rank ended. `schedule`: of the whole run, on rank 0 only; `checksums`: of every rank's parameters; `noise`: of the
    gradients, over the run; `resumed`: the updates whose checkpoints the run went on from; `clock`: how the clocks of several machines were
    brought together (on rank 0)."""

    parameters_P: Tensor
    progress: Progress
    checksums: tuple[str, ...]
    schedule: Schedule | None
    noise: NoiseEstimate
    resumed: tuple[int, ...] = ()
    clock: dict[str, Any] = field(default_factory=dict)


def check_live(algorithm: Algorithm) -> None:
    """Raise UsageError for an algorithm that does not run live, with the reason."""
    if algorithm.live is not True:
        raise UsageError(f"{algorithm.name} does not run live: {algorithm.live}; its Schedule can be replayed")


def _check_devices(algorithm: Algorithm, device: str) -> None:
    if device != "cpu" and algorithm.has_server:
        raise UsageError(f"{algorithm.name}: parameter servers run live on CPU and gloo only")


def run_rank(
    cluster: Cluster,
    algorithm: Algorithm,
    task: Task,
    rule: UpdateRule,
    *,
    store: Store,
    seed: int = 0,
    limits: Limits = Limits(),
    pacing: Pacing = Pacing(),
    profile_yaml: str = "",
    progress: Callable[[Progress], None] | None = None,
    keeping: Keeping | None = None,
    attend: Callable[[LiveRank], None] | None = None,
) -> RankResult:
    """Run this process's part of `algorithm` on the group that torch.distributed is initialised with, one rank per worker of `cluster` and
    a last one for the parameter server where there is one.

    `store`: a connection to the job's store that nothing else uses. `attend` is told a worker's rank before it runs. Raises UsageError,
    PeerLostError, TooSlowError, and SimulationError where replicas part company.
    """
    check_live(algorithm)
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != ranks_of(cluster, algorithm):
        server = ", and the server is one more" if algorithm.has_server else ""
        raise UsageError(f"{cluster.name} has {cluster.n} workers{server}, the group has {world} ranks")
    _check_devices(algorithm, task.device)
    model = FlatModel(task.make_model(seed))
    model.model.train()
    training = cluster.training
    clerk = Clerk(store)
    least_bytes = cluster.workload.gradient_bytes if pacing.pad else 0.0
    blends = algorithm.point_rule(cluster.n)[0] in LAST_MEAN
    keeper = Keeper(keeping, rank, world) if keeping else None
    kept = keeping.start(rank, world) if keeping else None
    try:
        _warm_up(model, task, rule, seed, max(training.micro_batch_samples, 1))
        group = server_group() if algorithm.has_server else None
        past_s, holes, claimed = _agreed(kept, rank)
        machines = [name.decode() for name in _gather(machine().encode())]
        offsets = clock_offsets(machines, rank)
        start_s = _common_start(offsets[rank].offset_s) - past_s
        watch = stopwatch(task.device, lambda: time.monotonic() - start_s)
        wire = Wire(rank, world, model.size, model.parameters_P.dtype, least_bytes, task.device)
        common: dict[str, Any] = {
            "algorithm": algorithm,
            "updater": Updater(rule, keep_mean_gradient=blends),
            "max_updates": limits.updates if limits.updates is not None else WITHOUT_LIMIT,
            "progress": progress,
        }
        claim, budget = partial(clerk.add, "samples"), limits.budget(cluster)
        if rank < cluster.n:
            pace = Pace(
                cluster.workers[rank],
                seed,
                training.micro_batch_samples,
                pacing.tolerance,
                cluster.workload.backward_share,
            )
            common |= {
                "port": port_of(cluster, rank),
                "task": task,
                "seed": seed,
                "model": model,
                "wire": wire,
                "counter": SharedCount(clerk.add),
                "watch": watch,
                "pace": pace if pacing.profile else None,
            }
        live: LiveRank | LiveServer
        if not algorithm.has_server:
            held = kept.ranges if kept else ()
            dispenser = SampleDispenser(claim, task.samples, budget, holes=holes, base=claimed, held=held)
            live = LiveRank(dispenser=dispenser, keeper=keeper, **common)
            if keeper is not None and kept is not None:
                with blaming(kept.path):
                    keeper.resume(live, kept)
        else:
            common["connect"] = partial(Post, group=group, elements=wire.elements, dtype=wire.dtype)
            if rank < cluster.n:
                live = ServedRank(dispenser=PromptDispenser(claim, task.samples, budget), **common)
            else:
                live = LiveServer(
                    port=cmd.ServerPort(n=cluster.n, batches=port_of(cluster, 0).batches),
                    initial_P=model.parameters_P.clone(),
                    handed_out=partial(claim, 0),
                    budget=budget,
                    clock=watch.settle,
                    **common,
                )
        if attend is not None and isinstance(live, LiveRank):
            attend(live)
        live.run()
        if keeper is not None:
            keeper.close()
    finally:
        clerk.close()
    state = _from_server(live.version.state, cluster.n) if algorithm.has_server else live.version.state
    checksums = tuple(part.decode() for part in _gather(checksum(state.parameters_P).encode()))
    if len(set(checksums)) > 1:
        raise SimulationError(f"replicas differ at the end of {algorithm.name}: {', '.join(checksums)}")
    header = Header(
        algorithm=algorithm.name,
        options=algorithm.options.model_dump(mode="json"),
        seed=seed,
        workers=tuple(w.name for w in cluster.workers),
        dataset_samples=task.samples,
        profile_yaml=profile_yaml,
        origin="measured",
        server=algorithm.has_server,
        versions={**versions(), "torch": str(torch.__version__)},
    )
    schedule, clock = _recorded(live.log, header, machines, offsets)
    return RankResult(
        parameters_P=state.parameters_P.cpu(),
        progress=state.progress,
        checksums=checksums,
        schedule=schedule,
        noise=live.noise.estimate,
        resumed=tuple(keeper.before) if keeper else (),
        clock=clock,
    )


def schedule_of(logs: list[RankLog], header: Header) -> Schedule:
    """The one Schedule of all ranks' rows; without a server its place in polls and outcomes stays empty."""
    return Schedule(header=header, **merge(logs, server=header.server))


def _recorded(
    log: RankLog, header: Header, machines: Sequence[str], offsets: Sequence[ClockOffset]
) -> tuple[Schedule | None, dict[str, Any]]:
    """Everybody's rows as the one Schedule, on rank 0, and how the clocks of several machines were brought together."""
    logs = [RankLog.unpack(part) for part in _gather(log.pack())]
    clock: dict[str, Any] = {"machines": len(set(machines))}
    if dist.get_rank():
        return None, clock
    if clock["machines"] > 1:
        logs, moved, most_s = causal(logs)
        clock |= {"offsets": [asdict(o) for o in offsets], "rows_moved": moved, "moved_most_s": most_s}
    return schedule_of(logs, header), clock


def ranks_of(cluster: Cluster, algorithm: Algorithm) -> int:
    """Processes of a live run: the workers, and the server where there is one."""
    return cluster.n + algorithm.has_server


def port_of(cluster: Cluster, rank: int) -> cmd.Port:
    """What the program of a worker sees: the same as in the simulator."""
    names = [w.name for w in cluster.workers]
    batches = share_of(cluster.training.global_batch_samples, names)
    return cmd.Port(
        rank=rank,
        name=names[rank],
        n=cluster.n,
        batch=batches[rank],
        batches=batches,
        micro_batch=cluster.training.micro_batch_samples,
        speeds=tuple(speed_of(w, max(batches[w.rank], 1)) for w in cluster.workers),
        max_pass=tuple(w.max_batch_samples for w in cluster.workers),
        names=tuple(names),
    )


def checksum(values_P: Tensor) -> str:
    """SHA-256 of a vector's bytes."""
    return hashlib.sha256(values_P.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def _warm_up(model: FlatModel, task: Task, rule: UpdateRule, seed: int, samples: int) -> None:
    """One pass, one collective and one update nobody sees: first ones take many times as long (torch's first update loads its compiler,
    which takes seconds)."""
    buffers = model.save_buffers()
    batch = task.batch(numbers_of((0, min(samples, task.samples))), seed)
    with torch.random.fork_rng(devices=[] if task.device == "cpu" else [task.device]):
        model.gradient_sum(lambda m: task.loss_sum(m, batch))
    model.load_buffers(buffers)
    zeros_P = torch.zeros_like(model.parameters_P)
    Updater(rule).step(State(parameters_P=zeros_P), zeros_P.clone(), divisor=1, samples=1)
    dist.all_reduce(torch.zeros_like(model.parameters_P))
    stopwatch(task.device, time.monotonic).settle()


def _agreed(kept: Kept | None, rank: int) -> tuple[float, list[Range], int]:
    """Where a run goes on, the same for all: the clock, the samples claimed and lost, and how far the data were claimed."""
    if kept is None:
        return 0.0, [], 0
    with blaming(kept.path):
        account = kept.account(rank)
    return together(_gather(account))


def _from_server(state: State, server: int) -> State:
    """Where the server ended, on every rank."""
    parameters_P = state.parameters_P.clone()
    progress = torch.tensor([state.progress.updates, state.progress.samples], dtype=torch.int64)
    for values in (parameters_P, progress):
        dist.broadcast(values, server)
    updates, samples = progress.tolist()
    return State(parameters_P=parameters_P, progress=Progress(updates=updates, samples=samples))


def _common_start(offset_s: float) -> float:
    """Rank 0's monotonic clock after a barrier, as the own clock has it. The ranks of one machine share that clock."""
    meet()
    now = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(now, 0)
    meet()  # nobody is at work before the clock starts
    return float(now) - offset_s


def meet() -> None:
    """A barrier of the hosts, over gloo also where GPU tensors take nccl."""
    dist.all_reduce(torch.zeros(1))


def _gather(data: bytes) -> list[bytes]:
    """Everybody's bytes, by rank."""
    world = dist.get_world_size()
    sizes = torch.zeros(world, dtype=torch.int64)
    sizes[dist.get_rank()] = len(data)
    dist.all_reduce(sizes)
    mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    return [part.numpy().tobytes()[:size] for part, size in zip(parts, sizes.tolist(), strict=True)]
