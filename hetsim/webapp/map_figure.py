"""The picture of a map: colour for the speed-up, a letter for who is fastest, stripes where there is no number. Pure.

Cells stand at equal distances whatever the values of an axis, so that lists and logarithmic ranges look alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from plotly import graph_objects as go

from hetsim import look, wording
from hetsim.speedup_map import MapCell, SpeedupMap
from hetsim.sweeps.page import SPAN, TICKS
from hetsim.webapp.mapping import said

NO_NUMBER = "#D0D0D0"
EDGE = "#A8327F"  # tells itself from every cell, and from a light and a dark page, by 3 : 1 or nearly
MOST_NUMBERED = 10  # columns up to which a cell has room for a number on a narrow screen [our choice]
CELL_PX, LEAST_PX, MOST_PX = 58, 300, 640  # height of a row, of the figure
CLOSE = "≈"


def letters(m: SpeedupMap) -> dict[str, str]:
    """A letter for every label: the first of its own that is free; the map's algorithm chooses first, then who wins most."""
    out: dict[str, str] = {}
    for label in dict.fromkeys((m.label, *m.wins, *m.labels)):
        own = [c for c in label.upper() if c.isalpha()] + list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        out[label] = next((c for c in own if c not in out.values()), "?")
    return {label: out[label] for label in m.labels}


def figure(m: SpeedupMap, x_title: str, y_title: str, chosen: tuple[int, int] | None = None) -> go.Figure:
    """The map. Points of the trace `cells` carry (i, j) of their cell, for clicks."""
    columns, rows = len(m.x_values), len(m.y_values)
    made = look.figure(min(MOST_PX, max(LEAST_PX, CELL_PX * rows + 150)))
    signs = letters(m)
    _colours(made, m)
    _stripes(made, m)
    _line_at_one(made, m)
    _points(made, m, x_title, y_title)
    for label, cells in m.wins.items():
        _legend_only(made, f"{signs[label]}: {label} is fastest in {cells} of {columns * rows}")
    if any(cell.winner and not cell.clear for row in m.cells for cell in row):
        _legend_only(made, f"{CLOSE}: leads by under 1 %")
    made.update_layout(annotations=_texts(m, signs), dragmode=False, hovermode="closest", hoverdistance=-1)
    made.update_xaxes(fixedrange=True)
    made.update_yaxes(fixedrange=True)
    made.update_xaxes(
        title_text=x_title,
        showgrid=False,
        zeroline=False,
        range=[-0.5, columns - 0.5],
        **_ticks(m.x_values),
    )
    made.update_yaxes(
        title_text=y_title,
        showgrid=False,
        zeroline=False,
        range=[-0.5, rows - 0.5],
        **_ticks(m.y_values),
    )
    if chosen is not None:
        i, j = chosen
        edge = {"x0": i - 0.5, "x1": i + 0.5, "y0": j - 0.5, "y1": j + 0.5}
        made.add_shape(type="rect", **edge, line={"color": "#101010", "width": 4})
        made.add_shape(type="rect", **edge, line={"color": "#FFFFFF", "width": 1.5})
    return made


def _ticks(values: Sequence[Any]) -> dict[str, Any]:
    return {"tickvals": list(range(len(values))), "ticktext": [said(value) for value in values]}


def _colours(made: go.Figure, m: SpeedupMap) -> None:
    values = m.speedup
    place: dict[str, Any] = {
        "x": list(range(len(m.x_values))),
        "y": list(range(len(m.y_values))),
        "xgap": 1,
        "ygap": 1,
        "hoverinfo": "skip",
    }
    none = np.array([[math.isnan(cell.speedup) and not cell.pending for cell in row] for row in m.cells])
    if none.any():
        blank = np.where(none, 0.0, np.nan)
        made.add_heatmap(z=blank, colorscale=[[0, NO_NUMBER], [1, NO_NUMBER]], showscale=False, **place)
    bar = {
        "title": {"text": "speed over the best baseline", "side": "top"},
        "tickvals": [math.log2(t) for t in TICKS],
        "ticktext": [f"{t:.2g}×" for t in TICKS],
        "orientation": "h",
        "y": 1.02,
        "yanchor": "bottom",
        "thickness": 10,
        "len": 1.0,
    }
    most = math.log2(SPAN)
    made.add_heatmap(
        z=np.log2(values),
        zmid=0.0,
        zmin=-most,
        zmax=most,
        colorscale=look.DIVERGING,
        colorbar=bar,
        name="speed-up",
        **place,
    )


def _stripes(made: go.Figure, m: SpeedupMap) -> None:
    """Stripes over every cell without a number."""
    x: list[float | None] = []
    y: list[float | None] = []
    for j, row in enumerate(m.cells):
        for i, cell in enumerate(row):
            if math.isnan(cell.speedup) and not cell.pending:
                for shift in (-0.5, 0.0, 0.5):
                    a, b = max(-0.5, shift - 0.5), min(0.5, shift + 0.5)
                    x += [i + a, i + b, None]
                    y += [j + a - shift, j + b - shift, None]
    if x:
        made.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"color": "#707070", "width": 1},
            name="no number; the cell's text says why",
            hoverinfo="skip",
        )


