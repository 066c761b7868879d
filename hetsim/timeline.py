"""Who does what, when: a lane per worker, one for collectives.

    timeline     one Schedule, at its start, in the steady state or in a window of one's own
    stacked      several, one above the other on the same axis

Read from a Schedule alone, so that a predicted and a measured one are drawn by the same code; what the bars are is in `hetsim.activity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hetsim import look, wording
from hetsim.activity import EVERYBODY, TRAVELLING, Span, spans
from hetsim.metrics import update_times
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule

MOST_LANES = 16
MOST_BARS = 3_000  # what a browser draws within a second [our choice]
PERIODS = 4  # a timeline shows this many updates, and three of the longest passes at least [our choice]
Seconds = tuple[float, float]
Window = Literal["start", "steady"] | Seconds
COLLECTIVES = "all-reduce"  # their lane
LANE_PX, AROUND_PX, TITLE_PX = 34, 120, 30  # height of a lane; of axis, legend and margins; of a title above lanes
TELLS_BY = {"gate": "the bound on skew", "cap": "its batch cap", "data": "data", "peer": "its partner"}

# Labels that do not fit at a legible size are left out, whatever the width of the screen.
OVERLAID = {"barmode": "overlay", "bargap": 0.25, "uniformtext": {"minsize": 9, "mode": "hide"}}


def timeline(schedule: Schedule, window: Window = "steady", *, ranks: Sequence[int] | None = None) -> go.Figure:
    """What workers do during a few updates: compute, communication, waiting; collectives have a lane of their own.

    "start" begins at 0; "steady" half way through the updates; else from and to these seconds. `ranks`: default the first 16.
    """
    begin, end = window_of(schedule, window)
    shown = _ranks(schedule, ranks)
    figure = look.figure(AROUND_PX + LANE_PX * (len(shown) + 1), **OVERLAID)
    unit, scale = _unit(end - begin)
    bars, order = _drawn(schedule, shown, begin, end, unit, scale)
    figure.add_traces(bars)
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category")
    where = "the start" if begin == 0 else wording.seconds(begin)
    figure.update_xaxes(title_text=f"{unit} from {where} on", range=[0, (end - begin) * scale])
    return figure


def stacked(
    schedules: Mapping[str, Schedule],
    windows: Mapping[str, Seconds] | None = None,
    *,
    ranks: Sequence[int] | None = None,
) -> go.Figure:
    """Several timelines one above the other over the same time, each from the beginning of its own window.

    Without `windows` each begins at the end of the same update, the middle one of the shortest run, so that the lengths of passes,
    transfers and waits can be compared by eye, whatever has gone before.
    """
    half = min(len(update_times(schedule)[0]) for schedule in schedules.values()) // 2
    since = f"update {half + 1} was complete" if windows is None else "the beginning of each"
    windows = windows or {name: window_of(schedule, "steady", half) for name, schedule in schedules.items()}
    span_s = max(end - begin for begin, end in windows.values())
    unit, scale = _unit(span_s)
    drawn = {
        name: _drawn(schedule, _ranks(schedule, ranks), windows[name][0], windows[name][0] + span_s, unit, scale)
        for name, schedule in schedules.items()
    }
    lanes = [len(order) for _, order in drawn.values()]
    height = AROUND_PX + sum(LANE_PX * count + TITLE_PX for count in lanes)
    figure = make_subplots(
        rows=len(drawn),
        cols=1,
        shared_xaxes=True,
        row_heights=lanes,
        vertical_spacing=TITLE_PX / height,
        subplot_titles=[f"<b>{name}</b>, from {_where(windows[name][0])} on" for name in drawn],
    )
    look.dress(figure, height, **OVERLAID, margin={"l": 8, "r": 8, "t": TITLE_PX, "b": 8})
    named: set[str] = set()  # in the legend; an activity that the first one lacks comes from the next
    for place, (bars, order) in enumerate(drawn.values(), 1):
        for bar in bars:
            figure.add_trace(bar.update(legendgroup=bar.name, showlegend=bar.name not in named), row=place, col=1)
            named |= {bar.name} if bar.y else set()
        figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category", row=place, col=1)
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    figure.update_xaxes(range=[0, span_s * scale])
    figure.update_xaxes(title_text=f"{unit} since {since}", row=len(drawn), col=1)
    return figure


def window_of(schedule: Schedule, window: Window, half: int | None = None) -> Seconds:
    """Begin and end of a timeline's window; a steady one begins where update `half` (from 0, default: the middle one) is complete."""
    if not isinstance(window, str):
        begin, end = window
        return begin, end if end > begin else begin + 1e-9
    times, _ = update_times(schedule)
    if not len(times):
        return 0.0, max(schedule.horizon_s, 1e-9)
    half = len(times) // 2 if half is None else half
    begin = 0.0 if window == "start" else float(times[half])
    period = float(times[-1] - times[half]) / max(1, len(times) - 1 - half) or float(times[-1])
    grads = schedule.rows(Kind.GRAD)
    longest = float((schedule.end_s[grads] - schedule.start_s[grads]).max(initial=0.0))
    end = min(begin + max(PERIODS * period, 3 * longest), schedule.horizon_s)
    return begin, end if end > begin else begin + 1e-9


