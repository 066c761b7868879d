"""Checkpoints of a live run, taken while gradients travel, and going on from them.

Every rank takes its share right after **its** update k, so nobody has to agree on a moment and nothing is drained: at that point of the
program all ranks have launched the same collectives. A share holds what the program was answered (`abs_sgd.runtime.answers`), the states
it still needs, the accumulator, what the rank put into collectives that are not applied yet (launched again from it), its samples, and
what it recorded. Whoever goes on has the rows of before in its log, so the two parts of the run are one Schedule; its clock goes on from
the latest rank's checkpoint, and what was claimed and lost in between is handed out again.

Writing is done by a thread; the rank waits for it only where the checkpoint before is not on the disk yet.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abs_sgd.checkpoint import (
    Checkpoint,
    discard_unfinished,
    newest,
    plain_of,
    prune,
    read_share,
    seal,
    state_of,
    write_share,
)
from abs_sgd.runtime.answers import Answers
from abs_sgd.runtime.noise import NoiseLog
from abs_sgd.runtime.rank import LiveRank, Version
from abs_sgd.runtime.record import RankLog, Rows
from abs_sgd.runtime.samples import Range, holes_below
from abs_sgd.runtime.wire import LiveTransfer, Share
from abs_sgd.update import UpdateRule
from hetsim import commands as cmd
from hetsim.algorithms import Algorithm
from hetsim.algorithms.base import Program
from hetsim.cluster.spec import Cluster
from hetsim.errors import UsageError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.log import DTYPE

CHECKPOINTS = "checkpoints"  # in the folder of a run


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Checkpoints after every so many updates (0: none) into `folder`; `resume`: the one to go on from. `run`: what a checkpoint of
    another run differs in, as plain JSON values; `job`: torchrun's name of the job that saves."""

    folder: str
    every: int
    run: dict[str, Any] = field(default_factory=dict)
    resume: int = 0
    job: str = ""

    def start(self, rank: int, world: int) -> Kept | None:
        """What this rank goes on from, None for a run from the beginning. Raises UsageError."""
        if not self.resume:
            return None
        found = newest(self.folder)
        if found is None or found.update != self.resume:
            raise UsageError(f"{self.folder}: the checkpoint of update {self.resume} is gone")
        check_same(found, self.run, world)
        return Kept(read_share(found, rank))


def check_same(found: Checkpoint, run: Mapping[str, Any], world: int) -> None:
    """Raise UsageError for a checkpoint of another run."""
    before = found.meta.get("run", {})
    other = [
        f"{name} {before.get(name)!r}, now {run.get(name)!r}"
        for name in sorted({*before, *run})
        if before.get(name) != run.get(name)
    ]
    if found.world != world:
        other.append(f"{found.world} ranks, now {world}")
    if other:
        raise UsageError(f"the checkpoint of {found} is of another run: it had {'; '.join(other)}")


@dataclass(frozen=True)
class Kept:
    """One rank's share of a checkpoint."""

    held: dict[str, Any]

    @property
    def time_s(self) -> float:
        """The run's clock when it was taken."""
        return float(self.held["time_s"])

    @property
    def ranges(self) -> list[Range]:
        """Samples claimed and not used."""
        return [(first, count) for first, count in self.held["ranges"]]

    def log(self, rank: int) -> RankLog:
        """What the rank had recorded."""
        held = self.held
        rows = np.frombuffer(held["rows"].numpy().tobytes(), DTYPE).tolist()
        seen = {int(number): at for number, at in held["seen"].tolist()}
        outcomes = array("d", held["outcomes"].tolist())
        return RankLog(rank, rows, bytearray(held["polls"].numpy().tobytes()), outcomes, seen)

    def account(self, rank: int) -> bytes:
        """How far the data are claimed, the clock, and the ranges used and held: what the others need of this share."""
        used = [(row[9], row[8]) for row in self.log(rank).rows if row[0] == Kind.GRAD]
        table = np.array([*used, *self.ranges], np.int64).reshape(-1, 2)
        head = np.array([self.held["reach"], self.time_s], np.float64)
        return head.tobytes() + table.tobytes()


def together(accounts: list[bytes]) -> tuple[float, list[Range], int]:
    """The clock to go on from, the samples that were claimed and lost, and how far the data are claimed, from every rank's account."""
    heads = [np.frombuffer(account[:16], np.float64) for account in accounts]
    used: list[Range] = []
    for account in accounts:
        used += [(int(f), int(c)) for f, c in np.frombuffer(account[16:], np.int64).reshape(-1, 2).tolist()]
    reach = max(int(max(head[0] for head in heads)), *(first + count for first, count in used), 0)
    return float(max(head[1] for head in heads)), holes_below(reach, used), reach


