"""Sweeps and their estimates for the screen and as documents."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from hetsim import wording
from hetsim.cli.tables import grid
from hetsim.comparison import plain

if TYPE_CHECKING:
    from hetsim.sweeps import Sweep
    from hetsim.sweeps.estimate import Estimate
    from hetsim.sweeps.summary import Gain, Summary, Trend

DOCUMENT_VERSION = 1
MOST_CELLS = 12  # told one by one [our choice]


def document(sweep: Sweep) -> dict[str, Any]:
    """One JSON document: the specification, the summary and every row."""
    return {
        "schema_version": DOCUMENT_VERSION,
        "specification": sweep.spec.document(sweep.spec.profile.name),
        "summary": plain(sweep.summary()),
        "rows": plain(sweep.rows()),
    }


def estimate_document(expected: Estimate) -> dict[str, Any]:
    """The estimate as JSON."""
    return {"schema_version": DOCUMENT_VERSION, **plain(expected)}


def estimate(expected: Estimate) -> list[Any]:
    """What a sweep would take."""
    lines = [f"{expected.cells:,} cells × {expected.algorithms} algorithms = {expected.rows:,} rows"]
    if expected.todo < expected.cells:
        lines.append(f"{expected.todo:,} cells are left to compute")
    if expected.cell_s:
        low, high = min(expected.cell_s), max(expected.cell_s)
        lines.append(
            f"{wording.seconds(low)} to {wording.seconds(high)} a cell on one core ({len(expected.cell_s)} cells timed here)"
        )
    if expected.seconds is not None and expected.todo:
        lines.append(f"about {wording.seconds(expected.seconds)} on {expected.processes} processes")
    lines.append(f"at most {max(expected.size_bytes / 1e6, 0.1):.1f} MB as Parquet; nothing was written")
    return lines


def summary(sweep: Sweep) -> list[Any]:
    """The cells where they are few; who wins where, and where what is not a baseline pays."""
    from hetsim.sweeps.page import steady_note

    found = sweep.summary()
    out: list[Any] = [_cells(sweep), ""] if sweep.spec.cells <= MOST_CELLS else []
    out.append(_wins(found))
    if found.nobody:
        out.append(f"In {found.nobody:,} cells nobody reaches the target.")
    if found.gains:
        out += ["", _gains(found.gains), ""]
    if sweep.spec.cells > 1:
        out += [_trend(trend) for trend in found.trends]
    note = steady_note(sweep.table)
    return [*out, *(["", note] if note else [])]


def _cells(sweep: Sweep) -> Table:
    """The swept values of every cell, who is the fastest there, and its time."""
    fields, by_cell = sweep.spec.fields, itertools.groupby(sweep.rows(), key=lambda row: row["cell"])
    last = len(fields) + 2
    table = grid("cell", *fields, "fastest", "to target", right=frozenset({0, last}))
    for cell, rows in by_cell:
        best = min(rows, key=lambda row: math.inf if row["seconds"] is None else row["seconds"])
        won = best["seconds"] is not None
        end = (best["algorithm"], wording.seconds(best["seconds"])) if won else (wording.NONE, "not reached")
        table.add_row(str(cell), *(Text(_short(best[field])) for field in fields), *end)
    return table


def _wins(found: Summary) -> Table:
    table = grid("fastest", f"of {found.cells:,} cells", "share", right=frozenset({1, 2}))
    for label, cells in found.wins.items():
        table.add_row(label, f"{cells:,}", f"{100 * cells / found.cells:.0f} %")
    return table


def _gains(gains: tuple[Gain, ...]) -> Table:
    names = ("over the best baseline", "pays in", "least", "10 %", "median", "90 %", "most", "in cell")
    table = grid(*names, right=frozenset(range(1, 8)))
    for gain in gains:
        q = [f"{value:.2f}×" for value in gain.quantiles] or [wording.NONE] * 7
        alone = f" +{gain.alone:,}" if gain.alone else ""
        best = wording.NONE if gain.best is None else str(gain.best)
        table.add_row(gain.algorithm, f"{gain.pays:,} of {gain.cells:,}{alone}", q[0], q[1], q[3], q[5], q[6], best)
    return table


def _trend(trend: Trend) -> str:
    bands = []
    for low, high, cells, pays in trend.bands:
        span = _short(low) if low == high else f"{_short(low)}–{_short(high)}"
        bands.append(f"{span}: {pays}/{cells}")
    return f"{trend.algorithm} pays, by {trend.field}: {', '.join(bands)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
