"""Validate: did the predictions hold? A result or a validation opened, and a small validation run on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from hetsim import archives, wording
from hetsim.algorithms import registry
from hetsim.cluster import load_profile
from hetsim.errors import HetsimError
from hetsim.export import safe_label
from hetsim.webapp import opening, session, validation_run
from hetsim.webapp.messages import said, tell
from hetsim.webapp.opened import show
from hetsim.webapp.opening import OPENED, Opened
from hetsim.webapp.validation_run import LEAST_UPDATES, MOST_LATE, MOST_RUNS, MOST_UPDATES, PACE_TOLERANCE, Order, Run

UPLOAD, REFUSED, RUN, TAKEN = "validate-upload", "validate-refused", "validation-run", "validation-taken"
MEGABYTES = archives.MOST_PACKED_BYTES // 1_000_000
EMULATED = ("emulated-4", "emulated-4-slow-link", "emulated-4-changing")  # made for one machine
OWN = "the view of the first page"
UPDATES = 30  # some ten seconds of training [our choice]
START_S = 5.0  # processes that start and losses that are computed, on two cores, measured
NOT_LOCAL = (
    "Only where the explorer listens on this machine's own address alone (`hetsim app` does): who can reach it could otherwise read this "
    "machine's files, or keep it busy."
)


def page() -> None:
    """The page."""
    st.title("Validate")
    st.markdown("Did the predictions hold? Open a validation that was run before, or run a small one here.")
    local = opening.local_only(st.get_option("server.address"))
    left, right = st.columns(2, gap="large")
    with left:
        _open(local)
    with right:
        _run_here(local)
    opened: Opened | None = st.session_state.get(OPENED)
    if opened is not None:
        st.divider()
        show(opened)


# ---- open ----------------------------------------------------------------------------------------------------------------


def _open(local: bool) -> None:
    st.subheader("Open a result")
    st.file_uploader(
        "A result's folder, as a zip archive",
        type="zip",
        max_upload_size=MEGABYTES,
        key=UPLOAD,
        on_change=_take_archive,
        help="What hetsim validate -o, compare -o or simulate -o wrote, packed. Nothing in it is executed, and only what a result is "
        "read from is unpacked.",
    )
    with st.form("validate-folder", border=False):
        path = st.text_input(
            "Or a folder on this machine",
            key="validate-path",
            max_chars=opening.MOST_PATH,
            disabled=not local,
            placeholder="path of the folder",
            help="The folder that hetsim validate -o, compare -o or simulate -o wrote." if local else NOT_LOCAL,
        )
        asked = st.form_submit_button("Open", icon=":material/folder_open:", disabled=not local, key="validate-open")
    if not local:
        st.caption(NOT_LOCAL)
    elif asked:
        _take(lambda: opening.from_folder(path))
    refused: HetsimError | None = st.session_state.get(REFUSED)
    if refused is not None:
        tell(refused)


def _take_archive() -> None:
    """Once per upload; taking it away again closes nothing."""
    uploaded = st.session_state.get(UPLOAD)
    st.session_state.pop(REFUSED, None)
    if uploaded is not None:
        _take(lambda: opening.from_archive(uploaded.getvalue(), uploaded.name))


def _take(opener: Callable[[], Opened]) -> None:
    st.session_state.pop(REFUSED, None)
    try:
        st.session_state[OPENED] = opener()
    except HetsimError as error:
        st.session_state[REFUSED] = error


# ---- run -----------------------------------------------------------------------------------------------------------------


def _run_here(local: bool) -> None:
    st.subheader("Run one here")
    why = NOT_LOCAL if not local else validation_run.unavailable()
    run: Run | None = st.session_state.get(RUN)
    busy = run is not None and not run.over
    with st.form("validate-run", border=False):
        profile = st.selectbox(
            "Cluster",
            [*EMULATED, OWN],
            key="validate-profile",
            persist_state="session",
            disabled=why is not None,
            help="The emulated ones suit any machine that does nothing else: passes that sleep to keep the profile's time, slow links. "
            "Your own is run as it says, which takes a workload that can be trained here and times that this machine can keep.",
        )
        algorithms = st.multiselect(
            "Algorithms",
            [name for name, kind in registry().items() if kind.live is True],
            default=["abs-sgd"],
            max_selections=4,
            key="validate-algorithms",
            persist_state="session",
            disabled=why is not None,
            help="Each is predicted, trained for real by one process per worker, and compared.",
        )
        left, right, last = st.columns(3, vertical_alignment="bottom")
        updates = left.number_input(
            "Updates",
            LEAST_UPDATES,
            MOST_UPDATES,
            UPDATES,
            key="validate-updates",
            persist_state="session",
            disabled=why is not None,
            help="Of each run. The figures are taken over the second half of them.",
        )
        runs = right.number_input(
            "Runs",
            1,
            MOST_RUNS,
            1,
            key="validate-runs",
            persist_state="session",
            disabled=why is not None,
            help="On paired seeds; of several the median has to hold more closely.",
        )
        late = last.number_input(
            "Passes late by, %",
            0,
            round(100 * MOST_LATE),
            round(100 * PACE_TOLERANCE),
            key="validate-late",
            persist_state="session",
            disabled=why is not None,
            help="How much longer than the profile says passes may take before the run is given up: on a machine that also does other "
            "things they come late, and then predictions cannot hold.",
        )
        asked = st.form_submit_button(
            "Run", type="primary", icon=":material/play_arrow:", disabled=why is not None or busy, key="validate-start"
        )
    if why is not None:
        st.info(why, icon=":material/info:")
    if asked:
        _start(profile, tuple(algorithms), int(updates), int(runs), late / 100)
    if st.session_state.get(RUN) is not None:
        _follow()


def _start(profile: str, algorithms: tuple[str, ...], updates: int, runs: int, late: float) -> None:
    try:
        chosen = session.current().profile() if profile == OWN else load_profile(profile)
        order = Order(
            profile_yaml=chosen.to_yaml(),
            name=f"{safe_label(chosen.name)}-validation",
            algorithms=algorithms,
            updates=updates,
            runs=runs,
            pace_tolerance=late,
        )
        st.session_state[RUN] = validation_run.start(order, _session_lives())
        st.session_state.pop(TAKEN, None)
    except HetsimError as error:
        tell(error)


def _session_lives() -> Callable[[], bool]:
    """Whether the browser of this session is still there."""
    from streamlit import runtime
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return lambda: True
    return lambda: runtime.get_instance().is_active_session(context.session_id)


def _follow() -> None:
    """The run's progress, looked at again every second while it is under way."""
    run: Run = st.session_state[RUN]
    st.fragment(_state, run_every=None if run.over else 1.0)()


