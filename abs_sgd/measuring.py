"""What a rank measures, with clock and work handed in: nothing here knows torch, so that a test can bring its own time.

Every repetition starts at a barrier, so that ranks work at the same time, as they will in training, and each round visits every
size once, so that a machine that grows slower by and by does so for all of them. The first rounds are warm-up and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Clock = Callable[[], float]
Nothing = Callable[[], None]
Sized = Callable[[int], None]


class InFlight(Protocol):
    """A collective that was started."""

    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


def rounds(
    work: Sized, sizes: Sequence[int], *, repeats: int, warm_up: int, clock: Clock, barrier: Nothing
) -> dict[int, list[float]]:
    """Seconds of `work(size)`, `repeats` of each size after `warm_up` dropped ones."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for index in range(warm_up + repeats):
        for size, kept in times.items():
            barrier()
            start_s = clock()
            work(size)
            if index >= warm_up:
                kept.append(clock() - start_s)
    return times


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
