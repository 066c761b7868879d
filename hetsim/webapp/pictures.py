"""Comparisons by view, cached for all sessions: a quick one at once, the tuned one by a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import streamlit as st

from hetsim.comparison import Comparison
from hetsim.webapp import jobs
from hetsim.webapp.view import View

MOST_KEPT = 24  # quick pictures [our choice], some megabytes each
Report = Callable[..., None]


def picture(view: View, tuned: bool | None = None) -> Comparison:
    """The comparison of a view: tuned where that is wanted and there already, else the quick one. Raises HetsimError."""
    wanted = view.tuned if tuned is None else tuned
    done = finished(view) if wanted else None
    return quick(view) if done is None else done


def both(view: View, pinned: View | None) -> tuple[Comparison, Comparison | None]:
    """The comparison of a view and of its baseline, of the same kind: both tuned, or neither. Raises HetsimError."""
    if pinned is None:
        return picture(view), None
    tuned = state(view, pinned) == "tuned"
    return picture(view, tuned), picture(pinned, tuned and pinned.tuned)


def state(view: View, pinned: View | None = None) -> Literal["tuned", "fixed", "tuning"]:
    """Whether a picture is tuned, need not be, or is still to be."""
    wanted = [v for v in (view, pinned) if v is not None and v.tuned]
    if not view.tuned:
        return "fixed"
    return "tuned" if all(finished(v) is not None for v in wanted) else "tuning"


def finished(view: View) -> Comparison | None:
    """The tuned comparison where a job has made it."""
    job = jobs.find(tuned_key(view))
    return job.result() if job is not None and job.state == "done" else None


def quick(view: View) -> Comparison:
    """The comparison at once: fixed settings, one seed. Raises HetsimError."""
    return _quick(view)


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _quick(view: View) -> Comparison:
    return compute(view, tuned=False)


def compute(view: View, tuned: bool, report: Report | None = None) -> Comparison:
    """The comparison itself, not cached. Raises HetsimError."""
    from hetsim.compare import compare

    def progress(label: str, done: int, total: int) -> None:
        if report is not None:
            report(done, total, label)

    seeds = None if tuned else 1
    return compare(view.profile(), list(view.algorithms), seeds=seeds, seed=view.seed, jobs=1, progress=progress)


def tuned_key(view: View) -> Any:
    """The key of the job that tunes a view."""
    return ("tuned", view)


def tuning(view: View, slot: str = "tuning") -> jobs.Job:
    """The job that tunes a view, begun where it was not."""
    return jobs.start(tuned_key(view), compute_tuned, view, slot=slot)


def compute_tuned(view: View, report: Report) -> Comparison:
    """What that job does: the comparison of `hetsim compare`."""
    return compute(view, True, report)
