"""One-step delay with LB-BSP's batches: ABS-SGD without its open batch."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.balance import Balancer
from hetsim.algorithms.base import DelayedOptions, Split
from hetsim.algorithms.one_step_delay import OneStepDelay
from hetsim.commands import Port


class BalancedDelayOptions(DelayedOptions):
    """One update of delay, and when to rebalance."""

    dead_band: float = Field(
        0.02, ge=0, lt=1, description="keep the batches unless the slowest worker gets faster by more than this share"
    )


class OneStepDelayBalanced(OneStepDelay, name="one-step-delay-balanced"):
    """One-step delay whose batches follow measured speeds [our choice]: the true ablation of ABS-SGD's open batch.

    With equal workers this is one-step delay. Iteration: max(max t_i(b_i*), C). Workers wait only where C exceeds the computation or speeds
    jitter; what ABS-SGD gains beyond this method is what its open batch is worth.
    """

    source = "this project: Pipe-SGD with the batches of LB-BSP"
    Options: ClassVar[Any] = BalancedDelayOptions
    split: ClassVar[Split] = "balanced"

    def batches(self, w: Port) -> Balancer:
        """Balanced, starting from equal."""
        return Balancer(w.batches, w.max_pass, dead_band=self.options.dead_band)
