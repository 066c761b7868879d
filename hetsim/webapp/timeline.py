"""Timeline: what every worker does, when and why not; predicted beside measured where a validation is open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from hetsim import timeline as drawing
from hetsim import trace, wording
from hetsim.activity import shares
from hetsim.export import safe_label
from hetsim.schedule.table import Schedule
from hetsim.webapp import charts, figures, pictures, session, stretch
from hetsim.webapp.messages import said, told
from hetsim.webapp.opening import OPENED, Opened
from hetsim.webapp.stretch import Choice, Kind

KINDS: dict[str, Kind] = {"Steady state": "steady", "Start": "start", "Seconds": "seconds", "Updates": "updates"}
HERE = "This cluster, predicted"
SHOWN_UPDATES = 4  # a window of one's own begins with so many [our choice]
Sides = Mapping[str, Schedule]

LEGEND = """
- **compute** (plain): a pass; the number in it is its samples.
- **communication** (hatched): the worker has nothing to do while bytes travel, its own or those of an all-reduce that all have joined. The
  lane *all-reduce* shows when one is on the wire; what goes on meanwhile in the lanes above is hidden behind it.
- **waiting** (dotted): for the last worker to join (it is named), the bound on skew, a cap, or data.
- **other** is what is left: updates, mostly. **hidden** is the part of *compute* in which an all-reduce was under way.
"""


def page() -> None:
    """The page."""
    st.title("Timeline")
    opened: Opened | None = st.session_state.get(OPENED)
    sides, subject = _schedules(opened)
    chosen = _choice(next(iter(sides.values())), key=subject)
    ranks = _ranks(sides)
    if len(sides) == 1:
        _one(*next(iter(sides.items())), chosen, ranks, subject)
    else:
        _several(sides, chosen, ranks, subject)
    with st.expander("How to read it", icon=":material/help:"):
        st.markdown(LEGEND)
    for side, schedule in sides.items():
        _download(side, schedule, subject, several=len(sides) > 1)


def _schedules(opened: Opened | None) -> tuple[Sides, str]:
    """What is drawn, by side, and what it is of: an algorithm of the view, or predicted and measured of the open validation."""
    pairs = {label: sides for label, sides in (opened.pairs if opened else {}).items() if sides}
    source = HERE
    if opened is not None and pairs:
        source = st.segmented_control(
            "Runs",
            [HERE, f"Opened: {opened.name}"],
            default=HERE,
            required=True,
            key="timeline-source",
            persist_state="session",
            help="The view of the first page as it is predicted, or the validation that is open, measured beside predicted.",
        )
    if source != HERE:
        label = st.selectbox(
            "Algorithm",
            list(pairs),
            key="timeline-validated",
            persist_state="session",
            help="One of the algorithms that were run.",
        )
        return pairs[label], label
    view = session.current()
    with told(), st.spinner("Simulating …"):
        comparison = pictures.picture(view, full=False)  # who does what when does not depend on learning rates
    labels = [row.name for row in comparison.algorithms]
    first = figures.two_that_matter(comparison)[0].name
    label = st.selectbox(
        "Algorithm",
        labels,
        index=labels.index(first),
        key=f"timeline-algorithm-{session.generation()}",
        persist_state="session",
        help="Which of the view's algorithms is drawn; first the one that is fastest to the target.",
    )
    st.caption(f"On {said(comparison.profile)}, seed {view.seed}.")
    return {"predicted": comparison.runs[label].schedule}, label


# ---- which stretch -------------------------------------------------------------------------------------------------------


def _choice(schedule: Schedule, key: str) -> Choice:
    name = st.segmented_control(
        "Stretch",
        list(KINDS),
        default="Steady state",
        required=True,
        key="timeline-stretch",
        persist_state="session",
        help="The first updates, some half way through the run, or from and to a time or an update of your own.",
    )
    kind = KINDS[name]
    if kind == "seconds":
        begin, end = drawing.window_of(schedule, "steady")
        digits = min(max(2, 3 - math.floor(math.log10(end - begin))), 12)
        return Choice(
            kind=kind, **_span("s", f"{key}-{schedule.horizon_s:.6g}", begin, end, schedule.horizon_s, digits)
        )
    if kind == "updates":
        last = max(1, stretch.updates(schedule))
        middle = max(1, last // 2)
        first, until = _whole_span(f"{key}-{last}", middle, min(last, middle + SHOWN_UPDATES - 1), last)
        return Choice(kind=kind, first=first, last=until)
    return Choice(kind=kind)


def _span(unit: str, key: str, begin: float, end: float, last: float, digits: int) -> dict[str, float]:
    left, right = st.columns(2)
    shared: dict[str, Any] = {
        "persist_state": "session",
        "min_value": 0.0,
        "max_value": round(last, digits) + 10**-digits,
        "step": (end - begin) / 4,
        "format": f"%.{digits}f",
    }
    first = left.number_input(
        f"From, {unit}",
        value=round(begin, digits),
        key=f"timeline-from-s-{key}",
        help="Since the start of the run.",
        **shared,
    )
    until = right.number_input(
        f"To, {unit}", value=round(end, digits), key=f"timeline-to-s-{key}", help="Later than the beginning.", **shared
    )
    if until <= first:
        st.warning("The stretch ends before it begins: choose a later end.", icon=":material/warning:")
        st.stop()
    return {"first": float(first), "last": float(until)}


def _whole_span(key: str, begin: int, end: int, last: int) -> tuple[int, int]:
    left, right = st.columns(2)
    shared: dict[str, Any] = {"persist_state": "session", "min_value": 1, "max_value": last, "step": 1}
    first = left.number_input("From update", value=begin, key=f"timeline-from-{key}", help=f"1 to {last:,}.", **shared)
    until = right.number_input(
        "To update", value=end, key=f"timeline-to-{key}", help=f"This one included; up to {last:,}.", **shared
    )
    if until < first:
        st.warning("The stretch ends before it begins: choose a later end.", icon=":material/warning:")
        st.stop()
    return int(first), int(until)


def _ranks(sides: Sides) -> list[int] | None:
    """Which workers are drawn, where they are too many for one screen."""
    workers = next(iter(sides.values())).header.workers
    if len(workers) <= drawing.MOST_LANES:
        return None
    chosen = st.multiselect(
        "Workers",
        workers,
        default=workers[: drawing.MOST_LANES],
        max_selections=2 * drawing.MOST_LANES,
        key=f"timeline-workers-{hash(workers)}",
        persist_state="session",
        help=f"Which of the {len(workers)} workers are drawn; the table below has all.",
    )
    return [workers.index(name) for name in chosen]


# ---- drawn and told ------------------------------------------------------------------------------------------------------


def _one(side: str, schedule: Schedule, chosen: Choice, ranks: Sequence[int] | None, subject: str) -> None:
    wanted = stretch.window(schedule, chosen)
    drawn = drawing.drawable(schedule, wanted, ranks)
    charts.show(
        drawing.timeline(schedule, drawn, ranks=ranks),
        _described(subject, drawn),
        key="timeline-figure",
    )
    _tell_cut(drawn, wanted)
    found = shares(schedule, *wanted)
    first, last = stretch.covered(schedule, wanted)
    which = f"Updates {first:,} to {last:,}" if last > first else f"Update {first:,}" if first else "No update"
    st.markdown(said(f"{which}, {stretch.said(wanted)}: {stretch.sentence(found)}"))
    st.dataframe(
        stretch.rows(schedule, wanted, found),
        hide_index=True,
        width="stretch",
        height="content",
        key="timeline-shares",
        column_config={
            "waits for": st.column_config.TextColumn(
                width="large", help="What idle time goes by on, the longest first."
            ),
            "samples": st.column_config.NumberColumn(format="localized", help="Of passes that ended in this stretch."),
            "hidden %": st.column_config.NumberColumn(
                format="%.1f", help="Part of compute in which an all-reduce was under way."
            ),
            **{f"{name} %": st.column_config.NumberColumn(format="%.1f") for name in stretch.ACTIVITIES},
        },
    )


def _several(sides: Sides, chosen: Choice, ranks: Sequence[int] | None, subject: str) -> None:
    wanted = stretch.windows(sides, chosen)
    drawn = {side: drawing.drawable(schedule, wanted[side], ranks) for side, schedule in sides.items()}
    charts.show(
        drawing.stacked(sides, None if chosen.kind == "steady" else drawn, ranks=ranks),
        f"What each worker of {subject} does, predicted above measured, over the same length of time; the table below sums it up.",
        key="timeline-figure",
    )
    for side in sides:
        _tell_cut(drawn[side], wanted[side])
    told_of = " ".join(f"{side.capitalize()}: {stretch.sentence(shares(sides[side], *wanted[side]))}" for side in sides)
    st.markdown(said(told_of))
    rows = stretch.side_by_side(sides, wanted)
    number = st.column_config.NumberColumn
    st.dataframe(
        rows,
        hide_index=True,
        width="stretch",
        height="content",
        key="timeline-shares",
        column_config={
            **{f"{side} %": number(format="%.1f", help="Of the stretch, by the clock.") for side in sides},
            "difference, points": number(format="%+.1f", help="Of the last from the first, percentage points."),
        },
    )


def _described(subject: str, seconds: drawing.Seconds) -> str:
    return f"Bars of what each worker of {subject} does, {stretch.said(seconds)}; the table below sums it up."


def _tell_cut(drawn: drawing.Seconds, wanted: drawing.Seconds) -> None:
    if drawn[1] < wanted[1]:
        st.caption(
            f"Drawn until {wording.seconds(drawn[1])}, as far as a browser draws quickly; the table is of the whole stretch, "
            "the download of the whole run."
        )


def _download(side: str, schedule: Schedule, subject: str, *, several: bool) -> None:
    what = f"{side} " if several else ""
    st.download_button(
        f"Download the {what}trace for Perfetto",
        lambda: trace.trace_bytes(schedule),
        file_name=f"{safe_label(subject)}-{side}.trace.json.gz",
        mime="application/gzip",
        on_click="ignore",
        icon=":material/download:",
        key=f"timeline-trace-{side}",
        help="The whole run; drop the file on https://ui.perfetto.dev, which opens it in your browser.",
    )


if __name__ == "__main__":
    page()
