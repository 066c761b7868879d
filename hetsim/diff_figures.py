"""Figures of two results beside one another: how far they moved, and whether beyond their intervals.

Seconds to the target on the same seeds are compared seed by seed, others by whether their intervals meet; what is known of one seed alone
moved or did not, and nothing says by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.intervals import Interval, interval, paired_ratio

ROUNDING = 1e-9  # relative: two runs of one version on one machine agree to the bit, on others nearly
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One figure of one algorithm on both sides; None where a side does not have it (a target not reached).

    `ratio` is b over a, with its interval where there is one. `beyond`: whether it moved further than the intervals allow for luck; None
    where there is none to tell by.
    """

    name: str
    figure: str
    unit: str
    a: float | str | None
    b: float | str | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    beyond: bool | None = None


NUMBERS = (
    ("samples_per_s", "throughput", "samples/s"),
    ("update_period_s", "time per update", "s"),
    ("mean_batch_samples", "samples per update", "samples"),
    ("utilisation", "busy", "share"),
    ("waiting_share", "waiting", "share"),
    ("staleness_mean", "staleness", "updates"),
    ("samples_to_target", "samples to target", "samples"),
    ("updates_to_target", "updates to target", "updates"),
    ("learning_rate", "learning rate", ""),
    ("momentum", "momentum", ""),
)
COSTS = (("usd_to_target", "cost to target", "USD"), ("kwh_to_target", "energy to target", "kWh"))


def moved_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Moved]:
    """Of comparisons and single runs: every algorithm that both have, in the order of A."""
    same_seeds = a.get("seeds") == b.get("seeds")
    theirs = {row["name"]: row for row in b.get("algorithms") or [b]}
    for row in a.get("algorithms") or [a]:
        if row["name"] in theirs:
            yield from _moved(row, theirs[row["name"]], same_seeds)


def _moved(a: Row, b: Row, same_seeds: bool) -> Iterator[Moved]:
    yield from _time(a, b, same_seeds)
    for key, figure, unit in NUMBERS:
        yield from _number(a["name"], figure, unit, a[key], b[key])
    for key, figure, unit in COSTS:
        yield from _number(a["name"], figure, unit, (a["cost"] or {}).get(key), (b["cost"] or {}).get(key))
    memory = [max(row["memory_bytes"].values(), default=None) for row in (a, b)]
    yield from _number(a["name"], "most memory", "bytes", *memory)
    for worker in dict.fromkeys([*a["sample_share"], *b["sample_share"]]):
        shares = (a["sample_share"].get(worker), b["sample_share"].get(worker))
        yield from _number(a["name"], f"samples of {worker}", "share", *shares)
    if a["limited_by"] != b["limited_by"]:
        yield Moved(name=a["name"], figure="limited by", unit="", a=a["limited_by"], b=b["limited_by"])


def _time(a: Row, b: Row, same_seeds: bool) -> Iterator[Moved]:
    before, after = a["time_to_target_s"], b["time_to_target_s"]
    if before is None or after is None or before == after:
        return
    common = {"name": a["name"], "figure": "time to target", "unit": "s", "a": before["median"], "b": after["median"]}
    if same_seeds and len(before["by_seed"]) == len(after["by_seed"]):
        seconds = [[math.inf if s is None else s for s in side["by_seed"]] for side in (after, before)]
        found = paired_ratio(*seconds)
        if found is not None:
            yield Moved(**common, **_ratio(found))
            return
    yield Moved(**common, ratio=_over(before["median"], after["median"]), beyond=_apart(before, after))


def _ratio(found: Interval) -> dict[str, Any]:
    low, high = _finite(found.low), _finite(found.high)
    beyond = None if found.low is None or found.high is None else not found.low <= 1.0 <= found.high
    return {"ratio": _finite(found.median), "low": low, "high": high, "beyond": beyond}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _apart(a: Row, b: Row) -> bool | None:
    """Whether two intervals leave a gap; an end that is not known is open, and of a single seed nothing is known."""
    if min(a["seeds"], b["seeds"]) < 2:
        return None
    (low_a, high_a), (low_b, high_b) = _ends(a), _ends(b)
    return high_a < low_b or high_b < low_a


def _ends(time: Row) -> tuple[float, float]:
    low, high = time["low"], time["high"]
    return math.inf if low is None else low, math.inf if high is None else high


def _number(name: str, figure: str, unit: str, a: float | None, b: float | None) -> Iterator[Moved]:
    if a is None and b is None:
        return
    if a is not None and b is not None and math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-12):
        return
    yield Moved(name=name, figure=figure, unit=unit, a=a, b=b, ratio=_over(a, b))


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or a == 0 else b / a


# ---- validations --------------------------------------------------------------------------------------------------------------


def moved_validations(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Moved]:
    """Medians over runs, with intervals that meet or not; the verdict of each algorithm."""
    theirs = {row["name"]: row for row in b["algorithms"]}
    for row in a["algorithms"]:
        if row["name"] not in theirs:
            continue
        other = theirs[row["name"]]
        for side in ("predicted", "measured"):
            for key, figure, unit in (
                ("update_period_s", "time per update", "s"),
                ("samples_per_s", "throughput", "samples/s"),
                ("mean_batch_samples", "samples per update", "samples"),
                ("time_to_target_s", "time to target", "s"),
            ):
                values = [[run[side][key] for run in one["runs"]] for one in (row, other)]
                yield from _medians(row["name"], f"{figure}, {side}", unit, *values)
        if row["within"] != other["within"]:
            said = ["held" if one["within"] else "did not hold" for one in (row, other)]
            yield Moved(name=row["name"], figure="prediction", unit="", a=said[0], b=said[1])


def _medians(
    name: str, figure: str, unit: str, a: Sequence[float | None], b: Sequence[float | None]
) -> Iterator[Moved]:
    if a == b or all(value is None for value in (*a, *b)):
        return
    sides = [interval([math.inf if value is None else value for value in side]) for side in (a, b)]
    medians = [_finite(side.median) for side in sides]
    beyond = None
    if all(side.low is not None for side in sides):
        beyond = bool(sides[0].high < sides[1].low or sides[1].high < sides[0].low)  # type: ignore[operator]
    yield Moved(name=name, figure=figure, unit=unit, a=medians[0], b=medians[1], ratio=_over(*medians), beyond=beyond)
