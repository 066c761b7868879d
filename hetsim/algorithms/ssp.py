"""SSP: an asynchronous parameter server that lets nobody run too far ahead."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hetsim.algorithms.asgd import Asgd
from hetsim.algorithms.base import Options, Program
from hetsim.commands import Message, ServerPort
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind, Payload
from hetsim.schedule.table import Schedule


class SspOptions(Options):
    """How far ahead, and when the server updates."""

    staleness: int = Field(3, ge=0, le=1_000_000, description="s, clocks a worker may be ahead of the slowest")
    server_update: Literal["arrival", "clock"] = Field(
        "arrival",
        description="apply each gradient as it arrives, or a clock's together once all are there, each over the clock's samples",
    )


class Ssp(Asgd, name="ssp"):
    """Stale synchronous parallel: ASGD in which a worker starts clock c only while c - (slowest clock) ≤ s.

    The workers' program is ASGD's; only the server differs, and an answer to a pull may be held back. Under a constant skew
    everybody ends up waiting for the slowest: n·b / (max t_i(b) + t_pull + t_push) samples/s. With s = 0 this is BSP
    without momentum at lr/n (every arrival is a step). With `server_update: clock` the server holds a clock's gradients until all are there
    and steps on each over the clock's samples: their weighted mean where the optimizer has no momentum [our choice: one step per push].
    """

    source = "Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NeurIPS"
    Options: ClassVar[Any] = SspOptions

    def server(self, s: ServerPort) -> Program:
        """Apply gradients; answer a pull once its worker is at most s clocks ahead."""
        clocks = [0] * s.n
        held: list[Message] = []
        waiting: dict[int, list[Message]] = {}  # clock -> gradients of it, until all are there
        over = False
        while True:
            message = yield s.receive()
            if message.kind == "push":
                together = [message]
                if self.options.server_update == "clock":
                    together = waiting.setdefault(clocks[message.worker], [])
                    together.append(message)
                if len(together) == s.n or self.options.server_update == "arrival":
                    waiting.pop(clocks[message.worker], None)
                    for push in together:
                        yield s.apply(push, divisor=sum(m.samples for m in together))
                clocks[message.worker] += 1
            else:
                held.append(message)
            slowest = min(clocks)
            over = over or message.stop  # who has left pushes no more: nobody may be held for it
            ready = [m for m in held if over or clocks[m.worker] - slowest <= self.options.staleness]
            held = [m for m in held if m not in ready]
            for pull in ready:
                yield s.reply(pull)

    def check(self, schedule: Schedule) -> None:
        """When a worker starts clock c, no other worker that still runs has pushed fewer than c - s gradients."""
        check_lead(self.name, schedule, self.options.staleness)


def check_lead(name: str, schedule: Schedule, most: int) -> None:
    """Raise ScheduleError where a worker that starts a clock is more than `most` ahead of the slowest."""
    clocks = np.zeros(schedule.n, np.int64)
    reduces = schedule.rows(Kind.REDUCE)
    pushes = reduces[schedule.code[reduces] == Payload.GRADIENT]
    copies = schedule.rows(Kind.COPY)
    total, pushed = len(pushes), 0
    for row in sorted([*pushes.tolist(), *copies.tolist()]):
        if schedule.kind[row] == Kind.REDUCE:
            clocks[schedule.worker[row]] += 1
            pushed += 1
        elif pushed < total - schedule.n:  # at the end of the budget everybody is let go
            ahead = int(clocks[schedule.worker[row]] - clocks.min())
            if ahead > most:
                raise ScheduleError(f"{name}: {ahead} clocks ahead of the slowest, promised {most}")
