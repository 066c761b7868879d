"""The time-complexity yardstick: the least time any method of a class needs on unequal workers, to measure real methods by.

T* = min_m (1/m Σ_{i≤m} 1/τ_i)⁻¹ (LΔ/ε + σ²LΔ/(mε²)), τ_1 ≤ ... ≤ τ_n seconds per gradient (Tyurin & Richtárik 2023,
arXiv 2305.12387, up to a constant; free communication, fixed times). The same units for two well-known methods make ratios meaningful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim.errors import UsageError


@dataclass(frozen=True)
class Difficulty:
    """What is asked: `l_delta` = LΔ (smoothness times initial gap), `epsilon` the squared gradient norm to reach, `sigma2` = σ²."""

    l_delta: float
    epsilon: float
    sigma2: float

    def __post_init__(self) -> None:
        if not (self.l_delta > 0 and self.epsilon > 0 and self.sigma2 >= 0):
            raise UsageError("LΔ and ε must be positive and σ² not negative")

    def updates(self, gradients: float) -> float:
        """Updates of that many gradients each: LΔ/ε + σ²LΔ/(gradients·ε²)."""
        return self.l_delta / self.epsilon + self.sigma2 * self.l_delta / (gradients * self.epsilon**2)


@dataclass(frozen=True)
class Optimum:
    """T* in seconds and the number of fastest workers that reaches it."""

    seconds: float
    workers: int


def _sorted(seconds_per_gradient: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times = np.sort(np.asarray(seconds_per_gradient, np.float64))
    if not times.size or not np.all(np.isfinite(times)) or times[0] <= 0:
        raise UsageError("every worker needs a positive, finite time per gradient")
    return times


def optimal_time(seconds_per_gradient: Sequence[float], difficulty: Difficulty) -> Optimum:
    """T* and the m that attains it."""
    times = _sorted(seconds_per_gradient)
    m = np.arange(1, len(times) + 1)
    seconds = m / np.cumsum(1.0 / times) * np.array([difficulty.updates(float(k)) for k in m])
    best = int(np.argmin(seconds))
    return Optimum(float(seconds[best]), best + 1)


def minibatch_time(seconds_per_gradient: Sequence[float], difficulty: Difficulty) -> float:
    """Everybody waits for the slowest: τ_n (LΔ/ε + σ²LΔ/(nε²))."""
    times = _sorted(seconds_per_gradient)
    return float(times[-1]) * difficulty.updates(len(times))


def asynchronous_time(seconds_per_gradient: Sequence[float], difficulty: Difficulty) -> float:
    """Asynchronous SGD with adapted step sizes: T* with m fixed at all n workers."""
    times = _sorted(seconds_per_gradient)
    return float(len(times) / np.sum(1.0 / times)) * difficulty.updates(len(times))
