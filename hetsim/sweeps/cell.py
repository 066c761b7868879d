"""One cell of a sweep: every algorithm on its cluster, as rows; the same in any process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetsim.cluster.spec import Cluster
from hetsim.comparison import Row
from hetsim.sweeps.table import figures

if TYPE_CHECKING:
    from hetsim.contest import Task
    from hetsim.labels import Contender
    from hetsim.steady_run import Short
    from hetsim.tuning import Crossing


def run_cell(
    cluster: Cluster, labels: Sequence[str], predictor: str, method: str, seeds: int, seed: int
) -> list[dict[str, Any]]:
    """The figures of all algorithms on one cluster, in the order of the labels."""
    from hetsim.steady_run import is_short

    if method != "full" and is_short(cluster, predictor):
        found = _short_cell(cluster, labels, seeds, seed)
        if found is not None:
            return found
    from hetsim.compare import compare

    comparison = compare(cluster, labels, predictor=predictor, seeds=seeds, seed=seed, jobs=1)
    return [figures(row, "full") for row in comparison.algorithms]


def _short_cell(cluster: Cluster, labels: Sequence[str], seeds: int, seed: int) -> list[dict[str, Any]]:
    """By the short way (`hetsim.steady_run`); algorithms without a steady state are followed like `compare` does."""
    from hetsim.compare import seed_numbers, speedup, task_of
    from hetsim.labels import parse
    from hetsim.steady_run import STEADY, allowed, short
    from hetsim.verdict import BASELINE, fastest

    task = task_of(cluster, "nqm", None)
    chosen = [parse(label) for label in labels]
    first, *others = seed_numbers(seeds, seed)
    best_s = math.inf
    begun = []
    for contender in chosen:
        found = short(task, contender, first, best_s=best_s)
        begun.append(found)
        if found is not None and found.crossing is not None:
            best_s = min(best_s, found.crossing.seconds)
    rows, methods = [], []
    for contender, found in zip(chosen, begun, strict=True):
        if found is None:
            found = _long(task, contender, first, best_s if math.isfinite(best_s) else None)
        elif found.crossing is not None and found.method == STEADY:
            rate = found.crossing.samples / found.crossing.seconds
            if found.crossing.samples > allowed(task, best_s, rate):
                found = replace(found, crossing=None)
        again = [] if found.crossing is None else [_again(task, contender, found, s) for s in others]
        rows.append(_row(cluster, contender, found, [found.crossing, *again]))
        methods.append(found.method)
    baseline = fastest([row for row in rows if row.role == BASELINE])
    rows = [replace(row, speedup_over_best_baseline=speedup(row, baseline, seeds)) for row in rows]
    return [figures(row, method) for row, method in zip(rows, methods, strict=True)]


def _long(task: Task, contender: Contender, seed: int, best_s: float | None) -> Short:
    """One algorithm followed to the target, or as far as `compare` follows it."""
    from hetsim.contest import follow
    from hetsim.steady_run import FULL, Short

    entry = follow(task, contender, seed, best_s)
    return Short(result=entry.result, setting=entry.tuned.setting, crossing=entry.crossing, method=FULL)


def _again(task: Task, contender: Contender, found: Short, seed: int) -> Crossing | None:
    """The same setting on another seed."""
    from hetsim.contest import repeat
    from hetsim.convergence.predictor import Setting
    from hetsim.steady_run import STEADY, short

    setting = found.setting or Setting.of(task.cluster.training)
    other = short(task, contender, seed, setting) if found.method == STEADY else None
    if other is not None:
        return other.crossing
    assert found.crossing is not None
    return repeat(task, contender, seed, setting, found.crossing.samples)


def _row(cluster: Cluster, contender: Contender, found: Short, crossings: Sequence[Crossing | None]) -> Row:
    """The row of a comparison, as far as the columns of a sweep go."""
    from hetsim.metrics import limited_by
    from hetsim.rows import learning_columns

    timing, algorithm = found.result.timing, found.result.algorithm
    learned: dict[str, Any] = learning_columns(cluster, found.setting, crossings)
    return Row(
        name=contender.label,
        algorithm=algorithm.name,
        options={},
        role=algorithm.role,
        samples_per_s=timing.samples_per_s,
        update_period_s=timing.update_period_s,
        mean_batch_samples=timing.mean_batch_samples,
        utilisation=timing.utilisation,
        waiting_share=timing.waiting_share,
        waiting=timing.waiting,
        staleness_mean=timing.staleness_mean,
        staleness_max=timing.staleness_max,
        sample_share={},
        limited_by=limited_by(timing, cluster, server=algorithm.has_server),
        memory_bytes={},
        **learned,
    )
