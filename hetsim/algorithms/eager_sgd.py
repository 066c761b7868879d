"""eager-SGD: partial all-reduces that start without the late, whose gradients come along with the next one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal

from pydantic import Field

from hetsim.algorithms.backup_workers import NO_LIVE
from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Port
from hetsim.errors import ScheduleError
from hetsim.schedule.table import Schedule


class EagerOptions(Options):
    """Who starts an all-reduce, and what its sum is divided by."""

    mode: Literal["solo", "majority"] = Field(
        "majority", description="an all-reduce starts when the first worker comes, or when one drawn beforehand does"
    )
    divisor: Literal["planned", "present"] = Field(
        "planned", description="divide by the planned global batch (the paper's 1/n), or by the samples in the sum"
    )


class EagerSgd(Algorithm, name="eager-sgd"):
    """SGD on partial all-reduces, started by the first to come (solo) or by a drawn worker (majority); the late send what they have.

        a  |compute|······|compute|       solo: a's gradient alone, b's comes along with r_1
        b  |compute-------------|compute------------|
                   |  r_0 |       |  r_1 |

    x_{k+1} = step(x_k, Σ s_i / B) over the gradients that are there: fresh ones of who has joined, and of the absent what their send
    buffer holds, which may be stale, the sum of several, or nothing. Where all come at once this is S-SGD without overlap. In `majority`
    at least half take part on average.

    From the paper: both modes, stale gradients added up in the send buffer, the division by n whatever is missing. Our choice: a worker
    that has missed several all-reduces applies the sum of each, where the paper's keeps the last one's and evens its replicas out now and
    then. Checked against the authors' code: the division by n and both modes; the rest not against the paper's full text.
    """

    source = "Li et al. 2020, Taming Unbalanced Training Workloads with Partial Collective Operations, PPoPP (arXiv 1908.04207)"
    Options: ClassVar[Any] = EagerOptions
    live = NO_LIVE
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """A second gradient: what is on its way while the next is summed."""
        held = super().buffers(optimizer_states)
        return {**held, "gradients": held["gradients"] + 1}

    def worker(self, w: Port) -> Program:
        """Compute; join unless it has started already; apply everything that has been done meanwhile."""
        solo = self.options.mode == "solo"
        divisor = w.global_batch if self.options.divisor == "planned" else 0
        initiator = -1 if solo else (yield from self.drawn(w))
        while True:
            yield w.compute(w.batch)
            sync = yield w.missed()
            if sync is None:
                sync = yield w.all_reduce(quorum=int(solo), trigger=initiator)
            while sync is not None:
                reduced = yield w.wait(sync)
                yield w.apply(sync, divisor=divisor)
                if reduced.stop:
                    return
                if not solo:  # one draw for every all-reduce, missed or not, so that all agree
                    initiator = yield from self.drawn(w)
                sync = yield w.missed()

    def drawn(self, w: Port) -> Generator[Any, Any, int]:
        """The rank that starts the next all-reduce, the same everywhere."""
        return w.by_name[int((yield w.draw("initiator", shared=True)) * w.n)]

    def check(self, schedule: Schedule) -> None:
        """All replicas make the same updates one after the other."""
        if len(schedule.updates) and not schedule.updates.is_sequence:
            raise ScheduleError(f"{self.name}: updates do not form one sequence of parameters")
