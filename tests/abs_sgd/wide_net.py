"""A user's own model and data: 1.2 million parameters, more than one bucket of a streamed all-reduce holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 128), nn.Linear(128, 3)
    )


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Three clouds of points."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(360) % 3
    inputs = torch.randn(360, 16, generator=generator) + 2.0 * nn.functional.one_hot(targets, 16)
    return (inputs[:300], targets[:300]), (inputs[300:], targets[300:])


model.separable = True  # type: ignore[attr-defined]