def _state() -> None:
    run: Run = st.session_state[RUN]
    if not run.over:
        done, of, what = run.progress
        elapsed = wording.seconds(max(1.0, round(time.monotonic() - run.began_s)))
        how_far = (
            "clearing up"
            if run.state == "ending"
            else f"{what}: {done} of {of} updates"
            if done
            else "starting processes"
        )
        st.progress(min(done / of, 1.0) if of else 0.0, said(f"{how_far}, {elapsed}"))
        st.button(
            "Cancel",
            icon=":material/stop:",
            key="validate-cancel",
            disabled=run.state == "ending",
            on_click=run.cancel,
            help="Ends its processes; nothing is kept.",
        )
        return
    if st.session_state.get(TAKEN) is not run:
        st.session_state[TAKEN] = run
        if run.material is not None:
            st.session_state[OPENED] = Opened(name=run.order.name, validation=run.material)
            st.session_state.pop(REFUSED, None)
        st.rerun()
    if run.state == "cancelled":
        st.info("Cancelled; nothing is left of it.", icon=":material/info:")
    elif run.state == "failed":
        st.error("The run did not come to an end.", icon=":material/error:")
        st.code("\n".join(run.words), language=None, wrap_lines=True)
    else:
        st.success("Done; what came of it is below.", icon=":material/check_circle:")
        st.download_button(
            "Download the validation",
            run.archive,
            file_name=f"{run.order.name}.zip",
            mime="application/zip",
            on_click="ignore",
            icon=":material/download:",
            key="validate-download",
            help="The folder that hetsim validate -o writes, with its report; it can be opened here again.",
        )


if __name__ == "__main__":
    page()
