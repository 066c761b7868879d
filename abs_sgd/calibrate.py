"""Measure this machine, or under torchrun this cluster, and make a profile of it.

    calibration = calibrate(Settings(workload="digits-cnn", ranks=2))
    print(calibration.profile.to_yaml())

Without torchrun's environment (RANK and WORLD_SIZE) a process per rank is started here, on the loopback interface; they end with this
one. Under torchrun every rank calls `calibrate`; rank 0 gets the calibration, the others None.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd import cpu_shares, workloads
from abs_sgd.calibration import Calibration, RankTimes, Subject, estimate
from abs_sgd.gradients import FlatModel
from abs_sgd.measuring import Cycle, beside, cycles, long_enough, rounds
from abs_sgd.synchronization import Synchronization
from abs_sgd.update import State, Updater, UpdateRule
from abs_sgd.workloads.task import Task
from hetsim.errors import HetsimError, SimulationError, UsageError
from hetsim.writing import new_file

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
LEAST_S = 0.1  # a repetition lasts at least ten periods of a CPU quota (abs_sgd.cpu_shares) [our choice]
MOST_OVERLAP_BYTES = 256 * 2**20  # the gradient of 64 million float32 parameters; bounds memory [our choice]
STOP_S = 2.0
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure. `payloads`: bytes of the collectives, none: from 16 KiB to 16 MiB and the gradient's own size.

    `cpu_shares`: of a core, for each rank, for as long as is measured; they settle the number of ranks.
    """

    workload: str = "digits-cnn"
    model: str | None = None
    data: str | None = None
    batches: tuple[int, ...] = (8, 16, 32, 64)
    payloads: tuple[int, ...] = ()
    ranks: int = 2
    repeats: int = 20
    warm_up: int = 3
    device: str = "auto"
    name: str = "calibrated"
    cpu_shares: tuple[float, ...] = ()

    @property
    def world(self) -> int:
        """How many processes are started here."""
        return len(self.cpu_shares) or self.ranks

    def check(self) -> None:
        """Raise UsageError for what cannot be measured."""
        if (self.model is None) != (self.data is None):
            raise UsageError("--model and --data go together")
        for what, values in (("batches", self.batches), ("payloads", self.payloads)):
            if any(value < 4 if what == "payloads" else value < 1 for value in values) or len(set(values)) < len(
                values
            ):
                raise UsageError(f"{what}: positive sizes, each once" + (", from 4 bytes on" * (what == "payloads")))
        if not self.batches or self.ranks < 1 or self.repeats < 1 or self.warm_up < 0:
            raise UsageError("at least one batch size, one rank and one repeat are needed")
        if self.cpu_shares:
            cpu_shares.check(self.cpu_shares)
            cpu_shares.cores_for(self.cpu_shares)
            if under_torchrun() or self.device == "cuda":
                raise UsageError("CPU shares are for ranks that are started here and compute on the CPU")
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device {self.device!r}: auto, cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("there is no CUDA device here")


