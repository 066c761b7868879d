"""A sweep on one page: who wins, where ABS-SGD pays, and a map of it over two fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim import page, wording
from hetsim.sweeps.summary import QUANTILES, Summary, summarise

if TYPE_CHECKING:
    import pyarrow as pa
    from plotly import graph_objects as go

SPAN = 3.0  # the colours go from a third to three times the speed of the best baseline [our choice]
TICKS = (1 / 3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)


def steady_note(table: pa.Table) -> str:
    """Which way the figures came about, and what the short way costs in accuracy; nothing where all rows are full."""
    return steady_count_note(sum(method == "steady" for method in table["method"].to_pylist()), table.num_rows)


def steady_count_note(steady: int, rows: int) -> str:
    """The same of so many rows."""
    if not steady:
        return ""
    return (
        f"{steady:,} of {rows:,} rows are from the steady state of a short run. In ten cells that were checked against hetsim "
        "compare, times to target differed by at most 1.4 % in the median of an algorithm and by 9 % at most (docs/sweeps.md). "
        "--method full computes every cell as compare does."
    )


def report_html(table: pa.Table, fields: Sequence[str], document: Mapping[str, Any], profile_yaml: str) -> str:
    """The page. `document`: command and versions."""
    found = summarise(table, fields)
    title = f"Sweep over {', '.join(fields)}"
    way = steady_note(table) or "Every cell as hetsim compare computes it."
    figures = []
    for gain in found.gains:
        made = speedup_map(table, fields, gain.algorithm)
        if made is not None:
            figures.append(page.figure(made, f"{gain.algorithm}: speed over the best baseline"))
    return page.whole(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            page.section("Who is fastest", page.table(("algorithm", "cells", "share"), _wins(found))),
            page.section("Speed over the best baseline", page.table(GAIN_HEADS, _gains(found)), *figures),
            page.section("How this was computed", f"<p>{way}</p>"),
            page.reproduce(document, profile_yaml),
        ],
    )


GAIN_HEADS = ("algorithm", "pays in", "of cells", *(f"{100 * q:.0f} %" for q in QUANTILES))


def _wins(found: Summary) -> list[list[str]]:
    rows = [[label, f"{cells:,}", wording.percent(cells / found.cells)] for label, cells in found.wins.items()]
    return (
        [*rows, ["nobody", f"{found.nobody:,}", wording.percent(found.nobody / found.cells)]] if found.nobody else rows
    )


def _gains(found: Summary) -> list[list[str]]:
    rows = []
    for gain in found.gains:
        ratios = [f"{q:.2f}×" for q in gain.quantiles] or [wording.NONE] * len(QUANTILES)
        rows.append([gain.algorithm, f"{gain.pays:,}", f"{gain.cells:,}", *ratios])
    return rows


def speedup_map(table: pa.Table, fields: Sequence[str], label: str) -> go.Figure | None:
    """Speed of one algorithm over the best baseline of its cell, as colour over the two fields with the most values, or as a line over one;
    None where nothing can be drawn. Cells of other fields lie on top of each other."""
    from plotly import graph_objects as go

    from hetsim import look

    algorithms = table["algorithm"].to_pylist()
    chosen = [i for i, name in enumerate(algorithms) if name == label]
    columns = {f: table[f].to_pylist() for f in ("speedup", *fields)}
    speedup = np.array([math.nan if (s := columns["speedup"][i]) is None else s for i in chosen])
    values = {f: [columns[f][i] for i in chosen] for f in fields}
    numeric = [f for f in fields if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values[f])]
    numeric = sorted((f for f in numeric if len(set(values[f])) > 1), key=lambda f: -len(set(values[f])))[:2]
    if not numeric or not np.isfinite(speedup).any():
        return None
    made = look.figure(420)
    x = numeric[0]
    made.update_xaxes(title=x, type=_scale(values[x]))
    if len(numeric) == 1:
        made.add_trace(go.Scatter(x=values[x], y=speedup, mode="markers", marker={"color": look.BLUE, "size": 8}))
        made.add_hline(y=1.0, line={"color": look.GREY, "dash": "dot"})
        made.update_yaxes(title="times the speed of the best baseline")
        return made
    y = numeric[1]
    bar = {"title": "speed", "tickvals": [math.log2(t) for t in TICKS], "ticktext": [f"{t:.2g}×" for t in TICKS]}
    marker = {
        "color": np.log2(speedup),
        "cmid": 0.0,
        "cmin": -math.log2(SPAN),
        "cmax": math.log2(SPAN),
        "colorscale": look.DIVERGING,
        "colorbar": bar,
        "size": 9,
        "line": {"color": "#8C8C8C", "width": 0.5},
    }
    text = [wording.NONE if math.isnan(s) else f"{s:.2f}×" for s in speedup.tolist()]
    made.add_trace(go.Scatter(x=values[x], y=values[y], mode="markers", marker=marker, text=text, showlegend=False))
    made.update_yaxes(title=y, type=_scale(values[y]))
    return made


def _scale(values: Sequence[Any]) -> str:
    """Logarithmic where the values span a decade."""
    return "log" if min(values) > 0 and max(values) >= 10 * min(values) else "linear"
