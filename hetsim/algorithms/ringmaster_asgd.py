"""Ringmaster ASGD: asynchronous SGD that ignores gradients that are too old."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.asgd import Asgd
from hetsim.algorithms.base import Options, Program
from hetsim.commands import ServerPort
from hetsim.errors import ScheduleError
from hetsim.schedule.table import Schedule


class RingmasterOptions(Options):
    """How old a gradient may be."""

    threshold: int = Field(
        0, ge=0, description="R: gradients delayed by R updates or more are ignored; 0 is twice the number of workers"
    )


class RingmasterAsgd(Asgd, name="ringmaster-asgd"):
    """ASGD whose server ignores gradients delayed by R updates or more, so that a slow worker cannot bring in old ones.

    x_{k+1} = step(x_k, s_i(x_{k-τ}) / b_i) where τ < R, else the gradient is dropped and its worker starts anew at x_k. With R = ∞ this is
    ASGD; with R = 1 only gradients taken at the current parameters count. The paper's R = max(1, ⌈σ²/ε⌉) needs the variance σ² of one
    gradient and the wanted ε; the default, 2n, drops nothing where all are equally fast, in any order [our choice]. The variant
    that also stops a computation under way is left out: a pass on a GPU is not given up half-way.
    """

    source = "Maranjyan, Tyurin, Richtárik 2025, Ringmaster ASGD, ICML (arXiv 2501.16168)"
    Options: ClassVar[Any] = RingmasterOptions
    by_default = False

    def server(self, s: ServerPort) -> Program:
        """Apply what is fresh enough, answer every pull."""
        threshold = self.options.threshold or 2 * s.n
        updates, pulled = 0, [0] * s.n
        while True:
            message = yield s.receive()
            if message.kind == "pull":
                pulled[message.worker] = updates
                yield s.reply(message)
            elif updates - pulled[message.worker] < threshold:
                updates = yield s.apply(message)
            else:
                yield s.discard(message, "stale")

    def check(self, schedule: Schedule) -> None:
        """No applied gradient is R updates old or older."""
        threshold = self.options.threshold or 2 * schedule.n
        oldest = int(schedule.updates.staleness.max(initial=0))
        if oldest >= threshold:
            raise ScheduleError(f"{self.name}: a gradient {oldest} updates old was applied, promised under {threshold}")
