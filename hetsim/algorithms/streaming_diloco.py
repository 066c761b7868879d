"""Streaming DiLoCo: local training whose parameters are averaged a fragment at a time, in the background, by an outer optimizer."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Handle, Port


class StreamingDiLoCoOptions(Options):
    """How often, in how many parts, how late, and the outer optimizer."""

    local_steps: int = Field(20, ge=1, le=100_000, description="H, steps between two averages of the same fragment")
    fragments: int = Field(4, ge=1, le=1000, description="P, parts of the parameters, averaged in turn every H/P steps")
    overlap_steps: int = Field(1, ge=0, le=100_000, description="τ, steps made while a fragment travels; fewer than H")
    outer_rate: float = Field(0.4, gt=0, le=10, description="learning rate of the outer Nesterov step")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="its momentum")
    mixing: float = Field(0.5, gt=0, le=1, description="share of the outer parameters in the replica after a merge")

    @model_validator(mode="after")
    def _in_turn(self) -> Self:
        if self.fragments > self.local_steps:
            raise ValueError(f"{self.fragments} fragments cannot take turns within {self.local_steps} steps")
        if self.overlap_steps >= self.local_steps:
            raise ValueError("overlap_steps must be below local_steps: a fragment is merged before it is sent again")
        return self


class StreamingDiLoCo(Algorithm, name="streaming-diloco"):
    """Local training on each worker; fragments of the parameters are averaged in turn, in the background, with an outer Nesterov step.

        steps     |s|s|s|s|s|s|s|s|s|      H = 4, P = 2, τ = 1: every second step a fragment is sent, and merged a step later
        network       |f1 |   |f2 |
        merged            f1      f2

    For the fragment that has arrived, sent τ steps ago: Δ = g - mean_i x_i, u := μu + Δ, g := g - η(Δ + μu), x_i := (1-α)x_i + αg; g is the
    same on all workers, and so is u. Each all-reduce carries 1/P of the parameters every H/P steps. With P = 1, τ = 0, η = α = 1 and μ = 0
    this is Local SGD. Nobody waits for the network where a fragment takes no longer than τ steps and τ ≤ H/P: n·b / max t_i(b) samples/s.

    From the paper: fragments in turn, overlap, mixing with α = .5, outer Nesterov with η = .4 and μ = .9 (H = 100 there, for language
    models). Our choice: H = 20, P = 4, τ = 1, fragments as stretches of the parameter vector (in the quadratic model: every P-th
    direction), full precision on the wire where the paper sends four bits, the training's own optimizer inside.
    The paper's numbers have not been checked against its full text.
    """

    source = "Douillard et al. 2025, Streaming DiLoCo with overlapping communication (arXiv 2501.18512)"
    Options: ClassVar[Any] = StreamingDiLoCoOptions
    live = "its outer optimizer, which works on fragments, is not in the live runtime"
    counts_rounds = True
    by_default = False

    def outer(self) -> dict[str, float]:
        """The outer optimizer."""
        o = self.options
        return {"learning_rate": o.outer_rate, "momentum": o.outer_momentum, "fragments": float(o.fragments)}

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """The outer optimizer's parameters and momentum, and a fragment on its way (counted as one buffer)."""
        return {**super().buffers(optimizer_states), "outer optimizer": 2, "fragment on its way": 1}

    def worker(self, w: Port) -> Program:
        """Steps; a fragment sent every H/P of them, merged τ later. All workers count the same steps, also those without data."""
        o = self.options
        sent: deque[tuple[int, Handle]] = deque()  # at which step, what
        steps = turns = 0
        over = False
        while not over:
            done = yield w.compute(w.batch)
            if done.samples:
                yield w.step()
            steps += 1
            if steps * o.fragments // o.local_steps > turns:
                fragment = turns % o.fragments
                turns += 1
                sent.append((steps, (yield w.all_reduce("parameters", fragment=(fragment, o.fragments)))))
            while sent and (over or steps - sent[0][0] >= o.overlap_steps):
                reduced = yield w.wait(sent[0][1])
                yield w.merge(sent.popleft()[1], weight=o.mixing, outer=True)
                over = over or reduced.stop
