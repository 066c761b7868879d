"""Takes one rank's checkpoints while it runs, and brings a new rank to the point of one (`abs_sgd.runtime.keeping` says how).

Writing is done by a thread; the rank waits for it only where the checkpoint before is not on the disk yet.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abs_sgd.checkpoint import plain_of, prune, seal, state_of, write_share
from abs_sgd.runtime.answers import Answers, copied
from abs_sgd.runtime.keeping import Keeping, Kept
from abs_sgd.runtime.noise import NoiseLog
from abs_sgd.runtime.rank import LiveRank, Version
from abs_sgd.runtime.record import Rows
from abs_sgd.runtime.wire import LiveTransfer, Share
from hetsim import commands as cmd
from hetsim.algorithms.base import Program
from hetsim.errors import UsageError
from hetsim.schedule.log import DTYPE


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
        parts, seen_s, keeping = list(self.parts), dict(live.log.seen_s), self.keeping

        def write() -> None:
            held["ranges"], held["reach"] = desk()
            held["rows"] = copied(np.concatenate(parts).tobytes() if parts else b"", torch.uint8)
            held["seen"] = torch.from_numpy(np.array(list(seen_s.items()), np.float64).reshape(-1, 2))
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
        versions = {v.number: v.state for v in (live.version, live.point, live.anchor, live.taken, live.predicted[1])}
        return {
            "states": {number: plain_of(state) for number, state in versions.items()},
            "version": live.version.number,
            "point": live.point.number,
            "anchor": live.anchor.number,
            "taken": live.taken.number,
            "predicted": (live.predicted[0], live.predicted[1].number),
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
            "polls": copied(log.polls, torch.uint8),
            "outcomes": copied(log.outcomes, torch.float64),
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
        if any(state.parameters_P.shape != live.model.parameters_P.shape for state in states.values()):
            raise ValueError("other parameters than the model's")
        versions = {number: Version(number, state) for number, state in states.items()}
        live.version, live.point, live.anchor = (versions[held[name]] for name in ("version", "point", "anchor"))
        transfer, number = held.get(
            "predicted", (-1, held["version"])
        )  # absent from checkpoints of before there was such a point
        live.predicted = transfer, versions[number]
        live.taken = versions[held.get("taken", held["point"])]  # the same: of before a gradient's point was kept
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
