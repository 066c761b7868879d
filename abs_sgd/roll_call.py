"""Who is gone, when a collective fails? The living say so on the job's store; whoever is silent is named.

A broken connection fails the collectives of its two ends at once. A third rank may wait for ever, for one of them that does not send any
more. So whoever sees a failure first notes it on the store, and the others look there when a collective takes long.
"""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import Any

ANSWER_S = 4.0  # for the living; with what comes before, an error is out in well under ten seconds [our choice]
LONG_S = 1.0  # a collective younger than this is not asked about [our choice]
EVERY_S = 0.5  # between two questions, each .1 ms on an idle network, up to 141 ms on a busy one [our choice]
BROKEN = "broken"


class RollCall:
    """Of one rank. `store`: with keys of its own for the ranks that train together."""

    def __init__(self, store: Any, rank: int, n: int) -> None:
        self._store, self.rank, self.n = store, rank, n
        self._broken = Event()
        self._question: Thread | None = None
        self._next_s = 0.0

    def broken(self) -> bool:
        """Has another rank seen a failure? Asked on a thread, so that nobody waits for the answer; it may be half a second old."""
        now_s = time.monotonic()
        idle = self._question is None or not self._question.is_alive()
        if idle and now_s >= self._next_s and not self._broken.is_set():
            self._next_s = now_s + EVERY_S
            self._question = Thread(target=self._ask, name="roll-call", daemon=True)
            self._question.start()
        return self._broken.is_set()

    def silent(self) -> list[int]:
        """Say that this rank lives, and wait up to ANSWER_S for the others; those that did not. Raises RuntimeError without a store."""
        self._store.set(BROKEN, "yes")
        self._store.set(str(self.rank), "here")
        left = [rank for rank in range(self.n) if rank != self.rank]
        until_s = time.monotonic() + ANSWER_S
        while left := [rank for rank in left if not self._store.check([str(rank)])]:
            if time.monotonic() > until_s:
                break
            time.sleep(0.05)
        return left

    def _ask(self) -> None:
        try:
            if self._store.check([BROKEN]):
                self._broken.set()
        except RuntimeError:
            return  # a store that is gone says nothing about the collective
