"""The gradients of an open batch, added up with their weights and copied as seldom as possible.

    sum    Σ c_j g_j = unit · parts,  parts = Σ (c_j / unit) g_j,  unit = c_1
    mean   parts · unit / Σ c_j

With the first weight as the unit the first gradients *are* the parts: autograd's own tensors, taken as they lie. A batch of one pass, the
usual case on a fast network, is never copied before it is sent, and its mean needs no division.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class GradientSum:
    """Of one rank since its last launch. `means`: the gradients are means over `count`, else sums."""

    def __init__(self, means: bool) -> None:
        self.means = means
        self.parts: list[Tensor | None] = []
        self.unit = 1.0
        self.samples = 0
        self._loss: Tensor | float = 0.0
        self._loss_weight = 0

    def take(self, parameters: Sequence[Tensor], count: int, loss: Tensor | float | None) -> None:
        """Add the gradients of the last backward pass with weight `count`, and clear them."""
        found = [_dense(p.grad) for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        if not count:
            return
        factor = float(count) if self.means else 1.0
        if not self.parts:
            self.parts, self.unit = found, factor
        else:
            self._add(found, factor / self.unit)
        self.samples += count
        if loss is not None:  # a tensor is not read before the launch: that would wait for a GPU
            value = loss.detach() if isinstance(loss, Tensor) else loss
            self._loss = self._loss + value * factor
            self._loss_weight += count

    @property
    def loss(self) -> tuple[float, int]:
        """Loss sum and the weight it is over."""
        return float(self._loss), self._loss_weight

    def write(self, views: Sequence[Tensor], *, mean: bool = False) -> None:
        """The sum, or the mean, into `views`, one per parameter; zeros where there is no gradient."""
        factor = self.unit / self.samples if mean and self.samples else self.unit
        for view, part in zip(views, self.parts or [None] * len(views), strict=True):
            if part is None:
                view.zero_()
            elif factor == 1.0:
                view.copy_(part)
            elif part.dtype == view.dtype:
                torch.mul(part, factor, out=view)
            else:  # rounded once, after the multiplication
                view.copy_(part * factor)

    def state(self) -> list[Any]:
        """For a checkpoint: parts, unit, samples, loss and its weight."""
        return [[None if p is None else p.clone() for p in self.parts], self.unit, self.samples, *self.loss]

    def load(self, state: Sequence[Any]) -> None:
        """Go on with what `state` returned."""
        parts, self.unit, self.samples, self._loss, self._loss_weight = state
        self.parts = [None if p is None else p.clone() for p in parts]

    def _add(self, found: list[Tensor | None], factor: float) -> None:
        both = [(i, old, new) for i, (old, new) in enumerate(zip(self.parts, found, strict=True)) if new is not None]
        old = [part for _, part, _ in both if part is not None]
        if old:
            torch._foreach_add_(old, [new for _, part, new in both if part is not None], alpha=factor)
        for i, part, new in both:
            if part is None:  # a parameter that earlier passes did not use
                self.parts[i] = new * factor


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
