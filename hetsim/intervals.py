"""Intervals over a handful of seeds that assume nothing about the distribution.

The interval of a median is a pair of order statistics (the sign test turned round): [x_(r), x_(m+1-r)] covers the median with probability
1 - 2·P(Binomial(m, ½) < r). The largest r that keeps 95 % is taken; below 6 seeds none does and the interval is [smallest, largest],
with the coverage it has (5 seeds: 93.75 %). A seed that never reached the target counts as infinite, which order statistics allow.
Source: Conover, Practical Nonparametric Statistics, ch. 3; the choice of it over a bootstrap is ours: exact, deterministic, no assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median and what surrounds it. `low` and `high` are None for a single seed; infinite where too many seeds are."""

    median: float
    low: float | None
    high: float | None


def rank_of(count: int) -> int:
    """r, 1-based: the interval is [x_(r), x_(count+1-r)]."""
    rank, below = 1, 0.5**count
    while rank < (count + 1) // 2:
        below += math.comb(count, rank) * 0.5**count
        if 1.0 - 2.0 * below < CONFIDENCE:
            break
        rank += 1
    return rank


def coverage(count: int) -> float | None:
    """Probability that the interval over `count` seeds holds the median; None below 2 seeds."""
    if count < 2:
        return None
    return 1.0 - 2.0 * sum(math.comb(count, k) for k in range(rank_of(count))) * 0.5**count


def interval(values: Sequence[float]) -> Interval:
    """Median and interval of at least one value; values may be infinite.

    >>> interval([3.0, 1.0, 2.0, 5.0, 4.0])
    Interval(median=3.0, low=1.0, high=5.0)
    """
    ordered = sorted(values)
    count = len(ordered)
    middle = ordered[count // 2]
    median = middle if count % 2 else between(ordered[count // 2 - 1], middle)
    if count < 2:
        return Interval(median, None, None)
    rank = rank_of(count)
    return Interval(median, ordered[rank - 1], ordered[count - rank])


def between(a: float, b: float) -> float:
    """The mean of two numbers, either of which may be infinite."""
    return a if a == b else 0.5 * (a + b)


def paired_ratio(baseline: Sequence[float], own: Sequence[float]) -> Interval | None:
    """How many times faster `own` is than `baseline`: median and interval of baseline_s / own_s over the same seeds s.

    A seed on which only `own` reached counts as infinitely faster, one on which only the baseline did as 0; a seed on which neither did
    says nothing, and then there is no ratio at all (None).
    """
    if any(math.isinf(a) and math.isinf(b) for a, b in zip(baseline, own, strict=True)):
        return None
    return interval([a / b if b else math.inf for a, b in zip(baseline, own, strict=True)])
