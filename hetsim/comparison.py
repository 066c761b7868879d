"""Comparison: every algorithm on one cluster, each at its best setting, in plain numbers.

`hetsim.compare.compare` makes one. `to_json()` is the document that `hetsim compare --json` prints; what was not computed is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.convergence.predictor import Curve, Target
from hetsim.convergence.stability import Caution
from hetsim.simulate import Result

COMPARISON_VERSION = 1
FULL, QUICK = "full", "quick"  # how a comparison was computed


@dataclass(frozen=True, kw_only=True)
class TimeToTarget:
    """Seconds until the target: median over seeds with its interval (`hetsim.intervals`).

    `reached`: on how many of the `seeds` the target was reached. `median` is None where fewer than half did, `high` where the
    interval has no upper end: not reached is never a number. `by_seed`: seconds on each seed, None where not reached.
    """

    median: float | None
    low: float | None
    high: float | None
    reached: int
    seeds: int
    by_seed: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times faster than the best baseline: median and interval of the ratios on the same seeds."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the median time to target costs: prices per hour, and every GPU at its rated power for the whole time.

    A figure is None where a worker lacks the price or the power, or where the target was not reached.
    """

    usd_to_target: float | None
    kwh_to_target: float | None
    usd_per_h: float | None
    power_w: float | None


@dataclass(frozen=True, kw_only=True)
class Tariff:
    """What a worker costs: price per hour and power, each with where it is from; None where neither profile nor catalogue says."""

    gpu: str | None
    price_per_h: float | None
    price_source: str | None
    power_w: float | None
    power_source: str | None


@dataclass(frozen=True, kw_only=True)
class Yardsticks:
    """The figures of a row over what bounds them (`hetsim.yardsticks`); None where a figure does not apply.

    `batch_over_critical`: samples per update over the gradient noise scale. `rate_times_curvature`: learning rate × largest curvature,
    tuned where the row is, else the profile's own; `stability_bound`: the largest stable one at this momentum, delay and compute point.
    `ideal_period_s`: the least time in which these workers compute the samples of an update, `period_over_ideal` the time per update over
    it. `least_s`: T*, `time_over_least`: time to target over T*.
    """

    batch_over_critical: float | None = None
    rate_times_curvature: float | None = None
    stability_bound: float | None = None
    ideal_period_s: float | None = None
    period_over_ideal: float | None = None
    least_s: float | None = None
    time_over_least: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One algorithm of a comparison. Timing figures are of the first seed, over the second half of its updates (`hetsim.metrics`).

    `name` is the label, `algorithm` the registered name. `period_error`: ± share of `update_period_s` (`hetsim.batch_means`).
    Shares are of all workers' time (`waiting`: cause -> share); `sample_share` and
    `memory_bytes` go by worker. `learning_rate`, `momentum`: the best of the grid, None where the predictor does not depend on them.
    `samples_to_target`, `updates_to_target`: medians over seeds. `tried_samples`, `tried_s`: how far
    the first seed was followed. `critical_batch_samples`: the gradient noise scale, beyond which larger
    batches hardly save updates.
    """

    name: str
    algorithm: str
    options: Mapping[str, Any]
    role: str
    samples_per_s: float
    update_period_s: float
    mean_batch_samples: float
    utilisation: float
    waiting_share: float
    waiting: Mapping[str, float]
    staleness_mean: float | None
    staleness_max: int | None
    sample_share: Mapping[str, float]
    limited_by: str
    memory_bytes: Mapping[str, float]
    period_error: float | None = None
    critical_batch_samples: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    samples_to_target: float | None = None
    updates_to_target: float | None = None
    tried_samples: int | None = None
    tried_s: float | None = None
    time_to_target_s: TimeToTarget | None = None
    speedup_over_best_baseline: Speedup | None = None
    cost: Cost | None = None
    yardsticks: Yardsticks = Yardsticks()

    @property
    def seconds(self) -> float:
        """Median time to target, infinite where it was not reached or not asked for."""
        time = self.time_to_target_s
        return math.inf if time is None or time.median is None else time.median


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Every algorithm on one cluster. `algorithms` in the order asked for.

    `winner`: label of the fastest, None where it is not clearly faster than the fastest other algorithm. `coverage`: of the
    intervals. `speeds`: where each worker's speed is from; `tariffs`: what each costs, and where that is from. `runs` and `curves`: per
    label, the Result of the first seed and its Curve at the best setting. `method`: `full`, or `quick` where runs were extended from
    their steady state (`hetsim.quick`).
    """

    profile: str
    seed: int
    seeds: tuple[int, ...]
    predictor: str
    target: Target
    best_baseline: str | None
    winner: str | None
    coverage: float | None
    warnings: tuple[Caution, ...]
    assumptions: tuple[str, ...]
    algorithms: tuple[Row, ...]
    speeds: Mapping[str, str]
    tariffs: Mapping[str, Tariff]
    versions: Mapping[str, str]
    cluster: Cluster = field(repr=False)
    runs: Mapping[str, Result] = field(repr=False)
    curves: Mapping[str, Curve] = field(repr=False)
    method: str = FULL

    def __getitem__(self, label: str) -> Row:
        """The row of that label; KeyError where there is none."""
        for row in self.algorithms:
            if row.name == label:
                return row
        raise KeyError(label)

    def to_json(self) -> dict[str, Any]:
        """One document of plain values with `schema_version`; no NaN and no infinity, null for what was not computed."""
        kept_out = ("cluster", "runs", "curves")
        document = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in kept_out}
        return {"schema_version": COMPARISON_VERSION, **document, "verdict": self.sentence()}

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, fastest first; those that did not reach the target come last, in the order asked for."""
        return [plain(row) for row in sorted(self.algorithms, key=lambda row: row.seconds)]

    def table(self) -> Any:
        """The rows as a Rich table: prints in a terminal, shows in a notebook."""
        from hetsim.notebook import comparison_table

        return comparison_table(self)

    def plot(self) -> Any:
        """Loss against seconds and against samples as a plotly figure."""
        from hetsim.plots import comparison_plot

        return comparison_plot(self)

    def _repr_html_(self) -> str:
        from hetsim.notebook import comparison_html

        return comparison_html(self)

    def sentence(self) -> str:
        """Who wins, by how much, and what limits it; and what the literal reading of ABS-SGD's abstract gives."""
        from hetsim.verdict import verdict

        return verdict(self)


def plain(value: Any) -> Any:
    """Dataclasses, mappings, tuples and numpy numbers as JSON's own types; infinities and NaN become None."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
