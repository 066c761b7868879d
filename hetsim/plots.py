"""Figures, as plotly objects; pure functions of results.

    loss               loss against seconds or samples, all algorithms
    timeline           what every worker does, at the start or in the steady state
    throughput         samples/s
    time_to_target     seconds to the target with their intervals
    result_plot, comparison_plot    what a notebook shows

Colours are those of Okabe and Ito, which people with any colour vision tell apart; patterns, dashes and labels say the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hetsim import wording
from hetsim.convergence.predictor import Curve
from hetsim.metrics import update_times
from hetsim.schedule.kinds import Kind, WaitCause
from hetsim.schedule.table import Schedule

if TYPE_CHECKING:
    from hetsim.comparison import Comparison
    from hetsim.simulate import Result

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
ACTIVITIES = {"compute": (BLUE, ""), "communication": (ORANGE, "/"), "waiting": ("#D9D9D9", ".")}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
MOST_POINTS = 400  # of a drawn curve
MOST_LANES = 16
TIMES_FASTEST = 4  # a loss figure ends at this many times the end of the fastest [our choice]
PERIODS = 4  # a timeline shows this many updates, and three of the longest passes at least [our choice]
Rows = Sequence[Mapping[str, Any]]


def _figure(height: int, **layout: Any) -> go.Figure:
    figure = go.Figure()
    _dress(figure, height, **layout)
    return figure


def _dress(figure: go.Figure, height: int, **layout: Any) -> None:
    """One look for all figures; legends below, so that a narrow screen keeps its width for the plot."""
    base: dict[str, Any] = {
        "template": "plotly_white",
        "height": height,
        "font": {"family": FONT, "size": 13, "color": "#1f2328"},
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "hoverlabel": {"namelength": -1},
    }
    figure.update_layout(**(base | layout))
    figure.update_xaxes(automargin=True, title_font_size=12, tickfont_size=12)
    figure.update_yaxes(automargin=True, title_font_size=12, tickfont_size=12)


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
    figure = _figure(520)
    look = styles(curves, ours)
    logarithmic = (
        target is None or target > 0
    )  # a target of 0 ("nothing left to do") has no place on a logarithmic axis
    unit, divisor = _time_unit([float(c.time_s[-1]) for c in curves.values() if len(c.time_s)])
    ends, starts, least = [], [], []
    for label, curve in curves.items():
        keep = _thinned(curve.loss, logarithmic)
        x = curve.time_s[keep] / divisor if against == "seconds" else curve.samples[keep].astype(float)
        reached = target is not None and curve.crossing(target) is not None
        name = label + (" (diverged)" if curve.diverged else "" if reached or target is None else " (not reached)")
        hover = f"{label}<br>%{{y:.4g}} after %{{x:,.4g}} {unit if against == 'seconds' else 'samples'}<extra></extra>"
        figure.add_scatter(x=x, y=curve.loss[keep], name=name, line=look[label], mode="lines", hovertemplate=hover)
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
    figure.update_xaxes(title=title, rangemode="tozero", range=[0, 1.03 * last] if last else None)
    top, bottom = 1.25 * max(starts, default=1.0), 0.85 * min([*least, *([target] if target else [])], default=0.1)
    figure.update_yaxes(title=metric, rangemode="tozero", range=[0, top])
    if logarithmic:
        ticks = _log_ticks(bottom, top)
        span = [np.log10(bottom), np.log10(top)]
        figure.update_yaxes(type="log", range=span, tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    return figure


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of every decade in the range; all digits where that leaves fewer than four."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ((1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    return ticks


def _thinned(values: Any, logarithmic: bool) -> Any:
    """Indices of the points to draw: finite ones, evenly thinned, first and last kept."""
    good = np.flatnonzero(np.isfinite(values) & ((np.asarray(values) > 0) | (not logarithmic)))
    if len(good) <= MOST_POINTS:
        return good
    return good[np.unique(np.linspace(0, len(good) - 1, MOST_POINTS).astype(int))]


def _time_unit(ends: Sequence[float]) -> tuple[str, float]:
    longest = max(ends, default=0.0)
    return ("h", 3600.0) if longest > 3 * 3600 else ("min", 60.0) if longest > 300 else ("s", 1.0)


# ---- bars over algorithms ------------------------------------------------------------------------------------------------


def throughput(rows: Rows) -> go.Figure:
    """Samples per second of every algorithm."""
    figure = _figure(90 + 34 * len(rows), showlegend=False)
    text = [f"{wording.rate(r['samples_per_s'])}/s" for r in rows]
    hover = [f"{said}, busy {wording.percent(r['utilisation'])}" for said, r in zip(text, rows, strict=True)]
    _bars(figure, rows, [r["samples_per_s"] for r in rows], text, hover=hover)
    figure.update_xaxes(title="samples per second")
    return figure


def time_to_target(rows: Rows) -> go.Figure:
    """Seconds to the target, median and interval over seeds; not reached is said, never drawn."""
    times = [r.get("time_to_target_s") or {} for r in rows]
    medians = [t.get("median") for t in times]
    unit, divisor = _time_unit([t.get("high") or t.get("median") or 0.0 for t in times])
    values = [None if m is None else m / divisor for m in medians]
    text = ["not reached" if m is None else wording.seconds(m) for m in medians]
    figure = _figure(90 + 34 * len(rows), showlegend=False)
    above = [((t.get("high") or m) - m) / divisor if m is not None else 0 for t, m in zip(times, medians, strict=True)]
    below = [(m - (t.get("low") or m)) / divisor if m is not None else 0 for t, m in zip(times, medians, strict=True)]
    error = {"type": "data", "array": above, "arrayminus": below, "color": "#1f2328", "thickness": 1.4}
    _bars(figure, rows, values, text, error_x=error)
    figure.update_xaxes(title=f"{unit} to the target")
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


# ---- timeline ------------------------------------------------------------------------------------------------------------


def timeline(schedule: Schedule, window: Literal["start", "steady"] = "steady") -> go.Figure:
    """What every worker does during a few updates: compute, communication, waiting; collectives have a lane of their own.

    "start" begins at 0; "steady" half way through the updates.
    """
    begin, end = window_of(schedule, window)
    spans = _spans(schedule, begin, end)
    lanes = [_lane(schedule, rank) for rank in range(min(schedule.n, MOST_LANES))]
    figure = _figure(120 + 34 * (len(lanes) + 1), barmode="overlay", bargap=0.25)
    unit, scale = ("ms", 1e3) if end - begin < 3 else ("s", 1.0)
    for activity, (color, pattern) in ACTIVITIES.items():
        mine = [s for s in spans if s[0] == activity]
        figure.add_bar(
            y=[s[1] for s in mine],
            base=[(s[2] - begin) * scale for s in mine],
            x=[(s[3] - s[2]) * scale for s in mine],
            text=[s[4] if (s[3] - s[2]) > 0.045 * (end - begin) else "" for s in mine],
            customdata=[(s[5], s[2] * scale) for s in mine],
            name=activity,
            orientation="h",
            marker={
                "color": color,
                "line": {"color": "#FFFFFF", "width": 1},
                "pattern": {
                    "shape": pattern,
                    "fgcolor": "#5A5A5A" if activity == "waiting" else "#FFFFFF",
                    "size": 5,
                    "solidity": 0.2,
                },
            },
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"size": 11, "color": "#FFFFFF" if activity == "compute" else "#1f2328"},
            hovertemplate=f"%{{y}}: %{{customdata[0]}}, %{{x:.4g}} {unit} from %{{customdata[1]:,.6g}} {unit}<extra></extra>",
        )
    order = [*lanes, *(["all-reduce"] if any(s[1] == "all-reduce" for s in spans) else [])]
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category")
    where = "the start" if window == "start" else wording.seconds(begin)
    figure.update_xaxes(title=f"{unit} from {where} on", range=[0, (end - begin) * scale])
    return figure


def window_of(schedule: Schedule, window: Literal["start", "steady"]) -> tuple[float, float]:
    """Begin and end of a timeline's window."""
    times, _ = update_times(schedule)
    if not len(times):
        return 0.0, max(schedule.horizon_s, 1e-9)
    half = len(times) // 2
    begin = 0.0 if window == "start" else float(times[half])
    period = float(times[-1] - times[half]) / max(1, len(times) - 1 - half) or float(times[-1])
    grads = schedule.rows(Kind.GRAD)
    longest = float((schedule.end_s[grads] - schedule.start_s[grads]).max(initial=0.0))
    end = min(begin + max(PERIODS * period, 3 * longest), schedule.horizon_s)
    return begin, end if end > begin else begin + 1e-9


