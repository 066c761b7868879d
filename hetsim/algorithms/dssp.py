"""DSSP: a stale synchronous parameter server that chooses its threshold while it runs, by when the next pushes will come."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.asgd import Asgd
from hetsim.algorithms.base import Options, Program
from hetsim.algorithms.ssp import check_lead
from hetsim.commands import Message, ServerPort
from hetsim.schedule.table import Schedule

Pushes = tuple[float, float]  # seconds of a worker's last push but one, and of its last


class DsspOptions(Options):
    """The range of the threshold."""

    staleness: int = Field(3, ge=0, le=1_000_000, description="s_L, clocks ahead of the slowest that are always free")
    extra: int = Field(12, ge=0, le=10_000, description="r_max, most clocks beyond that the controller may grant")


def extra_clocks(own: Pushes | None, slowest: Pushes | None, most: int, reach: int) -> int:
    """How many passes more until a worker has least to wait: argmin_r min_k |own push r - the slowest's push k|, r = 0 … `most`.

    Push r of the worker comes r of its intervals after its last, push k of the slowest k + 1 of its own, k = 0 … `reach` (the paper's
    Algorithm 2, where both go to r_max). None, or no interval: nothing to predict by, and 0. The smallest of equals.
    """
    if own is None or slowest is None:
        return 0
    step, pace = own[1] - own[0], slowest[1] - slowest[0]
    if pace <= 0:
        return 0

    def wait_s(r: int) -> float:
        at = own[1] + r * step
        hit = min(max((at - slowest[1]) / pace - 1, 0.0), float(reach))  # the k that would hit it, were it whole
        return min(abs(slowest[1] + (k + 1) * pace - at) for k in (math.floor(hit), math.ceil(hit)))

    return min(range(most + 1), key=lambda r: (wait_s(r), r))


class Dssp(Asgd, name="dssp"):
    """SSP whose threshold lies between s_L and s_L + r_max: who runs ahead goes on for as long as makes its wait for the slowest shortest.

        a  |push|push|push|push·····    with s_L = 0: a would wait from its first push for b's, and is let go on until
        b  |-----------------push|      the one that comes nearest to it

    The workers' program is ASGD's. The server keeps each worker's last two pushes. Who is more than s_L clocks ahead of the slowest, with
    nobody further, is granted r clocks by predicting both on: those after which its push comes nearest to one of the slowest's. Others wait
    as in SSP. With r_max = 0 this is SSP with s = s_L, to the byte. A lead never exceeds s_L + r_max.

    From the paper: its Algorithms 1 and 2, s_L = 3, r_max = 12. Its Algorithm 1, read to the letter, lets r* + 1 passes go on, its text and
    its figure 2 say r*, and so it is here. Our choice: a grant never takes a lead beyond s_L + r_max; before a worker has pushed twice
    nothing is predicted from it; the slowest is who has pushed least, of equals the lower rank; gradients are applied one by one.
    """

    source = (
        "Zhao et al. 2019, Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning, ICDCS "
        "(arXiv 1908.11848)"
    )
    Options: ClassVar[Any] = DsspOptions
    by_default = False

    def server(self, s: ServerPort) -> Program:
        """Apply gradients; answer a pull once its worker is within s_L, or while it has clocks granted to it."""
        lower, most = self.options.staleness, self.options.extra
        clocks, granted = [0] * s.n, [0] * s.n
        pushes: list[Pushes | None] = [None] * s.n
        last: list[float | None] = [None] * s.n
        held: list[Message] = []
        over = False
        while True:
            message = yield s.receive()
            worker = message.worker
            if message.kind == "push":
                yield s.apply(message)
                clocks[worker] += 1
                before, last[worker] = last[worker], message.at_s
                pushes[worker] = None if before is None else (before, message.at_s)
            else:
                held.append(message)
                lead = clocks[worker] - min(clocks)
                if lead > lower and not granted[worker] and clocks[worker] == max(clocks):
                    slowest = clocks.index(min(clocks))
                    left = min(most, lower + most + 1 - lead)
                    granted[worker] = extra_clocks(pushes[worker], pushes[slowest], max(left, 0), most)
            over = over or message.stop  # who has left pushes no more: nobody may be held for it
            for pull in [*held]:
                if over or granted[pull.worker] or clocks[pull.worker] - min(clocks) <= lower:
                    granted[pull.worker] = max(granted[pull.worker] - 1, 0)
                    held.remove(pull)
                    yield s.reply(pull)

    def check(self, schedule: Schedule) -> None:
        """When a worker starts clock c, no other that still runs has pushed fewer than c - s_L - r_max gradients."""
        check_lead(self.name, schedule, self.options.staleness + self.options.extra)
