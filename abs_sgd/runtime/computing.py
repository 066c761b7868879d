"""A live rank's gradients: forward and backward over ranges of samples, added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.clock import Between, Time
from abs_sgd.runtime.samples import Range
from abs_sgd.runtime.streaming import Stream
from abs_sgd.workloads.task import Batch, Ints, Task, dropout_of
from hetsim.compute.passes import passes


class Passes:
    """Passes of one rank, at whatever parameters its model holds. `cap`: samples that its memory allows in one."""

    def __init__(self, task: Task, model: FlatModel, seed: int, cap: int | None) -> None:
        self.task, self.model, self.seed, self.cap = task, model, seed, cap

    def add(self, first: int, count: int, into_P: Tensor, stream: Stream | None = None) -> None:
        """Add the gradients of a range, in as many passes as memory asks for; the last one feeds the stream."""
        end = first + count
        for size in passes(count, self.cap):
            batch = self.task.batch(numbers_of((first, size)), self.seed)
            with dropout_of(self.task, self.seed, first):
                self._backward(batch, into_P, stream if first + size == end else None)
            first += size

    def all(
        self, ranges: Sequence[Range], into_P: Tensor, stream: Stream | None, mark: Callable[[], Time]
    ) -> list[Time]:
        """Add the gradients of all ranges; when each was done, or one time where one pass took them all.

        One pass, where a sample's gradient does not depend on its companions and memory allows it: a batch that lies in two ranges would
        pay a pass's overhead twice.
        """
        total = sum(count for _, count in ranges)
        if len(ranges) > 1 and self.task.separable and (self.cap is None or total <= self.cap):
            numbers = np.concatenate([numbers_of(each) for each in ranges])
            self._backward(self.task.batch(numbers, self.seed), into_P, stream)
            return [mark()]
        ends = []
        for index, (first, count) in enumerate(ranges):
            self.add(first, count, into_P, stream if index == len(ranges) - 1 else None)
            ends.append(mark())
        return ends

    def _backward(self, batch: Batch, into_P: Tensor, stream: Stream | None) -> None:
        def loss_sum(model: nn.Module) -> Tensor:
            return self.task.loss_sum(model, batch)

        if stream is not None and stream.gradient_P is not None:
            self.model.gradient_by_parts(loss_sum, stream.ready)
            stream.finish()
        else:
            into_P.add_(self.model.gradient_sum(loss_sum))


def numbers_of(numbers: Range) -> Ints:
    """The sample numbers of a range."""
    first, count = numbers
    return np.arange(first, first + count)


def spread(start: Time, ends: Sequence[Time], ranges: Sequence[Range]) -> list[Time]:
    """When each range was done: as told, or by its share of the samples where one time stands for all."""
    if len(ends) == len(ranges):
        return list(ends)
    total, done, out = sum(count for _, count in ranges), 0, list[Time]()
    for _, count in ranges[:-1]:
        done += count
        out.append(Between(start, ends[-1], done / total))
    return [*out, ends[-1]]
