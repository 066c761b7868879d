"""When things happened in a live run: by the host's clock, and where work is queued on a GPU by events between the pieces of work.

A GPU works behind the host: a pass is queued in a moment and computed later. So a rank `mark`s points in the order of work, which costs
nothing, and their times are known after it has `settle`d, which waits until the device has done all that was asked of it.

    host     t0 mark  mark ........ settle (waits) t1        t0, t1: settled; the device is idle, and both clocks meet there
    device      |pass      |reduction     |                  a mark's time: t0 + the seconds between two events

Two events are exact among each other (half a microsecond, says CUDA). The one at t0 is reached after the host has read t0, a launch
later: so a mark is never later than it was, and never before t0. That keeps the rows of all ranks in a possible order: nobody
joins a transfer after another rank has seen it complete. Anchors are as young as the last settling, since the distance of two events
comes in float32 milliseconds, which is 8 µs after 100 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hetsim.commands import Computed

MS = 1e-3


class Event(Protocol):
    """What is needed of torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any, /) -> float: ...


class Moment:
    """A point in the device's order of work. `float` of it is its time; RuntimeError before the stopwatch has settled."""

    __slots__ = ("_at_s", "_event")

    def __init__(self, event: Event) -> None:
        self._event: Event | None = event
        self._at_s = float("nan")

    def __float__(self) -> float:
        if self._event is not None:
            raise RuntimeError("the time of a point that the device may not have reached: settle first")
        return self._at_s

    def resolve(self, anchor: Event, anchor_s: float) -> None:
        """Its time, from an event at a known one."""
        assert self._event is not None
        self._at_s = anchor_s + MS * anchor.elapsed_time(self._event)
        self._event = None


class Between:
    """A point between two others, at a share of the way: where one pass took what stands as several in the log."""

    __slots__ = ("end", "share", "start")

    def __init__(self, start: Time, end: Time, share: float) -> None:
        self.start, self.end, self.share = start, end, share

    def __float__(self) -> float:
        return float(self.start) + self.share * (float(self.end) - float(self.start))


Time = float | Moment | Between


class Stopwatch:
    """The CPU's: work is done when a call returns, so every point has its time at once. `clock`: seconds since the run's start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def mark(self) -> Time:
        """This point in the order of work."""
        return self.clock()

    def settle(self) -> float:
        """Wait until all work so far is done; the time."""
        return self.clock()

    def computed(self, samples: int, start: Time, end: Time) -> Computed:
        """The answer to a compute between two marks."""
        return Computed(samples, float(end) - float(start))


class DeviceStopwatch(Stopwatch):
    """The GPU's, for the current stream of the current device. `event`: makes a timing event; a test has its own."""

    def __init__(self, clock: Callable[[], float], event: Callable[[], Event] | None = None) -> None:
        super().__init__(clock)
        self._new = event or _cuda_event
        self._pending: list[Moment] = []
        self._anchor, self._anchor_s = self._new(), 0.0
        self.settle()

    def mark(self) -> Time:
        """This point in the order of work; its time is known after `settle`."""
        event = self._new()
        event.record()
        moment = Moment(event)
        self._pending.append(moment)
        return moment

    def settle(self) -> float:
        """Wait for the stream (not for a collective, which has a stream of its own); every mark so far has its time then."""
        last = self._new()
        last.record()
        last.synchronize()
        for moment in self._pending:
            moment.resolve(self._anchor, self._anchor_s)
        self._pending.clear()
        self._anchor_s = self.clock()
        self._anchor.record()  # after the clock was read: see above
        return self._anchor_s

    def computed(self, samples: int, start: Time, end: Time) -> Computed:
        """Its seconds wait for the device where somebody reads them (a balancer does), and only there."""
        return _TimedLater(samples, self, start, end)


class _TimedLater(Computed):
    def __new__(cls, samples: int, watch: Stopwatch, start: Time, end: Time) -> _TimedLater:
        made = super().__new__(cls, samples, float("nan"))
        made._watch, made._span = watch, (start, end)
        return made

    _watch: Stopwatch
    _span: tuple[Time, Time]

    @property
    def seconds(self) -> float:
        try:
            return float(self._span[1]) - float(self._span[0])
        except RuntimeError:
            self._watch.settle()
            return float(self._span[1]) - float(self._span[0])


def _cuda_event() -> Event:
    import torch

    event: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def stopwatch(device: str, clock: Callable[[], float]) -> Stopwatch:
    """The one for a device (cpu, cuda:0, ...), which is the current one."""
    return Stopwatch(clock) if device == "cpu" else DeviceStopwatch(clock)
