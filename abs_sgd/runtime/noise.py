"""The gradient noise that a live run sees for nothing: one scalar more per rank and synchronization.

Each rank sends |s_i|² of its own gradient sum beside its samples b_i; with |Σ s_i|², which everybody has, they give unbiased tr Σ and |G|²
(`hetsim.convergence.noise_scale.estimate_noise`). Single updates scatter widely, so both are averaged before they are divided. Where
gradients are taken at different points (local prediction) the differences between the points are in tr Σ as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hetsim.convergence.noise_scale import NoiseEstimate, estimate_noise

ONE_REPLICA = "no update had gradients of two workers; the noise scale needs at least 2"


@dataclass
class NoiseLog:
    """Running means of tr Σ and |G|² over the updates in which at least two ranks had samples."""

    updates: int = 0
    trace: float = 0.0
    squared_norm: float = 0.0

    def add(self, squares: Sequence[float], samples: Sequence[int], square_of_total: float) -> None:
        """One update: |s_i|² and b_i by rank, and |Σ s_i|². Nothing where fewer than two ranks contributed."""
        found = estimate_noise(squares, samples, square_of_total)
        if found.trace is None or found.squared_norm is None:
            return
        self.updates += 1
        self.trace += (found.trace - self.trace) / self.updates
        self.squared_norm += (found.squared_norm - self.squared_norm) / self.updates

    @property
    def estimate(self) -> NoiseEstimate:
        """The means, or why there are none."""
        if not self.updates:
            return NoiseEstimate(trace=None, squared_norm=None, reason=ONE_REPLICA)
        return NoiseEstimate(trace=self.trace, squared_norm=self.squared_norm)


def squared_norm(values_P: Tensor) -> Tensor:
    """|v|², in the vector's own type and where the vector is: reading it from a GPU would wait for the GPU."""
    return torch.dot(values_P, values_P)
