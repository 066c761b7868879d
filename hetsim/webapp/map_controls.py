"""The controls of Map: the algorithm, and two axes as `hetsim sweep --over` takes them."""

from __future__ import annotations

from typing import Any

import streamlit as st

from hetsim.algorithms import registry
from hetsim.labels import parse
from hetsim.speedup_map import LABEL
from hetsim.webapp.mapping import MOST_VALUES, SPACINGS, Choice, MapOrder, axis_text
from hetsim.webapp.view import View

SETTINGS = "map-settings"
OTHER = "another field, by its path"
DEFAULTS = (0, 1)  # of the menu: what the axes are at first


def ask(view: View, known: tuple[Choice, ...]) -> MapOrder | None:
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


def _kept(name: str, default: Any) -> Any:
    """What a control was set to when the page was last on screen."""
    return st.session_state.setdefault(SETTINGS, {}).get(name, default)


def _keep(name: str, value: Any) -> Any:
    st.session_state.setdefault(SETTINGS, {})[name] = value
    return value


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
    path = _typed(
        f"{which}-path",
        "Path of the field",
        max_chars=200,
        placeholder="workers.d.samples_per_s",
        help="As --set and hetsim sweep take it: workers.d.samples_per_s, training.momentum, algorithms.s-sgd.overlap.",
    )
    values = _typed(
        f"{which}-values",
        "Values",
        max_chars=1000,
        placeholder="100..800:5:log  or  100,200,400",
        help=f"A list with commas, or low..high:count, with :log for equal ratios, :whole for whole numbers; up to {MOST_VALUES} values.",
    )
    return f"{path}={values}" if path and values else ""


def _typed(name: str, label: str, **more: Any) -> str:
    return str(_keep(name, st.text_input(label, _kept(name, ""), key=f"map-{name}", **more).strip()))


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
