"""What the pages say where something cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from hetsim.errors import HetsimError, ProfileError


def tell(error: HetsimError) -> None:
    """An error as the command line words it: every problem of a profile with its line and column."""
    if isinstance(error, ProfileError):
        count = len(error.problems)
        st.error(f"The profile has {count} problem{'s' if count != 1 else ''}.", icon=":material/error:")
    else:
        st.error("This cannot be shown.", icon=":material/error:")
    st.code(str(error), language=None, wrap_lines=True)


@contextmanager
def told() -> Iterator[None]:
    """What fails inside is told, and the page ends there; a person never sees a traceback for bad input."""
    try:
        yield
    except HetsimError as error:
        tell(error)
        st.stop()
