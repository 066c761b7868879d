"""A user's own model and data for replays: BatchNorm and dropout, so that a pass leaves something behind and draws."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Three clouds of points."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(360) % 3
    inputs = torch.randn(360, 6, generator=generator) + 2.0 * nn.functional.one_hot(targets, 6)
    return (inputs[:300], targets[:300]), (inputs[300:], targets[300:])
