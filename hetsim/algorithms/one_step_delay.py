"""One-step delay: communication hidden behind the next computation, at the price of one update of delay."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.balance import Balancer
from hetsim.algorithms.base import ComputePoint, DelayedOptions, OneUpdateDelay, Program
from hetsim.commands import Port


class OneStepDelayOptions(DelayedOptions):
    """Options of every method with one update of delay; Pipe-SGD takes gradients at the current parameters."""

    compute_point: ComputePoint = Field(
        "current", description="where the next gradient is taken while an update is under way"
    )


class OneStepDelay(OneUpdateDelay, name="one-step-delay"):
    """Synchronous SGD that computes its next batch while the last one's gradients travel (Pipe-SGD, K = 2).

        compute |  b_1  |  b_2  |  b_3  |
        network         | r_1 |·| r_2 |·|      iteration: max(max t_i, C)

    x_{k+1} = step(x_k, Σ s_i(x_{k-1}) / Σ b_i): the gradient is exactly one update old. Equal batches, so fast workers still wait.
    """

    source = "Li et al. 2018, Pipe-SGD, NeurIPS (arXiv 1811.03619)"
    Options: ClassVar[Any] = OneStepDelayOptions

    def batches(self, w: Port) -> Balancer | None:
        """None: equal batches for good."""
        return None

    def worker(self, w: Port) -> Program:
        """Compute while the last synchronization is under way; wait for it only then."""
        balance = self.batches(w)
        sync = None
        updates = 0
        while True:
            done = yield w.compute(balance.batches[w.rank] if balance else w.batch)
            if sync is not None:
                reduced = yield w.wait(sync)
                updates = yield w.apply(sync)
                if reduced.stop:
                    return
                if balance:
                    balance.update(reduced)
            sync = yield w.all_reduce(gather=balance.report(done) if balance else ())
            if updates < self.options.synchronous_updates:
                reduced = yield w.wait(sync)
                updates = yield w.apply(sync)
                if reduced.stop:
                    return
                sync = None
            else:
                yield w.predict(sync)
