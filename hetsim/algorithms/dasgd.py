"""DaSGD: local SGD whose average is merged some steps late, so that it travels while workers train on."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Handle, Port


class DaSgdOptions(Options):
    """How often to average, and how late."""

    local_steps: int = Field(8, ge=1, le=100_000, description="H, steps of each worker between two averages")
    delay_steps: int = Field(
        1, ge=0, le=100_000, description="d, steps made while an average is under way; fewer than H, or 0"
    )

    @model_validator(mode="after")
    def _one_at_a_time(self) -> Self:
        if self.delay_steps and self.delay_steps >= self.local_steps:
            raise ValueError("delay_steps must be below local_steps: an average is merged before the next one starts")
        return self


class DaSgd(Algorithm, name="dasgd"):
    """Local SGD with delayed averaging: an average starts every H steps and is merged d steps later; nobody waits for the network.

        steps     |s|s|s|s|s|s|s|s|s|      H = 4, d = 1
        network           | r |   | r |
        merged              m       m

    x_i := x_i + mean_j x_j^sent - x_i^sent: the average of what was sent, and on top of it the steps made since. With d = 0 this is Local
    SGD. Where C ≤ d·t_slow nobody waits for the network: n·b / max t_i(b) samples/s, the slowest's pace. Momentum stays local.

    From the paper: averages that are merged a few steps late. Our choice: its merging as a difference to what was sent, weights by samples,
    H = 8 and d = 1.
    """

    source = (
        "Zhou et al. 2020, DaSGD: Squeezing SGD Parallelization Performance in Distributed Training Using Delayed "
        "Averaging (arXiv 2006.00441)"
    )
    Options: ClassVar[Any] = DaSgdOptions
    live = "its average is merged as a difference to what was sent, which the live runtime does not keep"
    counts_rounds = True
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """What was sent, until its average is merged, and the average on its way."""
        late = int(self.options.delay_steps > 0)
        return {**super().buffers(optimizer_states), "sent": late, "average on its way": late}

    def worker(self, w: Port) -> Program:
        """Steps; an average started every H of them, merged d later. All workers count the same steps, also those without data."""
        o = self.options
        sent: deque[tuple[int, Handle]] = deque()
        steps = samples = 0
        over = False
        while not over:
            done = yield w.compute(w.batch)
            if done.samples:
                yield w.step()
            steps, samples = steps + 1, samples + done.samples
            if steps % o.local_steps == 0:
                sent.append((steps, (yield w.all_reduce("parameters", weight=float(samples)))))
                samples = 0
            while sent and (over or steps - sent[0][0] >= o.delay_steps):
                reduced = yield w.wait(sent[0][1])
                yield w.merge(sent.popleft()[1], shift=True)
                over = over or reduced.stop