def _lane(schedule: Schedule, rank: int) -> str:
    return schedule.header.workers[rank]


Span = tuple[str, str, float, float, str, str]  # activity, lane, start, end, text in the bar, text on hovering


def _spans(schedule: Schedule, begin: float, end: float) -> list[Span]:
    """What can be seen in the window, cut at its edges."""
    s = schedule
    out: list[Span] = []
    seen = np.flatnonzero(
        (s.end_s > begin) & (s.start_s < end) & (s.end_s > s.start_s) & (s.worker < min(s.n, MOST_LANES))
    )
    for row in seen.tolist():
        kind, rank = int(s.kind[row]), int(s.worker[row])
        start, stop = max(float(s.start_s[row]), begin), min(float(s.end_s[row]), end)
        if kind == Kind.GRAD:
            samples = int(s.samples[row])
            out.append(("compute", _lane(s, rank), start, stop, str(samples), f"{samples} samples"))
        elif kind == Kind.WAIT:
            cause = WaitCause(int(s.code[row]))
            own = cause in (WaitCause.PUSH, WaitCause.PULL)  # its own transfer: the link is at work, the worker is not
            name = cause.name.lower()
            out.append(
                (
                    "communication" if own else "waiting",
                    _lane(s, rank),
                    start,
                    stop,
                    name if own else "",
                    f"waits: {name}",
                )
            )
        elif kind == Kind.REDUCE and rank < 0:
            total = int(s.samples[row])
            said = f"{total}" if total else "average"
            out.append(
                ("communication", "all-reduce", start, stop, said, f"{total} samples" if total else "parameters")
            )
    return out


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
        figure.update_xaxes(title=titles[-1], range=one.layout.xaxis.range, row=1, col=column)
        figure.add_hline(
            y=comparison.target.value, line={"color": "#57606a", "width": 1, "dash": "dot"}, row=1, col=column
        )
    figure.update_yaxes(type=axis.type, range=axis.range, tickvals=axis.tickvals, ticktext=axis.ticktext)
    figure.update_yaxes(title=comparison.target.metric, row=1, col=1)
    _dress(
        figure,
        480,
        title=f"{comparison.profile}, predictor {comparison.predictor}",
        margin={"l": 8, "r": 8, "t": 48, "b": 8},
    )
    return figure
