"""One all-reduce that leaves in buckets during the last backward pass before it, as DDP's does.

    vector      [first layer ........................ last layer | padding]
    buckets     [      2      |            1           |      0           ]     0 leaves first: the backward pass ends with the first layer
    backward                                      <------------------ time

Sizes are the simulator's (`hetsim.network.bucket_bytes`: DDP's 1 MiB, then 25 MiB); tensors are cut where a bucket ends. Every rank sends
every bucket, in this order and before anything else, also one that had no samples: ranks whose collectives differ would hang.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abs_sgd.runtime.noise import squared_norm
from abs_sgd.runtime.wire import Wire
from hetsim.network import bucket_bytes

Bucket = tuple[int, int]  # of elements of the vector: first, end


def buckets_of(elements: int, itemsize: int) -> list[Bucket]:
    """The vector's buckets in the order in which they leave: from its end."""
    buckets, end = [], elements
    for size_bytes in bucket_bytes(float(elements * itemsize)):
        buckets.append((end - int(size_bytes) // itemsize, end))
        end = buckets[-1][0]
    return buckets


class Stream:
    """The buckets of `buffer_P`, each sent once when it is complete and those before it are sent.

    `gradient_P`: where the pass under way leaves its gradients, which come on top of the buffer's sums; None where they are in the buffer
    already. `works`: of every bucket sent, the collectives begun. `square`: |own sum|², from before it was summed with the others'.
    """

    def __init__(self, wire: Wire, buffer_P: Tensor, gradient_P: Tensor | None) -> None:
        self.wire, self.buffer_P, self.gradient_P = wire, buffer_P, gradient_P
        self.buckets = buckets_of(wire.elements, wire.dtype.itemsize)
        self.awaited = [max(0, min(end, wire.size) - first) for first, end in self.buckets]
        self.works: list[list[Any]] = []
        self._squares: list[Tensor] = []

    @property
    def square(self) -> Tensor:
        """|own sum|² of what was sent."""
        return torch.stack(self._squares).sum()

    @property
    def left(self) -> list[float]:
        """Share of the vector that is still to be computed when a bucket is complete, as the simulator has it."""
        return [first / self.wire.elements for first, _ in self.buckets]

    def ready(self, first: int, end: int) -> None:
        """The gradients of these elements are complete."""
        for bucket, (low, high) in enumerate(self.buckets):
            self.awaited[bucket] -= max(0, min(end, high) - max(first, low))
        while len(self.works) < len(self.buckets) and not self.awaited[len(self.works)]:
            self.send()

    def send(self) -> None:
        """The next bucket leaves. Raises PeerLostError."""
        first, end = self.buckets[len(self.works)]
        own = slice(first, min(end, self.wire.size))
        if own.start < own.stop:
            if self.gradient_P is not None:
                self.buffer_P[own].add_(self.gradient_P[own])
            self._squares.append(squared_norm(self.buffer_P[own]))
        self.works.append(self.wire.send(self.buffer_P[first:end]))

    def finish(self) -> None:
        """All that is left leaves: what belongs to parameters that the pass did not use, or everything."""
        while len(self.works) < len(self.buckets):
            self.send()
