"""Rows of a comparison: what a run says about time, memory and money, in plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster, Training
from hetsim.comparison import Cost, Row, TimeToTarget
from hetsim.compute import passes
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Setting
from hetsim.intervals import interval
from hetsim.metrics import limited_by
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule
from hetsim.simulate import Result
from hetsim.tuning import Crossing
from hetsim.yardsticks import yardsticks

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


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
        memory_bytes=memory_bytes(algorithm, cluster, result.schedule),
        critical_batch_samples=constants_of(cluster.workload).noise_scale.noise_scale_samples,
        yardsticks=yardsticks(result, setting=Setting.of(cluster.training)),
    )


def optimizer_states(training: Training) -> int:
    """Parameter-sized buffers of the optimizer: two moments for Adam, one for momentum, none for plain SGD."""
    return 2 if training.optimizer == "adamw" else int(training.momentum > 0)


def memory_bytes(algorithm: Algorithm, cluster: Cluster, schedule: Schedule) -> dict[str, float]:
    """Per worker: parameter-sized buffers (`Algorithm.parameter_buffers`) and the activations of its largest pass.

    An estimate from below: framework, kernels' work space and fragmentation are not in it. Parameters and gradients have one precision.
    """
    buffers = algorithm.parameter_buffers(optimizer_states(cluster.training)) * cluster.workload.gradient_bytes
    per_sample = cluster.workload.activation_bytes_per_sample
    return {
        worker.name: buffers + per_sample * max(sizes, default=0)
        for worker, sizes in zip(cluster.workers, pass_sizes(schedule, cluster), strict=True)
    }


def pass_sizes(schedule: Schedule, cluster: Cluster) -> list[Counter[int]]:
    """Per worker, how many passes of each size: batches cut where memory asks for it."""
    grads = schedule.rows(Kind.GRAD)
    out = []
    for worker in cluster.workers:
        batches = np.unique(schedule.samples[grads[schedule.worker[grads] == worker.rank]], return_counts=True)
        sizes: Counter[int] = Counter()
        for batch, times in zip(batches[0].tolist(), batches[1].tolist(), strict=True):
            for size in passes(batch, worker.max_batch_samples):
                sizes[size] += times
        out.append(sizes)
    return out


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


def cost(cluster: Cluster, seconds: float | None) -> Cost | None:
    """What that many seconds of the whole cluster cost; None where no worker has a price or a power."""
    prices = [w.price_per_h for w in cluster.workers]
    powers = [w.power_w for w in cluster.workers]
    if all(p is None for p in (*prices, *powers)):
        return None
    usd_per_h, power_w = total(prices), total(powers)
    return Cost(
        usd_to_target=None if usd_per_h is None or seconds is None else usd_per_h * seconds / SECONDS_PER_HOUR,
        kwh_to_target=None if power_w is None or seconds is None else power_w * seconds / JOULES_PER_KWH,
        usd_per_h=usd_per_h,
        power_w=power_w,
    )


def total(values: Sequence[float | None]) -> float | None:
    """The sum, None where one is unknown."""
    known = [v for v in values if v is not None]
    return math.fsum(known) if len(known) == len(values) else None


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
