"""A profile from one's own step times: `hetsim import steps.csv` (columns worker,samples,seconds)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hetsim.cluster.checks import check
from hetsim.cluster.document import MAX_PROBLEMS, MAX_TEXT_BYTES
from hetsim.cluster.profile import SCHEMA_VERSION, Profile
from hetsim.cluster.traces import parse_table
from hetsim.cluster.wording import findings
from hetsim.errors import Problem, ProfileError, UsageError

if TYPE_CHECKING:
    from hetsim.compute.fit import LineFit

MAX_CSV_BYTES = 50_000_000  # a million steps; more adds nothing to medians
MAX_CSV_ROWS = 1_000_000
MOST_SIZES = 32  # batch sizes that a line is fitted to; the work grows with their cube [our choice]
LINE_IS_GOOD = 0.05  # median relative residual up to which the line stands for the measurements [our choice]
OUTLIER = 0.5  # a step this far (relative) from the median of its batch is reported as an outlier [our choice]


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """How one worker's step times became a model of its speed; residuals are relative, of medians per batch."""

    worker: str
    steps: int
    batches: int
    samples_per_s: float
    overhead_s: float
    floor_s: float
    jitter_cv: float
    residual_median: float
    residual_max: float
    outliers: int
    model: str  # "line", or "table" where the line misses by more than LINE_IS_GOOD


def import_steps(
    source: str | Path, *, name: str = "imported", workload: str = "resnet18-cifar10", file: str = "<steps>"
) -> tuple[str, tuple[StepFit, ...]]:
    """Profile text and fits from recorded steps (a path, or CSV text with a newline in it).

    Per worker t(m) = max(floor_s, overhead_s + m / samples_per_s) is fitted to the median of every batch size, so that
    odd steps do not count, and without one odd batch size where five or more were measured. Where that line misses the
    medians by more than 5 %, the medians themselves become the profile's `step_times_s`.
    Raises ProfileError with the line of every bad row, UsageError for a name or workload that cannot be.
    """
    from hetsim.cluster.loader import read_text

    if isinstance(source, str) and "\n" in source:
        text = source
    else:
        text, file = read_text(Path(source), MAX_CSV_BYTES), str(source)
    steps: dict[str, dict[int, list[float]]] = {}
    for row in parse_table(text, file, ("worker", "samples", "seconds"), MAX_CSV_ROWS):
        steps.setdefault(row["worker"], {}).setdefault(row["samples"], []).append(row["seconds"])
    names = _names(list(steps), file)
    entries: list[dict[str, Any]] = []
    fits: list[StepFit] = []
    for worker, batches in steps.items():
        fit, points = _fit(names[worker], batches)
        fits.append(fit)
        entries.append(_entry(fit, points))
    micro = max(min(batches) for batches in steps.values())  # the smallest pass that every worker was measured at
    return _checked(_tree(name, workload, micro, entries, fits, Path(file).name), file), tuple(fits)