def _line_at_one(made: go.Figure, m: SpeedupMap) -> None:
    """Along the edges of cells between faster and slower than the best baseline; no number is made up between cells."""
    x: list[float | None] = []
    y: list[float | None] = []
    for j, row in enumerate(m.cells):
        for i, cell in enumerate(row):
            if i + 1 < len(row) and _parted(cell, row[i + 1]):
                x += [i + 0.5, i + 0.5, None]
                y += [j - 0.5, j + 0.5, None]
            if j + 1 < len(m.cells) and _parted(cell, m.cells[j + 1][i]):
                x += [i - 0.5, i + 0.5, None]
                y += [j + 0.5, j + 0.5, None]
    if x:
        line = {"color": EDGE, "width": 4}
        made.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name="1×: from here on faster, or slower")


def _parted(one: MapCell, other: MapCell) -> bool:
    values = one.speedup, other.speedup
    return not any(map(math.isnan, values)) and min(values) < 1.0 <= max(values)


def _points(made: go.Figure, m: SpeedupMap, x_title: str, y_title: str) -> None:
    """What is hovered and clicked: invisible squares."""
    cells = _there(m)
    clear = {"color": "rgba(0,0,0,0)", "symbol": "square", "size": 28}
    made.add_scatter(
        x=[i for i, _, _ in cells],
        y=[j for _, j, _ in cells],
        customdata=[[i, j] for i, j, _ in cells],
        text=[
            f"{x_title}: {said(cell.x)}<br>{y_title}: {said(cell.y)}<br>{'<br>'.join(words(m, cell))}"
            for _, _, cell in cells
        ],
        mode="markers",
        marker=clear,
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        name="cells",
    )


def words(m: SpeedupMap, cell: MapCell) -> list[str]:
    """What a cell says, a sentence each."""
    seconds = dict(cell.seconds)
    out = (
        [cell.why] if cell.why else [f"{m.label}: {cell.speedup:.2f}× the speed of {cell.baseline}, the best baseline"]
    )
    if cell.winner is None:
        return out
    out.append(f"fastest: {cell.winner}, {wording.seconds(seconds[cell.winner])} to the target")
    return out if cell.clear else [*out, "its lead over the next is under 1 %: no clear winner"]


def _texts(m: SpeedupMap, signs: dict[str, str]) -> list[dict[str, Any]]:
    numbered = len(m.x_values) <= MOST_NUMBERED
    out = []
    for i, j, cell in _there(m):
        sign = "–" if cell.winner is None else f"<b>{signs[cell.winner]}</b>{'' if cell.clear else CLOSE}"
        number = f"<br>{cell.speedup:.2f}" if numbered and not math.isnan(cell.speedup) else ""
        font = {"size": 12, "color": ink(cell.speedup)}
        out.append({"x": i, "y": j, "text": sign + number, "showarrow": False, "font": font})
    return out


def _there(m: SpeedupMap) -> list[tuple[int, int, MapCell]]:
    """(i, j, cell) of all cells that are computed."""
    return [(i, j, cell) for j, row in enumerate(m.cells) for i, cell in enumerate(row) if not cell.pending]


def ink(speedup: float) -> str:
    """Black or white, what reads better on a cell's colour."""
    bright = _luminance(colour(speedup))
    return "#FFFFFF" if 1.05 / (bright + 0.05) > (bright + 0.05) / 0.05 else "#000000"


def colour(speedup: float) -> tuple[float, float, float]:
    """A cell's colour, red green blue from 0 to 1."""
    if math.isnan(speedup):
        return _rgb(NO_NUMBER)
    share = 0.5 + 0.5 * min(max(math.log2(speedup) / math.log2(SPAN), -1.0), 1.0)
    (_, low), (_, middle), (_, high) = look.DIVERGING
    one, other, part = (low, middle, 2 * share) if share < 0.5 else (middle, high, 2 * share - 1)
    a, b = _rgb(one), _rgb(other)
    return tuple(p + (q - p) * part for p, q in zip(a, b, strict=True))  # type: ignore[return-value]


def _rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(text[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _luminance(rgb: tuple[float, float, float]) -> float:
    """Relative luminance (WCAG 2.2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _legend_only(made: go.Figure, name: str) -> None:
    made.add_scatter(x=[None], y=[None], mode="markers", marker={"color": "rgba(0,0,0,0)", "size": 1}, name=name)


def described(m: SpeedupMap, x_title: str, y_title: str) -> str:
    """The map in words, for those who do not see it."""
    subject = f"Map of the speed-up of {m.label} over the best baseline, over {x_title} and {y_title}."
    return f"{subject} Not complete yet." if m.pending else f"{subject} {m.sentence()}"
