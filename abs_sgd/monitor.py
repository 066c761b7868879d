"""Has training diverged? Judged by numbers that are the same on every rank, so that all stop at the same update."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from abs_sgd.replay.inprocess import DIVERGED_EVALUATIONS
from hetsim.errors import HetsimError


class Diverged(HetsimError):
    """Training has diverged; raised at the same update on every rank."""


class Monitor:
    """Watches the gradient sum and the mean loss of each update. `factor` None only records losses.

    Diverged: something not finite, or a mean loss over `factor` times the first update's in three updates running [our choice].
    """

    def __init__(self, factor: float | None) -> None:
        self.factor = factor
        self.losses: list[float] = []

    def watch(self, at: str, gradient_P: Tensor, loss: float, weight: float) -> None:
        """An update is about to be made; `at` names it. Raises Diverged."""
        if weight:
            self.losses.append(loss / weight)
        if self.factor is None:
            return
        if not (math.isfinite(loss) and bool(torch.isfinite(gradient_P.sum()))):
            raise Diverged(f"{at}: a loss or gradient is not finite: lower the learning rate or clip")
        recent = self.losses[1:][-DIVERGED_EVALUATIONS:]
        if len(recent) == DIVERGED_EVALUATIONS and min(recent) > self.factor * self.losses[0]:
            raise Diverged(
                f"{at}: the mean loss was over {self.factor:g} times the first ({self.losses[0]:.4g}) in the last "
                f"{DIVERGED_EVALUATIONS} updates, now {recent[-1]:.4g}: lower the learning rate or clip"
            )
