"""What a person's session holds: the view on screen, the pinned baseline, and what a link asked for. All keys are here.

current, replace     the view on screen, and another in its place
baseline, pin, unpin the view that it is compared with
restore              what the link says, once
link                 the parameters that lead back to both
generation           part of the controls' keys: goes up where they must start from the view again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from hetsim.errors import HetsimError, UsageError
from hetsim.webapp.view import KEYS, View

VIEW, BASELINE, GENERATION = "view", "baseline", "generation"
RESTORED, REFUSED, REJECTED, SETTLED = "restored", "refused", "rejected", "settled"
OF_BASELINE = "base-"  # a link's parameters of the baseline begin so


def current() -> View:
    """The view on screen."""
    view: View | None = st.session_state.get(VIEW)
    return View() if view is None else view


def update(view: View) -> None:
    """Another view, from the controls themselves: they stay as they are."""
    st.session_state[VIEW] = view


def replace(view: View) -> None:
    """Another view, from elsewhere (a cell of the map, another profile): the controls start from it."""
    update(view)
    st.session_state[GENERATION] = generation() + 1


def generation() -> int:
    """How often the view was replaced."""
    number: int = st.session_state.get(GENERATION, 0)
    return number


def baseline() -> View | None:
    """The pinned view, None where there is none."""
    view: View | None = st.session_state.get(BASELINE)
    return view


def pin(view: View | None = None) -> None:
    """Keep a view (the one on screen) as the baseline."""
    st.session_state[BASELINE] = current() if view is None else view


def unpin() -> None:
    """Without a baseline."""
    st.session_state.pop(BASELINE, None)


def restore() -> None:
    """Take the view from the page's link, at the first run of a session only; what is refused is kept for `refused`."""
    if st.session_state.get(RESTORED):
        return
    st.session_state[RESTORED] = True
    parameters = st.query_params.to_dict()
    try:
        view, pinned = read_link(parameters)
    except UsageError as error:
        st.session_state[REFUSED] = str(error)
        return
    if view is not None:
        replace(view)
    if pinned is not None:
        pin(pinned)


def refused() -> str | None:
    """Why the link was not followed, once."""
    text: str | None = st.session_state.pop(REFUSED, None)
    return text


def link(view: View, pinned: View | None = None) -> dict[str, str]:
    """The parameters of a link to a view and its baseline. Raises UsageError where a profile is too large for one."""
    out = view.query()
    if pinned is not None:
        out |= {f"{OF_BASELINE}{key}": value for key, value in pinned.query().items()} or {f"{OF_BASELINE}seed": "0"}
    return out


def read_link(parameters: Mapping[str, Any]) -> tuple[View | None, View | None]:
    """View and baseline of a link, None where it says nothing of them. Raises UsageError."""
    mine = {key: str(value) for key, value in parameters.items() if key in KEYS}
    theirs = {
        key.removeprefix(OF_BASELINE): str(value)
        for key, value in parameters.items()
        if key.startswith(OF_BASELINE) and key.removeprefix(OF_BASELINE) in KEYS
    }
    return (View.from_query(mine) if mine else None), (View.from_query(theirs) if theirs else None)


def reject(error: HetsimError | None, text: str = "") -> None:
    """Keep what is wrong with a profile that was brought, and its text; None: the last one was right."""
    st.session_state[REJECTED] = None if error is None else (error, text)


def rejected() -> tuple[HetsimError, str] | None:
    """What is wrong with the profile that was brought last, and its text."""
    found: tuple[HetsimError, str] | None = st.session_state.get(REJECTED)
    return found