@dataclass(frozen=True)
class _Contribution:
    """What a rank put into a collective, before it became everybody's sum."""

    sum_P: Tensor
    share: Share


class Keeper:
    """Notes what a rank needs to go on, takes its checkpoints and brings a new rank to the point of one."""

    def __init__(self, keeping: Keeping, rank: int, world: int) -> None:
        self.keeping, self.rank, self.world = keeping, rank, world
        self.answers = Answers()
        self.open: dict[int, _Contribution | None] = {}  # launched, not applied
        self.parts: list[Rows] = []  # rows of the log up to `packed`, as arrays
        self.packed = 0
        self.writing: Future[None] | None = None
        self.writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.before: list[int] = []  # updates from which this run went on
        self.transfers: dict[int, LiveTransfer] = {}  # launched again

    # ---- while the rank runs ---------------------------------------------------------------------------------------------

    def launching(self, number: int, buffer_P: Tensor, share: Share) -> None:
        """Called before a collective starts. Copied only where an earlier one is not applied yet: else this one will be itself before
        the next checkpoint."""
        behind = any(other != number for other in self.open)
        self.open[number] = _Contribution(buffer_P.clone(), share) if behind else None

    def note(self, live: LiveRank, command: Any, answer: Any) -> None:
        """Called after every command."""
        self.answers.note(command, answer)
        if not isinstance(command, cmd.Apply | cmd.Merge):
            return
        self.open.pop(command.handle.id, None)
        update = command.handle.id + 1
        if self.keeping.every and update % self.keeping.every == 0 and not command.handle.result.stop:
            self.save(live, update)

    def save(self, live: LiveRank, update: int) -> None:
        """Take this rank's share; a thread writes it, and seals the checkpoint where it is the last one."""
        self.wait()
        desk = live.dispenser.desk()
        held = self._held(live)
        parts, keeping = list(self.parts), self.keeping

        def write() -> None:
            held["ranges"], held["reach"] = desk()
            held["rows"] = _bytes(np.concatenate(parts).tobytes() if parts else b"")
            write_share(keeping.folder, update, self.rank, held)
            if seal(keeping.folder, update, self.world, {"run": keeping.run, "job": keeping.job}) is not None:
                prune(keeping.folder)

        self.writing = self.writer.submit(write)

    def wait(self) -> None:
        """Until the last checkpoint is written. Raises what went wrong with it."""
        if self.writing is not None:
            self.writing.result()
            self.writing = None

    def close(self) -> None:
        """Finish writing."""
        self.wait()
        self.writer.shutdown()

    def _held(self, live: LiveRank) -> dict[str, Any]:
        """All that the rest of the run depends on. States are never changed in place; the accumulator and the model's buffers are."""
        log, sent, time_s = live.log, live.sent, live.watch.settle()  # the rows have their times
        if len(log.rows) > self.packed:
            self.parts.append(np.array(log.rows[self.packed :], dtype=DTYPE))
            self.packed = len(log.rows)
        versions = {v.number: v.state for v in (live.version, live.point, live.anchor)}
        return {
            "states": {number: plain_of(state) for number, state in versions.items()},
            "version": live.version.number,
            "point": live.point.number,
            "anchor": live.anchor.number,
            "made": live.made,
            "updates": live.updates,
            "slots": live.slots,
            "slot": live.slot,
            "held": live.held,
            "sum_P": None if live.sum_P is None else live.sum_P[: live.wire.size].clone(),
            "sent": (*sent[:3], sent[3] if sent[0] in self.open else None),
            "buffers": live.model.save_buffers() if live.model.has_buffers else [],
            "draws": dict(live.draws),
            "counted": live.counter.own,
            "launched": live.wire.launched,
            "flying": [self._flying(live, number) for number in self.open],
            "noise": asdict(live.noise),
            "answers": self.answers.plain(),
            "polls": _bytes(log.polls),
            "outcomes": torch.tensor(log.outcomes, dtype=torch.float64),
            "seen": torch.tensor(list(log.seen_s.items()), dtype=torch.float64).reshape(-1, 2),
            "before": list(self.before),
            "time_s": time_s,
        }

    def _flying(self, live: LiveRank, number: int) -> dict[str, Any]:
        put = self.open[number]
        if put is None:
            raise UsageError(
                f"{live.algorithm.name} applies transfer {live.wire.launched - 1} before transfer {number}, which was launched "
                "earlier: its runs cannot be saved"
            )
        return {
            "number": number,
            "sum_P": put.sum_P,
            "seen": number in live.log.seen_s,
            "share": asdict(put.share),
        }

    # ---- going on --------------------------------------------------------------------------------------------------------

    def resume(self, live: LiveRank, kept: Kept) -> None:
        """Put back what the rank held, and launch again what was in flight."""
        held = kept.held
        device = live.wire.device
        states = {number: state_of(_moved(plain, device)) for number, plain in held["states"].items()}
        versions = {number: Version(number, state) for number, state in states.items()}
        live.version, live.point, live.anchor = (versions[held[name]] for name in ("version", "point", "anchor"))
        live.made, live.updates, live.slots = held["made"], held["updates"], held["slots"]
        live.slot, live.held, live.sent = held["slot"], held["held"], _moved(tuple(held["sent"]), device)
        live.draws = dict(held["draws"])
        live.sum_P = None if held["sum_P"] is None else _into(live.wire.buffer(), held["sum_P"])
        if held["buffers"]:
            live.model.load_buffers(held["buffers"])
        live.noise = NoiseLog(**held["noise"])
        live.log = kept.log(self.rank)
        live.counter.take_up(*held["counted"])
        self.before = [*held["before"], self.keeping.resume]
        answers = held["answers"]
        self.answers = Answers.of(answers)
        if live.pace is not None:
            live.pace.catch_up(self.answers.computed())
        self._launch_again(live, held["flying"], held["launched"])
        if live.progress is not None:
            live.progress(live.version.state.progress)

    def _launch_again(self, live: LiveRank, flying: list[dict[str, Any]], launched: int) -> None:
        for said in flying:
            live.wire.launched = said["number"]
            share = Share(**said["share"])
            share = replace(share, has_more=share.has_more or live.dispenser.has_more())
            buffer_P = _into(live.wire.buffer(), said["sum_P"])
            self.open[said["number"]] = _Contribution(buffer_P.clone(), share)
            self.transfers[said["number"]] = live.wire.start(buffer_P, share)
        live.wire.launched = launched
        for said in flying:
            if said["seen"]:  # the program knows that it is complete
                live.arrive(self.transfers[said["number"]])

    def feed(self, program: Program) -> Any:
        """Bring a fresh program to the point of the checkpoint; the answer it takes next (None: from the beginning)."""
        known: dict[int, cmd.Handle] = dict(self.transfers)

        def handle(number: int) -> cmd.Handle:
            if number not in known:
                known[number] = cmd.Handle(number)
                known[number].done = True  # applied before the checkpoint
            return known[number]

        return self.answers.feed(program, handle)


