"""DC-ASGD: asynchronous SGD whose server corrects a late gradient to first order."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from hetsim.algorithms.asgd import Asgd
from hetsim.algorithms.base import Options, Program
from hetsim.commands import ServerPort

STRENGTHS = {"constant": 0.04, "adaptive": 2.0}  # λ₀ on CIFAR-10


class DcAsgdOptions(Options):
    """How strongly to correct."""

    variant: Literal["constant", "adaptive"] = Field(
        "adaptive",
        description="λ as it is (DC-ASGD-c), or over the root of the gradients' running mean square (DC-ASGD-a)",
    )
    strength: float | None = Field(
        None, ge=0, le=1e6, description="λ₀, 0 for no correction; by default .04 for constant, 2 for adaptive"
    )


class DcAsgd(Asgd, name="dc-asgd"):
    """ASGD with delay compensation: the server moves a late gradient to where the parameters are now, by g⊙g for the curvature.

        x_{k+1} = step(x_k, g + λ g⊙g⊙(x_k - x̄_i)),   g = s_i(x̄_i)/b_i, x̄_i what worker i pulled last

    g⊙g stands for the Hessian's diagonal. Adaptive: λ = λ₀ / sqrt(M + 1e-7), M := .95·M + .05·g⊙g. With λ₀ = 0 this is ASGD, and its timing
    always is. The server keeps a copy of the parameters per worker.

    From the paper: both variants, λ₀ = .04 and 2, .95 and 1e-7 (its values for CIFAR-10). Its scale is that of a network's gradients: the
    quadratic model, which has g⊙g at its expectation and on a scale of its own, says little about λ; train it to judge it.
    """

    source = (
        "Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML (arXiv 1609.08326)"
    )
    Options: ClassVar[Any] = DcAsgdOptions
    by_default = False

    def server(self, s: ServerPort) -> Program:
        """Apply every gradient corrected for its delay, answer every pull."""
        o = self.options
        strength = STRENGTHS[o.variant] if o.strength is None else o.strength
        while True:
            message = yield s.receive()
            if message.kind == "push":
                yield s.apply(message, compensation=strength, adaptive=o.variant == "adaptive")
            else:
                yield s.reply(message)
