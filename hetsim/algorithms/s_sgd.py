"""S-SGD: synchronous data parallelism, as PyTorch's DistributedDataParallel does it."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program, check_synchronous
from hetsim.commands import Port
from hetsim.schedule.table import Schedule


class SynchronousOptions(Options):
    """Options of every synchronous gradient method."""

    overlap: bool = Field(True, description="send gradients bucket by bucket during the backward pass, as DDP does")


class SSgd(Algorithm, name="s-sgd"):
    """Synchronous SGD with equal batches (PyTorch DDP): everybody waits for the slowest.

        a  |compute|····wait····|
        b  |compute-------------|
                           |all-reduce|  (its first buckets while b still computes, with `overlap`)

    One update: x_{k+1} = step(x_k, Σ s_i / Σ b_i), all gradients taken at x_k. Samples/s without overlap: Σ b_i / (max t_i(b_i) + C).
    """

    source = "Li et al. 2020, PyTorch Distributed, VLDB 13(12)"
    Options: ClassVar[Any] = SynchronousOptions

    def worker(self, w: Port) -> Program:
        """Compute, reduce, wait, apply."""
        overlap = self.options.overlap
        compute, launch = w.compute(w.batch, overlap), w.all_reduce(stream=overlap)  # the same in every iteration
        while True:
            yield compute
            sync = yield launch
            reduced = yield w.wait(sync)
            yield w.apply(sync)
            if reduced.stop:
                return

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)
