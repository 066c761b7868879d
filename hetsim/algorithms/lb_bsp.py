"""LB-BSP: synchronous SGD with batches balanced to the workers' speeds."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.balance import Balancer
from hetsim.algorithms.base import Algorithm, Program, Split, check_synchronous
from hetsim.algorithms.s_sgd import SynchronousOptions
from hetsim.commands import Port
from hetsim.schedule.table import Schedule


class LbBspOptions(SynchronousOptions):
    """S-SGD's options, and when to rebalance."""

    dead_band: float = Field(
        0.02, ge=0, lt=1, description="keep the batches unless the slowest worker gets faster by more than this share"
    )


class LbBsp(Algorithm, name="lb-bsp"):
    """Load-balanced BSP: batches follow measured speeds so that all workers finish together, their sum stays fixed.

    With equal workers this is S-SGD. Samples/s without overlap: B / (max t_i(b_i*) + C), b* the best integer batches (dead band 0).
    Gradients are weighted by samples, Σ s_i / Σ b_i.
    """

    source = "Chen et al. 2020, Semi-Dynamic Load Balancing, SoCC"
    Options: ClassVar[Any] = LbBspOptions
    split: ClassVar[Split] = "balanced"

    def worker(self, w: Port) -> Program:
        """S-SGD whose batch is set anew at every iteration boundary."""
        overlap = self.options.overlap
        balance = Balancer(w.batches, w.max_pass, dead_band=self.options.dead_band)
        while True:
            done = yield w.compute(balance.batches[w.rank], overlap)
            sync = yield w.all_reduce(gather=balance.report(done), stream=overlap)
            reduced = yield w.wait(sync)
            yield w.apply(sync)
            if reduced.stop:
                return
            balance.update(reduced)

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)