def under_torchrun() -> bool:
    """Whether somebody else started the ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def calibrate(settings: Settings) -> Calibration | None:
    """Measure, and estimate. None on every rank but 0 of torchrun. Raises UsageError, and SimulationError where a rank failed."""
    settings.check()
    if under_torchrun():
        document = _measure(settings)
    else:
        _task(settings, "cpu")  # says at once what is wrong with a name
        document = _spawn(settings)
    if document is None:
        return None
    return estimate(
        [_rank_times(row) for row in document["ranks"]],
        Subject(**document["subject"]),
        name=settings.name,
        date=datetime.date.today().isoformat(),
        versions=f"torch {str(torch.__version__).split('+')[0]}",
        backend=document["backend"],
    )


def _rank_times(row: dict[str, Any]) -> RankTimes:
    """JSON has only text for keys."""
    sized = {key: {int(size): times for size, times in row[key].items()} for key in ("passes_s", "collectives_s")}
    busy = {int(size): [Cycle(**each) for each in found] for size, found in row["cycles"].items()}
    return RankTimes(**{**row, **sized, "cycles": busy})


def _task(settings: Settings, device: str) -> Task:
    if settings.model and settings.data:
        return workloads.user.user_task(settings.model, settings.data, device=device)
    return workloads.get(settings.workload, device=device)


# ---- a rank ----------------------------------------------------------------------------------------------------------


def _measure(settings: Settings) -> dict[str, Any] | None:
    """Join the group that the environment describes, measure, and bring everything to rank 0."""
    local, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda = settings.device != "cpu" and torch.cuda.is_available()
    device = f"cuda:{local % torch.cuda.device_count()}" if cuda else "cpu"
    # NCCL refuses two ranks on one GPU; gloo carries CUDA tensors too.
    nccl = cuda and dist.is_nccl_available() and local_size <= torch.cuda.device_count()
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo")
    try:
        task = _task(settings, device)
        times, gradient_bytes = _times(settings, task)
        found = _gathered(asdict(times))
        dist.all_reduce(torch.zeros(1))  # nobody leaves before rank 0 has everything
    finally:
        dist.destroy_process_group()
    if found is None:
        return None
    subject = Subject(
        workload="own" if settings.model else settings.workload,
        gradient_bytes=gradient_bytes,
        dataset_samples=task.samples,
        model=settings.model,
        dataset=settings.data,
    )
    return {"ranks": found, "subject": asdict(subject), "backend": "nccl" if nccl else "gloo"}


def _times(settings: Settings, task: Task) -> tuple[RankTimes, int]:
    import numpy as np

    model = FlatModel(task.make_model(0))
    model.model.train()
    gradient_bytes = model.size * model.parameters_P.dtype.itemsize
    sum_P = torch.zeros_like(model.parameters_P)
    stream = torch.cuda.current_stream() if task.device != "cpu" else None
    taken = 0

    def settle() -> None:
        if stream is not None:
            stream.synchronize()  # this stream, not the device: a collective in flight has its own

    def one_pass(samples: int) -> None:
        nonlocal taken
        batch = task.batch(np.arange(taken, taken + samples), 0)
        taken += samples
        sum_P.add_(model.gradient_sum(lambda module: task.loss_sum(module, batch)))
        settle()

    def barrier() -> None:
        dist.all_reduce(torch.zeros(1))

    def payload(size: int) -> Tensor:
        return torch.zeros(max(1, size // 4), dtype=torch.float32, device=task.device)

    how: dict[str, Any] = {"warm_up": settings.warm_up, "clock": time.perf_counter, "repeats": settings.repeats}
    together: dict[str, Any] = {**how, "barrier": barrier}
    passes_s = rounds(one_pass, settings.batches, least_s=LEAST_S, **together)
    updater, state = (
        Updater(UpdateRule(learning_rate=0.05, momentum=0.9)),
        State(parameters_P=model.parameters_P.clone()),
    )

    def update(samples: int) -> None:
        updater.step(state, sum_P, divisor=samples, samples=samples)
        settle()

    update_s = rounds(update, [1], least_s=LEAST_S, **together)[1]
    collectives_s: dict[int, list[float]] = {}
    busy: dict[int, list[Cycle]] = {}
    idle_s: list[float] = []
    busy_s: list[float] = []
    if dist.get_world_size() > 1:
        payloads = sorted(settings.payloads or {2**14, 2**17, 2**20, 2**24, gradient_bytes})
        links = {size: Synchronization(size, task.device) for size in payloads}

        def all_reduce(size: int) -> None:
            links[size].start().wait()
            settle()

        collectives_s = rounds(all_reduce, payloads, **together)
        samples = min(settings.batches)  # the micro-batch: what is computed while a synchronization is in flight
        if dist.get_backend() == "gloo":  # nccl's futures are complete when the work is queued
            for size in payloads:
                barrier()
                busy[size] = cycles(lambda: one_pass(samples), links[size].start, **how)
        agreed = torch.tensor([median(passes_s[samples]), median(collectives_s[payloads[-1]])], dtype=torch.float64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)  # every rank sends as much
        long = payload(long_enough(float(agreed[0]), payloads[-1], float(agreed[1]), MOST_OVERLAP_BYTES))
        idle_s, busy_s = beside(lambda: one_pass(samples), lambda: dist.all_reduce(long, async_op=True), **together)
    name, memory = _device(task.device)
    times = RankTimes(
        device=name,
        host=socket.gethostname(),
        memory_bytes=memory,
        passes_s=passes_s,
        collectives_s=collectives_s,
        idle_s=idle_s,
        busy_s=busy_s,
        update_s=update_s,
        cycles=busy,
        micro_batch=min(settings.batches),
    )
    return times, gradient_bytes


def _device(device: str) -> tuple[str, float | None]:
    """Its name, and the memory of a GPU."""
    if device != "cpu":
        found = torch.cuda.get_device_properties(device)
        return found.name, float(found.total_memory)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip(), None
    return platform.processor() or platform.machine() or "CPU", None


def _gathered(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Every rank's row, as JSON in tensors; on rank 0."""
    mine = torch.frombuffer(bytearray(json.dumps(row).encode()), dtype=torch.uint8)
    world = dist.get_world_size()
    lengths = torch.zeros(world, dtype=torch.int64)
    lengths[dist.get_rank()] = len(mine)
    dist.all_reduce(lengths)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    if dist.get_rank():
        return None
    return [json.loads(bytes(part[:size].tolist())) for part, size in zip(parts, lengths.tolist(), strict=True)]


