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
from bisect import bisect_right
from collections import OrderedDict
from functools import lru_cache

from hetsim.commands import Computed, Reduced

Line = tuple[float, float]
FREE_SLOPE = 1e-12  # seconds per sample of a worker that takes no time: it gets what its cap allows
REMEMBERED_SIZES = 16  # [our choice] distinct batch sizes a worker fits its line to
PACE_BAND = 0.05  # [our choice] share by which a micro-batch must change to be changed
SMOOTHING = 0.25  # [our choice] weight of the newest time in the moving average of one batch size
CHANGED = 0.25  # [our choice] share by which two passes in a row must miss what was expected to say that the speed has changed
SIZES_OF_A_LINE = 2  # [our choice] distinct batch sizes it takes to expect anything of one between them


def slowest(lines: tuple[Line, ...], batches: tuple[int, ...]) -> float:
    """max_i t_i(b_i)."""
    return max([a + s * b for (a, s), b in zip(lines, batches, strict=True)])


def level(total: float, lines: tuple[Line, ...]) -> float:
    """The time at which all finish together with fractional batches, negative ones allowed: a bound from below for any split."""
    inverse = [1 / max(s, FREE_SLOPE) for _, s in lines]
    return (total + sum([a * i for (a, _), i in zip(lines, inverse, strict=True)])) / sum(inverse)


def _filled(total: int, intercepts: list[float], slopes: list[float], limits: list[float], least: int) -> float:
    """The time at which fractional batches, each between `least` and its limit, sum to `total`: water-filling.

    The sum grows with the time, so the two neighbours among the times where a worker starts or ends to gain are found by bisection.
    """
    workers = list(zip(intercepts, slopes, limits, strict=True))
    begins, ends = [a + s * least for a, s, _ in workers], [a + s * limit for a, s, limit in workers]
    times = sorted({*begins, *ends})

    def samples(t: float) -> float:
        return sum([min(max((t - a) / s, float(least)), limit) for a, s, limit in workers])

    at = bisect_right(times, float(total), lo=1, key=samples)
    level = times[at - 1]
    free = [i for i in range(len(workers)) if begins[i] <= level < ends[i]]
    if not free:
        return level
    held = sum(
        [limits[i] if ends[i] <= level else least for i in range(len(workers)) if not begins[i] <= level < ends[i]]
    )
    return (total - held + sum([intercepts[i] / slopes[i] for i in free])) / sum([1 / slopes[i] for i in free])


@lru_cache(maxsize=4096)
def balanced(total: int, lines: tuple[Line, ...], caps: tuple[int | None, ...], least: int = 0) -> tuple[int, ...]:
    """Integer batches b with Σ b = total, least ≤ b_i ≤ caps_i, minimising max_i (intercept_i + slope_i·b_i).

    Ties go to the lower rank. Caps that cannot hold the total are ignored (a batch is then computed in several passes).
    """
    n = len(lines)
    limits = [math.inf if c is None else float(c) for c in caps]
    if sum(limits) < total:
        limits = [math.inf] * n
    most = float(max(total - least * (n - 1), least))  # what the others leave
    limits = [min(limit, most) for limit in limits]
    slopes = [max(s, FREE_SLOPE) for _, s in lines]
    level = _filled(total, [a for a, _ in lines], slopes, limits, least)
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


