"""Measured times become a profile. Nothing here measures: numbers in, a profile and its errors out.

    measurements     what every rank found: passes by batch, collectives by payload, passes beside a collective
    estimate         medians, fits, standard errors, and the profile that states them

Medians throughout: one pass that takes a hundred times as long as its neighbours moves nothing.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from abs_sgd.measuring import Cycle
from hetsim.cluster import Profile, StepFit, catalogue, import_steps, load_profile
from hetsim.cluster.profile import SCHEMA_VERSION
from hetsim.errors import UsageError

MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, normal law
MAD_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, normal law
TRIM = 0.1  # of the collectives beside computation, left out at either end [our choice]
ODD = 3.0  # times the median: a cycle that long says nothing of the others [our choice]
MOSTLY = 0.5  # share of the time with a collective in flight from which cycles tell what one costs a pass [our choice]
Times = Mapping[int, Sequence[float]]  # seconds, by samples of a pass or by bytes of a payload


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """What one rank measured, warm-up already dropped. `idle_s` and `busy_s`: the same pass without and beside a long collective;
    `cycles`: collectives beside computation, as many on every rank."""

    device: str
    host: str
    memory_bytes: float | None = None
    passes_s: Times = field(default_factory=dict)
    collectives_s: Times = field(default_factory=dict)
    idle_s: Sequence[float] = ()
    busy_s: Sequence[float] = ()
    update_s: Sequence[float] = ()
    cycles: Mapping[int, Sequence[Cycle]] = field(default_factory=dict)  # by bytes of the payload
    micro_batch: int = 0  # samples of a pass of `idle_s`, `busy_s` and `cycles`


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was trained while it was measured."""

    workload: str
    gradient_bytes: int
    dataset_samples: int
    model: str | None = None
    dataset: str | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its standard error; None where there were too few points to tell one."""

    value: float
    error: float | None = None

    def __str__(self) -> str:
        return "" if self.error is None else f"standard error {self.error / self.value:.1%}"


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """seconds = 2(n-1)(latency_s + M / (n bytes_per_s)), the ring's formula, fitted to medians of relative weight."""

    bytes_per_s: Estimate
    latency_s: Estimate
    residual_median: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The profile, and what a person wants to see of how it came about."""

    profile: Profile
    fits: tuple[StepFit, ...]
    devices: tuple[str, ...]
    all_reduce_s: tuple[tuple[int, Estimate], ...]
    busy_all_reduce_s: tuple[tuple[int, Estimate], ...]
    link: LinkFit | None
    overlap_slowdown: Estimate | None


def middle(times: Sequence[float]) -> Estimate:
    """The median and its standard error, 1.2533 σ / sqrt(n), with σ from the median deviation; none below 5 repeats."""
    value = median(times)
    if len(times) < 5:
        return Estimate(value=value)
    sigma = MAD_TO_SIGMA * median(abs(t - value) for t in times)
    return Estimate(value=value, error=MEDIAN_ERROR * sigma / math.sqrt(len(times)))


def line_with_errors(points: Sequence[tuple[float, float]]) -> tuple[Estimate, Estimate]:
    """Intercept and slope, both at least 0, by least squares on relative residuals; errors from 3 points on.

    Raises UsageError for points that show no slope.
    """
    import numpy as np
    from scipy.optimize import curve_fit

    x, y = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if len(set(x.tolist())) < 2:
        raise UsageError("one size says nothing of how time grows with it")
    unit_x, unit_y = float(x.max()), float(y.max())  # the two unknowns differ by many orders of magnitude
    start = (0.1, 0.9)
    x, y = x / unit_x, y / unit_y
    # Two points determine the line and leave nothing to tell its error from.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (intercept, slope), covariance = curve_fit(lambda m, a, b: a + b * m, x, y, start, sigma=y, bounds=(0, np.inf))
    if slope <= 1e-9:
        raise UsageError("time does not grow with size")
    errors = np.sqrt(np.diag(covariance)) if len(points) > 2 else np.full(2, np.inf)

    def made(value: float, error: float, unit: float) -> Estimate:
        return Estimate(value=value * unit, error=error * unit if math.isfinite(error) else None)

    return made(float(intercept), float(errors[0]), unit_y), made(float(slope), float(errors[1]), unit_y / unit_x)


def all_reduce_medians(ranks: Sequence[RankTimes]) -> tuple[tuple[int, Estimate], ...]:
    """(bytes, seconds). A repetition took as long as the rank that joined last saw: the others also waited for it."""
    found = []
    for payload in sorted(ranks[0].collectives_s):
        repeats = zip(*(rank.collectives_s[payload] for rank in ranks), strict=True)
        found.append((payload, middle([min(times) for times in repeats])))
    return tuple(found)


def busy_all_reduces(
    ranks: Sequence[RankTimes], alone: Sequence[tuple[int, Estimate]]
) -> tuple[tuple[int, Estimate], ...]:
    """(bytes, seconds) while every rank computes, at least what it takes alone. Beside computation times scatter to one side, and it is
    their mean that makes a run's period: the mean without a tenth at either end, so that one that took for ever counts for nothing."""
    from scipy.stats import trim_mean

    found = []
    for payload, least in alone:
        if payload in ranks[0].cycles:
            flights_s = _flights_s(ranks, payload)
            mean_s = float(trim_mean(flights_s, TRIM))
            found.append((payload, Estimate(value=max(mean_s, least.value), error=middle(flights_s).error)))
    return tuple(found)


