"""Map: over which clusters does it pay? The speed-up over the best baseline over two fields, computed beside the app."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from hetsim.algorithms import registry
from hetsim.errors import HetsimError
from hetsim.export import safe_label
from hetsim.labels import parse
from hetsim.speedup_map import LABEL, SpeedupMap
from hetsim.sweeps.page import steady_count_note
from hetsim.webapp import HERE, charts, jobs, map_figure, messages, session
from hetsim.webapp.figures import adapted
from hetsim.webapp.mapping import (
    MOST_VALUES,
    SPACINGS,
    Choice,
    MapOrder,
    axis_text,
    cell_view,
    choices,
    clicked_cell,
    compute,
    said,
)
from hetsim.webapp.messages import tell, told
from hetsim.webapp.view import View

ORDER, REFUSED, SETTINGS, CHOSEN = "map-order", "map-refused", "map-settings", "map-chosen"
OTHER = "another field, by its path"
DEFAULTS = (0, 1)  # of the menu: what the axes are at first
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
        order = _ask(view, known)
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


# ---- controls ----------------------------------------------------------------------------------------------------------------------------


def _kept(name: str, default: Any) -> Any:
    """What a control was set to when the page was last on screen."""
    return st.session_state.setdefault(SETTINGS, {}).get(name, default)


def _keep(name: str, value: Any) -> Any:
    st.session_state.setdefault(SETTINGS, {})[name] = value
    return value


def _ask(view: View, known: tuple[Choice, ...]) -> MapOrder | None:
    """The controls; None where what they say is not complete."""
    label = _label(view)
    left, right = st.columns(2, gap="large")
    with left:
        x = _axis("x", "Across", known, DEFAULTS[0])
    with right:
        y = _axis("y", "Upwards", known, DEFAULTS[1])
    if not x or not y:
        st.info("Write the field's path and its values.", icon=":material/edit:")
        return None
    return MapOrder(view=view, x=x, y=y, label=label)


def _label(view: View) -> str:
    mine = [label for label in view.algorithms if registry()[parse(label).name].role != "baseline"]
    options = list(dict.fromkeys([*([LABEL] if LABEL in mine or not mine else []), *mine, *view.algorithms]))
    kept = _kept("label", options[0])
    chosen = st.selectbox(
        "Algorithm whose speed-up is shown",
        options,
        index=options.index(kept) if kept in options else 0,
        key="map-label",
        help="Its time to the target, against that of the fastest baseline in the same cell. The algorithms of the first page take part.",
    )
    return str(_keep("label", chosen))


def _axis(which: str, title: str, known: tuple[Choice, ...], default: int) -> str:
    """One axis as `--over` takes it; "" where it is not complete."""
    fields = {choice.field: choice for choice in known}
    options = [*fields, OTHER]
    kept = _kept(f"{which}-field", options[min(default, len(known) - 1)])
    field = st.selectbox(
        title,
        options,
        index=options.index(kept) if kept in options else 0,
        format_func=lambda name: fields[name].title if name in fields else name,
        key=f"map-{which}-field",
        help="The field of the profile that changes from cell to cell.",
    )
    _keep(f"{which}-field", field)
    return _free(which) if field == OTHER else _range(which, fields[field])


def _free(which: str) -> str:
    path = st.text_input(
        "Path of the field",
        _kept(f"{which}-path", ""),
        max_chars=200,
        key=f"map-{which}-path",
        placeholder="workers.d.samples_per_s",
        help="As --set and hetsim sweep take it: workers.d.samples_per_s, training.momentum, algorithms.s-sgd.overlap.",
    ).strip()
    values = st.text_input(
        "Values",
        _kept(f"{which}-values", ""),
        max_chars=1000,
        key=f"map-{which}-values",
        placeholder="100..800:5:log  or  100,200,400",
        help=f"A list with commas, or low..high:count, with :log for equal ratios, :whole for whole numbers; up to {MOST_VALUES} values.",
    ).strip()
    _keep(f"{which}-path", path)
    _keep(f"{which}-values", values)
    return f"{path}={values}" if path and values else ""


def _range(which: str, choice: Choice) -> str:
    at = f"{which}-{choice.field}"
    st.caption(choice.means)
    unit = f", {choice.unit}" if choice.unit else ""
    low, high = st.columns(2)
    whole = _kept(f"{at}-spacing", choice.spacing).startswith("whole")
    form: dict[str, Any] = {"format": "%.0f" if whole else "%g", "step": None if not whole else 1.0}
    begin = low.number_input(
        f"From{unit}",
        value=float(_kept(f"{at}-low", choice.low)),
        key=f"map-{at}-low",
        help="The lowest value.",
        **_without_none(form),
    )
    end = high.number_input(
        f"To{unit}",
        value=float(_kept(f"{at}-high", choice.high)),
        key=f"map-{at}-high",
        help="The highest value.",
        **_without_none(form),
    )
    few, even = st.columns(2)
    count = few.number_input(
        "Values",
        1,
        MOST_VALUES,
        int(_kept(f"{at}-count", choice.count)),
        key=f"map-{at}-count",
        help="How many, both ends included.",
    )
    spacing = even.selectbox(
        "Spacing",
        SPACINGS,
        index=SPACINGS.index(_kept(f"{at}-spacing", choice.spacing)),
        key=f"map-{at}-spacing",
        help="Equal ratios: 1, 10, 100. Equal steps: 1, 2, 3.",
    )
    for name, value in (("low", begin), ("high", end), ("count", count), ("spacing", spacing)):
        _keep(f"{at}-{name}", value)
    return axis_text(choice.field, begin, end, count, spacing)


def _without_none(form: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in form.items() if value is not None}


# ---- the job -----------------------------------------------------------------------------------------------------------------------------


def _start(order: MapOrder) -> None:
    """Begin it, or say at once why it cannot be."""
    st.session_state.pop(REFUSED, None)
    st.session_state.pop(CHOSEN, None)
    try:
        order.check()
        jobs.start(key_of(order), compute, order, slot="map")
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
        st.fragment(_progress, run_every=0.5)(job)
    elif job.state == "cancelled":
        st.info("Cancelled.", icon=":material/info:")
    else:
        with told():
            _show(order, job.result())


def _progress(job: jobs.Job) -> None:
    """Looked at again twice a second while it runs."""
    if job.over:
        st.rerun()
    waiting = "waiting for other work to end" if job.state == "waiting" else job.progress.text or "starting"
    st.progress(job.progress.share, waiting)
    st.button("Cancel", icon=":material/stop:", key="map-cancel", on_click=job.cancel, help="Ends it; nothing is kept.")


# ---- the map -----------------------------------------------------------------------------------------------------------------------------


def _show(order: MapOrder, found: SpeedupMap) -> None:
    names = {choice.field: choice.title for choice in choices(order.view.profile())}
    x_title, y_title = names.get(found.x, found.x), names.get(found.y, found.y)
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
