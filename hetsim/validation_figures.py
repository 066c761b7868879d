"""Losses of a validation: predicted and measured, of several runs the median in a band from the lowest to the highest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from plotly import graph_objects as go

from hetsim import look, plots
from hetsim.convergence.predictor import Curve

Axis = Literal["seconds", "samples"]
Band = tuple[Curve, Curve, Curve]  # lowest, median, highest
HEIGHT_PX = 420  # two stand side by side on a wide screen
OURS = ("measured",)  # drawn as the line that counts


def losses(curves: Sequence[Mapping[str, Curve]], axis: Axis, target: float | None) -> go.Figure:
    """Against seconds or samples; each of `curves` has those of one run by side."""
    # The dashed line of the prediction over the measured one: where it holds they are the same, and both have to be seen.
    sides = sorted(curves[0], key=lambda side: side not in OURS)
    bands = {side: band([run[side] for run in curves], axis) for side in sides}
    figure = plots.loss({side: made[1] for side, made in bands.items()}, target=target, against=axis, ours=OURS)
    figure.update_layout(height=HEIGHT_PX)
    figure.update_xaxes(title_text=figure.layout.xaxis.title.text.replace("simulated time", "time"))
    if len(curves) > 1:
        _add_bands(figure, bands, axis)
    return figure


def band(curves: Sequence[Curve], axis: Axis) -> Band:
    """(lowest, median, highest) loss at as many points of the axis as the first curve has, as far as the shortest goes."""
    if len(curves) == 1:
        return (curves[0],) * 3
    columns = [curve.time_s if axis == "seconds" else curve.samples.astype(float) for curve in curves]
    at = np.linspace(0.0, min(float(column[-1]) for column in columns), len(columns[0]))
    found = np.array([np.interp(at, x, curve.loss) for x, curve in zip(columns, curves, strict=True)])
    updates, samples, time_s = (
        np.interp(at, columns[0], getattr(curves[0], name)) for name in ("updates", "samples", "time_s")
    )
    diverged = any(curve.diverged for curve in curves)
    low, middle, high = (
        dataclasses.replace(
            curves[0],
            updates=updates.astype(np.int64),
            samples=samples.astype(np.int64),
            time_s=time_s,
            loss=loss,
            diverged=diverged,
        )
        for loss in (found.min(axis=0), np.median(found, axis=0), found.max(axis=0))
    )
    return low, middle, high


def _add_bands(figure: go.Figure, bands: Mapping[str, Band], axis: Axis) -> None:
    ends_s = [float(made[1].time_s[-1]) for made in bands.values()]
    divisor = look.time_unit(ends_s)[1] if axis == "seconds" else 1.0
    style = plots.styles(list(bands), OURS)
    for side, (low, _, high) in bands.items():
        x = (low.time_s if axis == "seconds" else low.samples.astype(float)) / divisor
        figure.add_scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([low.loss, high.loss[::-1]]),
            fill="toself",
            fillcolor=style[side]["color"],
            opacity=0.25,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )
