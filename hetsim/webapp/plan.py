"""Plan: how to train on this cluster, and why: algorithm, every worker's batch, what to copy, what each worker is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from hetsim import wording
from hetsim.comparison import plain
from hetsim.costs import cost_notes
from hetsim.errors import HetsimError
from hetsim.export import safe_label
from hetsim.marginal import HOW
from hetsim.plan import Plan
from hetsim.plan_copy import read_batches
from hetsim.webapp import jobs, planning, session
from hetsim.webapp.messages import said, tell, told
from hetsim.webapp.planning import MOST_BATCHES, PlanOrder, compute
from hetsim.webapp.view import View

ORDER, REFUSED, SETTINGS = "plan-order", "plan-refused", "plan-settings"
EVERY, CHOSEN = "all that hetsim plans with", "those chosen on the first page"
PRINTED = {
    "batch, samples": "%.0f",
    "share, %": "%.1f",
    "computes, ms": "%.3g",
    "memory, GB": "%.2f",
    "of, GB": "%.0f",
    "full, %": "%.0f",
    "loss weight": "%.4f",
    "× as long": "%.2f",
    "from": "%.2f",
    "up to": "%.2f",
    "time, %": "%+.1f",
    "cost, %": "%+.1f",
    "energy, %": "%+.1f",
    "samples/s": "%.0f",
    "rank": "%d",
}


def page() -> None:
    """The page."""
    st.title("Plan")
    st.markdown(
        "How to train on this cluster, and why: every way is tried by simulation, each with its best learning rate."
    )
    view = session.current()
    with told():
        profile = view.profile()
    st.text(f"Cluster: {profile.name}")
    _ask(view)
    refused: HetsimError | None = st.session_state.get(REFUSED)
    if refused is not None:
        tell(refused)
    shown: PlanOrder | None = st.session_state.get(ORDER)
    if shown is None:
        return
    if shown.view != view:
        st.info("The plan below is for the cluster as it was; it has been changed since.", icon=":material/history:")
    _follow(shown)


# ---- asking ------------------------------------------------------------------------------------------------------------------------------


def _ask(view: View) -> None:
    kept: dict[str, Any] = st.session_state.setdefault(SETTINGS, {})
    with st.form("plan-form"):
        left, right = st.columns(2)
        options = [EVERY, CHOSEN]
        which = left.selectbox(
            "Algorithms to choose from",
            options,
            index=options.index(kept.get("which", EVERY)),
            key="plan-which",
            help="All: every algorithm, with its triggers, compute points and micro-batches. The others are what the first page compares.",
        )
        text = right.text_input(
            "Global batches to choose from, samples",
            kept.get("batches", ""),
            max_chars=100,
            key="plan-batches",
            placeholder=f"{view.profile().training.global_batch_samples:d}, as the profile says",
            help=f"With commas between them, as 512,1024,2048; up to {MOST_BATCHES}. Each takes as long to try as the first.",
        )
        asked = st.form_submit_button(
            "Plan",
            type="primary",
            icon=":material/checklist:",
            key="plan-start",
            help="In the background; a minute as a rule.",
        )
    kept |= {"which": which, "batches": text}
    if asked:
        _start(view, which == EVERY, text)


def _start(view: View, every: bool, text: str) -> None:
    """Begin it, or say at once why it cannot be."""
    st.session_state.pop(REFUSED, None)
    try:
        batches = tuple(read_batches(text) or ()) if text.strip() else ()
        order = PlanOrder(view=view, every=every, batches=batches)
        order.check()
        jobs.start(key_of(order), compute, order, slot="plan", urgent=True)
        st.session_state[ORDER] = order
    except HetsimError as error:
        st.session_state[REFUSED] = error
        st.session_state.pop(ORDER, None)


def key_of(order: PlanOrder) -> Any:
    """The key of its job."""
    return ("plan", order)


def _follow(order: PlanOrder) -> None:
    job = jobs.find(key_of(order))
    if job is None:
        st.info("This plan is no longer kept; ask for it again.", icon=":material/history:")
    elif not job.over:
        st.fragment(_progress, run_every=0.5)(job)
    elif job.state == "cancelled":
        st.info("Cancelled.", icon=":material/info:")
    else:
        with told():
            _show(order, job.result())


def _progress(job: jobs.Job) -> None:
    """Looked at again twice a second while it runs."""
    if job.over:
        st.rerun()
    waiting = "waiting for other work to end" if job.state == "waiting" else job.progress.text or "starting"
    st.progress(job.progress.share, said(waiting))
    st.button(
        "Cancel", icon=":material/stop:", key="plan-cancel", on_click=job.cancel, help="Ends it; nothing is kept."
    )


# ---- the plan ----------------------------------------------------------------------------------------------------------------------------


def _show(order: PlanOrder, p: Plan) -> None:
    st.header(said(planning.headline(p)))
    found = planning.figures(p)
    for place, figure in zip(st.columns(len(found)), found, strict=True):
        place.metric(figure.label, figure.value, help=said(figure.means), border=True)
    notes = cost_notes({name: plain(tariff) for name, tariff in p.tariffs.items()})
    st.caption(said(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes)))
    st.subheader("Every worker's part")
    _table(planning.workers(p), planning.WORKER_MEANS, "What every worker computes in an update, and its memory")
    for use in planning.tight(p):
        st.warning(
            said(f"{use.worker} needs {wording.size(use.needs)} and has {wording.size(use.has)}"),
            icon=":material/memory:",
        )
    if p.split == "open":
        st.caption("Batches are means over updates: the worker leaves when the last synchronization is done.")
    st.subheader("Why")
    st.markdown("\n".join(f"- **{said(what)}**: {said(why)}" for what, why in planning.reasons(p)))
    _copy(order, p)
    _worth(p)
    if p.alternatives:
        st.subheader("Also tried")
        _table(planning.others(p), planning.OTHER_MEANS, "What else was tried, fastest first")
    _trust(p)
    _downloads(order, p)


def _table(rows: list[planning.Row], means: dict[str, str], describes: str) -> None:
    config: dict[str, Any] = {}
    for head in rows[0]:
        if head in PRINTED:
            config[head] = st.column_config.NumberColumn(head, help=means[head], format=PRINTED[head])
        else:
            config[head] = st.column_config.TextColumn(head, help=means[head])
    st.dataframe(rows, column_config=config, hide_index=True, height="content", placeholder="–", alt=describes)


def _copy(order: PlanOrder, p: Plan) -> None:
    script, shell = planning.to_copy(p, order)
    st.subheader("To copy")
    st.caption("Into your own script, one number per rank:")
    st.code("\n".join(script), language="python", wrap_lines=True)
    st.caption("Into a terminal:")
    st.code("\n".join(shell), language="bash", wrap_lines=True)
    if not order.view.shipped:
        st.caption(f"{said(order.view.file_name())} is the profile, which the first page offers for download.")


def _worth(p: Plan) -> None:
    rows = planning.worth(p)
    if not rows:
        return
    st.subheader("What each worker is worth")
    _table(rows, planning.WORTH_MEANS, "The same training without some of the workers")
    st.caption(f"The same training without it, to the same target. Time {HOW}.")


def _trust(p: Plan) -> None:
    for name, why in p.excluded.items():
        st.markdown(f"- **left out, too large: {said(name)}**: {said(why)}")
    with st.expander(f"How far to trust this: {_many(p.warnings, 'warning')}, {_many(p.assumptions, 'assumption')}"):
        for warning in p.warnings:
            st.markdown(f"- **{said(warning.code)}**: {said(warning.text)}")
        for text in p.assumptions:
            st.markdown(f"- {said(text)}")
        st.markdown(f"- Predicted by {said(p.predictor)}, not measured; {_many(p.seeds, 'seed')}.")


def _many(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _downloads(order: PlanOrder, p: Plan) -> None:
    st.subheader("Take it with you")
    st.download_button(
        "Plan (JSON)",
        planning.document(p),
        file_name=f"{safe_label(p.profile)}-plan.json",
        mime="application/json",
        on_click="ignore",
        icon=":material/download:",
        key="plan-json",
        help="What hetsim plan --json prints.",
    )
    st.caption("The same in a terminal:")
    st.code(order.command(), language="bash", wrap_lines=True)


if __name__ == "__main__":
    page()
