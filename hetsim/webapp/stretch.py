"""A stretch of one or two runs: from when to when, and what happened in it, in a sentence and in rows. Without streamlit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hetsim import wording
from hetsim.activity import TRAVELLING, Shares, shares, update_window
from hetsim.metrics import update_times
from hetsim.schedule.table import Schedule
from hetsim.timeline import Seconds, window_of

Kind = Literal["start", "steady", "seconds", "updates"]
Cell = str | float | int | None
LITTLE = 0.005  # of a window: causes below it are not named [our choice]
# What an idle worker waits for, as a person would say it.
SAID = {
    "peers": "others to join",
    "network": "the all-reduce",
    "push": "its push",
    "pull": "its pull",
    "gate": "the bound on skew",
    "cap": "its batch cap",
    "data": "data",
    "peer": "its partner",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which stretch: the start, the steady state, or from `first` to `last` in seconds or updates (from 1, both included)."""

    kind: Kind = "steady"
    first: float = 0.0
    last: float = 0.0


def window(schedule: Schedule, choice: Choice) -> Seconds:
    """Its seconds in one run, within that run."""
    if choice.kind in ("start", "steady"):
        return window_of(schedule, choice.kind)
    if choice.kind == "updates":
        return window_of(schedule, update_window(schedule, int(choice.first), int(choice.last)))
    begin = min(max(choice.first, 0.0), schedule.horizon_s)
    return window_of(schedule, (begin, min(max(choice.last, begin), schedule.horizon_s)))


def windows(schedules: Mapping[str, Schedule], choice: Choice) -> dict[str, Seconds]:
    """Its seconds in each of several runs; a steady one begins at the end of the same update in all."""
    if choice.kind != "steady":
        return {side: window(schedule, choice) for side, schedule in schedules.items()}
    half = min(updates(schedule) for schedule in schedules.values()) // 2
    return {side: window_of(schedule, "steady", half) for side, schedule in schedules.items()}


def updates(schedule: Schedule) -> int:
    """How many there are to choose from."""
    return len(update_times(schedule)[0])


def covered(schedule: Schedule, seconds: Seconds) -> tuple[int, int]:
    """First and last update that ended in these seconds, counted from 1; (0, 0) where none did."""
    times, _ = update_times(schedule)
    inside = [k for k, time in enumerate(times.tolist(), 1) if seconds[0] < time <= seconds[1]]
    return (inside[0], inside[-1]) if inside else (0, 0)


# ---- in words ------------------------------------------------------------------------------------------------------------


def said(seconds: Seconds) -> str:
    """`0 to 412 ms`, `275.94 to 276.31 s`: with as many digits as tell the end from the beginning."""
    begin, end = seconds
    scale, unit = (1e3, "ms") if end < 1 else (1.0, "s")
    digits = min(max(0, 2 - math.ceil(math.log10(max((end - begin) * scale, 1e-12)))), 6)
    return f"{begin * scale:,.{digits}f} to {end * scale:,.{digits}f} {unit}"


def sentence(found: Sequence[Shares]) -> str:
    """Who is busiest, and who waits most and for what."""
    if not found:
        return ""
    busiest = max(found, key=lambda worker: worker.compute)
    idlest = max(found, key=lambda worker: worker.communication + worker.waiting)
    idle = idlest.communication + idlest.waiting
    if idle < LITTLE:
        least = min(found, key=lambda worker: worker.compute)
        if least.compute > 1 - LITTLE:
            return "nobody waits; all compute all the time."
        return f"nobody waits; {least.worker} computes least, {wording.percent(least.compute)} of the time."
    busy = f"{busiest.worker} is busiest ({wording.percent(busiest.compute)} of the time)"
    return f"{busy}; {idlest.worker} waits most ({wording.percent(idle)}): {causes(idlest)}."


def causes(worker: Shares) -> str:
    """What a worker waits for, the longest first: `d to join 31 %, the all-reduce 12 %`."""
    out = []
    for cause, share in sorted(worker.causes.items(), key=lambda entry: -entry[1]):
        if share < LITTLE:
            continue
        name = SAID[cause]
        if cause == "peers" and worker.waits_for is not None and worker.waits_for[1] > 0.9 * share:
            name = f"{worker.waits_for[0]} to join"
        out.append(f"{name} {wording.percent(share)}")
    return ", ".join(out) or "nothing"


# ---- in rows -------------------------------------------------------------------------------------------------------------

ACTIVITIES = ("compute", "communication", "waiting", "other")


def rows(schedule: Schedule, seconds: Seconds, found: Sequence[Shares] | None = None) -> list[dict[str, Cell]]:
    """A row per worker: shares in percent, what it waits for, samples."""
    out: list[dict[str, Cell]] = []
    for worker in shares(schedule, *seconds) if found is None else found:
        row: dict[str, Cell] = {"worker": worker.worker}
        row |= {f"{name} %": _percent(getattr(worker, name)) for name in ACTIVITIES}
        row["hidden %"] = _percent(worker.hidden)
        row["waits for"] = causes(worker)
        row["samples"] = worker.samples
        out.append(row)
    return out


def side_by_side(schedules: Mapping[str, Schedule], seconds: Mapping[str, Seconds]) -> list[dict[str, Cell]]:
    """A row per worker and activity: its share in each run in percent, and the difference of the last from the first in points."""
    found = {side: {w.worker: w for w in shares(schedule, *seconds[side])} for side, schedule in schedules.items()}
    sides = list(found)
    out: list[dict[str, Cell]] = []
    for worker in found[sides[0]]:
        for activity in ("compute", *_idle(found, worker), "other"):
            row: dict[str, Cell] = {"worker": worker, "activity": _named(activity)}
            parts = [_part(found[side].get(worker), activity) for side in sides]
            row |= {f"{side} %": _percent(part) for side, part in zip(sides, parts, strict=True)}
            first, last = parts[0], parts[-1]
            row["difference, points"] = None if first is None or last is None else round(100 * (last - first), 1)
            out.append(row)
    return out


def _idle(found: Mapping[str, Mapping[str, Shares]], worker: str) -> list[str]:
    """Causes that matter in any run."""
    return [c for c in SAID if any(w[worker].causes[c] >= LITTLE for w in found.values() if worker in w)]


def _named(cause: str) -> str:
    if cause not in SAID:
        return cause
    return f"{'communication' if cause in TRAVELLING else 'waiting'}: {SAID[cause]}"


def _part(worker: Shares | None, activity: str) -> float | None:
    if worker is None:
        return None
    part: float = worker.causes[activity] if activity in SAID else getattr(worker, activity)
    return part


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
