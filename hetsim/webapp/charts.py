"""Figures on a page: in the colours of its theme, with a description for screen readers."""

from __future__ import annotations

import streamlit as st
from plotly import graph_objects as go

from hetsim.webapp.figures import adapted

# Buttons that help on none of these figures are left out.
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}


def show(figure: go.Figure, describes: str, *, key: str) -> None:
    """A figure as the page is, light or dark; `describes` says in a sentence what it shows."""
    dark = st.context.theme.type == "dark"
    st.plotly_chart(adapted(figure, dark), theme=None, config=CONFIG, key=key, alt=describes)
