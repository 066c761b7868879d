"""Map: over which clusters does it pay? The speed-up over the best baseline over two fields, computed beside the app."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from hetsim.errors import HetsimError
from hetsim.export import safe_label
from hetsim.speedup_map import SpeedupMap
from hetsim.sweeps.page import steady_count_note
from hetsim.webapp import HERE, charts, jobs, map_figure, messages, session
from hetsim.webapp.figures import adapted
from hetsim.webapp.map_controls import ask
from hetsim.webapp.mapping import (
    MapOrder,
    cell_view,
    choices,
    clicked_cell,
    compute,
    said,
)
from hetsim.webapp.messages import tell, told
from hetsim.webapp.view import View

ORDER, REFUSED, CHOSEN = "map-order", "map-refused", "map-chosen"
HOW = (
    "Learning rate and momentum are tuned in every cell. {steady} A lead of a few per cent in one cell is not to be relied on; "
    "what holds over many cells is."
)


def page() -> None:
    """The page."""
    st.title("Map")
    st.markdown("On which clusters does it pay? Speed over the best baseline, the cluster changed in two fields.")
    view = session.current()
    with told():
        profile = view.profile()
    known = choices(profile)
    with st.container(border=True):
        order = ask(view, known)
    if order is not None and st.button(
        "Compute the map",
        type="primary",
        icon=":material/grid_on:",
        key="map-start",
        help="In the background; a few tens of milliseconds per cell and algorithm as a rule.",
    ):
        _start(order)
    refused: HetsimError | None = st.session_state.get(REFUSED)
    if refused is not None:
        tell(refused)
    shown: MapOrder | None = st.session_state.get(ORDER)
    if shown is None:
        return
    if order is not None and shown != order:
        st.info(
            "The map below is the one computed before; the cluster or the fields have been changed since.",
            icon=":material/history:",
        )
    _follow(shown)


# ---- the job -----------------------------------------------------------------------------------------------------------------------------


def _start(order: MapOrder) -> None:
    """Begin it, or say at once why it cannot be."""
    st.session_state.pop(REFUSED, None)
    st.session_state.pop(CHOSEN, None)
    try:
        order.check()
        jobs.start(key_of(order), compute, order, slot="map", urgent=True)
        st.session_state[ORDER] = order
    except HetsimError as error:
        st.session_state[REFUSED] = error
        st.session_state.pop(ORDER, None)


def key_of(order: MapOrder) -> Any:
    """The key of its job."""
    return ("map", order)


def _follow(order: MapOrder) -> None:
    job = jobs.find(key_of(order))
    if job is None:
        st.info("This map is no longer kept; compute it again.", icon=":material/history:")
    elif not job.over:
        st.fragment(_progress, run_every=0.5)(order, job)
    elif job.state == "cancelled":
        st.info("Cancelled.", icon=":material/info:")
    else:
        with told():
            _show(order, job.result())


def _progress(order: MapOrder, job: jobs.Job) -> None:
    """Looked at again twice a second while it runs; the map as it is so far."""
    if job.over:
        st.rerun()
    waiting = "waiting for other work to end" if job.state == "waiting" else job.progress.text or "starting"
    st.progress(job.progress.share, waiting)
    st.button("Cancel", icon=":material/stop:", key="map-cancel", on_click=job.cancel, help="Ends it; nothing is kept.")
    partly: SpeedupMap | None = job.partial
    if partly is not None:
        x_title, y_title = _titles(order, partly)
        charts.show(
            map_figure.figure(partly, x_title, y_title),
            map_figure.described(partly, x_title, y_title),
            key="map-partly",
        )


# ---- the map -----------------------------------------------------------------------------------------------------------------------------


def _show(order: MapOrder, found: SpeedupMap) -> None:
    x_title, y_title = _titles(order, found)
    st.text(found.sentence())
    chosen = _chosen(found)
    drawn = map_figure.figure(found, x_title, y_title, chosen)
    st.plotly_chart(
        adapted(drawn, st.context.theme.type == "dark"),
        theme=None,
        config={**charts.CONFIG, "displayModeBar": False},
        alt=map_figure.described(found, x_title, y_title),
        key="map-chart",
        on_select=_clicked,
        selection_mode="points",
    )
    st.caption(HOW.format(steady=steady_count_note(found.steady, len(found.labels) * found.speedup.size)))
    _cell(order, found, x_title, y_title)
    _downloads(order, found)


def _titles(order: MapOrder, found: SpeedupMap) -> tuple[str, str]:
    names = {choice.field: choice.title for choice in choices(order.view.profile())}
    return names.get(found.x, found.x), names.get(found.y, found.y)


def _clicked() -> None:
    """A cell was clicked: it becomes the chosen one."""
    cell = clicked_cell(st.session_state.get("map-chart"))
    if cell is not None:
        st.session_state[CHOSEN] = cell


def _chosen(found: SpeedupMap) -> tuple[int, int]:
    """The chosen cell, at first that of the largest speed-up; of another map's it may lie outside."""
    columns, rows = len(found.x_values), len(found.y_values)
    best = 0 if np.isnan(found.speedup).all() else int(np.nanargmax(found.speedup))
    i, j = st.session_state.get(CHOSEN, (best % columns, best // columns))
    return min(i, columns - 1), min(j, rows - 1)


def _cell(order: MapOrder, found: SpeedupMap, x_title: str, y_title: str) -> None:
    st.subheader("One cell")
    st.caption("Click a cell of the map, or choose it here.")
    i, j = _chosen(found)
    st.session_state["map-cell-x"], st.session_state["map-cell-y"] = i, j
    left, middle, right = st.columns([2, 2, 1.4], vertical_alignment="bottom")
    axes = ((left, x_title, found.x_values, "map-cell-x"), (middle, y_title, found.y_values, "map-cell-y"))
    for place, title, values, key in axes:
        place.selectbox(
            messages.said(title),
            range(len(values)),
            format_func=[said(value) for value in values].__getitem__,
            key=key,
            on_change=_picked,
            help="Of the cell that is shown here and framed in the map.",
        )
    cell = found.cell(i, j)
    right.button(
        "Open in Explore",
        icon=":material/tune:",
        key="map-open",
        on_click=_open,
        args=(cell_view(order.view, cell),),
        help="The first page with this cell's cluster.",
        width="stretch",
    )
    st.text("\n".join(map_figure.words(found, cell)))
    if st.session_state.pop("map-leave", False):
        st.switch_page(HERE / "explore.py")


def _picked() -> None:
    """A cell was chosen in the boxes."""
    st.session_state[CHOSEN] = st.session_state["map-cell-x"], st.session_state["map-cell-y"]


def _open(view: View) -> None:
    session.replace(view)
    st.session_state["map-leave"] = True


def _downloads(order: MapOrder, found: SpeedupMap) -> None:
    with st.expander("The command that gives these figures", icon=":material/terminal:"):
        st.code(order.command(found.labels), language="bash", wrap_lines=True)
        if not order.view.shipped:
            st.caption(f"{order.view.file_name()} is the profile, which the first page offers for download.")
    st.download_button(
        "Download as CSV",
        found.csv(),
        file_name=f"{safe_label(order.view.profile().name)}-map.csv",
        mime="text/csv",
        on_click="ignore",
        icon=":material/download:",
        key="map-csv",
        help="A line per cell: both fields, the speed-up, the winner, seconds to the target of every algorithm.",
    )


if __name__ == "__main__":
    page()
