"""The study's figure: how many times as fast as the best baselines ABS-SGD is, and every algorithm's time over a lower bound.

python benchmarks/study/figure.py study docs/images/study.svg     (needs kaleido and a Chromium)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from design import KINDS, OWN, SIZES
from plotly import graph_objects as go
from plotly.subplots import make_subplots
from results import COMPARED, Piece, best_of, cluster, ratio, read

from hetsim import look

COLOURS = (look.BLUE, look.VERMILLION, look.GREEN)
SYMBOLS = ("circle", "diamond", "square-open")
EDGE = 1.6  # times the longest of all that reach the target: there stand those that do not
FONT_SIZE = 13


def drawn(pieces: Sequence[Piece], size: int = 4) -> go.Figure:
    """Both panels."""
    figure = make_subplots(
        1, 2, column_widths=[0.46, 0.54], horizontal_spacing=0.24,
        subplot_titles=("ABS-SGD: times as fast as …", f"time to target over T*, {size} workers"),
    )  # fmt: skip
    _ratios(figure, pieces)
    _distances(figure, pieces, size)
    look.dress(figure, 560, width=1100, margin={"l": 8, "r": 16, "t": 40, "b": 90})
    figure.update_annotations(font_size=FONT_SIZE + 1)
    return figure


def _ratios(figure: go.Figure, pieces: Sequence[Piece]) -> None:
    there = [(size, kind) for size in SIZES for kind in KINDS if cluster(pieces, kind, size)]
    labels = [f"{size} workers, {kind}" for size, kind in there]
    for (name, which), colour, symbol in zip(COMPARED, COLOURS, SYMBOLS, strict=True):
        found = [
            ratio(cluster(pieces, kind, size), best_of(cluster(pieces, kind, size), which), OWN) for size, kind in there
        ]
        known = [
            (label, one)
            for label, one in zip(labels, found, strict=True)
            if one is not None and math.isfinite(one.median)
        ]
        figure.add_scatter(
            x=[one.median for _, one in known], y=[label for label, _ in known], mode="markers", name=f"… the {name}",
            marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
            error_x={
                "type": "data", "symmetric": False, "thickness": 1.5, "color": colour,
                "array": [(one.high or one.median) - one.median for _, one in known],
                "arrayminus": [one.median - (one.low or one.median) for _, one in known],
            },
            row=1, col=1,
        )  # fmt: skip
    figure.add_vline(x=1.0, line={"color": "#1f2328", "width": 1}, row=1, col=1)
    ticks = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0]
    figure.update_xaxes(
        type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks], title="slower  ←  1  →  faster", row=1, col=1
    )
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], row=1, col=1)


def _distances(figure: go.Figure, pieces: Sequence[Piece], size: int) -> None:
    by_name: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for piece in cluster(pieces, kind, size):
            by_name.setdefault(piece.name, {})[kind] = _over_least(piece)
    edge = EDGE * max(v for values in by_name.values() for v in values.values() if math.isfinite(v))
    logs = {name: [math.log(min(v, edge)) for v in values.values()] for name, values in by_name.items()}
    names = sorted(by_name, key=lambda name: (sum(logs[name]) / len(logs[name]), name), reverse=True)
    for kind, colour, symbol in zip(
        KINDS, (look.ORANGE, look.PURPLE, "#1f2328"), ("triangle-up", "x", "circle-open"), strict=True
    ):
        figure.add_scatter(
            x=[min(by_name[name].get(kind, math.nan), edge) for name in names], y=[_short(name) for name in names], mode="markers",
            name=kind, marker={"color": colour, "symbol": symbol, "size": 9, "line": {"width": 1.5, "color": colour}}, row=1, col=2,
        )  # fmt: skip
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 200) if t * EDGE < edge * 1.01]
    texts = [*(f"{t:g}" for t in ticks), "not<br>reached"]
    title = "T*: a lower bound for any method there, known up to a constant"
    figure.update_xaxes(type="log", tickvals=[*ticks, edge], ticktext=texts, title=title, row=1, col=2)


def _over_least(piece: Piece) -> float:
    """T/T*; infinite where the target was not reached."""
    if piece.best is None or not math.isfinite(piece.median):
        return math.inf
    return float(piece.best["row"]["over_least"])


def _short(name: str) -> str:
    """The name, an option in brackets."""
    base, _, option = name.partition(":compute_point=")
    return f"{base} ({option})" if option else base


if __name__ == "__main__":
    drawn(read(Path(sys.argv[1]))).write_image(sys.argv[2])
