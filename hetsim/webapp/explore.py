"""Explore: one cluster, the algorithms, who wins and why. The first page."""

from __future__ import annotations

import streamlit as st

from hetsim.webapp import pictures, session
from hetsim.webapp.messages import told


def page() -> None:
    """The page."""
    view = session.current()
    with told():
        comparison = pictures.picture(view)
    st.title(comparison.profile)
    st.write(comparison.sentence())


if __name__ == "__main__":
    page()
