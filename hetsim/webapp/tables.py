"""The table of Explore as plain numbers: columns with units, one row per algorithm, the differences to a baseline; and its CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetsim import reasons
from hetsim.comparison import Comparison, Row, plain
from hetsim.verdict import fastest

Kind = str  # "text", or how a number is printed (printf)


@dataclass(frozen=True)
class Column:
    """A column: header with its unit, how it is printed, what it means, and the value of a row."""

    head: str
    kind: Kind
    means: str
    value: Callable[[Row], Any]


def columns(c: Comparison) -> list[Column]:
    """All columns; times in the unit that suits the fastest."""
    leader = fastest(c.algorithms)
    unit, divisor = _unit(None if leader is None else leader.seconds)
    low, high = _end("low", divisor), _end("high", divisor)
    found = [
        Column("algorithm", "text", "Its label, with options where they are stated.", lambda r: r.name),
        Column(
            f"to target, {unit}",
            "%.4g",
            f"Time until {c.target.metric} is {c.target.value:.4g}; empty where it is not reached.",
            lambda r: None if math.isinf(r.seconds) else r.seconds / divisor,
        ),
        Column(f"from, {unit}", "%.4g", "Lower end of its interval over seeds.", low),
        Column(f"up to, {unit}", "%.4g", "Upper end of its interval over seeds.", high),
        Column("× best baseline", "%.2f", "Time of the best baseline over its own; above 1 is faster.", _speedup),
        Column("note", "text", "What is special about it.", lambda r: note(c, r)),
        Column("samples/s", "%.0f", "Samples that count, per second, over all workers.", lambda r: r.samples_per_s),
        Column("busy, %", "%.0f", "Share of the workers' time that is computation.", lambda r: 100 * r.utilisation),
        Column("waiting, %", "%.0f", "Share of the workers' time spent waiting.", lambda r: 100 * r.waiting_share),
        Column("batch, samples", "%.0f", "Mean samples per update.", lambda r: r.mean_batch_samples),
        Column("update, ms", "%.4g", "Time from update to update.", lambda r: 1e3 * r.update_period_s),
        Column(
            "staleness, updates", "%.2g", "By how many updates gradients are late, mean.", lambda r: r.staleness_mean
        ),
        Column("learning rate", "%.3g", "As tuned, or the profile's; empty where nothing depends on it.", _rate),
        Column("momentum", "%.2g", "As tuned, or the profile's.", lambda r: r.momentum),
        Column("samples to target", "%.4g", "Samples until the target.", lambda r: r.samples_to_target),
        Column("cost, $", "%.3g", "Of the time to target at the profile's prices.", _cost("usd_to_target")),
        Column("energy, kWh", "%.3g", "Of the time to target at rated power.", _cost("kwh_to_target")),
        Column(
            "who contributes", "text", reasons.WHO_MEANS.capitalize() + ".", lambda r: reasons.shares(r.sample_share)
        ),
        Column("limited by", "text", "What keeps it from being faster.", lambda r: r.limited_by),
    ]
    return [column for column in found if any(column.value(row) not in (None, "") for row in c.algorithms)]


def table(c: Comparison, pinned: Comparison | None = None) -> list[dict[str, Any]]:
    """The rows, fastest first; with a baseline also the change of each row's time, speed and busy share."""
    heads = columns(c)
    rows = sorted(c.algorithms, key=lambda row: row.seconds)
    out = []
    for row in rows:
        cells = {column.head: plain(column.value(row)) for column in heads}
        if pinned is not None:  # the changes stand beside the first figures, where they are seen without scrolling
            first = dict(list(cells.items())[:2])
            cells = first | changes(row, pinned) | cells
        out.append(cells)
    return out


CHANGES = {
    "Δ to target, %": "Change of the time to target against the pinned baseline; below 0 is sooner.",
    "Δ samples/s, %": "Change of samples per second against the pinned baseline.",
    "Δ busy, points": "Change of the busy share against the pinned baseline, percentage points.",
}


def changes(row: Row, pinned: Comparison) -> dict[str, float | None]:
    """What is different from the same algorithm of the baseline; None where there is none to compare with."""
    before = next((r for r in pinned.algorithms if r.name == row.name), None)
    if before is None:
        return dict.fromkeys(CHANGES)
    values = (
        relative(row.seconds, before.seconds),
        relative(row.samples_per_s, before.samples_per_s),
        100 * (row.utilisation - before.utilisation),
    )
    return {head: _shown(value) for head, value in zip(CHANGES, values, strict=True)}


def _shown(change: float | None) -> float | None:
    """Without a minus before what is shown as 0.0."""
    return 0.0 if change is not None and -0.05 <= change < 0.0 else change


def relative(now: float, before: float) -> float | None:
    """Change in per cent; None where one of them is no number."""
    if not (math.isfinite(now) and math.isfinite(before)) or before == 0:
        return None
    return 100 * (now / before - 1)


def note(c: Comparison, row: Row) -> str:
    """`fastest`, `best baseline`, `not reached`: said in words, not by colour."""
    leader = fastest(c.algorithms)
    words = []
    if leader is not None and row.name == leader.name:
        words.append("fastest")
    if row.name == c.best_baseline:
        words.append("best baseline")
    if math.isinf(row.seconds):
        words.append("target not reached")
    return ", ".join(words)


def csv_text(rows: list[dict[str, Any]]) -> str:
    """The table as CSV, as spreadsheets read it; a text that they would take for a formula is quoted by an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({head: _inert(value) for head, value in row.items()})
    return out.getvalue()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _unit(least_s: float | None) -> tuple[str, float]:
    """As `wording.time_column`."""
    if least_s is None or not math.isfinite(least_s):
        return "s", 1.0
    return ("h", 3600.0) if least_s > 3 * 3600 else ("min", 60.0) if least_s > 600 else ("s", 1.0)


def _end(which: str, divisor: float) -> Callable[[Row], Any]:
    def value(row: Row) -> float | None:
        end = None if row.time_to_target_s is None else getattr(row.time_to_target_s, which)
        return None if end is None else end / divisor

    return value


def _speedup(row: Row) -> float | None:
    return None if row.speedup_over_best_baseline is None else row.speedup_over_best_baseline.value


def _rate(row: Row) -> float | None:
    return row.learning_rate


def _cost(which: str) -> Callable[[Row], Any]:
    return lambda row: None if row.cost is None else getattr(row.cost, which)


def kinds(c: Comparison, pinned: bool) -> Mapping[str, tuple[Kind, str]]:
    """Header -> how it is printed and what it means."""
    found = {column.head: (column.kind, column.means) for column in columns(c)}
    return found | ({head: ("%+.1f", means) for head, means in CHANGES.items()} if pinned else {})
