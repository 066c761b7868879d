"""A validation in words and cells: whether the predictions held, a summary by algorithm, every figure of every run.

Made of the document alone (`validation.json`), for the terminal and the page alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hetsim import wording

Document = Mapping[str, Any]
Row = Mapping[str, Any]
Line = tuple[str, str, str, str]  # figure, predicted, measured, off
HELD, MISSED = "held", "did not hold"


def headline(document: Document) -> str:
    """Whether the predictions held, in a sentence."""
    rows = document["algorithms"]
    missed = [row["name"] for row in rows if not row["within"]]
    if len(rows) == 1:
        return f"The prediction for {rows[0]['name']} {MISSED if missed else HELD}."
    if not missed:
        return f"All {len(rows)} predictions {HELD}."
    return f"{len(rows) - len(missed)} of {len(rows)} predictions {HELD}; {MISSED}: {', '.join(missed)}."


def facts(document: Document) -> str:
    """What was run, in a line."""
    updates, seeds = document["updates"], document["seeds"]
    links = {True: "links shaped", False: "links not shaped", None: "run elsewhere"}[document["shaped"]]
    length = "runs of different lengths" if updates is None else f"{updates:,} updates"
    return f"{document['workload']} · {length} · seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))} · {links}"


# ---- the summary -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`text`, and whether a check says that it is `off` by more than allowed."""

    text: str
    off: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """One figure of the summary: its name, that of its checks, of which runs it is, up to where it holds, and its cells in the document's
    order."""

    name: str
    check: str
    which: str
    allowed: str
    cells: Sequence[Cell]


def summary(document: Document) -> list[Column]:
    """Every algorithm by what has to hold; measured over predicted, less one, signed where one run says it.

    The median period is left out where no algorithm has several runs: it has no other tolerance there.
    """
    rows, given = document["algorithms"], document["tolerances"]
    several = any(len(row["runs"]) > 1 for row in rows)
    replay = max((c["tolerance"] for row in rows for c in row["checks"] if c["name"].startswith("replay")), default=0.0)
    columns = [
        ("time per update", "period", "median", given["period_median"], _period_median),
        ("time per update", "period", "worst" if several else "", given["period"], _period_worst),
        ("share of samples", "shares", "worst", given["share"], _shares_worst),
        ("time to target", "time to target", "median" if several else "", given["time"], _time_median),
        ("replayed parameters", "replay", "worst" if several else "", replay, _replay_worst),
    ]
    return [
        Column(name=name, check=check, which=which, allowed=_share(tolerance), cells=[make(row) for row in rows])
        for name, check, which, tolerance, make in columns
        if several or make is not _period_median
    ]


def _period_median(row: Row) -> Cell:
    sides = (median(run[side]["update_period_s"] for run in row["runs"]) for side in ("predicted", "measured"))
    return Cell(text=_signed(_ratio(*sides)), off=_failed(row, "period, median"))


def _period_worst(row: Row) -> Cell:
    ratios = [_ratio(run["predicted"]["update_period_s"], run["measured"]["update_period_s"]) for run in row["runs"]]
    return Cell(text=_signed(max(ratios, key=abs)), off=_failed(row, "period, ", but="period, median"))


def _shares_worst(row: Row) -> Cell:
    ratios = [
        _ratio(share, run["measured"]["sample_share"][worker])
        for run in row["runs"]
        for worker, share in run["predicted"]["sample_share"].items()
    ]
    return Cell(text=_signed(max(ratios, key=abs, default=0.0)), off=_failed(row, "shares, "))


def _time_median(row: Row) -> Cell:
    """The median of the sizes, which is what is checked."""
    times = [[run[side]["time_to_target_s"] for side in ("predicted", "measured")] for run in row["runs"]]
    ratios = [_ratio(*both) for both in times if both != [None, None]]
    if not ratios:
        return Cell(text=wording.NONE)
    middle = median(map(abs, ratios))
    text = "one of two" if math.isinf(middle) else _signed(ratios[0]) if len(ratios) == 1 else f"{100 * middle:.1f} %"
    return Cell(text=text, off=_failed(row, "time to target"))


def _replay_worst(row: Row) -> Cell:
    deviations = [run["replay_deviation"] for run in row["runs"] if run["replay_deviation"] is not None]
    return Cell(text=f"{max(deviations):.1e}" if deviations else wording.NONE, off=_failed(row, "replay, "))


