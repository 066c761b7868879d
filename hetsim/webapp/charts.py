"""Figures and words of unknown origin on a page: in the colours of its theme, with a description for screen readers, without markup."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st
from plotly import graph_objects as go

# Buttons that help on none of these figures are left out; the others stay for the keyboard and the mouse.
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"], "responsive": True}
MARKDOWN = re.compile(r"([\\`*_\[\]<>$~|&]|:(?=\w)|^[-+#!]|^\d+[.)])")


def show(figure: go.Figure, describes: str, *, key: str | None = None, **more: Any) -> Any:
    """A figure in the page's theme, light or dark; `describes` says in a sentence what it shows."""
    figure.update_layout(
        template="streamlit", font={"color": None}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)"
    )
    return st.plotly_chart(figure, key=key, alt=describes, config=CONFIG, **more)


def plain(text: str) -> str:
    """Text as it is, in a place that reads Markdown."""
    return MARKDOWN.sub(_escaped, " ".join(text.split()))


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    return f"{text[:-1]}\\{text[-1]}"
