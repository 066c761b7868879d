"""The figures of Explore: pure, a Comparison in and a plotly figure, or what it says in words, out."""

from __future__ import annotations

import re
from typing import Any, Literal

from plotly import graph_objects as go

from hetsim import plots, timeline, wording
from hetsim.comparison import Comparison, Row
from hetsim.verdict import fastest, rival_of

# Light lines and text on dark; each at least 3 : 1 against options.DARK's background, text 4.5 : 1 (WCAG 2.2).
ON_DARK = {"#000000": "#FFFFFF", "#57606a": "#9AA4AE", "#1f2328": "#E6EAEE"}
GRID = {False: "#E1E5E9", True: "#39424C"}
TEXT = {False: "#1f2328", True: "#E6EAEE"}


def loss(c: Comparison, against: Literal["seconds", "samples"] = "seconds") -> go.Figure:
    """Loss of every algorithm until the target; ours thick, baselines dashed."""
    ours = [row.name for row in c.algorithms if row.role == "ours"]
    made = plots.loss(c.curves, target=c.target.value, against=against, ours=ours)
    made.update_layout(height=460)
    made.update_annotations(x=0, xanchor="left")  # "target": no curve is there
    return made


def same_scale(made: list[go.Figure]) -> list[go.Figure]:
    """Figures side by side over the same stretch of their axes, where they have the same units: lengths compare by eye."""
    axes = [figure.layout.xaxis for figure in made]
    if len(set(map(_what, made))) == 1 and all(axis.range for axis in axes):
        longest = max(axis.range[1] for axis in axes)
        for figure in made:
            figure.update_xaxes(range=[axes[0].range[0], longest])
    return made


def _what(made: go.Figure) -> tuple[str, ...]:
    """What is along the axes, and its unit; since which update does not matter. Of timelines one above the other the lowest says it."""
    return tuple(re.sub(r"\d[\d,]*", "", axis.title.text or "") for axis in made.select_xaxes())


def who_does_what(c: Comparison) -> go.Figure:
    """The timelines of the two that matter, one above the other over the same time."""
    made = timeline.stacked({row.name: c.runs[row.name].schedule for row in two_that_matter(c)})
    made.update_annotations(font_size=12, xshift=-24)  # titles begin over the lanes' names: room on a narrow screen
    return made


def two_that_matter(c: Comparison) -> tuple[Row, ...]:
    """The fastest and the fastest of another algorithm; where none reaches the target, those with the most samples a second."""
    leader = fastest(c.algorithms)
    if leader is None:
        return tuple(sorted(c.algorithms, key=lambda row: -row.samples_per_s)[:2])
    rival = rival_of(leader, c.algorithms)
    return (leader,) if rival is None else (leader, rival)


def adapted(made: go.Figure, dark: bool) -> go.Figure:
    """A copy that lies on the page's own background, readable in light and dark."""
    figure = go.Figure(made)
    clear = "rgba(0,0,0,0)"
    figure.update_layout(paper_bgcolor=clear, plot_bgcolor=clear, font_color=TEXT[dark])
    axis: dict[str, Any] = {"gridcolor": GRID[dark], "zerolinecolor": GRID[dark], "linecolor": GRID[dark]}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    if not dark:
        return figure
    background = "#20262D"
    figure.update_layout(hoverlabel={"bgcolor": background, "font": {"color": TEXT[True]}})
    for trace in figure.select_traces():
        line = getattr(trace, "line", None)
        if line is not None and line.color in ON_DARK:
            line.color = ON_DARK[line.color]
        errors = getattr(trace, "error_x", None)
        if errors is not None and errors.color in ON_DARK:
            errors.color = ON_DARK[errors.color]
    for shape in figure.layout.shapes:
        if shape.line.color in ON_DARK:
            shape.line.color = ON_DARK[shape.line.color]
    return figure


def described(c: Comparison) -> str:
    """The loss figure in words, for those who do not see it."""
    reached = sorted((row for row in c.algorithms if row.seconds < float("inf")), key=lambda row: row.seconds)
    if not reached:
        return "Loss against time: no algorithm reaches the target."
    listed = ", ".join(f"{row.name} after {wording.seconds(row.seconds)}" for row in reached)
    return f"Loss against time. The target is reached by {listed}."


def lanes(c: Comparison) -> str:
    """The timelines in words."""
    parts = [
        f"{row.name}: workers compute {100 * row.utilisation:.0f} % of the time and wait {100 * row.waiting_share:.0f} %"
        for row in two_that_matter(c)
    ]
    return "Timeline of a few updates. " + "; ".join(parts) + "."
