"""Who gets which samples in a live run: one counter on the store, claimed from ahead of need.

Every sample is handed out once, by `counter += n`, whoever asks: a worker that computes faster claims more often, and open batches need
no plan. The numbers are the simulator's (running over all epochs), so a recorded Schedule says which samples a batch had. A claim travels
while the pass before it computes, since one made on a busy link takes up to 141 ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from hetsim.errors import UsageError

Range = tuple[int, int]  # first sample number, count


class Store(Protocol):
    """What is needed of torch.distributed's stores: a counter that all ranks share."""

    def add(self, key: str, amount: int, /) -> int: ...


class Clerk:
    """Does counter updates on the store, one after another, on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    def add(self, key: str, amount: int) -> Future[int]:
        """The counter's new value, in due course."""
        return self._thread.submit(self._store.add, key, amount)

    def close(self) -> None:
        """Let what is under way finish."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class SampleDispenser:
    """One rank's view of the shared cursor.

    `take(n)`: up to n samples as ranges of one epoch, fewer where an epoch or the `budget` ends, [] where nothing is left. `ahead(n)`
    claims what the next `take(n)` lacks, without waiting. A run that goes on hands out the `holes` that the broken one left below
    `base` first, then what comes after `base`: the counter starts at 0 again and counts along both.
    """

    def __init__(
        self,
        claim: Callable[[int], Future[int]],
        epoch_samples: int,
        budget: int,
        *,
        holes: Sequence[Range] = (),
        base: int = 0,
        held: Iterable[Range] = (),
    ) -> None:
        self._claim = claim
        self.epoch_samples = epoch_samples
        self._parts = [(first, min(count, budget - first)) for first, count in holes if first < budget]
        self._parts.append((base, max(0, budget - base)))
        self.budget = budget
        self._end = sum(count for _, count in self._parts)  # where the counter has come to the end of the budget
        self._held: deque[Range] = deque(held)
        self._pending: tuple[int, Future[int]] | None = None
        self._reached = 0
        self._dry = not self._end

    def take(self, samples: int) -> list[Range]:
        """The next samples of this rank."""
        taken: list[Range] = []
        left = samples
        while left > 0:
            if not self._held and not self._fill(left):
                break
            first, count = self._held[0]
            if taken and first // self.epoch_samples != taken[0][0] // self.epoch_samples:
                break
            part = min(left, count)
            if part == count:
                self._held.popleft()
            else:
                self._held[0] = (first + part, count - part)
            if taken and sum(taken[-1]) == first:
                taken[-1] = (taken[-1][0], taken[-1][1] + part)
            else:
                taken.append((first, part))
            left -= part
        return taken

    def ahead(self, samples: int) -> None:
        """Claim what is missing for a `take` of so many."""
        missing = samples - sum(count for _, count in self._held)
        if missing > 0 and self._pending is None and not self._dry:
            self._pending = missing, self._claim(missing)

    def has_more(self) -> bool:
        """Whether this rank will compute anything more; waits for a claim under way, as the next `take` would."""
        while not self._held and self._pending is not None:
            self._fill(0)
        return bool(self._held) or not self._dry

    def _fill(self, samples: int) -> bool:
        """Get the claim under way, or make one; False where the data have ended."""
        if self._dry:
            return False
        size, future = self._pending or (samples, self._claim(samples))
        self._pending = None
        after = future.result()
        self._held.extend(self._pieces(after - size, after))
        self._reached = max(self._reached, after)
        self._dry = after >= self._end
        return bool(self._held)

    def _pieces(self, first: int, end: int) -> Iterator[Range]:
        """The samples behind [first, end) of the counter, cut where epochs end."""
        at = 0
        for start, count in self._parts:
            yield from self._cut(start + max(first - at, 0), start + min(end - at, count))
            at += count

    def _cut(self, first: int, end: int) -> Iterator[Range]:
        while first < end:
            until = min(end, (first // self.epoch_samples + 1) * self.epoch_samples)
            yield first, until - first
            first = until

    def desk(self) -> Callable[[], tuple[list[Range], int]]:
        """What is held now and how far, in samples, this rank knows the data to be claimed, in a call that waits for a claim under way
        (not on the thread that computes)."""
        ranges, pending, reached = list(self._held), self._pending, self._reached

        def settled() -> tuple[list[Range], int]:
            known, claimed = list(ranges), reached
            if pending is not None:
                size, future = pending
                after = future.result()
                known += self._pieces(after - size, after)
                claimed = max(claimed, after)
            base, count = self._parts[-1]
            return known, base + min(max(0, claimed - (self._end - count)), count)

        return settled


class PromptDispenser(SampleDispenser):
    """Claims nothing ahead of a `take` unless told by `soon`: who holds a claim must not be told that the data have ended."""

    def ahead(self, samples: int) -> None:
        """Nothing."""

    def soon(self, samples: int) -> None:
        """Claim what is missing for a `take` of so many, without waiting."""
        super().ahead(samples)


def holes_below(reach: int, used: Iterable[Range]) -> list[Range]:
    """What of [0, reach) nobody used or holds. Raises UsageError where two did."""
    holes, at = [], 0
    for first, count in sorted(used):
        if first < at:
            raise UsageError(f"sample {first} is in two shares: they are not of one checkpoint")
        if first > at:
            holes.append((at, first - at))
        at = first + count
    if at < reach:
        holes.append((at, reach - at))
    return holes


class SharedCount:
    """The counter shared by the workers of one synchronization: its own additions count at once, those of others when the store has
    told of them."""

    def __init__(self, add: Callable[[str, int], Future[int]]) -> None:
        self._add = add
        self._key = -1
        self._own = 0
        self._others = 0
        self._asked: deque[tuple[int, Future[int]]] = deque()  # own additions until then, the total that came back

    @property
    def own(self) -> tuple[int, int]:
        """The synchronization counted for, and what this worker has added to it."""
        return self._key, self._own

    def take_up(self, synchronization: int, samples: int) -> None:
        """Go on from the `own` of a run that broke."""
        if synchronization >= 0 and samples:
            self.count(synchronization, samples)

    def count(self, synchronization: int, samples: int) -> int:
        """Add to the counter of a synchronization; the total as known here."""
        if synchronization != self._key:
            self._key, self._own, self._others = synchronization, 0, 0
            self._asked.clear()
        self._own += samples
        self._asked.append((self._own, self._add(f"count/{synchronization}", samples)))
        while self._asked and self._asked[0][1].done():
            own, future = self._asked.popleft()
            self._others = future.result() - own
        return self._own + self._others