# ---- processes on this machine -----------------------------------------------------------------------------------------


def _spawn(settings: Settings) -> dict[str, Any]:
    """A process per rank; what rank 0 wrote. No process is left behind."""
    with tempfile.TemporaryDirectory(prefix="hetsim-calibrate-") as made:
        folder = Path(made)
        (folder / "settings.json").write_text(json.dumps(asdict(settings)), encoding="utf-8")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        with (
            cpu_shares.groups(settings.cpu_shares) as groups,
            _processes(settings.world, store.port, folder, groups) as ranks,
        ):
            _watch(ranks, folder)
        return dict(json.loads((folder / "measured.json").read_text(encoding="utf-8")))


@contextlib.contextmanager
def _processes(
    n: int, port: int, folder: Path, groups: Sequence[object] = ()
) -> Iterator[list[subprocess.Popen[bytes]]]:
    common = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The store is the parent's: ranks connect to it, as torchrun's ranks do to the agent's.
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(n):
            environment = {"GLOO_SOCKET_IFNAME": LOOPBACK, **os.environ, **common}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (folder / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", "abs_sgd.calibrate", str(folder), *map(str, groups[rank : rank + 1])]
                ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment))
        yield ranks
    finally:
        for process in ranks:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + STOP_S
        for process in ranks:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _watch(ranks: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait for all; the first that fails ends the measurement."""
    while True:
        codes = [process.poll() for process in ranks]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            raise SimulationError(
                f"calibration: rank {failed[0]} failed: {_reason(folder, failed[0], codes[failed[0]])}"
            )
        if all(code == 0 for code in codes):
            return
        time.sleep(POLL_S)


def _reason(folder: Path, rank: int, code: int | None) -> str:
    lines = (folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}, without a word"


def _end_with_parent() -> None:
    """The parent holds the other end of standard input: it ends when the parent does, however that ends."""
    sys.stdin.buffer.read()
    os._exit(1)


def _rank_process(folder: Path, group: str = "") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    said = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    lists = {key: tuple(value) for key, value in said.items() if isinstance(value, list)}
    settings = Settings(**{**said, **lists})
    code = 0
    try:
        if group:
            cpu_shares.enter(group)
        document = _measure(settings)
        if document is not None:
            with new_file(folder / "measured.json") as temporary:
                temporary.write_text(json.dumps(document), encoding="utf-8")
    except BaseException as error:
        print(error if isinstance(error, HetsimError) else f"{type(error).__name__}: {error}".splitlines()[0])
        code = 1
    sys.stdout.flush()
    os._exit(code)  # the thread that reads standard input would keep the interpreter waiting


if __name__ == "__main__":
    _rank_process(Path(sys.argv[1]), *sys.argv[2:])
