"""A floor and a line fitted to measured step times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetsim.errors import UsageError

Point = tuple[float, float]  # (samples, seconds)


@dataclass(frozen=True, kw_only=True)
class LineFit:
    """seconds(m) = max(floor_s, overhead_s + m / samples_per_s), with the relative residuals it leaves.

    `residual_max` and `residual_median` are of |fitted / measured - 1| over the points it was fitted to.
    """

    floor_s: float
    overhead_s: float
    samples_per_s: float
    residual_max: float
    residual_median: float
    points: int

    def seconds(self, samples: float) -> float:
        return max(self.floor_s, self.overhead_s + samples / self.samples_per_s)


def fit_line(points: Iterable[Point]) -> LineFit:
    """Least squares on relative residuals over every split of the points into a plateau and a line.

    A floor needs two points at least: with one it would just copy the smallest batch, noise and all [our choice].
    Points may repeat a batch size (several measured steps). Overhead is never negative.
    Raises UsageError for points that are not positive and finite, or that show no time per sample.
    """
    measured = sorted((float(samples), float(seconds)) for samples, seconds in points)
    if not measured:
        raise UsageError("no measured step times to fit")
    if any(not (0 < m < math.inf and 0 < t < math.inf) for m, t in measured):
        raise UsageError("step times need positive, finite samples and seconds")
    candidates = []
    for split in range(len(measured)):
        sizes_left = {m for m, _ in measured[split:]}
        if split == 1 or (split and len(sizes_left) < 2):
            continue
        line = _line(measured[split:])
        if line is not None:
            floor = _plateau(measured[:split])
            candidates.append((_cost(measured, floor, *line), split, floor, *line))
    if not candidates:
        raise UsageError("step times do not grow with the batch: no samples per second can be fitted")
    _, _, floor, overhead, slope = min(candidates)
    residuals = sorted(abs(max(floor, overhead + slope * m) / t - 1) for m, t in measured)
    middle = len(residuals) // 2
    median = residuals[middle] if len(residuals) % 2 else (residuals[middle - 1] + residuals[middle]) / 2
    return LineFit(
        floor_s=floor,
        overhead_s=overhead,
        samples_per_s=1 / slope,
        residual_max=residuals[-1],
        residual_median=median,
        points=len(measured),
    )


def _plateau(points: Sequence[Point]) -> float:
    """argmin over f of sum (f/t - 1)^2."""
    return sum(1 / t for _, t in points) / sum(1 / t**2 for _, t in points) if points else 0.0


def _line(points: Sequence[Point]) -> tuple[float, float] | None:
    """argmin over a >= 0, s > 0 of sum ((a + s m)/t - 1)^2 as (a, s); None where no slope is positive."""
    if len({m for m, _ in points}) > 1:
        # normal equations of two unknowns, weights 1/t^2, about the weighted mean
        weight = sum(1 / t**2 for _, t in points)
        mean_m = sum(m / t**2 for m, t in points) / weight
        mean_t = sum(1 / t for _, t in points) / weight
        slope = sum((m - mean_m) * (t - mean_t) / t**2 for m, t in points) / sum(
            (m - mean_m) ** 2 / t**2 for m, t in points
        )
        overhead = mean_t - slope * mean_m
        if slope <= 0:
            return None
        if overhead >= 0:
            return overhead, slope
    return 0.0, sum(m / t for m, t in points) / sum((m / t) ** 2 for m, t in points)


def _cost(points: Sequence[Point], floor: float, overhead: float, slope: float) -> float:
    return sum((max(floor, overhead + slope * m) / t - 1) ** 2 for m, t in points)
