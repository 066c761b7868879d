"""When work ends on a worker whose speed changes while it runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from hetsim.cluster.spec import Slowdown


class SpeedProfile:
    """The factor by which everything takes longer, piecewise constant in time; overlapping slow-downs multiply.

    Work is counted in seconds at full speed: a stretch [a, b) at factor f does (b - a) / f of it. `extra_factor`
    multiplies throughout (compute beside a collective in flight, say).
    """

    def __init__(self, slowdowns: Iterable[Slowdown] = ()) -> None:
        slowdowns = tuple(slowdowns)
        ends = {t for s in slowdowns for t in (s.at_s, s.until_s) if math.isfinite(t)}
        self._starts = [-math.inf, *sorted(ends)]
        self._factors = [
            math.prod(s.factor for s in slowdowns if s.at_s <= start < s.until_s) for start in self._starts
        ]
        self.constant = all(factor == 1.0 for factor in self._factors)

    def factor(self, t: float) -> float:
        return self._factors[bisect_right(self._starts, t) - 1]

    def next_change(self, t: float) -> float:
        """The first time after `t` at which a slow-down starts or ends; math.inf if none."""
        index = bisect_right(self._starts, t)
        return self._starts[index] if index < len(self._starts) else math.inf

    def finish(self, start_s: float, work_s: float, extra_factor: float = 1.0) -> float:
        """When `work_s` seconds of work begun at `start_s` are done; math.inf where it stands still for ever."""
        if self.constant or work_s <= 0:
            return start_s + work_s * extra_factor
        index = bisect_right(self._starts, start_s) - 1
        now, left = start_s, work_s
        while True:
            factor = self._factors[index] * extra_factor
            end = now + left * factor
            index += 1
            if index == len(self._starts) or end <= self._starts[index]:
                return end
            left = max(0.0, left - (self._starts[index] - now) / factor)
            now = self._starts[index]
            if left == 0.0:
                return now

    def done(self, start_s: float, end_s: float, extra_factor: float = 1.0) -> float:
        """Seconds of work done from `start_s` to `end_s`: the inverse of `finish`."""
        work, now = 0.0, start_s
        while now < end_s:
            until = min(end_s, self.next_change(now))
            work += (until - now) / (self.factor(now) * extra_factor)
            now = until
        return work
