"""What the pages say where something cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from hetsim.errors import HetsimError, ProfileError

MOST_LINES = 12  # of a profile that are shown with their problems [our choice]


def tell(error: HetsimError, text: str = "") -> None:
    """An error as the command line words it: every problem of a profile with its line and column, and the lines of its text."""
    if isinstance(error, ProfileError):
        count = len(error.problems)
        st.error(f"The profile has {count} problem{'s' if count != 1 else ''}.", icon=":material/error:")
    else:
        st.error("This cannot be shown.", icon=":material/error:")
    st.code(str(error), language=None, wrap_lines=True)
    lines = excerpt(error, text) if isinstance(error, ProfileError) else ""
    if lines:
        st.code(lines, language=None)


def excerpt(error: ProfileError, text: str) -> str:
    """The lines of `text` that have problems, numbered, each with a mark below the column."""
    source = text.splitlines()
    out = []
    for problem in error.problems:
        if problem.line is None or problem.file is not None or not 0 < problem.line <= len(source):
            continue
        line, column = source[problem.line - 1], problem.column or 1
        start = max(0, column - 60)  # of a long line, what is around the column
        shown = re.sub(r"[^\x20-\x7e\xa0-\uffff]", " ", line[start : start + 100])
        out.append(f"{problem.line:>5} | {shown}\n      | {' ' * (column - 1 - start)}^ {problem.message}")
    return "\n".join(out[:MOST_LINES])


@contextmanager
def told() -> Iterator[None]:
    """What fails inside is told, and the page ends there; a person never sees a traceback for bad input."""
    try:
        yield
    except HetsimError as error:
        tell(error)
        st.stop()


def said(text: str) -> str:
    """Text from a profile or a result as one paragraph of markdown that shows it as it is."""
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-!|<>$:~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\d+)\.", r"\1\\.", escaped)  # no list