class PassLine:
    """One worker's own line t(b) = intercept + slope·b, from moving averages of its recent passes by batch size.

    A worker that becomes slower or faster does so at every size: two passes in a row that miss what was expected, to the same side, move
    the whole line, where else the sizes of the past would bend it until each had been met again. One alone is a straggler's moment and
    moves nothing. Kept as running sums over the remembered sizes, since every update of a balanced method asks for it.
    """

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, float] = OrderedDict()
        self._newest = 0
        self._b = self._bb = 0  # Σ b, Σ b²: exact
        self._t = self._bt = 0.0  # Σ t, Σ b·t
        self._missed: tuple[int, float, float] | None = None  # the last pass if it did: samples, seconds, factor

    def note(self, done: Computed) -> None:
        """Take a pass into account; one without samples says nothing."""
        size = done.samples
        if not size:
            return
        before, self._missed = self._missed, None
        expected = self._expected(size)
        factor = done.seconds / expected if expected > 0 else 1.0
        if abs(factor - 1) > CHANGED:
            if before is None or (before[2] > 1) != (factor > 1):
                self._missed = size, done.seconds, factor
                return
            self._scale(math.sqrt(before[2] * factor))
            self._take(*before[:2])
        self._take(size, done.seconds)

    def _expected(self, size: int) -> float:
        """What a pass of this size has taken so far, 0 where that is not known."""
        if size in self._seconds:
            return self._seconds[size]
        if len(self._seconds) < SIZES_OF_A_LINE or not min(self._seconds) < size < max(self._seconds):
            return 0.0
        intercept, slope = self.line() or (0.0, 0.0)
        return intercept + slope * size

    def _take(self, size: int, seconds: float) -> None:
        seen = self._forget(size)
        self._remember(size, seconds if seen is None else seen + SMOOTHING * (seconds - seen))
        if len(self._seconds) > REMEMBERED_SIZES:
            self._forget(next(iter(self._seconds)))

    def _scale(self, factor: float) -> None:
        for size in self._seconds:
            self._seconds[size] *= factor
        self._t, self._bt = self._t * factor, self._bt * factor

    def _remember(self, size: int, seconds: float) -> None:
        self._seconds[size] = seconds
        self._newest = size
        self._b += size
        self._bb += size * size
        self._t += seconds
        self._bt += size * seconds

    def _forget(self, size: int) -> float | None:
        seconds = self._seconds.pop(size, None)
        if seconds is not None:
            self._b -= size
            self._bb -= size * size
            self._t -= seconds
            self._bt -= size * seconds
        return seconds

    def line(self) -> Line | tuple[()]:
        """(intercept, slope) by least squares; all slope where overhead and speed cannot be told apart, () before any pass."""
        n = len(self._seconds)
        if not n:
            return ()
        newest = self._newest
        if n > 1:
            slope = (n * self._bt - self._b * self._t) / (n * self._bb - self._b * self._b)
            intercept = (self._t - slope * self._b) / n
            if slope > 0 and intercept >= -1e-9 * self._t / n:
                return max(intercept, 0.0), slope
        return 0.0, self._seconds[newest] / newest


class Balancer:
    """One worker's view of the group's batches: reports its own line, and turns everybody's into the next batches."""

    def __init__(
        self, batches: tuple[int, ...], caps: tuple[int | None, ...], *, dead_band: float, least: int = 1
    ) -> None:
        self.batches = batches
        self.caps = caps
        self.dead_band = dead_band
        self.least = least
        self._own = PassLine()

    def report(self, done: Computed) -> Line | tuple[()]:
        """Note a pass and return (intercept, slope) of this worker's line; () before anything was measured."""
        self._own.note(done)
        return self._own.line()

    def update(self, reduced: Reduced) -> None:
        """The next batches, the same on every rank; kept where the gain is within the dead band."""
        gathered = reduced.gathered
        if len(gathered) < len(self.batches):
            return
        lines: tuple[Line, ...] = tuple((gathered[r][0], gathered[r][1]) for r in range(len(self.batches)))
        self.batches = rebalanced(self.batches, lines, self.caps, self.least, self.dead_band)


@lru_cache(maxsize=64)  # every rank asks the same question after the same collective
def rebalanced(
    batches: tuple[int, ...], lines: tuple[Line, ...], caps: tuple[int | None, ...], least: int, dead_band: float
) -> tuple[int, ...]:
    """The best batches of the same sum, or the same where they gain no more than the dead band."""
    total = sum(batches)
    good_enough = (1 - dead_band) * slowest(lines, batches)
    # not even fractional batches without limits would be that much better
    if total and level(total, lines) >= good_enough:
        return batches
    best = balanced(total, lines, caps, least)
    return best if slowest(lines, best) < good_enough else batches


class Pacer:
    """Micro-batches that take every worker as long as the slowest one's: fast workers make larger passes, not more of them.

    Every worker shares what a micro-batch of the common size takes it; the largest of these is everybody's pass time, and each picks
    the samples that it manages in that time by its own line. The choice is rank-local and needs no agreement.
    """

    def __init__(self, micro_batch: int, cap: int | None) -> None:
        self.common = micro_batch
        self.samples = micro_batch
        self.cap = cap if cap is not None else math.inf
        self._own = PassLine()

    def note(self, done: Computed) -> None:
        """Take a pass into account."""
        self._own.note(done)

    def report(self) -> tuple[float] | tuple[()]:
        """Seconds of a micro-batch of the common size here."""
        line = self._own.line()
        return (line[0] + line[1] * self.common,) if line else ()

    def update(self, reduced: Reduced) -> None:
        """This worker's next micro-batch; kept where it would change by less than PACE_BAND."""
        line = self._own.line()
        if not line or line[1] < FREE_SLOPE or not reduced.gathered:  # one that takes no time says nothing of how many
            return
        slowest_s = max(seconds for (seconds,) in reduced.gathered.values())
        wanted = min(max(math.floor((slowest_s - line[0]) / line[1] + 1e-9), 1), self.cap)
        if abs(wanted - self.samples) > PACE_BAND * self.samples:
            self.samples = int(wanted)
