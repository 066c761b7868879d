"""Updates written by hand: any batches, delays, points and shares, without a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim.schedule.kinds import PointRule
from hetsim.schedule.updates import Updates


@dataclass(frozen=True)
class Part:
    """One contribution: worker, samples, staleness and the rule of its point."""

    worker: int
    samples: int
    staleness: int = 0
    rule: PointRule = PointRule.CURRENT


def sequence(updates: Sequence[Sequence[Part]]) -> Updates:
    """A sequence of updates out of their contributions; update k steps from version k."""
    parts = [p for parts in updates for p in parts]
    owner = [k for k, parts in enumerate(updates) for _ in parts]
    total = np.array([sum(p.samples for p in parts) for parts in updates], np.int64)
    count = len(updates)
    predicted = np.array([p.rule != PointRule.CURRENT for p in parts], bool)
    staleness = np.array([p.staleness for p in parts], np.int64)
    return Updates(
        row=np.arange(count),
        state=np.arange(1, count + 1),
        parent=np.arange(count),
        time_s=np.arange(1, count + 1, dtype=np.float64),
        samples=total,
        divisor=total,
        scale=np.ones(count),
        source=np.arange(count),
        begin=np.concatenate(([0], np.cumsum([len(parts) for parts in updates]))).astype(np.int64),
        worker=np.array([p.worker for p in parts], np.int64),
        slot=np.arange(len(parts)),
        part_samples=np.array([p.samples for p in parts], np.int64),
        point=np.array(owner, np.int64) - staleness,
        staleness=staleness,
        predicted=predicted,
        rule=np.array([int(p.rule) for p in parts], np.int64),
        is_sequence=True,
    )


def constant_delay(count: int, batch: int, delay: int) -> Updates:
    """`count` updates of one worker's `batch` samples, each `delay` updates old once there are that many."""
    return sequence([[Part(0, batch, min(k, delay))] for k in range(count)])
