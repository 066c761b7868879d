"""What a rank measures, with clock and work handed in: nothing here knows torch, so that a test can bring its own time.

Every repetition starts at a barrier, so that ranks work at the same time, as they will in training, and each round visits every
size once, so that a machine that grows slower by and by does so for all of them. The first rounds are warm-up and dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Clock = Callable[[], float]
Nothing = Callable[[], None]
Sized = Callable[[int], None]


class InFlight(Protocol):
    """A collective that was started."""

    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


class Timed(InFlight, Protocol):
    """A collective that knows when it was complete, whoever looked."""

    def completed_s(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """One collective beside computation: seconds from its start here to its completion, seconds of the passes begun meanwhile, and how many
    these were."""

    flight_s: float
    computing_s: float
    passes: int


def rounds(
    work: Sized,
    sizes: Sequence[int],
    *,
    repeats: int,
    warm_up: int,
    clock: Clock,
    barrier: Nothing,
    least_s: float = 0.0,
) -> dict[int, list[float]]:
    """Seconds of `work(size)`, `repeats` of each size after `warm_up` dropped ones (one at the least, with `least_s`).

    What takes less than `least_s` is done several times in a row and each repetition is their mean: a process that may use part of a core
    runs unhindered until its quota is used up and then stands still, so that a short pass says nothing of its speed.
    """
    times: dict[int, list[float]] = {size: [] for size in sizes}
    first: dict[int, list[float]] = {size: [] for size in sizes}
    warm_up = max(warm_up, 1) if least_s else warm_up
    for index in range(warm_up + repeats):
        for size, kept in times.items():
            count = in_a_row(least_s, first[size]) if index >= warm_up else 1
            barrier()
            start_s = clock()
            for _ in range(count):
                work(size)
            (kept if index >= warm_up else first[size]).append((clock() - start_s) / count)
    return times


def in_a_row(least_s: float, times_s: Sequence[float]) -> int:
    """How often to repeat what took `times_s` for it to take `least_s`."""
    return max(1, math.ceil(least_s / max(median(times_s), 1e-6))) if least_s else 1


def cycles(work: Nothing, start: Callable[[], Timed], *, repeats: int, warm_up: int, clock: Clock) -> list[Cycle]:
    """Collectives back to back beside passes, as in ABS-SGD: the next one starts at the end of the pass in which the last one was
    complete. The first `warm_up` and the last, beside which some ranks compute no more, are dropped."""
    out = []
    for _ in range(warm_up + repeats + 1):
        transfer = start()
        start_s = clock()
        passes = 0
        while not passes or not transfer.is_completed():
            work()
            passes += 1
        computing_s = clock() - start_s
        transfer.wait()
        out.append(Cycle(flight_s=transfer.completed_s() - start_s, computing_s=computing_s, passes=passes))
    return out[warm_up:-1]


def beside(
    work: Nothing, start: Callable[[], InFlight], *, repeats: int, warm_up: int, clock: Clock, barrier: Nothing
) -> tuple[list[float], list[float]]:
    """Seconds of `work` alone, and of `work` that began and ended while a collective was in flight (others are left out)."""
    idle_s: list[float] = []
    busy_s: list[float] = []
    for index in range(warm_up + repeats):
        barrier()
        start_s = clock()
        work()
        alone_s = clock() - start_s
        barrier()
        transfer = start()
        start_s = clock()
        work()
        shared_s, throughout = clock() - start_s, not transfer.is_completed()
        transfer.wait()
        if index >= warm_up:
            idle_s.append(alone_s)
            if throughout:
                busy_s.append(shared_s)
    return idle_s, busy_s


def long_enough(pass_s: float, payload_bytes: int, payload_s: float, most_bytes: int) -> int:
    """A payload whose all-reduce outlasts a pass three times over, by the rate of a measured one; at most `most_bytes`.

    Three, since both slow each other down and only passes that end in flight count [our choice].
    """
    factor = max(1.0, 3.0 * pass_s / payload_s)
    return int(min(max(payload_bytes * factor, payload_bytes), max(most_bytes, payload_bytes)))
