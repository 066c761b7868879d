"""Profiles that a person brings: an uploaded file, the text of the editor. Only what loads takes the view's place."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from hetsim.cluster.loader import decoded
from hetsim.cluster.shipped import shipped_paths
from hetsim.errors import HetsimError
from hetsim.webapp import session
from hetsim.webapp.view import FILE, View


def view_of(text: str, view: View) -> View:
    """The view with this profile in place of its own. Raises UsageError where it is too large, ProfileError where it is wrong."""
    made = replace(view, source=text if "\n" in text else f"{text}\n", overrides=(), target=None)
    made.profile().cluster()
    return made


def text_of(view: View) -> str:
    """The text to edit: with all comments where the controls have changed nothing, else the whole profile as it is now."""
    if view.overrides or view.target is not None:
        return view.profile().to_yaml()
    return shipped_paths()[view.source].read_text(encoding="utf-8") if view.shipped else view.source


def upload_changed(key: str) -> None:
    """Take an uploaded file's profile; where it is wrong, keep what was and say why."""
    file = st.session_state.get(key)
    if file is not None:
        take(file.getvalue(), file.name)


def take(data: bytes, name: str = FILE) -> None:
    """Another profile from bytes, for the session."""
    try:
        text = decoded(data, name)
    except HetsimError as error:
        session.reject(error, "")
        return
    take_text(text)


def take_text(text: str) -> None:
    """Another profile from text, for the session."""
    try:
        session.replace(view_of(text, session.current()))
        session.reject(None)
    except HetsimError as error:
        session.reject(error, text)
