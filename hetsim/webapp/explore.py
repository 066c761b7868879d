"""Explore: one cluster, the algorithms, who wins and why. The first page, complete at first sight."""

from __future__ import annotations

import time
from typing import Any, Literal

import streamlit as st

from hetsim.comparison import Comparison
from hetsim.webapp import charts, figures, metrics, offers, pictures, session, sidebar, sources, tables
from hetsim.webapp.messages import said, tell, told
from hetsim.webapp.view import View

SETTLED_S = (
    1.0  # a view stays this long before it is tuned: who moves a slider wants the next picture first [our choice]
)
WIDTHS: dict[str, Any] = {"algorithm": 190, "note": 170, "who contributes": 260, "limited by": 420}  # pixels
Against = Literal["seconds", "samples"]


def page() -> None:
    """The page."""
    view = sidebar.sidebar()
    problem = session.rejected()
    if problem is not None:
        tell(*problem)
        st.caption("The picture below is without it.")
    with told(), st.spinner("Computing", show_time=True):
        view.profile()
        pinned_view = session.baseline()
        pictures.outdated(view, pinned_view)
        comparison, pinned = pictures.both(view, pinned_view)
    top(view, comparison, pinned)
    st.header("Loss", divider="gray")
    losses(comparison, pinned)
    st.header("Who does what, when", divider="gray")
    timelines(comparison, pinned)
    st.header("The algorithms", divider="gray")
    rows = tables.table(comparison, pinned)
    table(comparison, rows, pinned is not None)
    trust(comparison)
    st.header("Take it with you", divider="gray")
    offers.offers(view, comparison, rows)
    editor(view)


def top(view: View, c: Comparison, pinned: Comparison | None) -> None:
    """The answer: sentences, figures, and whether they are tuned yet."""
    st.title(f"Which algorithm trains fastest on {said(c.profile)}?")
    first, _, rest = c.sentence().partition(". ")
    st.markdown(f"#### {said(first.rstrip('.'))}.")
    if rest:
        st.markdown(said(rest))
    if pinned is not None:
        st.markdown(f"**{said(metrics.against(c, pinned))}**")
    shown = metrics.figures(c, pinned)
    for place, figure in zip(st.columns(len(shown)), shown, strict=True):
        with place:
            st.metric(
                figure.label,
                figure.value,
                figure.delta,
                delta_color=figure.sense if figure.directed else "off",
                delta_arrow="auto" if figure.directed else "off",
                help=figure.means,
                border=True,
            )
    pinning(view, pinned)
    standing(view)


