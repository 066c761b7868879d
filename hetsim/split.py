"""The best unequal batches: whole samples per worker that add up to the global batch and let all finish together.

Minimises max_i T_i(b_i), Σ b_i = B, b_i ≥ 1, where T_i(b) is the time of worker i's passes over b samples, no pass larger than its memory
holds. Exact where more samples never take less time, as on every line and almost every measured table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from hetsim.cluster.spec import Worker
from hetsim.compute import pass_model
from hetsim.errors import UsageError

Seconds = Callable[[int], float]
HALVINGS = 100  # of the interval that holds the least time: down to neighbouring floats


def batch_seconds(worker: Worker) -> Seconds:
    """T(b): seconds of this worker's passes over b samples, in the fewest and most equal parts that memory allows (`compute.passes`)."""
    model, cap = pass_model(worker), worker.max_batch_samples

    def seconds(samples: int) -> float:
        if not samples:
            return 0.0
        parts = 1 if cap is None else -(-samples // cap)
        size, larger = divmod(samples, parts)
        return larger * model.seconds(size + 1) + (parts - larger) * model.seconds(size)

    return seconds


def best_split(total: int, times: Sequence[Seconds]) -> tuple[int, ...]:
    """b with the least max_i T_i(b_i). Among the best, samples go one by one to whoever then finishes first; ties to the lower rank.

    >>> best_split(10, [lambda b: b / 3, lambda b: b / 2])
    (6, 4)
    """
    n = len(times)
    if total < n:
        raise UsageError(f"{total} samples are fewer than the {n} workers")

    def most(seconds: float) -> list[int]:
        """Per worker the most samples that it computes in so long, one at least."""
        return [max(1, _most(time, seconds, total)) for time in times]

    low, high = 0.0, max(time(total) for time in times)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if sum(most(middle)) >= total else (middle, high)
    batches, limits = most(low), most(high)
    if sum(batches) > total:  # so little that a sample each takes longer: all have one or no time at all
        batches = [1] * n
    heap = [(times[i](batches[i] + 1), i) for i in range(n) if batches[i] < limits[i]]
    heapq.heapify(heap)
    for _ in range(total - sum(batches)):
        _, i = heapq.heappop(heap)
        batches[i] += 1
        if batches[i] < limits[i]:
            heapq.heappush(heap, (times[i](batches[i] + 1), i))
    return tuple(batches)


def _most(time: Seconds, seconds: float, total: int) -> int:
    """The most samples up to `total` whose time is at most `seconds`, by bisection."""
    low, high = 0, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if time(middle) <= seconds else (low, middle - 1)
    return low
