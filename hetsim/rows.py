"""Rows of a comparison: what a run says about time, memory and money, in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.cluster.spec import Cluster
from hetsim.comparison import Row, TimeToTarget
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Setting
from hetsim.costs import cost
from hetsim.intervals import interval
from hetsim.memory import memory_of
from hetsim.metrics import limited_by
from hetsim.simulate import Result
from hetsim.tuning import Crossing
from hetsim.yardsticks import yardsticks


def timing_row(result: Result, *, label: str | None = None) -> Row:
    """The row of one run: timing and memory; what needs a predictor is None."""
    timing, cluster, algorithm = result.timing, result.cluster, result.algorithm
    names = [w.name for w in cluster.workers]
    return Row(
        name=label or algorithm.name,
        algorithm=algorithm.name,
        options=algorithm.options.model_dump(mode="json"),
        role=algorithm.role,
        samples_per_s=timing.samples_per_s,
        update_period_s=timing.update_period_s,
        mean_batch_samples=timing.mean_batch_samples,
        utilisation=timing.utilisation,
        waiting_share=timing.waiting_share,
        waiting=timing.waiting,
        staleness_mean=timing.staleness_mean,
        staleness_max=timing.staleness_max,
        sample_share=dict(zip(names, timing.sample_share.tolist(), strict=True)),
        limited_by=limited_by(timing, cluster, server=algorithm.has_server),
        period_error=timing.period_error,
        memory_bytes={use.worker: use.needs for use in memory_of(result)},
        critical_batch_samples=constants_of(cluster.workload).noise_scale.noise_scale_samples,
        yardsticks=yardsticks(result, setting=Setting.of(cluster.training)),
    )


def time_to_target(crossings: Sequence[Crossing | None]) -> TimeToTarget:
    """Median and interval of the seconds on each seed; a seed without a crossing counts as infinite."""
    seconds = [math.inf if c is None else c.seconds for c in crossings]
    found = interval(seconds)
    reached = sum(map(math.isfinite, seconds))
    return TimeToTarget(
        median=finite(found.median),
        low=finite(found.low),
        high=finite(found.high),
        reached=reached,
        seeds=len(seconds),
        by_seed=tuple(map(finite, seconds)),
    )


def finite(value: float | None) -> float | None:
    """None for what is not a number one may print."""
    return value if value is not None and math.isfinite(value) else None


def median_of(crossings: Sequence[Crossing | None], what: str) -> float | None:
    """Median of `samples` or `updates` over seeds, None where fewer than half reached the target."""
    return finite(interval([math.inf if c is None else float(getattr(c, what)) for c in crossings]).median)


def learning_columns(
    cluster: Cluster, setting: Setting | None, crossings: Sequence[Crossing | None]
) -> dict[str, object]:
    """What a row gains from a prediction, but for the speed-up, which needs the other rows."""
    time = time_to_target(crossings)
    return {
        "learning_rate": None if setting is None else setting.learning_rate,
        "momentum": None if setting is None else setting.momentum,
        "samples_to_target": median_of(crossings, "samples"),
        "updates_to_target": median_of(crossings, "updates"),
        "time_to_target_s": time,
        "cost": cost(cluster, time.median),
    }
