"""Comparisons by view, cached for all sessions: a quick one at once, then the one of `hetsim compare` by a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import streamlit as st

from hetsim.cluster.spec import Cluster
from hetsim.comparison import Comparison
from hetsim.compute.model import pass_model
from hetsim.webapp import jobs
from hetsim.webapp.view import View

MOST_KEPT = 24  # quick pictures [our choice], some megabytes each
MOST_AT_ONCE = 16  # workers of a picture that a page computes itself, in about a second; larger clusters are a job
MOST_MEANWHILE = (
    1_000  # passes of a picture's workers during one transfer [our choice]: some seconds for all algorithms
)
SLOT, BASELINE_SLOT = "full", "full, of the baseline"
Report = Callable[..., None]


def picture(view: View, full: bool | None = None) -> Comparison:
    """The comparison of a view: over all seeds where that is wanted (by default, where the view is tuned) and there, else the quick one.

    Where even the quick one takes long, the page shows how far it is and ends; it runs again once it is there. Raises HetsimError.
    """
    wanted = view.tuned if full is None else full
    done = finished(view) if wanted else None
    return quick(view) if done is None else done


def both(view: View, pinned: View | None) -> tuple[Comparison, Comparison | None]:
    """The comparison of a view and of its baseline, of the same kind: both over all seeds, or both quick. Raises HetsimError."""
    if pinned is None:
        return picture(view), None
    full = state(view, pinned) == "full"
    return picture(view, full), picture(pinned, full and pinned.tuned)


def state(view: View, pinned: View | None = None) -> Literal["full", "fixed", "quick"]:
    """Whether a picture is over all seeds, is not to be, or is still to be."""
    wanted = [v for v in (view, pinned) if v is not None and v.tuned]
    if not view.tuned:
        return "fixed"
    return "full" if all(finished(v) is not None for v in wanted) else "quick"


def finished(view: View) -> Comparison | None:
    """The comparison over all seeds where a job has made it."""
    return _result(full_key(view))


def quick(view: View) -> Comparison:
    """The comparison of one seed: from steady states, in about a second; by a job where there is none, or many workers."""
    if not is_long(view):
        return _quick(view)
    key = ("quick", view)
    there = _result(key)
    if there is not None:
        return there
    job = jobs.start(key, compute_quick, view, slot=f"quick {view == _session_view()}", urgent=True)
    if job.state == "failed":
        job.result()
    _show(key)
    st.stop()


def is_long(view: View) -> bool:
    """Whether a quick comparison takes more than a moment. Raises HetsimError."""
    from hetsim.steady_run import is_short

    cluster = view.profile().cluster()
    return cluster.n > MOST_AT_ONCE or not is_short(cluster, "nqm") or _meanwhile(cluster) > MOST_MEANWHILE


def _meanwhile(cluster: Cluster) -> float:
    """Passes of all workers while one gradient crosses the slowest link: what there is to simulate, where they compute on."""
    slowest_s = max(
        cluster.workload.gradient_bytes / link.bytes_per_s + link.latency_s for link in cluster.network.links
    )
    micro = cluster.training.micro_batch_samples
    return sum(slowest_s / max(pass_model(worker).seconds(micro), 1e-12) for worker in cluster.workers)


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _quick(view: View) -> Comparison:
    return compute(view, full=False)


@st.fragment(run_every=1.0)
def _show(key: Any) -> None:
    """How far a job is, each second; the whole page once it is over."""
    job = jobs.find(key)
    if job is None or job.over:
        st.rerun()
    else:
        st.info(
            "A cluster of many workers or very slow links, or one that changes while it runs, takes a while.",
            icon=":material/hourglass:",
        )
        st.progress(job.progress.share, text=f"Simulating: {job.progress.text or 'begun'}")


def _session_view() -> View:
    from hetsim.webapp import session

    return session.current()


def _result(key: Any) -> Comparison | None:
    job = jobs.find(key)
    return job.result() if job is not None and job.state == "done" else None


def compute(view: View, full: bool, report: Report | None = None) -> Comparison:
    """The comparison itself, not cached: `full` as `hetsim compare`, else the quick one. Raises HetsimError."""
    from hetsim.compare import compare
    from hetsim.quick import quick as quick_one

    def progress(label: str, done: int, total: int) -> None:
        if report is not None:
            report(done, total, label)

    labels = list(view.algorithms)
    if full:
        return compare(view.profile(), labels, seed=view.seed, jobs=1, progress=progress)
    return quick_one(view.profile(), labels, seed=view.seed, tuned=view.tuned, progress=progress)


def full_key(view: View) -> Any:
    """The key of the job that compares a view over all seeds."""
    return ("full", view)


def comparing(view: View, slot: str = SLOT) -> jobs.Job:
    """That job, begun where it was not."""
    return jobs.start(full_key(view), compute_full, view, slot=slot)


def outdated(view: View, pinned: View | None) -> None:
    """Comparisons over all seeds of what is no longer on screen are given up: they would keep processors from what is."""
    jobs.keep_only(SLOT, [full_key(view)])
    jobs.keep_only(BASELINE_SLOT, [] if pinned is None else [full_key(pinned)])


def compute_full(view: View, report: Report) -> Comparison:
    """What that job does: the comparison of `hetsim compare`."""
    return compute(view, True, report)


def compute_quick(view: View, report: Report) -> Comparison:
    """The quick comparison, as a job."""
    return compute(view, False, report)