def drawable(schedule: Schedule, window: Seconds, ranks: Sequence[int] | None = None, most: int = MOST_BARS) -> Seconds:
    """As much of a window, from its beginning on, as has no more than `most` bars."""
    begin, end = window
    s = schedule
    lanes = np.isin(s.worker, [*_ranks(schedule, ranks), EVERYBODY])
    kinds = np.isin(s.kind, (Kind.GRAD, Kind.WAIT, Kind.REDUCE))
    starts = np.sort(s.start_s[lanes & kinds & (s.end_s > begin) & (s.start_s < end) & (s.end_s > s.start_s)])
    return (begin, end) if len(starts) <= most else (begin, max(float(starts[most]), begin + 1e-9))


def _where(begin_s: float) -> str:
    return "the start" if begin_s == 0 else wording.seconds(begin_s)


def _unit(span_s: float) -> tuple[str, float]:
    return ("ms", 1e3) if span_s < 3 else ("s", 1.0)


def _ranks(schedule: Schedule, ranks: Sequence[int] | None) -> list[int]:
    return list(range(min(schedule.n, MOST_LANES)) if ranks is None else ranks)


def _lane(schedule: Schedule, rank: int) -> str:
    return COLLECTIVES if rank == EVERYBODY else schedule.header.workers[rank]


def _drawn(
    schedule: Schedule, ranks: Sequence[int], begin: float, end: float, unit: str, scale: float
) -> tuple[Sequence[go.Bar], list[str]]:
    """A trace of bars per activity, and the lanes from top to bottom."""
    seen = spans(schedule, begin, end, ranks)
    bars = [
        _bar(schedule, activity, [s for s in seen if s.activity == activity], begin, end, unit, scale)
        for activity in look.ACTIVITIES
    ]
    lanes = [_lane(schedule, rank) for rank in ranks]
    return bars, [*lanes, *([COLLECTIVES] if any(s.rank == EVERYBODY for s in seen) else [])]


def _bar(
    schedule: Schedule, activity: str, seen: Sequence[Span], begin: float, end: float, unit: str, scale: float
) -> go.Bar:
    color, pattern = look.ACTIVITIES[activity]
    said = [_said(schedule, span) for span in seen]
    return go.Bar(
        y=[_lane(schedule, s.rank) for s in seen],
        base=[(s.start_s - begin) * scale for s in seen],
        x=[(s.end_s - s.start_s) * scale for s in seen],
        text=[
            label if s.end_s - s.start_s > 0.02 * (end - begin) else ""
            for (label, _), s in zip(said, seen, strict=True)
        ],
        customdata=[(hover, s.start_s * scale) for (_, hover), s in zip(said, seen, strict=True)],
        name=activity,
        orientation="h",
        marker={
            "color": color,
            "line": {"color": "#FFFFFF", "width": [_edge((s.end_s - s.start_s) / (end - begin)) for s in seen]},
            "pattern": {
                "shape": pattern,
                "fillmode": "overlay",  # else, without plotly's own template, nothing is below the pattern
                "fgcolor": "#5A5A5A" if activity == "waiting" else "#FFFFFF",
                "size": 5,
                "solidity": 0.2,
            },
        },
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="inside",
        textfont={"size": 11, "color": "#FFFFFF" if activity == "compute" else "#1f2328"},
        hovertemplate=f"%{{y}}: %{{customdata[0]}}, %{{x:.4g}} {unit} from %{{customdata[1]:,.6g}} {unit}<extra></extra>",
    )


def _edge(share: float) -> float:
    """Width of the line around a bar of that share of the figure: of narrow ones nothing else would be seen."""
    return min(1.0, max(0.1, 50 * share))


def _said(schedule: Schedule, span: Span) -> tuple[str, str]:
    """What stands in a bar, and what is told on hovering."""
    if span.activity == "compute":
        return str(span.samples), f"{span.samples} samples"
    if span.rank == EVERYBODY:
        return (f"{span.samples}", f"{span.samples} samples") if span.samples else ("average", "parameters")
    if span.cause == "peers":
        whom = _lane(schedule, span.whom)
        return f"for {whom}", f"waits for {whom}, the last to join"
    if span.cause in TRAVELLING:
        return (
            span.cause,
            f"nothing to do until the {'all-reduce' if span.cause == 'network' else span.cause} is through",
        )
    return span.cause, f"waits for {TELLS_BY.get(span.cause, span.cause)}"
