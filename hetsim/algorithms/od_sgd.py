"""OD-SGD: one-step delay with a local update for the next gradient's point."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from hetsim.algorithms.base import DelayedOptions
from hetsim.algorithms.one_step_delay import OneStepDelay


class OdSgdOptions(DelayedOptions):
    """Options of every method with one update of delay, and the local update."""

    compute_point: Literal["current", "look-ahead", "local-prediction", "blend", "damped-prediction", "local-step"] = (
        Field(  # type: ignore[assignment]
            "local-step", description="where the next gradient is taken while an update is under way"
        )
    )
    kappa: float = Field(
        1.0,
        ge=0,
        le=10,
        description="local-step: local learning rate over the global one; look-ahead: how many velocities ahead",
    )


class OdSgd(OneStepDelay, name="od-sgd"):
    """One-step delay in which each worker steps locally with its own gradient and takes the next one there.

        x̂_i = x_k - κ·lr·s_i/b_i,   x_{k+1} = step(x_k, Σ s_i(x̂_i) / Σ b_i)

    The global update is one update late, the local one is plain SGD with the worker's own gradient, which is what is known of the update on
    its way. Without the local update (`compute_point: current`, or κ = 0) this is one-step delay, and its timing always is. Without
    momentum and weight decay and with κ = 1 the local step is `local-prediction`, which takes the optimizer's whole step.

    From its abstract: a global update with one step of delay, and in each worker a local update that makes up for the late weights. Our
    choice: an all-reduce in the place of its parameter server, the local update as plain SGD, κ = 1.
    """

    source = "Xu et al. 2020, OD-SGD: One-step Delay Stochastic Gradient Descent for Distributed Training, ACM TACO (arXiv 2005.06728)"
    Options: ClassVar[Any] = OdSgdOptions
    by_default = False
