"""SSP: an asynchronous parameter server that lets nobody run too far ahead."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Message, Port, ServerPort
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule


class SspOptions(Options):
    """How far ahead, and when the server updates."""

    staleness: int = Field(3, ge=0, le=1_000_000, description="s, clocks a worker may be ahead of the slowest")
    server_update: Literal["arrival", "clock"] = Field(
        "arrival", description="apply each gradient as it arrives, or a whole clock's gradients together"
    )


class Ssp(Algorithm, name="ssp"):
    """Stale synchronous parallel: ASGD in which a worker starts clock c only while c - (slowest clock) ≤ s.

    Under a constant skew everybody ends up waiting for the slowest: n·b / (max t_i(b) + t_pull + t_push) samples/s. With s = 0 this is BSP
    without momentum at lr/n (every arrival is a step), or with `server_update: clock`, where the server applies the sum of a clock.
    """

    source = "Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NeurIPS"
    has_server = True
    Options: ClassVar[Any] = SspOptions

    def parameter_buffers(self, optimizer_states: int) -> int:
        """Weights and gradient; the optimizer's state is the server's."""
        return 2

    def worker(self, w: Port) -> Program:
        """Pull (the answer may be held back), compute, push: one clock."""
        while True:
            pulled = yield w.wait((yield w.pull()))
            if pulled.stop:
                return
            yield w.compute(w.batch)
            yield w.wait((yield w.push()))

    def server(self, s: ServerPort) -> Program:
        """Apply gradients; answer a pull once its worker is at most s clocks ahead."""
        clocks = [0] * s.n
        held: list[Message] = []
        while True:
            message = yield s.receive()
            if message.kind == "push":
                yield s.apply(message)
                clocks[message.worker] += 1
            else:
                held.append(message)
            slowest = min(clocks)
            ready = [m for m in held if message.stop or clocks[m.worker] - slowest <= self.options.staleness]
            held = [m for m in held if m not in ready]
            for pull in ready:
                yield s.reply(pull)

    def check(self, schedule: Schedule) -> None:
        """When a worker starts clock c, no other worker that still runs has pushed fewer than c - s gradients."""
        clocks = np.zeros(schedule.n, np.int64)
        steps = schedule.rows(Kind.STEP)
        copies = schedule.rows(Kind.COPY)
        owner = np.full(int(schedule.source.max(initial=-1)) + 1, -1)
        joins = schedule.rows(Kind.JOIN)
        owner[schedule.source[joins]] = schedule.worker[joins]
        total = len(steps)
        applied = 0
        for row in sorted([*steps.tolist(), *copies.tolist()]):
            if schedule.kind[row] == Kind.STEP:
                clocks[owner[schedule.source[row]]] += 1
                applied += 1
            elif applied < total - schedule.n:  # at the end of the budget everybody is let go
                ahead = int(clocks[schedule.worker[row]] - clocks.min())
                if ahead > self.options.staleness:
                    raise ScheduleError(f"ssp: {ahead} clocks ahead of the slowest, promised {self.options.staleness}")