def _flights_s(ranks: Sequence[RankTimes], payload: int) -> list[float]:
    """Of each synchronization, as the rank saw it that joined last."""
    return [min(c.flight_s for c in each) for each in zip(*(rank.cycles[payload] for rank in ranks), strict=True)]


def link_fit(table: Sequence[tuple[int, Estimate]], n: int) -> LinkFit | None:
    """Links that explain the table by a ring; None for one rank, one payload, or times that do not grow."""
    if n < 2 or len(table) < 2:
        return None
    points = [(float(payload), found.value) for payload, found in table]
    try:
        fixed, per_byte = line_with_errors(points)
    except UsageError:
        return None
    hops = 2 * (n - 1)
    rate = hops / (n * per_byte.value)
    relative = None if per_byte.error is None else per_byte.error / per_byte.value
    residuals = [abs((fixed.value + per_byte.value * m) / t - 1) for m, t in points]
    return LinkFit(
        bytes_per_s=Estimate(value=rate, error=None if relative is None else rate * relative),
        latency_s=Estimate(value=fixed.value / hops, error=None if fixed.error is None else fixed.error / hops),
        residual_median=median(residuals),
    )


def overlap(ranks: Sequence[RankTimes], gradient_bytes: int) -> Estimate | None:
    """How many times as long a pass takes beside a collective: the ranks' median, at least 1; None where none was caught.

    From cycles of the gradient itself where these leave hardly a moment without a collective: of F seconds with one and T in all, k passes
    of p seconds alone were done, so F / (k p - (T - F)). Otherwise from passes alone and beside a long collective.
    """
    ratios = _from_cycles(ranks, gradient_bytes) or [
        _ratio(middle(rank.busy_s), middle(rank.idle_s)) for rank in ranks if rank.idle_s and rank.busy_s
    ]
    if not ratios:
        return None
    errors = [ratio.error for ratio in ratios if ratio.error is not None]
    value = median(ratio.value for ratio in ratios)
    return Estimate(value=min(max(value, 1.0), 1000.0), error=max(errors) if len(errors) == len(ratios) else None)


def _ratio(busy: Estimate, idle: Estimate) -> Estimate:
    ratio, error = busy.value / idle.value, None
    if idle.error is not None and busy.error is not None:
        error = ratio * math.hypot(idle.error / idle.value, busy.error / busy.value)
    return Estimate(value=ratio, error=error)


def _from_cycles(ranks: Sequence[RankTimes], payload: int) -> list[Estimate]:
    """None unless all ranks have a collective in flight for most of the time."""
    if any(payload not in rank.cycles or not rank.passes_s.get(rank.micro_batch) for rank in ranks):
        return []
    flights_s = _flights_s(ranks, payload)
    out = []
    for rank in ranks:
        typical_s = median(c.computing_s for c in rank.cycles[payload])
        kept = [
            (f, c) for f, c in zip(flights_s, rank.cycles[payload], strict=True) if c.computing_s <= ODD * typical_s
        ]
        flight_s, all_s = sum(f for f, _ in kept), sum(c.computing_s for _, c in kept)
        alone = middle(rank.passes_s[rank.micro_batch])
        passes = sum(c.passes for _, c in kept)
        work_s = passes * alone.value - (all_s - flight_s)
        if flight_s < MOSTLY * all_s or work_s <= 0:
            return []
        error = None if alone.error is None else flight_s / work_s * passes * alone.error / work_s
        out.append(Estimate(value=flight_s / work_s, error=error))
    return out