def pinning(view: View, pinned: Comparison | None) -> None:
    """Keep this view to compare the next ones with."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Pin as baseline",
            key="pin",
            icon=":material/keep:",
            on_click=session.pin,
            args=(view,),
            help="Keep this picture beside those that follow, with the differences in all figures.",
        )
        if pinned is None:
            st.caption("Pin this, then move a control: both pictures stand side by side.")
            return
        st.button("Unpin", key="unpin", icon=":material/keep_off:", on_click=session.unpin)
        st.button("Back to the baseline", key="back", icon=":material/undo:", on_click=_back)


def _back() -> None:
    pinned = session.baseline()
    if pinned is not None:
        session.replace(pinned)


def standing(view: View) -> None:
    """What the picture is: of one seed, over all, at fixed rates; and how far the better one is."""
    state = pictures.state(view, session.baseline())
    if state == "full":
        st.caption("Tuned and compared over all seeds, as hetsim compare does it; intervals are over seeds.")
    elif state == "fixed":
        st.caption(
            "All algorithms at the profile's learning rate and momentum; one seed, extended from its steady state."
        )
    else:
        _follow(view)


@st.fragment(run_every=1.0)
def _follow(view: View) -> None:
    """Looks every second how far the comparison over all seeds is; shows it once it is there."""
    quickly = "Quick picture: tuned on one seed, extended from its steady state."
    since: tuple[View, float] | None = st.session_state.get(session.SETTLED)
    if since is None or since[0] != view:
        st.session_state[session.SETTLED] = since = (view, time.monotonic())
    if time.monotonic() - since[1] < SETTLED_S:
        st.progress(0.0, text=f"{quickly} All seeds follow in a moment.")
        return
    jobs = [pictures.comparing(view)]
    pinned = session.baseline()
    if pinned is not None and pinned.tuned:
        jobs.append(pictures.comparing(pinned, slot=pictures.BASELINE_SLOT))
    if all(job.over for job in jobs):
        failed = next((job for job in jobs if job.state != "done"), None)
        if failed is None:
            st.rerun()
        else:
            st.warning(
                f"The comparison over all seeds did not come to an end: {failed.reason}", icon=":material/warning:"
            )
        return
    share = sum(1.0 if job.over else job.progress.share for job in jobs) / len(jobs)
    now = next((job.progress.text for job in jobs if not job.over), "")
    st.progress(share, text=f"{quickly} All seeds, in the background: {now or 'simulating'}.")


def losses(c: Comparison, pinned: Comparison | None) -> None:
    """Loss against seconds or samples."""
    against: Any = st.segmented_control(
        "Against",
        ["seconds", "samples"],
        default="seconds",
        key="against",
        help="Simulated seconds are what counts in the end; samples show what delay and batch size cost.",
    )
    sides(c, pinned, "loss", lambda one: figures.loss(one, against or "seconds"), figures.described)
    st.caption(
        f"Solid thick lines are ours, dashed thin ones baselines. Target, dotted: {said(c.target.metric)}, a loss of {c.target.value:.3g}."
    )


def timelines(c: Comparison, pinned: Comparison | None) -> None:
    """Who computes, communicates and waits, of the two that matter."""
    sides(c, pinned, "timeline", figures.who_does_what, figures.lanes)
    st.caption(
        "Bars are labelled with their samples: plain is computation, hatched communication, dotted waiting. "
        "The Timeline page shows all algorithms and the causes of waiting."
    )


def sides(c: Comparison, pinned: Comparison | None, key: str, draw: Any, words: Any) -> None:
    """One figure, or the baseline's and the what-if's side by side."""
    pairs = [("", c)] if pinned is None else [("Baseline", pinned), ("What-if", c)]
    drawn = figures.same_scale([draw(one) for _, one in pairs])
    for (title, one), figure, place in zip(pairs, drawn, st.columns(len(pairs)), strict=True):
        with place:
            if title:
                st.subheader(title)
            charts.show(figure, words(one), key=f"{key}/{title}")


def table(c: Comparison, rows: list[dict[str, Any]], pinned: bool) -> None:
    """All figures of all algorithms; columns sort by a click."""
    config: dict[str, Any] = {}
    for head, (kind, means) in tables.kinds(c, pinned).items():
        if kind == "text":
            config[head] = st.column_config.TextColumn(head, help=means, width=WIDTHS.get(head))
        else:
            config[head] = st.column_config.NumberColumn(head, help=means, format=kind)
    st.dataframe(
        rows, column_config=config, hide_index=True, height="content", placeholder="–", alt="Figures of all algorithms"
    )


def trust(c: Comparison) -> None:
    """Warnings, assumptions, where speeds are from."""
    with st.expander(f"How far to trust this: {len(c.warnings)} warnings, {len(c.assumptions)} assumptions"):
        for warning in c.warnings:
            st.markdown(f"- **{said(warning.code)}**: {said(warning.text)}")
        for text in c.assumptions:
            st.markdown(f"- {said(text)}")
        speeds = sorted(set(c.speeds.values()))
        st.markdown(f"- Predicted by {said(c.predictor)}, not measured; speeds of the workers: {', '.join(speeds)}.")


def editor(view: View) -> None:
    """The profile as text; what is wrong with it is said above, at its line."""
    problem = session.rejected()
    with st.expander("Edit the profile (YAML)", expanded=problem is not None):
        text = problem[1] if problem is not None and problem[1] else sources.text_of(view)
        key = f"editor/{hash(text)}"
        if key not in st.session_state:
            st.session_state[key] = text
        if problem is not None and problem[1]:
            tell(*problem)  # also here, where the text is put right
        # In a form: otherwise leaving the text runs the page, which may take the button from under a finger.
        with st.form("editor", border=False, enter_to_submit=False):
            st.text_area(
                "Profile",
                key=key,
                height=420,
                help="Units are in the keys. Files and code that it names are not read.",
            )
            st.form_submit_button("Apply", key="apply", type="primary", on_click=_apply, args=(key,))


def _apply(key: str) -> None:
    sources.take_text(st.session_state[key])


if __name__ == "__main__":
    page()
