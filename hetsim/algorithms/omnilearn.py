"""OmniLearn: a proportional controller moves batches until all workers take equally long."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from hetsim.algorithms.base import Algorithm, Program, Split, check_synchronous
from hetsim.algorithms.s_sgd import SynchronousOptions
from hetsim.commands import Computed, Port, Reduced
from hetsim.schedule.table import Schedule


class OmniLearnOptions(SynchronousOptions):
    """S-SGD's options, and the controller's."""

    dead_band: float = Field(
        0.05, ge=0, lt=1, description="keep the batches unless one would change by more than this share"
    )
    smoothing: float = Field(0.25, gt=0, le=1, description="weight of the newest pass in the smoothed throughput")


class OmniLearn(Algorithm, name="omnilearn"):
    """Synchronous SGD whose batches follow a proportional controller on each worker's time until all take equally long.

        b_i := b_i - X_i (t_i - t̄),   X_i smoothed throughput b_i / t_i, t̄ the mean of t_i

    so that b_i = X_i·t̄, scaled to the same sum. With equal workers this is S-SGD. LB-BSP solves for the best batches from a line fitted to
    each worker's times; this one walks there, since X_i changes with b_i where a pass has an overhead.

    From the authors' code: the controller, a dead band, limits to a batch, gradients weighted by samples, the sum held at the global batch.
    Not checked against the paper's full text: a dead band of 5 % (the code's defaults are 20 and 10 %) and smoothed throughput (the code
    takes the mean over an epoch, and corrects once an epoch). Our choice: the smoothing's weight, a correction after every update, all
    batches or none (in the code each worker has a dead band of its own), and a start from equal batches.
    """

    source = "Tyagi & Sharma 2025, OmniLearn, IEEE TPDS (arXiv 2503.17469)"
    Options: ClassVar[Any] = OmniLearnOptions
    split: ClassVar[Split] = "balanced"
    by_default = False

    def worker(self, w: Port) -> Program:
        """S-SGD whose batch is corrected after every update."""
        overlap = self.options.overlap
        batches, throughput = w.batches, 0.0
        while True:
            done = yield w.compute(batches[w.rank], overlap)
            throughput = self.smoothed(throughput, done)
            sync = yield w.all_reduce(gather=(throughput,) if throughput else (), stream=overlap)
            reduced = yield w.wait(sync)
            yield w.apply(sync)
            if reduced.stop:
                return
            batches = self.corrected(batches, reduced, w.max_pass)

    def smoothed(self, before: float, done: Computed) -> float:
        """Samples/s with the newest pass taken in; 0 while nothing was measured."""
        if not done.samples or not done.seconds > 0:
            return before
        newest = done.samples / done.seconds
        return before + self.options.smoothing * (newest - before) if before else newest

    def corrected(self, batches: tuple[int, ...], reduced: Reduced, caps: tuple[int | None, ...]) -> tuple[int, ...]:
        """The next batches, the same on every rank."""
        if len(reduced.gathered) < len(batches):
            return batches
        speeds = tuple(reduced.gathered[rank][0] for rank in range(len(batches)))
        return proportional(batches, speeds, caps, self.options.dead_band)

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)


@lru_cache(maxsize=64)  # every rank asks the same question after the same collective
def proportional(
    batches: tuple[int, ...], speeds: tuple[float, ...], caps: tuple[int | None, ...], dead_band: float
) -> tuple[int, ...]:
    """One step of the controller: integer batches of the same sum, each at least 1 and within its cap where the sum allows it.

    >>> proportional((8, 8), (30.0, 10.0), (None, None), 0.05)
    (12, 4)
    """
    total, n = sum(batches), len(batches)
    if total < n:
        return batches  # not a sample each: nothing to move
    mean_s = sum(b / x for b, x in zip(batches, speeds, strict=True)) / n
    wanted = [b - x * (b / x - mean_s) for b, x in zip(batches, speeds, strict=True)]
    scale = total / sum(wanted)
    limits = [total if cap is None else cap for cap in caps]
    if sum(limits) < total:
        limits = [total] * n
    shares = [x * scale for x in wanted]
    made = [min(max(int(share), 1), limit) for share, limit in zip(shares, limits, strict=True)]
    while sum(made) != total:  # rounding and clamping: to whom is furthest from its share, the lower rank first
        step = 1 if sum(made) < total else -1
        able = [i for i in range(n) if (made[i] < limits[i] if step > 0 else made[i] > 1)]
        i = max(able, key=lambda i: (step * (shares[i] - made[i]), -i))
        made[i] += step
    if all(abs(new - old) <= dead_band * old for new, old in zip(made, batches, strict=True)):
        return batches
    return tuple(made)
