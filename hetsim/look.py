"""One look for all figures: colours, fonts, where the legend is.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; patterns, dashes and labels say the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

# Okabe & Ito, Color Universal Design, 2008; yellow left out, as it vanishes on white.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#8C8C8C",
)
CYCLE = (ORANGE, GREEN, PURPLE, SKY, GREY, "#000000")
OURS = (BLUE, VERMILLION)
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
DIVERGING = ((0.0, VERMILLION), (0.5, "#f0f0f0"), (1.0, BLUE))  # slower, as fast, faster
ACTIVITIES = {"compute": (BLUE, ""), "communication": (ORANGE, "/"), "waiting": ("#D9D9D9", ".")}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty figure, dressed."""
    made = go.Figure()
    dress(made, height, **layout)
    return made


def dress(made: go.Figure, height: int, **layout: Any) -> None:
    """One look for all figures; legends below, so that a narrow screen keeps its width for the plot."""
    base: dict[str, Any] = {
        "template": "plotly_white",
        "height": height,
        "font": {"family": FONT, "size": 13, "color": "#1f2328"},
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "hoverlabel": {"namelength": -1},
    }
    made.update_layout(**(base | layout))
    made.update_xaxes(automargin=True, title_font_size=12, tickfont_size=12)
    made.update_yaxes(automargin=True, title_font_size=12, tickfont_size=12)


def time_unit(ends: Sequence[float]) -> tuple[str, float]:
    """Of an axis that ends there: its name, and seconds in one."""
    longest = max(ends, default=0.0)
    return ("h", 3600.0) if longest > 3 * 3600 else ("min", 60.0) if longest > 300 else ("s", 1.0)
