"""A model seen as one flat vector of parameters and one of gradients.

Parameters and gradients of the model are views into the two vectors, so that moving a replica to another version is
one copy and a gradient sum is ready to be added, sent or stepped with as it lies. Buffers (BatchNorm's statistics)
are kept apart: they belong to a replica, not to a version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Buffers = list[Tensor]


class FlatModel:
    """`model` with its trainable parameters laid out in `parameters_P` and their gradients in `gradient_P` (P: all of
    them).

    Raises ValueError for a model without trainable parameters or with more than one dtype among them.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the model has no trainable parameter")
        if len({p.dtype for p in trained}) > 1:
            raise ValueError("all trainable parameters must have one dtype")
        self.model = model
        self.parameters_P = torch.cat([p.detach().reshape(-1) for p in trained])
        self.gradient_P = torch.zeros_like(self.parameters_P)
        self._loaded: Tensor | None = None
        self._stretches: list[tuple[nn.Parameter, int, int]] = []
        at = 0
        for parameter in trained:
            end = at + parameter.numel()
            parameter.data = self.parameters_P[at:end].view_as(parameter)
            parameter.grad = self.gradient_P[at:end].view_as(parameter)
            self._stretches.append((parameter, at, end))
            at = end

    @property
    def size(self) -> int:
        """P, the number of trained parameters."""
        return self.parameters_P.numel()

    def load(self, values_P: Tensor) -> None:
        """Move the model to `values_P`, which the caller no longer changes (loading the same vector again costs
        nothing)."""
        if values_P is not self._loaded:
            self.parameters_P.copy_(values_P)
            self._loaded = values_P

    def gradient_sum(self, loss_sum: Callable[[nn.Module], Tensor]) -> Tensor:
        """A fresh vector: the gradient of `loss_sum(model)` at the loaded parameters."""
        self.gradient_P.zero_()
        loss_sum(self.model).backward()  # type: ignore[no-untyped-call]
        return self.gradient_P.clone()

    def gradient_by_parts(self, loss_sum: Callable[[nn.Module], Tensor], ready: Callable[[int, int], None]) -> None:
        """As `gradient_sum`, left in `gradient_P`: `ready(first, end)` is called when that stretch of it is complete, for every
        parameter that the loss depends on. The backward pass goes on meanwhile."""
        self.gradient_P.zero_()
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, first=first, end=end: ready(first, end))  # type: ignore[no-untyped-call]
            for parameter, first, end in self._stretches
        ]
        try:
            loss_sum(self.model).backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def has_buffers(self) -> bool:
        """Whether the model keeps statistics besides its parameters."""
        return next(self.model.buffers(), None) is not None

    def save_buffers(self) -> Buffers:
        """Copies of all buffers."""
        return [b.detach().clone() for b in self.model.buffers()]

    def load_buffers(self, values: Sequence[Tensor]) -> None:
        """Put `values` in place of the buffers."""
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), values, strict=True):
                buffer.copy_(value)


def average_buffers(replicas: Sequence[Buffers], weights: Sequence[float]) -> Buffers:
    """Buffers averaged over replicas by weight (samples seen); those that are not floating-point are the first
    replica's."""
    total = float(sum(weights))
    shares = [w / total for w in weights] if total > 0 else [1.0 / len(replicas)] * len(replicas)
    return [
        torch.stack([s * v for s, v in zip(shares, values, strict=True)]).sum(0)
        if values[0].is_floating_point()
        else values[0].clone()
        for values in zip(*replicas, strict=True)
    ]
