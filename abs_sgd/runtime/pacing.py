"""One machine as the profile's cluster: a worker that is faster than its profile sleeps the difference.

The time of a pass is the simulator's: the worker's line, table or trace, its luck, and the slow-downs of the clock time at which it runs;
that of an update is the worker's `update_s`. What a collective in flight costs a pass (`overlap_slowdown`) is not added: beside a real
collective it is there already.

What begins or ends a little late (a sleep that lasted longer than asked for, cores that several ranks share, what is done between two
passes) is made up for by the next pass or update, up to `ALLOWANCE_S`, so that they take the profile's time in the mean. A wait for
others ends the account: it lasts as long as it lasts. A worker that is late again and again cannot be emulated here.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from hetsim.cluster.spec import Cluster, Worker
from hetsim.compute import SpeedProfile, WorkTimer
from hetsim.errors import SimulationError
from hetsim.schedule import Kind, Schedule

ALLOWANCE_S = 5e-3  # a pass late by less says nothing: what a scheduler takes from a process now and then [our choice]
WINDOW = 10  # passes whose median tells a slow worker from a busy moment [our choice]
LEAST = 5  # passes it takes to say so: a run of few updates has no more [our choice]


class TooSlowError(SimulationError):
    """This machine cannot do a worker's passes in the time that the profile gives them."""


class Pace:
    """The profile's times of one worker. `tolerance`: share by which a pass may take longer, beside `ALLOWANCE_S`; `backward_share`: of a
    pass that streams."""

    def __init__(
        self, worker: Worker, seed: int, quantum_samples: int, tolerance: float, backward_share: float = 0.0
    ) -> None:
        self.worker = worker
        self.tolerance = tolerance
        self.backward_share = backward_share
        self._timer = WorkTimer(worker, seed, quantum_samples)
        self._speed = SpeedProfile(worker.slowdowns)
        self._last: deque[float] = deque(maxlen=WINDOW)  # seconds later than allowed
        self._due_s = math.inf  # when the profile's worker was through with what came before; infinite: it waited

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
        """Sleep until a pass begun at `start_s` has taken its profile's time. Raises TooSlowError where the last passes were all in all
        too late.

        `left`: shares of the last pass's gradients that are still to come when a bucket is complete; `send` is called at each such
        time, as in the simulator: the real pass, which is shorter, is over by then.
        """
        work_s, last_s = self._timer.next(samples)
        begun_s = self._begun_s(start_s)
        end_s = self._speed.finish(begun_s, work_s)
        self._judge(samples, end_s - begun_s, now_s - start_s)
        for share in left:
            assert send is not None
            now_s = _sleep(now_s, self._speed.finish(begun_s, work_s - self.backward_share * last_s * share))
            before_s = time.monotonic()
            send()
            now_s += time.monotonic() - before_s
        _sleep(now_s, end_s)
        self._due_s = end_s

    def keep_update(self, start_s: float, now_s: float) -> None:
        """Sleep until an operation on parameters begun at `start_s` has taken the profile's `update_s`."""
        self._due_s = self._begun_s(start_s) + self.worker.update_s
        _sleep(now_s, self._due_s)

    def waited(self) -> None:
        """What comes next begins when it begins: the worker has waited for others."""
        self._due_s = math.inf

    def _begun_s(self, start_s: float) -> float:
        """When the profile's worker, which does nothing between two passes, has begun what began here at `start_s`."""
        return max(min(start_s, self._due_s), start_s - ALLOWANCE_S)

    def _judge(self, samples: int, given_s: float, took_s: float) -> None:
        over_s = _over_s(took_s, given_s, self.tolerance)
        self._last.append(over_s)
        if over_s > 0 and len(self._last) >= LEAST and median(self._last) > 0:
            late = sum(over > 0 for over in self._last)
            raise TooSlowError(
                f"{self.worker.name}: {samples} samples took {took_s:.3g} s here, the profile gives them {given_s:.3g} s; {late} of its "
                f"last {len(self._last)} passes were too late: this profile cannot be emulated on this machine (slower workers, a smaller "
                "model, fewer ranks, or a larger tolerance)"
            )


def _over_s(took_s: float, given_s: float, tolerance: float) -> float:
    """Seconds later than a pass may be."""
    return took_s - given_s * (1.0 + tolerance) - ALLOWANCE_S


def _sleep(now_s: float, until_s: float) -> float:
    """The time after it, which may be later."""
    if until_s <= now_s:
        return now_s
    before_s = time.monotonic()
    time.sleep(until_s - now_s)
    return now_s + time.monotonic() - before_s


@dataclass(frozen=True, kw_only=True)
class Late:
    """Of one worker: how many passes a run had, how many ended later than allowed, and by how much the latest did."""

    passes: int
    late: int
    worst_s: float


def lateness(schedule: Schedule, cluster: Cluster, tolerance: float) -> Mapping[str, Late]:
    """By worker: the passes of a paced run that took longer than the profile gives them, `tolerance` and `ALLOWANCE_S` allowed."""
    out: dict[str, Late] = {}
    for worker in cluster.workers:
        timer = WorkTimer(worker, schedule.header.seed, cluster.training.micro_batch_samples)
        speed = SpeedProfile(worker.slowdowns)
        over: list[float] = []
        for samples, start_s, end_s in _passes(schedule, worker.rank):
            given_s = speed.finish(start_s, timer.next(samples)[0]) - start_s
            over.append(_over_s(end_s - start_s, given_s, tolerance))
        late = [each for each in over if each > 0]
        out[worker.name] = Late(passes=len(over), late=len(late), worst_s=max(late, default=0.0))
    return out


def _passes(schedule: Schedule, rank: int) -> list[tuple[int, float, float]]:
    """(samples, start, end). A batch handed out in two pieces is two rows, the second of which starts where the first ends."""
    out: list[tuple[int, float, float]] = []
    rows = np.flatnonzero((schedule.kind == Kind.GRAD) & (schedule.worker == rank))
    for samples, start_s, end_s in zip(
        schedule.samples[rows].tolist(), schedule.start_s[rows].tolist(), schedule.end_s[rows].tolist(), strict=True
    ):
        if out and out[-1][2] == start_s:
            out[-1] = (out[-1][0] + samples, out[-1][1], end_s)
        else:
            out.append((samples, start_s, end_s))
    return out
