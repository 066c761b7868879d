"""Predictor: a Schedule in, a Curve out. The seam between time and learning.

The simulator says *when* each gradient was taken, at which version, over how many samples; a predictor says what the loss then was.
hetsim has the analytic ones (`nqm`, `noise-scale`); other packages add theirs through the entry-point group `hetsim.predictors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Cluster, Training
from hetsim.schedule.table import Schedule


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of the tuning grid. learning_rate is per update, before warm-up and batch rules."""

    learning_rate: float
    momentum: float

    @classmethod
    def of(cls, training: Training) -> Setting:
        """The profile's own point."""
        return cls(learning_rate=training.learning_rate, momentum=training.momentum)


@dataclass(frozen=True, kw_only=True)
class Target:
    """What counts as trained: `metric` in words, reached when the curve's value is at or below `value`."""

    metric: str
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Loss against updates, samples and seconds, shape (T,) each, from update 0 (nothing done) on.

    `diverged`: the loss left the finite range or grew past its start for good. `assumptions` are sentences for the reader.
    """

    updates: NDArray[np.int64]
    samples: NDArray[np.int64]
    time_s: NDArray[np.float64]
    loss: NDArray[np.float64]
    diverged: bool = False
    assumptions: tuple[str, ...] = field(default=())

    def crossing(self, target: float) -> tuple[float, float] | None:
        """(samples, seconds) at which the loss first is at or below `target`, interpolated; None where it never is."""
        below = np.flatnonzero(self.loss <= target)
        if self.diverged or not len(below):
            return None
        k = int(below[0])
        if k == 0:
            return float(self.samples[0]), float(self.time_s[0])
        high, low = float(self.loss[k - 1]), float(self.loss[k])
        share = 1.0 if high == low else (high - target) / (high - low)
        samples, seconds = self.samples[k - 1 : k + 1].astype(np.float64), self.time_s[k - 1 : k + 1]
        return float(samples[0] + share * (samples[1] - samples[0])), float(
            seconds[0] + share * (seconds[1] - seconds[0])
        )


@runtime_checkable
class Predictor(Protocol):
    """What a predictor must offer. Stateless; all randomness from `seed`."""

    name: str

    def target(self, cluster: Cluster) -> Target:
        """The target in this predictor's own metric (training.target_loss where given, else the workload's)."""
        ...

    def curves(
        self, schedule: Schedule, cluster: Cluster, settings: Sequence[Setting], *, seed: int = 0
    ) -> list[Curve]:
        """One curve per setting. Raises MissingExtraError where something is not installed."""
        ...
