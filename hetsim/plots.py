"""Figures, as plotly objects; pure functions of results.

    loss               loss against seconds or samples, all algorithms
    timeline           what every worker does, at the start or in the steady state
    throughput         samples/s
    time_to_target     seconds to the target with their intervals
    result_plot, comparison_plot    what a notebook shows

Their look is in `hetsim.look`, timelines in `hetsim.timeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hetsim import look, wording
from hetsim.convergence.predictor import Curve
from hetsim.look import BLUE, CYCLE, DASHES, OURS
from hetsim.timeline import timeline as timeline
from hetsim.timeline import window_of as window_of

if TYPE_CHECKING:
    from hetsim.comparison import Comparison
    from hetsim.simulate import Result

LEAST_TICKS, MOST_TICKS = 4, 12  # of a logarithmic axis [our choice]
MOST_POINTS = 400  # of a drawn curve
TIMES_FASTEST = 4  # a loss figure ends at this many times the end of the fastest [our choice]
Rows = Sequence[Mapping[str, Any]]


# ---- learning ------------------------------------------------------------------------------------------------------------


def styles(labels: Iterable[str], ours: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A line style per label: ours solid and thick, baselines dashed."""
    mine = set(ours)
    out: dict[str, dict[str, Any]] = {}
    own = other = 0
    for label in labels:
        if label in mine:
            out[label] = {"color": OURS[own % len(OURS)], "dash": "solid" if own == 0 else DASHES[own % 5], "width": 3}
            own += 1
        else:
            out[label] = {
                "color": CYCLE[other % len(CYCLE)],
                "dash": DASHES[(other + other // len(CYCLE)) % 6],
                "width": 1.8,
            }
            other += 1
    return out


def loss(
    curves: Mapping[str, Curve],
    *,
    target: float | None = None,
    against: Literal["seconds", "samples"] = "seconds",
    ours: Iterable[str] = (),
    metric: str = "loss",
) -> go.Figure:
    """Loss of every algorithm against seconds or samples, until its end; the target as a line."""
    figure = look.figure(520)
    style = styles(curves, ours)
    logarithmic = (
        target is None or target > 0
    )  # a target of 0 ("nothing left to do") has no place on a logarithmic axis
    unit, divisor = look.time_unit([float(c.time_s[-1]) for c in curves.values() if len(c.time_s)])
    ends, starts, least = [], [], []
    for label, curve in curves.items():
        keep = _thinned(curve.loss, logarithmic)
        x = curve.time_s[keep] / divisor if against == "seconds" else curve.samples[keep].astype(float)
        reached = target is not None and curve.crossing(target) is not None
        name = label + (" (diverged)" if curve.diverged else "" if reached or target is None else " (not reached)")
        hover = f"{label}<br>%{{y:.4g}} after %{{x:,.4g}} {unit if against == 'seconds' else 'samples'}<extra></extra>"
        figure.add_scatter(x=x, y=curve.loss[keep], name=name, line=style[label], mode="lines", hovertemplate=hover)
        if len(x):
            starts.append(float(curve.loss[keep[0]]))
            least.append(float(curve.loss[keep].min()))
        if len(x) and reached:
            ends.append(float(x[-1]))
    if target is not None:
        figure.add_hline(y=target, line={"color": "#57606a", "width": 1, "dash": "dot"})
        figure.add_annotation(
            x=1,
            xref="paper",
            xanchor="right",
            y=np.log10(target) if logarithmic else target,
            yanchor="bottom",
            text=f"target {target:.3g}",
            showarrow=False,
        )
    title = f"simulated time, {unit}" if against == "seconds" else "samples"
    last = min(max(ends), TIMES_FASTEST * min(ends)) if ends else None
    figure.update_xaxes(title_text=title, rangemode="tozero", range=[0, 1.03 * last] if last else None)
    top, bottom = 1.25 * max(starts, default=1.0), 0.85 * min([*least, *([target] if target else [])], default=0.1)
    figure.update_yaxes(title_text=metric, rangemode="tozero", range=[0, top])
    if logarithmic:
        ticks = _log_ticks(bottom, top)
        span = [np.log10(bottom), np.log10(top)]
        figure.update_yaxes(type="log", range=span, tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    return figure


def _log_ticks(low: float, high: float) -> list[float]:
    """Four to twelve: powers of ten, or 1, 2, 5 of every decade, or all digits, or equal steps, the first of which there are as many."""
    first, last = int(np.floor(np.log10(low))), int(np.floor(np.log10(high)))
    decades = range(first, last + 1)
    step = 10 ** np.floor(np.log10(max(high - low, 1e-9 * high)))
    tries = [[float(f"1e{decade}") for decade in decades][:: 1 + len(decades) // MOST_TICKS]]
    tries += [[float(f"{d}e{decade}") for decade in decades for d in ds] for ds in ((1, 2, 5), (1, 2, 3, 4, 5, 6, 8))]
    if high < 100 * low:
        for each in (step, step / 2, step / 5, step / 10):
            tries.append([float(f"{k * each:.12g}") for k in range(int(low / each), int(high / each) + 2)])
    for values in tries:
        ticks = [value for value in values if low <= value <= high]
        if LEAST_TICKS <= len(ticks) <= MOST_TICKS:
            return ticks
    return ticks


def _thinned(values: Any, logarithmic: bool) -> Any:
    """Indices of the points to draw: finite ones, evenly thinned, first and last kept."""
    good = np.flatnonzero(np.isfinite(values) & ((np.asarray(values) > 0) | (not logarithmic)))
    if len(good) <= MOST_POINTS:
        return good
    return good[np.unique(np.linspace(0, len(good) - 1, MOST_POINTS).astype(int))]


# ---- bars over algorithms ------------------------------------------------------------------------------------------------


def throughput(rows: Rows) -> go.Figure:
    """Samples per second of every algorithm."""
    figure = look.figure(90 + 34 * len(rows), showlegend=False)
    text = [f"{wording.rate(r['samples_per_s'])}/s" for r in rows]
    hover = [f"{said}, busy {wording.percent(r['utilisation'])}" for said, r in zip(text, rows, strict=True)]
    _bars(figure, rows, [r["samples_per_s"] for r in rows], text, hover=hover)
    figure.update_xaxes(title_text="samples per second")
    return figure


def time_to_target(rows: Rows) -> go.Figure:
    """Seconds to the target, median and interval over seeds; not reached is said, never drawn."""
    times = [r.get("time_to_target_s") or {} for r in rows]
    medians = [t.get("median") for t in times]
    unit, divisor = look.time_unit([t.get("high") or t.get("median") or 0.0 for t in times])
    values = [None if m is None else m / divisor for m in medians]
    text = ["not reached" if m is None else wording.seconds(m) for m in medians]
    figure = look.figure(90 + 34 * len(rows), showlegend=False)
    above = [((t.get("high") or m) - m) / divisor if m is not None else 0 for t, m in zip(times, medians, strict=True)]
    below = [(m - (t.get("low") or m)) / divisor if m is not None else 0 for t, m in zip(times, medians, strict=True)]
    error = {"type": "data", "array": above, "arrayminus": below, "color": "#1f2328", "thickness": 1.4}
    _bars(figure, rows, values, text, error_x=error)
    figure.update_xaxes(title_text=f"{unit} to the target")
    return figure


def _bars(
    figure: go.Figure,
    rows: Rows,
    values: Sequence[float | None],
    text: Sequence[str],
    *,
    hover: Sequence[str] | None = None,
    **more: Any,
) -> None:
    """One horizontal bar per algorithm, the first on top; ours blue and solid, baselines grey and hatched; the value beside it."""
    ours = [r["role"] == "ours" for r in rows]
    ends = [0.0 if v is None else v for v in values]
    figure.add_bar(
        y=[_broken(r["name"]) for r in rows],
        x=ends,
        orientation="h",
        marker={
            "color": [BLUE if own else "#B8BDC4" for own in ours],
            "pattern": {
                "shape": ["" if own else "/" for own in ours],
                "fillmode": "overlay",
                "fgcolor": "#FFFFFF",
                "size": 6,
                "solidity": 0.25,
            },
        },
        hovertemplate="%{y}: %{customdata}<extra></extra>",
        customdata=list(hover or text),
        **more,
    )
    error = more.get("error_x")
    ends = [end + above for end, above in zip(ends, error["array"] if error else [0.0] * len(ends), strict=True)]
    for row, end, said in zip(rows, ends, text, strict=True):
        place = {"x": end, "y": _broken(row["name"]), "xanchor": "left", "xshift": 5}
        figure.add_annotation(text=said, showarrow=False, font={"size": 12}, **place)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, 1.6 * (max(ends, default=0.0) or 1.0)])  # room for the text on a narrow screen


def _broken(label: str) -> str:
    """A long label on two lines."""
    return label.replace(":", ":<br>", 1)


# ---- notebooks -----------------------------------------------------------------------------------------------------------


def result_plot(result: Result) -> go.Figure:
    """One run: its timeline in the steady state."""
    figure = timeline(result.schedule)
    figure.update_layout(title=f"{result.schedule.header.algorithm} on {result.cluster.name}", margin={"t": 48})
    return figure


def comparison_plot(comparison: Comparison) -> go.Figure:
    """A comparison: loss against seconds, and beside it against samples."""
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    ours = [row.name for row in comparison.algorithms if row.role == "ours"]
    titles = []
    for column, against in enumerate(("seconds", "samples"), start=1):
        one = loss(
            comparison.curves,
            target=comparison.target.value,
            against=against,  # type: ignore[arg-type]
            ours=ours,
            metric=comparison.target.metric,
        )
        titles.append(one.layout.xaxis.title.text)
        axis = one.layout.yaxis
        for trace in one.data:
            figure.add_trace(trace.update(legendgroup=trace.name, showlegend=column == 1), row=1, col=column)
        figure.update_xaxes(title_text=titles[-1], range=one.layout.xaxis.range, row=1, col=column)
        figure.add_hline(
            y=comparison.target.value, line={"color": "#57606a", "width": 1, "dash": "dot"}, row=1, col=column
        )
    figure.update_yaxes(type=axis.type, range=axis.range, tickvals=axis.tickvals, ticktext=axis.ticktext)
    figure.update_yaxes(title_text=comparison.target.metric, row=1, col=1)
    look.dress(
        figure,
        480,
        title=f"{comparison.profile}, predictor {comparison.predictor}",
        margin={"l": 8, "r": 8, "t": 48, "b": 8},
    )
    return figure
