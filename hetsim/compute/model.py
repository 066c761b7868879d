"""How long one pass (forward and backward over some samples) takes on a worker, without luck and slow-downs.

LineModel    t(m) = max(floor_s, overhead_s + m / samples_per_s): launches bound small batches, arithmetic large ones
TableModel   measured steps, straight lines in between
TraceModel   recorded steps, replayed in order by cumulative samples and repeated
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from hetsim.cluster.spec import Worker
from hetsim.errors import UsageError


class PassModel(Protocol):
    """Seconds of one pass; pure, and 0 for no samples."""

    def seconds(self, samples: int) -> float: ...

    def extrapolates(self, samples: int) -> bool:
        """Whether `samples` lies outside what was measured."""
        ...


def pass_model(worker: Worker) -> PassModel:
    """The worker's trace where it has one, else its table, else its floor and line."""
    if worker.trace:
        return TraceModel(worker.trace)
    if worker.step_times_s:
        return TableModel(worker.step_times_s)
    return LineModel(worker.floor_s, worker.overhead_s, worker.samples_per_s)


@dataclass(frozen=True)
class LineModel:
    """t(m) = max(floor_s, overhead_s + m / samples_per_s). Nothing is known of where it was measured."""

    floor_s: float
    overhead_s: float
    samples_per_s: float

    def seconds(self, samples: int) -> float:
        return max(self.floor_s, self.overhead_s + samples / self.samples_per_s) if samples else 0.0

    def extrapolates(self, samples: int) -> bool:
        return False


class TableModel:
    """Measured (samples, seconds), linear in between; every measured point comes back exactly.

    Below the smallest batch the first segment's line goes on, never steeper than proportional and never falling: on the
    three GPUs that Gavel measured down to 16 samples, this misses the time at 16 by -15 to -2 % from the points above
    it, a flat continuation by +15 to +34 %. Above the largest batch the last segment's line goes on. A single point is
    flat below and proportional above [our choice]. Where measurements fall with the batch, so does the model.
    Raises UsageError for no points, repeated batches, or values that are not positive.
    """

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self.points = tuple(sorted(points))
        self._samples = [m for m, _ in self.points]
        if not self.points or any(m <= 0 or not t > 0 for m, t in self.points):
            raise UsageError("a table of step times needs positive samples and seconds")
        if any(a == b for a, b in pairwise(self._samples)):
            raise UsageError("a table of step times has the same number of samples twice")
        (m0, t0), (m1, t1) = self.points[0], self.points[-1]
        self._below, self._above = 0.0, t1 / m1
        if len(self.points) > 1:
            self._below = min(max(_slope(*self.points[:2]), 0.0), t0 / m0)
            self._above = max(_slope(*self.points[-2:]), 0.0)

    def seconds(self, samples: int) -> float:
        if samples <= 0:
            return 0.0
        index = bisect_left(self._samples, samples)
        if index == len(self.points):
            last, seconds = self.points[-1]
            return seconds + self._above * (samples - last)
        right, seconds = self.points[index]
        if right == samples:
            return seconds
        if index == 0:
            return seconds - self._below * (right - samples)
        left, before = self.points[index - 1]
        return before + (seconds - before) * ((samples - left) / (right - left))

    def extrapolates(self, samples: int) -> bool:
        return not self._samples[0] <= samples <= self._samples[-1]


class TraceModel:
    """Recorded steps as one line through (cumulative samples, cumulative seconds), repeated without end.

    What samples cost thus depends on how many came before, not on how they are cut into passes: a recorded step carries
    its own overhead, spread over its samples [our choice]. `seconds` is the cost at the mean speed of the recording,
    `between` the replay.
    Raises UsageError for no steps or values that are not positive.
    """

    def __init__(self, steps: Iterable[tuple[int, float]]) -> None:
        self.steps = tuple(steps)
        if not self.steps or any(m <= 0 or not t > 0 for m, t in self.steps):
            raise UsageError("a trace needs steps with positive samples and seconds")
        self._samples = list(accumulate((m for m, _ in self.steps), initial=0))
        self._seconds = list(accumulate((t for _, t in self.steps), initial=0.0))

    def seconds(self, samples: int) -> float:
        return samples * (self._seconds[-1] / self._samples[-1])

    def between(self, start: int, samples: int) -> float:
        """Seconds of the samples start, start + 1, ... of this worker's life."""
        period = self._samples[-1]
        rounds_before, first = divmod(start, period)
        rounds_after, end = divmod(start + samples, period)
        whole = (rounds_after - rounds_before) * self._seconds[-1]
        return whole + self._until(end) - self._until(first)

    def _until(self, samples: int) -> float:
        index = bisect_right(self._samples, samples) - 1
        into = samples - self._samples[index]
        if not into:
            return self._seconds[index]
        size, seconds = self.steps[index]
        return self._seconds[index] + seconds * (into / size)

    def extrapolates(self, samples: int) -> bool:
        sizes = [m for m, _ in self.steps]
        return not min(sizes) <= samples <= max(sizes)


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
