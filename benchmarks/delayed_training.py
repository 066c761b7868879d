"""Training cells of the study of what a delay costs: clusters, Schedules, curves that are kept, and what is read off them.

`python benchmarks/cost_of_delay_training.py` is the command.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import avg_pool2d

from abs_sgd import workloads
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import UpdateRule
from abs_sgd.workloads.cifar10 import TEST_FILES, folder, read
from abs_sgd.workloads.order import Ints
from abs_sgd.workloads.task import Batch, Task, cross_entropy_sum, split
from hetsim import Schedule, load_profile, simulate, writing
from hetsim.algorithms import make
from hetsim.convergence.plan import make_plan

Floats = NDArray[np.float64]
Shares = Literal["constant", "jittering", "wandering"]
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training pictures, per channel
SPEEDS = (4.0, 3.0, 2.0, 1.0)  # of four groups of workers
JITTER_CV = 1.0  # of a pass over a micro-batch
WANDER = (
    0.5,
    0.7,
    20.0,
)  # deviation of a log speed, its correlation from one piece to the next, seconds (updates) a piece
PIECE, PIECES = 125, 16  # CIFAR-10's test loss, in turns over 2,000 pictures
SEED_STRIDE = 1_000_003
DIVERGED = 1e9  # stands for a loss that is no number, in files


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the study: an algorithm with its options on a cluster, an optimizer, and the learning rates it is tried at."""

    name: str
    rates: tuple[float, ...]
    options: tuple[tuple[str, float | str], ...] = ()
    workers: int = 4
    shares: Shares = "constant"
    batch: int = 128
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    synchronous: bool = False

    @property
    def algorithm(self) -> str:
        if self.synchronous:
            return "s-sgd"
        return "one-step-delay-balanced" if self.shares == "constant" else "abs-sgd"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at one learning rate on one seed."""

    method: Method
    rate: float
    seed: int

    def __str__(self) -> str:
        m = self.method
        where = f"n = {m.workers}, {m.shares}, B = {m.batch}, {m.optimizer}, β = {m.momentum:g}"
        return f"{m.name}, {where}, lr {self.rate:g}, seed {self.seed}"


# ---- Schedules --------------------------------------------------------------------------------------------------------


def profile_text(workers: int, shares: Shares, batch: int, max_samples: int) -> str:
    """A cluster whose workers together take a second for a batch, and whose network takes none. Speeds wander as autoregressive steps."""
    rng = np.random.default_rng(workers)
    pace = [SPEEDS[i * len(SPEEDS) // workers] for i in range(workers)]
    jitter = JITTER_CV if shares == "jittering" else 0.0
    rows = [f"  - {{name: w{i}, samples_per_s: {batch * s / sum(pace)!r}, jitter_cv: {jitter}}}" for i, s in enumerate(pace)]  # fmt: skip
    events = []
    if shares == "wandering":
        deviation, correlation, piece_s = WANDER
        logs = rng.normal(size=workers)
        for k in range(math.ceil(1.5 * max_samples / batch / piece_s)):
            events += [
                f"  - {{at_s: {k * piece_s}, for_s: {piece_s}, worker: w{i}, slowdown: {math.exp(deviation * float(z))!r}}}"
                for i, z in enumerate(logs)
            ]
            logs = correlation * logs + math.sqrt(1.0 - correlation**2) * rng.normal(size=workers)
    lines = [
        "schema_version: 1",
        "name: cost-of-delay",
        "workload: {name: mine, gradient_bytes: 1.0e+6, dataset_samples: 50000}",
        "workers:",
        *rows,
        "network: {bandwidth_gbit_per_s: 1000, latency_us: 1}",
        f"training: {{global_batch_samples: {batch}, micro_batch_samples: {max(1, batch // (8 * workers))}, max_samples: {max_samples}}}",
        *(["events:", *events] if events else []),
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def open_target(workers: int, shares: Shares, batch: int, updates: int = 200) -> int:
    """The target of open batches whose mean is nearest to the batch: workers go on for what is under way, so it lies below."""
    cluster = load_profile(profile_text(workers, shares, batch, updates * batch)).cluster()

    def off(target: int) -> float:
        algorithm = make("abs-sgd", {"trigger": "target_batch", "target_batch": target})
        schedule = simulate(cluster, algorithm, seed=0, verify=False).schedule
        return abs(float(schedule.updates.samples.mean()) - batch)

    step = max(1, batch // 16)
    return min(range(step, batch + 1, step), key=off)


def schedule_of(method: Method, seed: int, max_samples: int) -> Schedule:
    """The method on its cluster."""
    cluster = load_profile(profile_text(method.workers, method.shares, method.batch, max_samples)).cluster()
    options: dict[str, Any] = dict(method.options)
    if method.algorithm == "abs-sgd":
        options |= {"trigger": "target_batch", "target_batch": open_target(method.workers, method.shares, method.batch)}
    return simulate(cluster, make(method.algorithm, options), seed=SEED_STRIDE * seed, verify=False).schedule


def share_noise(schedule: Schedule, batch: int) -> float:
    """What changing shares add to the point of a local prediction, mean of Σ (w' - w)²/b over that of 1/B."""
    cluster = load_profile(profile_text(schedule.n, "constant", batch, 1000)).cluster()
    plan = make_plan(schedule.updates, cluster.training)
    return float(plan.share_change.mean() / plan.noise.mean())


@functools.cache
def content(method: Method, seed: int, max_samples: int) -> str:
    """A digest of what training depends on: every column of the Schedule's log but times, to the bit."""
    schedule = schedule_of(method, seed, max_samples)
    digest = hashlib.sha256()
    for name in ("kind", "worker", "state", "parent", "source", "slot", "samples", "first", "scale", "code"):
        digest.update(getattr(schedule, name).tobytes())
    return digest.hexdigest()


# ---- training, kept ---------------------------------------------------------------------------------------------------


class Turns:
    """Held-out loss on the next piece of the test pictures, each in turn, from the first again after `restart`."""

    def __init__(self, pieces: Sequence[Batch]) -> None:
        self.pieces, self.turn = pieces, 0

    def restart(self) -> None:
        self.turn = 0

    def __call__(self, model: nn.Module) -> float:
        piece = self.pieces[self.turn % len(self.pieces)]
        self.turn += 1
        model.eval()
        with torch.no_grad():
            loss = float(cross_entropy_sum(model, piece)) / len(piece[1])
        model.train()
        return loss


def half_resolution() -> Task:
    """cifar10-small-resnet on pictures of 16 x 16, a quarter of the work; test loss in turns over the first 2,000 test pictures."""
    task = workloads.get("cifar10-small-resnet")
    pictures, labels = read([folder() / name for name in TEST_FILES])
    mean, deviation = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, DEVIATION))
    held_out = avg_pool2d((pictures[: PIECE * PIECES].float() / 255.0 - mean) / deviation, 2)

    def batch(numbers: Ints, seed: int) -> Batch:
        inputs, targets = task.batch(numbers, seed)
        return avg_pool2d(inputs, 2), targets

    return replace(
        task, name="cifar10-half-resnet", batch=batch, evaluate=Turns(split(held_out, labels[: PIECE * PIECES], PIECE))
    )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The curve of a cell: samples and test loss; `ended` says why it is short, if it is; `cpu_s` what it took."""

    samples: tuple[int, ...]
    loss: tuple[float, ...]
    ended: Literal["", "reached", "behind", "diverged"]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A task, a folder for what was trained on it, how long each cell runs, and how its curve is read.

    The loss is taken every `every` samples and averaged over `window` evaluations: losses of single versions jump. A cell ends before
    `max_samples` where that mean reaches the target (if `stop`), or is `margin` over the reference's from `far_from` samples on.
    """

    task: Task
    folder: Path
    target: float
    max_samples: int
    every: int
    window: int
    stop: bool
    margin: float
    far_from: int

    def place(self, cell: Cell) -> Path:
        """The file that keeps the training of a cell."""
        m = cell.method
        asked = [self.task.name, m.optimizer, m.momentum, m.nesterov, cell.rate, cell.seed, self.every, m.batch]
        if self.stop:
            asked += [self.target, self.window]
        digest = content(m, cell.seed, self.max_samples)
        return self.folder / f"{hashlib.sha256(json.dumps([digest, asked]).encode()).hexdigest()[:24]}.json"

    def kept(self, cell: Cell) -> Trained | None:
        """What an earlier run has trained."""
        place = self.place(cell)
        if not place.exists():
            return None
        found = json.loads(place.read_text(encoding="utf-8"))["trained"]
        return Trained(**{**found, "samples": tuple(found["samples"]), "loss": tuple(found["loss"])})

    def train(self, cell: Cell, reference: Trained | None = None) -> Trained:
        """A cell's curve, kept."""
        m = cell.method
        rule = UpdateRule(
            learning_rate=cell.rate, optimizer=m.optimizer, momentum=m.momentum, nesterov=m.nesterov,
            reference_batch_samples=m.batch,
        )  # fmt: skip
        end = End(self, reference)
        if isinstance(self.task.evaluate, Turns):
            self.task.evaluate.restart()
        started = time.process_time()
        schedule = schedule_of(m, cell.seed, self.max_samples)
        curve = InProcess(schedule, self.task, seed=cell.seed).train(
            rule, evaluate_every_samples=self.every, give_up=end.here
        )
        trained = Trained(
            samples=tuple(int(s) for s in curve.samples),
            loss=tuple(float(x) if math.isfinite(x) else DIVERGED for x in curve.loss),
            ended="diverged" if curve.diverged else end.why,
            cpu_s=time.process_time() - started,
        )
        writing.write_file(self.place(cell), json.dumps({"cell": asdict(cell), "trained": asdict(trained)}) + "\n")
        return trained

    def smoothed(self, trained: Trained) -> tuple[Floats, Floats]:
        """The curve: samples and losses, both averaged over the window that ends at each evaluation."""
        samples, loss = np.array(trained.samples, float), np.array(trained.loss)
        size = min(self.window, len(loss))
        flat = np.full(size, 1.0 / size)
        return np.convolve(samples, flat, "valid"), np.convolve(loss, flat, "valid")

    def samples_to(self, trained: Trained, target: float) -> float:
        """Samples until the smoothed loss first is at most the target, interpolated; inf where it never is."""
        samples, loss = self.smoothed(trained)
        met = np.flatnonzero(loss <= target)
        if not len(met):
            return math.inf
        k = int(met[0])
        if k == 0:
            return float(samples[0])
        part = (loss[k - 1] - target) / (loss[k - 1] - loss[k])
        return float(samples[k - 1] + part * (samples[k] - samples[k - 1]))

    def last_loss(self, trained: Trained) -> float:
        """Loss over the last window; inf where the cell was ended as lost."""
        return math.inf if trained.ended in ("behind", "diverged") else float(self.smoothed(trained)[1][-1])


class End:
    """When to end a cell, and why: `reached`, or `behind`."""

    def __init__(self, bench: Bench, reference: Trained | None) -> None:
        self.bench = bench
        self.reference = None if reference is None else bench.smoothed(reference)
        self.losses: list[float] = []
        self.why: Literal["", "reached", "behind"] = ""

    def here(self, _: float, loss: float) -> bool:
        """Whether to end at this evaluation."""
        bench = self.bench
        self.losses.append(loss)
        mean = float(np.mean(self.losses[-bench.window :]))
        at = (len(self.losses) - 1) * bench.every
        if bench.stop and mean <= bench.target:
            self.why = "reached"
        elif self.reference is not None and at >= bench.far_from:
            known = float(np.interp(at - 0.5 * bench.window * bench.every, *self.reference))
            if not mean <= known + bench.margin:
                self.why = "behind"
        return bool(self.why)