def keeping_of(
    folder: str | Path,
    every: int,
    resume: bool,
    cluster: Cluster,
    algorithm: Algorithm,
    workload: str,
    task_options: Mapping[str, Any],
    rule: UpdateRule,
    seed: int,
) -> Keeping | None:
    """How a run in `folder` is saved, and where it goes on; None where it does neither. One process asks, before any rank writes.

    Raises UsageError where checkpoints of an earlier run are in the way or are of another run, and for algorithms that cannot be saved.
    """
    if every < 0:
        raise UsageError("checkpoint_every: updates between two checkpoints, at least 1 (0: none)")
    if not every and not resume:
        return None
    if algorithm.has_server:
        raise UsageError(f"{algorithm.name}: runs with a parameter server cannot be saved and gone on from yet")
    where = Path(folder, CHECKPOINTS)
    named = {
        "algorithm": algorithm.name,
        "options": algorithm.options.model_dump(mode="json"),
        "workers": [w.name for w in cluster.workers],
        "batches": [cluster.training.global_batch_samples, cluster.training.micro_batch_samples],
        "workload": workload,
        "task_options": {name: str(value) for name, value in task_options.items()},
        "rule": asdict(rule),
        "seed": seed,
    }
    run = dict(json.loads(json.dumps(named)))
    found = newest(where)
    if found is not None and not resume:
        raise UsageError(
            f"{where} holds checkpoints of an earlier run, the newest of update {found.update}: resume it, or take another folder"
        )
    if found is not None:
        check_same(found, run, cluster.n)
    discard_unfinished(where)
    return Keeping(folder=str(where), every=every, run=run, resume=found.update if found else 0)


def _into(buffer_P: Tensor, values_P: Tensor) -> Tensor:
    buffer_P[: len(values_P)] = values_P
    return buffer_P


def _moved(held: Any, device: str) -> Any:
    """Vectors on a device; single numbers (Adam's count of steps) stay on the host, where torch.optim has them."""
    if isinstance(held, Tensor):
        return held.to(device) if held.dim() else held
    if isinstance(held, dict):
        return {name: _moved(value, device) for name, value in held.items()}
    return tuple(_moved(value, device) for value in held) if isinstance(held, tuple) else held


def _bytes(data: bytes | bytearray) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
