"""Who wins, by how much, and what limits it: a comparison in sentences.

A lead counts where the paired interval of the ratio stays above 1 by more than MARGIN. The rival is the fastest row of another
algorithm, so that one method asked for with several options does not stand in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hetsim import wording
from hetsim.intervals import paired_ratio
from hetsim.labels import LITERAL_READING

if TYPE_CHECKING:
    from hetsim.comparison import Comparison, Row

MARGIN = 0.01  # [our choice] a predicted lead within 1 % is below what the models can tell
BASELINE = "baseline"


def fastest(rows: Sequence[Row]) -> Row | None:
    """The row with the least median time to target, the first of equals; None where none reached it."""
    reached = [row for row in rows if math.isfinite(row.seconds)]
    return min(reached, key=lambda row: row.seconds) if reached else None


def rival_of(leader: Row, rows: Sequence[Row]) -> Row | None:
    """The fastest row of another algorithm; where all rows are of one, the fastest other row."""
    others = [row for row in rows if row.algorithm != leader.algorithm] or [r for r in rows if r.name != leader.name]
    return fastest(others)


def seconds_by_seed(row: Row, seeds: int) -> list[float]:
    """Seconds on each seed, infinite where the target was not reached or the seed not tried."""
    tried = () if row.time_to_target_s is None else row.time_to_target_s.by_seed
    known = [math.inf if s is None else s for s in tried]
    return known + [math.inf] * (seeds - len(known))


def clear_winner(rows: Sequence[Row], seeds: int) -> Row | None:
    """The fastest row where it leads its rival on every count of the interval; None where it does not."""
    leader = fastest(rows)
    if leader is None:
        return None
    rival = rival_of(leader, rows)
    if rival is None:  # nothing else reached the target
        return leader
    ratio = paired_ratio(seconds_by_seed(rival, seeds), seconds_by_seed(leader, seeds))
    return leader if ratio is not None and ratio.low is not None and ratio.low > 1.0 + MARGIN else None


def times(value: float, low: float | None, high: float | None) -> str:
    """1.32× (1.30–1.35)."""
    text = f"{value:.2f}×"
    if low is None:
        return f"{text} (one seed, no interval)"
    top = "" if high is None or math.isinf(high) else f"{high:.2f}"
    return f"{text} ({low:.2f}–{top})"


def verdict(c: Comparison) -> str:
    """The sentences for a person."""
    rows: Mapping[str, Row] = {row.name: row for row in c.algorithms}
    parts = [*_lead(c, rows), *_literal(c, rows)]
    return " ".join(parts)


def _lead(c: Comparison, rows: Mapping[str, Row]) -> list[str]:
    leader = fastest(c.algorithms)
    if leader is None:
        return [f"None of the algorithms reaches the target within {c.cluster.training.max_samples:,} samples."]
    rival = rival_of(leader, c.algorithms)
    time = f"reaches the target in {wording.seconds(leader.seconds)}"
    if rival is None:
        alone = "" if len(rows) == 1 else ", the only one that does"
        return [f"{leader.name} {time}{alone}.", f"It is limited by {leader.limited_by}."]
    ratio = paired_ratio(seconds_by_seed(rival, len(c.seeds)), seconds_by_seed(leader, len(c.seeds)))
    by = "" if ratio is None else times(ratio.median, ratio.low, ratio.high)
    if c.winner is None:
        first = f"No clear winner: {leader.name} {time}, {by} as fast as {rival.name}, which is within what can be told apart."
    else:
        title = _title(c, rival)
        first = f"{leader.name} wins: it {time}, {by} as fast as {title}."
    return [first, f"{leader.name} is limited by {leader.limited_by}; {rival.name} by {rival.limited_by}."]


def _title(c: Comparison, rival: Row) -> str:
    return f"the best baseline, {rival.name}" if rival.name == c.best_baseline else f"the next, {rival.name}"


def _literal(c: Comparison, rows: Mapping[str, Row]) -> list[str]:
    """What the literal reading of the abstract gives, wherever it is in the comparison and not already named."""
    row = rows.get(LITERAL_READING)
    if row is None:
        return []
    name = f"The literal reading, {LITERAL_READING},"
    if not math.isfinite(row.seconds):
        far = (
            ""
            if row.tried_s is None
            else f" within {wording.seconds(row.tried_s)} ({row.tried_samples or 0:,} samples)"
        )
        return [f"{name} does not reach the target{far}."]
    speedup = row.speedup_over_best_baseline
    text = f"{name} takes {wording.seconds(row.seconds)}"
    if speedup is None or speedup.value is None:
        return [f"{text}."]
    return [f"{text}, {times(speedup.value, speedup.low, speedup.high)} the speed of the best baseline."]
