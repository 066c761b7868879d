"""Why a row is fast or slow, as cells of a table: its yardsticks (`hetsim.yardsticks`) and who contributes how much.

Rows are plain values, as in a comparison's JSON; documents of earlier versions have no yardsticks and show none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetsim import wording

Row = Mapping[str, Any]
MEANINGS = {
    "batch / critical": (
        "samples per update over the gradient noise scale: far below 1 every sample counts, above 1 more samples hardly save updates"
    ),
    "rate × curvature (bound)": (
        "learning rate times the quadratic model's largest curvature, in brackets the largest stable value at this momentum and "
        "delay: beyond it training diverges"
    ),
    "period / ideal": (
        "time per update over the least these workers need for its samples, in large passes, without waiting, over a free network; "
        "1 cannot be beaten"
    ),
    "T / T*": (
        "time to target over T*, the least of any method on these workers, known up to a constant: compare it between rows and clusters "
        "(Tyurin & Richtárik 2023)"
    ),
}
NETWORK = "all-reduce / critical"
NETWORK_MEANS = (
    "one all-reduce over the time in which these workers, none waiting, compute a critical batch: on clusters drawn at random, in the "
    "model, an open batch beat balanced batches of one delay mostly where it is over 3.6"
)
WHO = "share of samples"
WHO_MEANS = "who contributes how much of what the updates sum"
ALIKE = 0.005  # of shares said together [our choice]
MOST_SHARES = 6  # groups of equal shares named in a cell


def yardstick_cells(row: Row) -> dict[str, str]:
    """Column -> cell, in the order of MEANINGS."""
    y = row.get("yardsticks") or {}
    stable, bound = y.get("rate_times_curvature"), y.get("stability_bound")
    cells = (
        ratio(y.get("batch_over_critical")),
        wording.NONE if stable is None else f"{stable:.3g} ({bound:.3g})",
        ratio(y.get("period_over_ideal")),
        ratio(y.get("time_over_least")),
    )
    return dict(zip(MEANINGS, cells, strict=True))


def shown(rows: Sequence[Row]) -> list[str]:
    """The yardsticks that some row has."""
    cells = [yardstick_cells(row) for row in rows]
    return [name for name in MEANINGS if any(row[name] != wording.NONE for row in cells)]


def ratio(value: float | None) -> str:
    """A yardstick's cell; a dash where it does not apply."""
    if value is None:
        return wording.NONE
    return f"{value:.2g}" if value < 0.0995 else f"{value:.2f}" if value < 9.995 else f"{value:,.0f}"


def shares(sample_share: Mapping[str, float]) -> str:
    """`a 48 %, b 24 %, c and d 14 % each`: the largest first, shares within half a per cent together; `25 % each` where all are."""
    order = list(sample_share)
    together: list[list[str]] = []
    for name in sorted(order, key=lambda name: -sample_share[name]):
        if not together or sample_share[together[-1][0]] - sample_share[name] > ALIKE:
            together.append([])
        together[-1].append(name)
    groups = [
        (sorted(names, key=order.index), wording.percent(sum(sample_share[name] for name in names) / len(names)))
        for names in together
    ]
    if len(groups) == 1 and len(order) > 1:
        return f"{groups[0][1]} each"
    parts = [_named(names, share, order) for names, share in groups]
    return ", ".join(parts[:MOST_SHARES]) + (", …" if len(parts) > MOST_SHARES else "")


def _named(names: Sequence[str], share: str, order: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} {share}"
    first = order.index(names[0])
    row = list(order[first : first + len(names)]) == list(names)
    who = " and ".join(names) if len(names) == 2 else f"{names[0]} to {names[-1]}" if row else f"{len(names)} workers"
    return f"{who} {share} each"


def notes(names: Sequence[str]) -> list[str]:
    """One line per column: what it means."""
    return [f"{name}: {MEANINGS[name]}" for name in names] + [f"{WHO}: {WHO_MEANS}"]