def _pooled(medians: dict[int, float]) -> dict[int, float]:
    """At most MOST_SIZES batch sizes: where every step had its own, neighbours are taken together by their medians."""
    if len(medians) <= MOST_SIZES:
        return medians
    sizes = list(medians)
    cuts = [len(sizes) * i // MOST_SIZES for i in range(MOST_SIZES + 1)]
    groups = [sizes[a:b] for a, b in pairwise(cuts)]
    return {median_low(group): median_low([medians[m] for m in group]) for group in groups}


def _fit(worker: str, batches: dict[int, list[float]]) -> tuple[StepFit, dict[int, float]]:
    """The fit, and the medians it was fitted to."""
    medians = {samples: median(times) for samples, times in sorted(batches.items())}
    points = _pooled(medians)
    line = _robust_line(list(points.items()))
    residuals = [abs(line.seconds(samples) / seconds - 1) for samples, seconds in points.items()]
    ratios = [t / medians[samples] for samples, times in batches.items() for t in times]
    fit = StepFit(
        worker=worker,
        steps=len(ratios),
        batches=len(medians),
        samples_per_s=line.samples_per_s,
        overhead_s=line.overhead_s,
        floor_s=line.floor_s,
        jitter_cv=_spread(batches, medians),
        residual_median=median(residuals),
        residual_max=max(residuals),
        outliers=sum(abs(ratio - 1) > OUTLIER for ratio in ratios),
        model="line" if median(residuals) <= LINE_IS_GOOD else "table",
    )
    return fit, points


def _robust_line(points: list[tuple[int, float]]) -> LineFit:
    """The fit of all batches, or without the one that spoils it: what then fits second worst is halved at least."""
    from hetsim.compute.fit import fit_line

    def off(fit: LineFit) -> list[float]:
        return [abs(fit.seconds(samples) / seconds - 1) for samples, seconds in points]

    best = _flat(points) or fit_line(points)
    if len(points) < 5:  # fewer do not show which one is wrong
        return best
    for index in range(len(points)):
        rest = points[:index] + points[index + 1 :]
        fit = _flat(rest) or fit_line(rest)
        # An odd one within 10 % is left in: it does no harm [our choice].
        if off(fit)[index] > 0.1 and sorted(off(fit))[-2] < sorted(off(best))[-2] / 2:
            best = fit
    return best


def _flat(points: list[tuple[int, float]]) -> LineFit | None:
    """Where time does not grow with the batch there is no line: a floor, and beyond it the largest batch's rate."""
    from hetsim.compute.fit import LineFit, fit_line

    try:
        fit_line(points)
    except UsageError:
        floor = median(seconds for _, seconds in points)
        samples = max(samples for samples, _ in points)
        return LineFit(
            floor_s=floor,
            overhead_s=0.0,
            samples_per_s=samples / floor,
            residual_max=0.0,
            residual_median=0.0,
            points=len(points),
        )
    return None


def _spread(batches: dict[int, list[float]], medians: dict[int, float]) -> float:
    """Coefficient of variation of repeated steps: 1.4826 median deviations (normal law); 0 below 5 repeats."""
    deviations = [abs(t / medians[m] - 1) for m, times in batches.items() if len(times) >= 5 for t in times]
    return 1.4826 * median(deviations) if deviations else 0.0


def _names(workers: Sequence[str], file: str) -> dict[str, str]:
    """Worker names a profile can hold; `rank 0` becomes rank-0 and `0` becomes w0."""
    names = {}
    for worker in workers:
        name = re.sub(r"[^\w-]+", "-", worker).strip("-_")[:60]
        names[worker] = name if re.match(r"[^\W\d_]", name) else f"w{name}"
    if len(set(names.values())) < len(names):
        raise ProfileError(
            file, [Problem("", "two workers have the same name up to punctuation", "rename one of them")]
        )
    return names


def _entry(fit: StepFit, medians: dict[int, float]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": fit.worker}
    optional = {"jitter_cv": float(f"{fit.jitter_cv:.2g}")}
    if fit.model == "table":
        entry["step_times_s"] = {samples: _short(t) for samples, t in medians.items()}
    else:
        entry["samples_per_s"] = _short(fit.samples_per_s)
        optional |= {"overhead_s": _short(fit.overhead_s), "floor_s": _short(fit.floor_s)}
    return entry | {key: value for key, value in optional.items() if value > 0}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _tree(
    name: str, workload: str, micro: int, entries: list[dict[str, Any]], fits: Sequence[StepFit], file: str
) -> dict[str, Any]:
    sources = {}
    for fit in fits:
        key = "samples_per_s" if fit.model == "line" else "step_times_s"
        how = f"line, residual {fit.residual_median:.1%}" if fit.model == "line" else "medians"
        sources[f"workers.{fit.worker}.{key}"] = f"calibrated from {file}: {fit.steps} steps, {how}"
    sources["network"] = "not measured: hetsim's defaults, state your own"
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "description": f"{len(entries)} worker{'s' if len(entries) > 1 else ''} with the step times of {file}.",
        "workload": workload,
        "workers": entries,
        "sources": sources,
        "training": {
            "global_batch_samples": max(256, micro * len(entries)),
            "micro_batch_samples": micro,
            "weight_decay": 0.0005,  # what the predictor's constants of ResNet18 on CIFAR-10 were fitted with
            "max_samples": 5_000_000,
        },
        "algorithms": {"abs-sgd": {"micro_batch": "equal-time"}},
    }


def _checked(tree: dict[str, Any], file: str) -> str:
    """As YAML that can be loaded. Raises UsageError for what was asked for, ProfileError for what was measured."""
    try:
        profile = Profile.model_validate(tree)
        found = check(profile)
    except ValidationError as error:
        found = findings(error.errors(include_url=False), tree)
    for finding in found:
        if finding.path[:1] in (("name",), ("workload",)):
            problem = finding.problem()
            raise UsageError(Problem("", problem.message, problem.hint).render(f"--{finding.path[0]}"))
    if found:
        raise ProfileError(file, [finding.problem() for finding in found[:MAX_PROBLEMS]])
    text = profile.to_yaml()
    if len(text.encode()) > MAX_TEXT_BYTES:
        message = f"has {len(profile.workers):,} workers, more than fit into a profile of {MAX_TEXT_BYTES // 1000:,} kB"
        raise ProfileError(file, [Problem("", message, "give one of equal workers, and its count in the profile")])
    return text
