"""Local SGD: every worker trains alone for H steps, then parameters are averaged."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from hetsim.algorithms.balance import Balancer
from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Computed, Port


class LocalSgdOptions(Options):
    """How long to train alone."""

    local_steps: int = Field(
        8, ge=1, le=100_000, description="H, steps of each worker between two averages (the mean where by speed)"
    )
    by_speed: bool = Field(False, description="H_i proportional to the worker's measured speed, sum fixed at n·H")
    normalise: Literal["samples", "fednova"] = Field(
        "fednova", description="with by_speed: weigh parameters by samples, or FedNova's normalised averaging"
    )
    dead_band: float = Field(0.05, ge=0, lt=1, description="with by_speed: rebalance only for a gain beyond this share")


class LocalSgd(Algorithm, name="local-sgd"):
    """Local SGD: H local steps per worker, then one average of the parameters; momentum stays local.

        a  |s|s|s|s|····wait····|avg|s|s|…        samples/s: n·H·b / (max H·t_i(b) + C)
        b  |s--|s--|s--|s-------|avg|s--|…

    With H = 1, sample weights and no momentum this is S-SGD. With `by_speed` fast workers make more steps, and FedNova's
    weights w_i = p_i·τ_eff/H_i with τ_eff = Σ p_i·H_i (p_i: share of samples) keep the average from leaning towards
    them; the rest 1 - Σ w_i stays on
    the parameters of the last average. That normaliser is the one of SGD without momentum; with local momentum kept across rounds it is
    right in the steady state, where every step's norm grows by the same 1/(1 - β).
    """

    source = "Stich 2019 (arXiv 1805.09767); normalisation: Wang et al. 2020, FedNova (arXiv 2007.07481)"
    counts_rounds = True
    Options: ClassVar[Any] = LocalSgdOptions

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """FedNova's weights need the parameters of the last average as well; otherwise the average is taken in place."""
        anchored = self.options.by_speed and self.options.normalise == "fednova"
        return {**super().buffers(optimizer_states), "last average": int(anchored)}

    def weight(self, w: Port, steps: tuple[int, ...]) -> float:
        """FedNova's weight of this worker's parameters, from everybody's planned steps."""
        samples = [h * b for h, b in zip(steps, w.batches, strict=True)]
        shares = [s / sum(samples) for s in samples]
        effective = sum(p * h for p, h in zip(shares, steps, strict=True))
        return float(shares[w.rank] * effective / steps[w.rank])

    def worker(self, w: Port) -> Program:
        """H steps alone, average, again."""
        o = self.options
        balance = Balancer((o.local_steps,) * w.n, (None,) * w.n, dead_band=o.dead_band)
        anchored = o.by_speed and o.normalise == "fednova"
        while True:
            seconds, samples, steps = 0.0, 0, 0
            planned = balance.batches[w.rank]
            while steps < planned:
                done = yield w.compute(w.batch)
                if not done.samples:
                    break
                yield w.step()
                steps, seconds, samples = steps + 1, seconds + done.seconds, samples + done.samples
            weight = self.weight(w, balance.batches) if anchored else float(samples)
            report = balance.report(Computed(steps, seconds)) if o.by_speed else ()
            sync = yield w.all_reduce("parameters", weight=weight, gather=report)
            reduced = yield w.wait(sync)
            yield w.merge(sync, anchored=anchored)
            if reduced.stop:
                return
            if o.by_speed:
                balance.update(reduced)
