"""What a worker's next samples take, through a whole run."""

from __future__ import annotations

from collections.abc import Callable

from hetsim.cluster.spec import Worker
from hetsim.compute.luck import Luck
from hetsim.compute.model import PassModel, TraceModel, pass_model
from hetsim.compute.passes import passes

Times = tuple[float, float]  # seconds of all passes, seconds of the last one


class WorkTimer:
    """`next(samples)`: seconds of all passes over this worker's next samples, and of the last pass (the one that can
    stream).

    A pass takes its model's time times its mean luck. Slow-downs by event are not in it: they depend on when a pass
    runs (`hetsim.compute.progress`). Without jitter, stragglers and trace the times are exactly the model's and a
    lookup.
    """

    __slots__ = ("_cap", "_done", "_luck", "_model", "_parts", "_trace", "next")

    next: Callable[[int], Times]

    def __init__(self, worker: Worker, seed: int, quantum_samples: int) -> None:
        self._model = pass_model(worker)
        self._cap = worker.max_batch_samples
        self._luck = Luck(worker, seed, quantum_samples)
        self._trace = self._model if isinstance(self._model, TraceModel) else None
        self._parts: dict[int, tuple[tuple[int, float], ...]] = {}
        self._done = 0  # samples so far
        stragglers = worker.straggler_probability > 0 and worker.straggler_slowdown != 1
        if worker.jitter_cv > 0 or stragglers:
            self.next = self._next_by_luck
        elif self._trace:
            self.next = self._next_by_trace
        else:
            self.next = _Steady(self._model, self._cap).__getitem__

    def _next_by_luck(self, samples: int) -> Times:
        parts = self._parts.get(samples)
        if parts is None:
            parts = self._parts[samples] = self._plan(samples)
        start = self._done
        total = last = 0.0
        for size, seconds in parts:
            if self._trace:
                seconds = self._trace.between(start, size)
            last = seconds * self._luck.mean(start, size)
            total += last
            start += size
        self._done = start
        return total, last

    def _next_by_trace(self, samples: int) -> Times:
        assert self._trace is not None
        total = last = 0.0
        for size in passes(samples, self._cap):
            last = self._trace.between(self._done, size)
            total += last
            self._done += size
        return total, last

    def _plan(self, samples: int) -> tuple[tuple[int, float], ...]:
        return tuple((size, self._model.seconds(size)) for size in passes(samples, self._cap))


class _Steady(dict[int, Times]):
    """samples -> times, for a worker whose times depend on nothing else."""

    def __init__(self, model: PassModel, cap: int | None) -> None:
        self._model = model
        self._cap = cap

    def __missing__(self, samples: int) -> Times:
        seconds = [self._model.seconds(size) for size in passes(samples, self._cap)]
        self[samples] = times = (sum(seconds), seconds[-1]) if seconds else (0.0, 0.0)
        return times