def verdict(row: Row) -> str:
    """`held`, or by which checks not."""
    return HELD if row["within"] else MISSED + "".join(f"; {text}" for text in missed(row))


def missed(row: Row) -> list[str]:
    """The checks that failed: `period, seed 1: 7 % off, tolerance 5 %`."""
    return [
        f"{check['name']}: {_share(check['error'])} off, tolerance {_share(check['tolerance'])}"
        for check in row["checks"]
        if check["within"] is False
    ]


def uncompared(row: Row) -> list[str]:
    """What could not be compared, by reason: `replay, seed 0; replay, seed 1 not compared: more than 200 updates`."""
    by_reason: dict[str, list[str]] = {}
    for check in row["checks"]:
        if check["within"] is None:
            by_reason.setdefault(check["why"] or "no figures", []).append(check["name"])
    return [f"{'; '.join(names)} not compared: {reason}" for reason, names in by_reason.items()]


def _failed(row: Row, start: str, but: str = "") -> bool:
    return any(c["within"] is False and c["name"].startswith(start) and c["name"] != but for c in row["checks"])


def _ratio(predicted: float | None, measured: float | None) -> float:
    """Measured over predicted, less one; infinite where only one of the two is there."""
    if not predicted:
        return 0.0 if predicted == measured else math.inf
    return math.inf if measured is None else measured / predicted - 1


def _signed(ratio: float) -> str:
    text = f"{100 * ratio:+.1f} %"
    return "infinite" if math.isinf(ratio) else text[1:] if text in ("+0.0 %", "-0.0 %") else text


def _share(value: float | None) -> str:
    return "infinitely" if value is None else f"{value:.2g}" if 0 < value < 1e-4 else f"{100 * value:.3g} %"


# ---- every figure ------------------------------------------------------------------------------------------------------------


def called(run: Mapping[str, Any]) -> str:
    """What a run is called (documents of before runs had names: by its seed)."""
    return str(run.get("name") or f"seed {run['seed']}")


def lines(row: Row) -> list[Line]:
    """One algorithm side by side, run after run."""
    made = ((called(run) if len(row["runs"]) > 1 else "", line) for run in row["runs"] for line in of_run(run))
    return [(f"{line[0]}, {run}" if run else line[0], *line[1:]) for run, line in made]


def of_run(run: Mapping[str, Any]) -> list[Line]:
    """One run side by side."""
    p, m = run["predicted"], run["measured"]
    out: list[Line] = []
    for name, key, show in (
        ("time per update", "update_period_s", wording.seconds),
        ("samples/s", "samples_per_s", wording.rate),
        ("samples per update", "mean_batch_samples", wording.count),
        ("time to target", "time_to_target_s", wording.seconds),
    ):
        if key != "time_to_target_s" or not p[key] is m[key] is None:
            out.append((name, show(p[key]), show(m[key]), off(p[key], m[key])))
    for name, key in (("busy", "utilisation"), ("waiting", "waiting_share")):
        out.append((name, wording.percent(p[key], 1), wording.percent(m[key], 1), ""))
    for cause in p["waiting"]:
        sides = (p["waiting"][cause], m["waiting"][cause])
        if max(sides) > 0.0005:
            out.append((f"waiting for {cause}", wording.percent(sides[0], 1), wording.percent(sides[1], 1), ""))
    for worker, share in p["sample_share"].items():
        seen = m["sample_share"][worker]
        out.append((f"share of {worker}", wording.percent(share, 1), wording.percent(seen, 1), off(share, seen)))
    if late := sum((run.get("late_passes") or {}).values()):
        out.append(("passes too late", "", wording.count(late), ""))
    if run["replay_deviation"] is not None:
        out.append(("replayed parameters", "", f"{run['replay_deviation']:.1e} off", ""))
    if run.get("rounding_deviation") is not None:
        out.append(("replayed from a rounding error away", "", f"{run['rounding_deviation']:.1e} off", ""))
    return out


def off(predicted: float | None, measured: float | None) -> str:
    """Measured over predicted, as a signed percentage."""
    if not predicted or measured is None:
        return ""
    return _signed(measured / predicted - 1)
