"""Comparisons by view, cached for all sessions: at fixed settings at once, tuned by a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from hetsim.comparison import Comparison
from hetsim.webapp import jobs
from hetsim.webapp.view import View

MOST_KEPT = 64  # pictures; at fixed settings about a megabyte each
Report = Callable[..., None]


def picture(view: View, tuned: bool | None = None) -> Comparison:
    """The comparison of a view, tuned as the view says or as asked. Raises HetsimError. Takes seconds where it is not cached and tuned."""
    wanted = view.tuned if tuned is None else tuned
    if wanted:
        job = jobs.find(tuned_key(view))
        if job is not None and job.state == "done":
            found: Comparison = job.result()
            return found
    return _kept(view, wanted)


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _kept(view: View, tuned: bool) -> Comparison:
    return compute(view, tuned)


def compute(view: View, tuned: bool, report: Report | None = None) -> Comparison:
    """The comparison itself, not cached."""
    from hetsim.compare import compare

    def progress(label: str, done: int, total: int) -> None:
        if report is not None:
            report(done, total, label)

    profile = view.profile()
    return compare(profile, list(view.algorithms), seeds=1, seed=view.seed, jobs=1, progress=progress)


def tuned_key(view: View) -> Any:
    """The key of the job that tunes a view."""
    return ("tuned", view)


def tuning(view: View, slot: str = "tuning") -> jobs.Job:
    """The job that tunes a view, begun where it was not."""
    return jobs.start(tuned_key(view), compute_tuned, view, slot=slot)


def compute_tuned(view: View, report: Report) -> Comparison:
    """What that job does: the comparison of `hetsim compare`."""
    return compute(view, True, report)
