"""The row of figures at the top of Explore, each beside what it was for the pinned baseline. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hetsim import wording
from hetsim.comparison import Comparison, Row
from hetsim.verdict import fastest
from hetsim.webapp.tables import relative

NO_CHANGE = "no change"  # as far as the change is said


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: what it is called, its value, its change, whether more is better, and what it means."""

    label: str
    value: str
    delta: str | None = None
    sense: Literal["normal", "inverse"] = "normal"
    means: str = ""

    @property
    def directed(self) -> bool:
        """Whether the change is one up or down; words and no change at all are neither good nor bad, and point nowhere."""
        return self.delta is not None and self.delta[0] in "+-"


def figures(c: Comparison, pinned: Comparison | None = None) -> list[Figure]:
    """The figures of a comparison, with changes where there is a baseline."""
    row = leading(c)
    before = None if pinned is None else leading(pinned)
    best = _best_of_ours(c)
    best_before = None if pinned is None else _best_of_ours(pinned)
    return [
        Figure(
            label="Time to target",
            value=wording.seconds(row.seconds) if math.isfinite(row.seconds) else "not reached",
            delta=None if before is None else percent(row.seconds, before.seconds),
            sense="inverse",
            means=f"Simulated time of the fastest until the target: {c.target.metric}, a loss of {c.target.value:.4g}.",
        ),
        Figure(
            label=f"{best.name} / best baseline" if best else "Ours / best baseline",
            value=_times(best),
            delta=None if best_before is None or best is None else _gain(best, best_before),
            means=f"Time of the best baseline ({c.best_baseline or 'none reaches the target'}) over that of the fastest of ours; "
            "above 1 ours is faster.",
        ),
        Figure(
            label="Samples/s of the fastest",
            value=wording.rate(row.samples_per_s),
            delta=None if before is None else percent(row.samples_per_s, before.samples_per_s),
            means=f"Samples per second of {row.name}, over all workers. More samples are not more progress.",
        ),
        Figure(
            label="Busy, of the fastest",
            value=wording.percent(row.utilisation),
            delta=None if before is None else signed(100 * (row.utilisation - before.utilisation), 0, " points"),
            means=f"Share of the workers' time that is computation, with {row.name}.",
        ),
    ]


def leading(c: Comparison) -> Row:
    """The fastest row; where none reaches the target, that with the most samples a second."""
    return fastest(c.algorithms) or max(c.algorithms, key=lambda row: row.samples_per_s)


def percent(now: float, before: float) -> str | None:
    """`+12 %`; words where one of the two did not reach the target."""
    change = relative(now, before)
    if change is not None:
        return signed(change, 1 if abs(change) < 9.95 else 0, " %")
    if math.isinf(now) and math.isinf(before):
        return None
    return "was not reached" if math.isinf(before) else "was reached"


def signed(change: float, digits: int, unit: str = "") -> str:
    """`+0.3 %`, or `no change` where so many digits show none."""
    text = f"{change:+.{digits}f}"
    return f"{text}{unit}" if float(text) else NO_CHANGE


def against(c: Comparison, pinned: Comparison) -> str:
    """One sentence: the what-if against the baseline."""
    now, before = leading(c), leading(pinned)
    if not math.isfinite(before.seconds):
        return (
            "The baseline does not reach the target." if math.isfinite(now.seconds) else "Neither reaches the target."
        )
    if not math.isfinite(now.seconds):
        return "The what-if does not reach the target; the baseline does."
    ratio = before.seconds / now.seconds
    if abs(ratio - 1) < 0.005:
        said = "as long as"
    else:
        said = f"{ratio:.2f}× as fast as" if ratio > 1 else f"{1 / ratio:.2f}× as long as"
    who = f"{now.name}" if now.name == before.name else f"{now.name} instead of {before.name}"
    return (
        f"What-if against baseline: {wording.seconds(now.seconds)} instead of {wording.seconds(before.seconds)}, "
        f"{said} the baseline ({who})."
    )


def _best_of_ours(c: Comparison) -> Row | None:
    return fastest([row for row in c.algorithms if row.role == "ours"])


def _times(row: Row | None) -> str:
    speedup = None if row is None else row.speedup_over_best_baseline
    return wording.NONE if speedup is None or speedup.value is None else f"{speedup.value:.2f}×"


def _gain(now: Row, before: Row) -> str | None:
    one, other = now.speedup_over_best_baseline, before.speedup_over_best_baseline
    if one is None or other is None or one.value is None or other.value is None:
        return None
    return signed(one.value - other.value, 2)
