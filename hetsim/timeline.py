"""Who does what, when: a lane per worker, one for collectives.

    timeline     one Schedule, at its start or in the steady state
    stacked      several, one above the other on the same axis

Read from a Schedule alone, so that a predicted and a measured one are drawn by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hetsim import look, wording
from hetsim.metrics import update_times
from hetsim.schedule.kinds import Kind, WaitCause
from hetsim.schedule.table import Schedule

MOST_LANES = 16
PERIODS = 4  # a timeline shows this many updates, and three of the longest passes at least [our choice]
Span = tuple[str, str, float, float, str, str]  # activity, lane, start, end, text in the bar, text on hovering
LANE_PX, AROUND_PX, TITLE_PX = 34, 120, 30  # height of a lane; of axis, legend and margins; of a title above lanes

# Labels that do not fit at a legible size are left out, whatever the width of the screen.
OVERLAID = {"barmode": "overlay", "bargap": 0.25, "uniformtext": {"minsize": 9, "mode": "hide"}}


def timeline(schedule: Schedule, window: Literal["start", "steady"] = "steady") -> go.Figure:
    """What every worker does during a few updates: compute, communication, waiting; collectives have a lane of their own.

    "start" begins at 0; "steady" half way through the updates.
    """
    begin, end = window_of(schedule, window)
    figure = look.figure(AROUND_PX + LANE_PX * (_lanes(schedule) + 1), **OVERLAID)
    unit, scale = _unit(end - begin)
    bars, order = _drawn(schedule, begin, end, unit, scale)
    figure.add_traces(bars)
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category")
    where = "the start" if window == "start" else wording.seconds(begin)
    figure.update_xaxes(title_text=f"{unit} from {where} on", range=[0, (end - begin) * scale])
    return figure


def stacked(schedules: Mapping[str, Schedule]) -> go.Figure:
    """Several timelines one above the other, each from the end of the same update on, over the same time.

    So the lengths of passes, transfers and waits can be compared by eye, whatever has gone before.
    """
    half = min(len(update_times(schedule)[0]) for schedule in schedules.values()) // 2
    windows = {name: window_of(schedule, "steady", half) for name, schedule in schedules.items()}
    span_s = max(end - begin for begin, end in windows.values())
    unit, scale = _unit(span_s)
    drawn = {
        name: _drawn(schedule, windows[name][0], windows[name][0] + span_s, unit, scale)
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
        subplot_titles=[f"<b>{name}</b>, from {wording.seconds(windows[name][0])} on" for name in drawn],
    )
    look.dress(figure, height, **OVERLAID, margin={"l": 8, "r": 8, "t": TITLE_PX, "b": 8})
    for place, (bars, order) in enumerate(drawn.values(), 1):
        for bar in bars:
            figure.add_trace(bar.update(legendgroup=bar.name, showlegend=place == 1), row=place, col=1)
        figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category", row=place, col=1)
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    figure.update_xaxes(range=[0, span_s * scale])
    figure.update_xaxes(title_text=f"{unit} since update {half + 1} was complete", row=len(drawn), col=1)
    return figure


def window_of(schedule: Schedule, window: Literal["start", "steady"], half: int | None = None) -> tuple[float, float]:
    """Begin and end of a timeline's window; a steady one begins where update `half` (from 0, default: the middle one) is complete."""
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


def _unit(span_s: float) -> tuple[str, float]:
    return ("ms", 1e3) if span_s < 3 else ("s", 1.0)


def _lanes(schedule: Schedule) -> int:
    return min(schedule.n, MOST_LANES)


def _lane(schedule: Schedule, rank: int) -> str:
    return schedule.header.workers[rank]


def _drawn(schedule: Schedule, begin: float, end: float, unit: str, scale: float) -> tuple[Sequence[go.Bar], list[str]]:
    """A trace of bars per activity, and the lanes from top to bottom."""
    spans = _spans(schedule, begin, end)
    bars = [
        _bar(activity, [s for s in spans if s[0] == activity], begin, end, unit, scale) for activity in look.ACTIVITIES
    ]
    lanes = [_lane(schedule, rank) for rank in range(_lanes(schedule))]
    return bars, [*lanes, *(["all-reduce"] if any(s[1] == "all-reduce" for s in spans) else [])]


def _bar(activity: str, spans: Sequence[Span], begin: float, end: float, unit: str, scale: float) -> go.Bar:
    color, pattern = look.ACTIVITIES[activity]
    return go.Bar(
        y=[s[1] for s in spans],
        base=[(s[2] - begin) * scale for s in spans],
        x=[(s[3] - s[2]) * scale for s in spans],
        text=[s[4] if (s[3] - s[2]) > 0.02 * (end - begin) else "" for s in spans],
        customdata=[(s[5], s[2] * scale) for s in spans],
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
        constraintext="inside",
        textfont={"size": 11, "color": "#FFFFFF" if activity == "compute" else "#1f2328"},
        hovertemplate=f"%{{y}}: %{{customdata[0]}}, %{{x:.4g}} {unit} from %{{customdata[1]:,.6g}} {unit}<extra></extra>",
    )


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
