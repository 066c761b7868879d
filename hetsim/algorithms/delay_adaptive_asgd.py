"""Delay-adaptive ASGD: the older a gradient, the smaller its step."""

from __future__ import annotations

import numpy as np

from hetsim.algorithms.asgd import Asgd
from hetsim.algorithms.base import Program
from hetsim.commands import ServerPort
from hetsim.errors import ScheduleError
from hetsim.schedule.table import Schedule


def factor(workers: int, delay: int) -> float:
    """On the learning rate: n / max(n, delay)."""
    return workers / max(workers, delay)


class DelayAdaptiveAsgd(Asgd, name="delay-adaptive-asgd"):
    """ASGD whose learning rate shrinks with a gradient's delay beyond the number of workers.

    x_{k+1} = x_k - lr · n/max(n, τ) · s_i(x_{k-τ}) / b_i. Where no delay exceeds n this is ASGD: the paper's rates
    hold with n in place of the largest delay, since most delays are below n whatever the speeds. The timing is ASGD's.
    """

    source = "Mishchenko, Bach, Even, Woodworth 2022, Asynchronous SGD Beats Minibatch SGD, NeurIPS (arXiv 2206.07638)"
    by_default = False

    def server(self, s: ServerPort) -> Program:
        """Apply every gradient by its delay, answer every pull."""
        updates, pulled = 0, [0] * s.n
        while True:
            message = yield s.receive()
            if message.kind == "pull":
                pulled[message.worker] = updates
                yield s.reply(message)
            else:
                updates = yield s.apply(message, scale=factor(s.n, updates - pulled[message.worker]))

    def check(self, schedule: Schedule) -> None:
        """Every step has the factor of its gradient's delay."""
        u = schedule.updates
        if not len(u.staleness):
            return
        promised = schedule.n / np.maximum(schedule.n, u.staleness)
        if not np.allclose(u.scale[u.owner], promised, rtol=1e-12):
            raise ScheduleError(f"{self.name}: a step does not have the learning rate of its delay")
