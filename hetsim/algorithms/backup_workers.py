"""Backup workers: synchronous SGD that waits for the first n - k gradients and drops the rest."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program, check_synchronous
from hetsim.commands import Port
from hetsim.schedule.table import Schedule

NO_LIVE = "its collective starts without the ranks that still compute, which no backend of torch.distributed offers"


class BackupWorkersOptions(Options):
    """How many to do without."""

    backups: int = Field(1, ge=0, description="k, gradients of an update that nobody waits for")


class BackupWorkers(Algorithm, name="backup-workers"):
    """Synchronous SGD with k backup workers: an update takes the first n - k gradients, those that come later are dropped.

        a  |compute|······|compute|
        b  |compute-|·····|compute-|
        c  |compute-----------------|dropped     n = 3, k = 1
                    |  r  |

    x_{k+1} = step(x_k, Σ s_i / Σ b_i) over those that are in it, all gradients taken at x_k. With k = 0 this is S-SGD without overlap.
    Under a constant skew the same workers are dropped in every update: (n-k)·b / (t_(n-k)(b) + C) samples/s, t_(j) the j-th fastest. Who
    ties with the last to be waited for is in it as well.

    From the paper: the first n - k, their mean, the rest dropped on arrival. Our choice: an all-reduce in the place of its parameter
    server, which starts without the absent, so that nothing leaves before the backward pass is done; k = 1.
    """

    source = "Chen et al. 2016, Revisiting Distributed Synchronous SGD (arXiv 1604.00981)"
    Options: ClassVar[Any] = BackupWorkersOptions
    live = NO_LIVE
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """A second gradient: the sum that arrives while a late worker computes."""
        held = super().buffers(optimizer_states)
        return {**held, "gradients": held["gradients"] + 1}

    def worker(self, w: Port) -> Program:
        """Compute; join, or drop what comes too late; apply everything that has been done meanwhile."""
        quorum = max(w.n - self.options.backups, 1)
        while True:
            yield w.compute(w.batch)
            sync = yield w.missed()
            if sync is None:
                sync = yield w.all_reduce(quorum=quorum)
            else:
                yield w.discard("late")
            while sync is not None:
                reduced = yield w.wait(sync)
                yield w.apply(sync)
                if reduced.stop:
                    return
                sync = yield w.missed()

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)