def estimate(
    ranks: Sequence[RankTimes], subject: Subject, *, name: str, date: str, versions: str, backend: str
) -> Calibration:
    """The profile of what was measured: a worker per rank, r0, r1 and so on. `date` and `versions` go into its sources."""
    rows = [f"r{i},{m},{t!r}" for i, rank in enumerate(ranks) for m, times in rank.passes_s.items() for t in times]
    text, fits = import_steps("\n".join(["worker,samples,seconds", *rows]), name=name)
    imported = load_profile(text).model_dump(mode="python", exclude_defaults=True)
    table, shared = all_reduce_medians(ranks), overlap(ranks, subject.gradient_bytes)
    busy = busy_all_reduces(ranks, table)
    link = link_fit(table, len(ranks))
    stamp = f"calibrated {date}, {versions}"
    sources: dict[str, str] = {}
    for entry, rank, fit in zip(imported["workers"], ranks, fits, strict=True):
        _complete(entry, rank)
        key = "step_times_s" if fit.model == "table" else "samples_per_s"
        sources[f"workers.{fit.worker}.{key}"] = f"{stamp}, {_how(fit, rank)}; on {rank.device} ({rank.host})"
    network, network_sources = _network(table, busy, link, shared, stamp, backend)
    document = {
        **imported,
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "description": f"{len(ranks)} worker{'s' if len(ranks) > 1 else ''} measured on {date}: "
        + ", ".join(dict.fromkeys(rank.device for rank in ranks)),
        "workload": _workload(subject),
        "training": {"micro_batch_samples": ranks[0].micro_batch} if ranks[0].micro_batch else {},
        "network": network,
        "sources": sources | network_sources,
    }
    # Text and back: what is handed out has passed every check of a profile that a person wrote.
    profile = load_profile(Profile.model_validate(document).to_yaml())
    return Calibration(
        profile=profile,
        fits=fits,
        devices=tuple(rank.device for rank in ranks),
        all_reduce_s=table,
        busy_all_reduce_s=busy,
        link=link,
        overlap_slowdown=shared,
    )


def _complete(entry: dict[str, Any], rank: RankTimes) -> None:
    if rank.memory_bytes is not None:
        entry["memory_bytes"] = float(rank.memory_bytes)
    if rank.update_s:
        entry["update_s"] = _short(median(rank.update_s))
    with contextlib.suppress(UsageError):  # no GPU of the catalogue: its name stands in the sources
        entry["gpu"] = catalogue.gpu(rank.device).name


def _how(fit: StepFit, rank: RankTimes) -> str:
    """How well the passes are known, in words."""
    errors = [
        found.error / found.value for times in rank.passes_s.values() if (found := middle(times)).error is not None
    ]
    noise = f", standard error of a median {max(errors):.1%} at most" if errors else ""
    residual = f"residual {fit.residual_median:.1%}" if fit.batches > 2 else "no residual from so few sizes"
    text = f"{residual} ({fit.steps} passes of {fit.batches} sizes, {fit.model}{noise}"
    if fit.model == "line":
        medians = [(float(m), median(times)) for m, times in rank.passes_s.items()]
        rising = [(m, t) for m, t in medians if t > fit.floor_s * 1.0001 or fit.floor_s == 0]
        try:
            slope = line_with_errors(rising)[1]
        except (UsageError, ValueError):
            return f"{text})"
        if slope.error is not None:
            return f"{text}, of samples_per_s {slope.error / slope.value:.1%})"
    return f"{text})"


def _network(
    table: Sequence[tuple[int, Estimate]],
    busy: Sequence[tuple[int, Estimate]],
    link: LinkFit | None,
    shared: Estimate | None,
    stamp: str,
    backend: str,
) -> tuple[dict[str, Any], dict[str, str]]:
    if not table:
        return {}, {"network": "one rank: nothing to communicate, hetsim's defaults"}
    network: dict[str, Any] = {"all_reduce_table": _rows(table)}
    errors = [found.error / found.value for _, found in table if found.error is not None]
    noise = f", standard error {max(errors):.1%} at most" if errors else ""
    sources = {"network.all_reduce_table": f"{stamp}, {backend}, medians{noise}"}
    if busy:
        network["all_reduce_busy_table"] = _rows(busy)
        sources["network.all_reduce_busy_table"] = (
            f"{stamp}, {backend}, while every rank computed, means without a tenth at either end"
        )
    if link is not None:
        network["bandwidth_gbit_per_s"] = _short(link.bytes_per_s.value * 8 / 1e9)
        network["latency_us"] = _short(link.latency_s.value * 1e6)
        known = f", {link.bytes_per_s}" if link.bytes_per_s.error is not None else ""
        residual = f"residual {link.residual_median:.1%}" if len(table) > 2 else "no residual from so few sizes"
        sources["network.bandwidth_gbit_per_s"] = (
            f"{stamp}, what a ring with the table's times would have, {residual}{known}"
        )
    else:
        sources["network.bandwidth_gbit_per_s"] = "not measured: times do not grow with the payload; hetsim's default"
    if shared is not None:
        network["overlap_slowdown"] = _short(shared.value)
        known = f", {shared}" if shared.error is not None else ""
        sources["network.overlap_slowdown"] = f"{stamp}, {backend}, passes beside an all-reduce{known}"
    else:
        sources["network.overlap_slowdown"] = "not measured: no pass ended while an all-reduce was in flight"
    return network, sources


def _rows(table: Sequence[tuple[int, Estimate]]) -> list[dict[str, float]]:
    return [{"bytes": float(payload), "seconds": _short(found.value)} for payload, found in table]


def _workload(subject: Subject) -> str | dict[str, Any]:
    if subject.workload in catalogue.workload_names():
        return subject.workload
    own = {"model": subject.model, "dataset": subject.dataset} if subject.model else {}
    return {
        "name": subject.workload,
        "gradient_bytes": float(subject.gradient_bytes),
        "dataset_samples": subject.dataset_samples,
        **own,
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
