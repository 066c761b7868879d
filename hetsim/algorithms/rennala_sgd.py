"""Rennala SGD: minibatches of S gradients at one point, whoever computes them."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.backup_workers import NO_LIVE
from hetsim.algorithms.base import Algorithm, Options, Program, check_synchronous
from hetsim.commands import Port
from hetsim.schedule.table import Schedule


class RennalaOptions(Options):
    """How much an update takes."""

    gradients: int = Field(0, ge=0, description="S, gradients of a batch each that make an update; 0 is one per worker")


class RennalaSgd(Algorithm, name="rennala-sgd"):
    """Minibatch SGD whose batch is the first S gradients at the current parameters, whoever computes them; later ones are dropped.

        a  |g|g|g|g|x|······|g|g|…      S = 6: x is under way when the sixth is there, and is of no use
        b  |g--|g--|········|g--|…
                   |   r    |

    x_{k+1} = step(x_k, Σ s_i / Σ b_i) over S gradients of batch b_i, all taken at x_k, so fast workers give more of them. Where all are
    equally fast and S = n its numbers are S-SGD's (not its times: who does not know yet that all are there begins another). With free
    communication it is time-optimal among methods that use gradients at any worker's speed; the paper's S = max(1, ⌈σ²/ε⌉), the default is
    one per worker [our choice].

    From the paper: the collection, and that stale gradients are ignored. Our choice: a counter that all share and an all-reduce in the
    place of its server; what others have added is known one latency later, so that an update may take a few gradients more than S.
    """

    source = "Tyurin & Richtárik 2023, Optimal Time Complexities of Parallel Stochastic Optimization Methods, NeurIPS (arXiv 2305.12387)"
    Options: ClassVar[Any] = RennalaOptions
    live = NO_LIVE
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """A second gradient: what is on its way while another pass ends."""
        held = super().buffers(optimizer_states)
        return {**held, "gradients": held["gradients"] + 1}

    def worker(self, w: Port) -> Program:
        """Gradients at one point until all have S of them together; drop what comes later."""
        wanted = self.options.gradients or w.n
        samples = -(-wanted * w.global_batch // w.n)
        while True:
            done = yield w.compute(w.batch)
            sync = yield w.missed()
            if sync is None:
                everyone = yield w.count(done.samples)
                if done.samples and everyone < samples:
                    continue
                sync = yield w.all_reduce(quorum=1, at_once=True)
            else:
                yield w.discard("stale")
            while sync is not None:
                reduced = yield w.wait(sync)
                yield w.apply(sync)
                if reduced.stop:
                    return
                sync = yield w.missed()

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)
