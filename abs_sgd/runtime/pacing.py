"""One machine as the profile's cluster: a worker that is faster than its profile sleeps the difference.

The time of a pass is the simulator's: the worker's line, table or trace, its luck, and the slow-downs of the clock time at which it runs.
What a collective in flight costs a pass (`overlap_slowdown`) is not added: beside a real collective it is there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from hetsim.cluster.spec import Worker
from hetsim.compute import SpeedProfile, WorkTimer
from hetsim.errors import SimulationError

SHORTEST_S = 1e-3  # a pass late by less says nothing: timers and schedulers are no finer [our choice]


class TooSlowError(SimulationError):
    """This machine cannot do a pass in the time that the profile gives it."""


class Pace:
    """The profile's times of one worker. `tolerance`: share by which a pass may take longer; `backward_share`: of a pass that streams."""

    def __init__(
        self, worker: Worker, seed: int, quantum_samples: int, tolerance: float, backward_share: float = 0.0
    ) -> None:
        self.worker = worker
        self.tolerance = tolerance
        self.backward_share = backward_share
        self._timer = WorkTimer(worker, seed, quantum_samples)
        self._speed = SpeedProfile(worker.slowdowns)

    def catch_up(self, passes: Iterable[int]) -> None:
        """Go on after passes of so many samples each, whose luck is spent."""
        for samples in passes:
            self._timer.next(samples)

    def keep(
        self,
        samples: int,
        start_s: float,
        now_s: float,
        left: Sequence[float] = (),
        send: Callable[[], None] | None = None,
    ) -> None:
        """Sleep until a pass begun at `start_s` has taken its profile's time. Raises TooSlowError.

        `left`: shares of the last pass's gradients that are still to come when a bucket is complete; `send` is called at each such
        time, as in the simulator: the real pass, which is shorter, is over by then.
        """
        work_s, last_s = self._timer.next(samples)
        end_s = self._speed.finish(start_s, work_s)
        took_s = now_s - start_s
        for share in left:
            assert send is not None
            due_s = self._speed.finish(start_s, work_s - self.backward_share * last_s * share)
            now_s = _sleep(now_s, due_s)
            before_s = time.monotonic()
            send()
            now_s += time.monotonic() - before_s
        if now_s <= end_s:
            _sleep(now_s, end_s)
            return
        given_s = end_s - start_s
        if took_s > given_s * (1.0 + self.tolerance) + SHORTEST_S:
            raise TooSlowError(
                f"{self.worker.name}: {samples} samples took {took_s:.3g} s here, the profile gives them {given_s:.3g} s: this profile "
                "cannot be emulated on this machine (slower workers, a smaller model, fewer ranks, or a larger tolerance)"
            )


def _sleep(now_s: float, until_s: float) -> float:
    """The time after it."""
    if until_s > now_s:
        time.sleep(until_s - now_s)
    return max(now_s, until_s)
