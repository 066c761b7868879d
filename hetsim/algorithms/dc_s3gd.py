"""DC-S3GD: local updates are averaged while the next gradient is computed, which is then corrected for how far the average is away."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Port
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule


class DcS3gdOptions(Options):
    """How strongly to correct."""

    strength: float = Field(
        0.2, ge=0, le=1e6, description="λ₀, the correction's norm over the gradient's; 0 for no correction"
    )


class DcS3gd(Algorithm, name="dc-s3gd"):
    """One-step delay by local steps: each worker steps at once and goes on there, the average of all steps follows one step late.

        compute |  g_1  |  g_2  |  g_3  |       iteration: max(max t_i, C)
        network         | d_1 |·| d_2 |·|       d_k: everybody's local step k

    x_i = x̄_k + d_i, the gradient g_i is taken there while the steps are averaged to x̄_{k+1}; then, with D_i = x̄_{k+1} - x_i,

        d_i := optimizer's step from x̄_{k+1} with g_i + λ_i g_i⊙g_i⊙D_i,   λ_i = λ₀ ‖g_i‖ / ‖g_i⊙g_i⊙D_i‖

    Momentum stays local. With λ₀ = 0, without momentum and weight decay, this is one-step delay with `local-prediction`, and its timing
    always is; with them it predicts with the own velocity instead of the common one. With λ₀ = 0, one common Hessian and shares of samples
    that stay, it is S-SGD without delay whatever the momentum. With one worker D = 0, and it is SGD.

    From the paper's abstract: no server, communication under computation, gradients corrected to first order as in DC-ASGD. Not checked
    against its full text, and no code by its author was found: the correction's scale, λ₀ = .2, the order of averaging and stepping. Our
    choice: replicas are averaged, which comes to the same as averaging steps, since all start from one x̄; weights by samples; no
    correction where x_i and x̄ differ by rounding alone. In the quadratic model the corrections of equal workers cancel in the mean.
    """

    source = (
        "Rigazzi 2019, DC-S3GD: Delay-Compensated Stale-Synchronous SGD for Large-Scale Decentralized Neural Network "
        "Training, DLS (arXiv 1911.02516)"
    )
    Options: ClassVar[Any] = DcS3gdOptions
    counts_rounds = True
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """The replicas' average on its way, and where the gradient was taken."""
        return {**super().buffers(optimizer_states), "average on its way": 1, "gradient's point": 1}

    def worker(self, w: Port) -> Program:
        """Compute while the last step is averaged, take the average over, step from there."""
        sync = None
        while True:
            done = yield w.compute(w.batch)
            if sync is not None:
                reduced = yield w.wait(sync)
                yield w.merge(sync)
                if reduced.stop:
                    return
            if done.samples:
                yield w.step(compensation=self.options.strength)
            sync = yield w.all_reduce("parameters", weight=float(done.samples))

    def check(self, schedule: Schedule) -> None:
        """Every local step starts from the average of what the gradient was taken at: from the same parameters the first, one average
        later all others."""
        s = schedule
        mixes, steps, grads = (s.rows(kind) for kind in (Kind.MIX, Kind.STEP, Kind.GRAD))
        before = np.arange(int(max(s.state.max(initial=0), s.parent.max(initial=0))) + 1)
        before[s.state[mixes]] = s.parent[mixes]
        point = np.zeros(int(s.slot.max(initial=-1)) + 1, np.int64)
        point[s.slot[grads]] = s.state[grads]
        wrong = steps[before[s.parent[steps]] != point[s.slot[steps]]]
        if len(wrong):
            raise ScheduleError(
                f"{self.name}: the step in row {int(wrong[0])} does not start one average after its gradient"
            )
