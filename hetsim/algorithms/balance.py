"""Unequal batches so that all workers finish together, from measured times.

Every worker fits a line t(b) = intercept + slope·b to its own recent passes and shares the two numbers in the
collective's payload, so that every
rank solves the same small problem: integer batches that sum to the total and minimise max_i t_i(b_i). The continuous optimum rounded
down is a lower bound for each batch (any integer solution needs at least as long), so handing the rest out one by one to whoever then
finishes first is optimal.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from functools import lru_cache

from hetsim.commands import Computed, Reduced

Line = tuple[float, float]
REMEMBERED_SIZES = 16  # [our choice] distinct batch sizes a worker fits its line to
SMOOTHING = 0.25  # [our choice] weight of the newest time in the moving average of one batch size


@lru_cache(maxsize=4096)
def balanced(total: int, lines: tuple[Line, ...], caps: tuple[int | None, ...], least: int = 0) -> tuple[int, ...]:
    """Integer batches b with Σ b = total, least ≤ b_i ≤ caps_i, minimising max_i (intercept_i + slope_i·b_i).

    Ties go to the lower rank. Caps that cannot hold the total are ignored (a batch is then computed in several passes).
    """
    n = len(lines)
    limits = [math.inf if c is None else float(c) for c in caps]
    if sum(limits) < total:
        limits = [math.inf] * n
    slopes = [max(s, 1e-12) for _, s in lines]  # a free worker takes what its cap allows
    free = list(range(n))
    left, level = float(total), 0.0
    while free:  # water-filling: workers whose intercept lies above the level, or at their cap, leave the pool
        level = (left + sum(lines[i][0] / slopes[i] for i in free)) / sum(1 / slopes[i] for i in free)
        wrong = [i for i in free if (level - lines[i][0]) / slopes[i] < least]
        if not wrong:
            wrong = [i for i in free if (level - lines[i][0]) / slopes[i] > limits[i]]
            left -= sum(limits[i] for i in wrong)
        else:
            left -= least * len(wrong)
        if not wrong:
            break
        free = [i for i in free if i not in wrong]
    batches = []
    for i, (intercept, _) in enumerate(lines):
        share = math.floor((level - intercept) / slopes[i] + 1e-9) if slopes[i] else 0
        batches.append(int(min(max(share, least), limits[i])))
    while sum(batches) > total:  # only where `least` or rounding pushed the sum over
        i = max((i for i in range(n) if batches[i] > least), key=lambda i: lines[i][0] + slopes[i] * batches[i])
        batches[i] -= 1
    heap = [(lines[i][0] + slopes[i] * (batches[i] + 1), i) for i in range(n) if batches[i] < limits[i]]
    heapq.heapify(heap)
    for _ in range(total - sum(batches)):
        _, i = heapq.heappop(heap)
        batches[i] += 1
        if batches[i] < limits[i]:
            heapq.heappush(heap, (lines[i][0] + slopes[i] * (batches[i] + 1), i))
    return tuple(batches)


class Balancer:
    """One worker's view of the group's batches: reports its own line, and turns everybody's into the next batches."""

    def __init__(
        self, batches: tuple[int, ...], caps: tuple[int | None, ...], *, dead_band: float, least: int = 1
    ) -> None:
        self.batches = batches
        self.caps = caps
        self.dead_band = dead_band
        self.least = least
        self._seconds: OrderedDict[int, float] = OrderedDict()

    def report(self, done: Computed) -> Line | tuple[()]:
        """Note a pass and return (intercept, slope) of this worker's line; () before anything was measured."""
        if done.samples:
            seen = self._seconds.pop(done.samples, None)
            self._seconds[done.samples] = done.seconds if seen is None else seen + SMOOTHING * (done.seconds - seen)
            if len(self._seconds) > REMEMBERED_SIZES:
                self._seconds.popitem(last=False)
        return self._line()

    def _line(self) -> Line | tuple[()]:
        points = list(self._seconds.items())
        if not points:
            return ()
        n = len(points)
        mean_b = sum(b for b, _ in points) / n
        mean_t = sum(t for _, t in points) / n
        spread = sum((b - mean_b) ** 2 for b, _ in points)
        newest_b, newest_t = points[-1]
        slope = sum((b - mean_b) * (t - mean_t) for b, t in points) / spread if spread else newest_t / newest_b
        intercept = mean_t - slope * mean_b
        if n == 1 or slope <= 0 or intercept < -1e-9 * mean_t:  # nothing to tell overhead from speed: all speed
            return 0.0, newest_t / newest_b
        return max(intercept, 0.0), slope

    def update(self, reduced: Reduced) -> None:
        """The next batches, the same on every rank; kept where the gain is within the dead band."""
        gathered = reduced.gathered
        if len(gathered) < len(self.batches):
            return
        lines: tuple[Line, ...] = tuple((gathered[r][0], gathered[r][1]) for r in range(len(self.batches)))
        batches = balanced(sum(self.batches), lines, self.caps, self.least)
        now, then = (max(a + s * b for (a, s), b in zip(lines, bs, strict=True)) for bs in (self.batches, batches))
        if then < now * (1 - self.dead_band):
            self.batches = batches
