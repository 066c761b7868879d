"""The controls of Explore, in the sidebar: they show the session's view and turn it into another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import streamlit as st

from hetsim.algorithms import registry
from hetsim.cluster import Profile, shipped_profiles
from hetsim.errors import HetsimError
from hetsim.labels import ABLATION, LITERAL_READING
from hetsim.webapp import controls, session
from hetsim.webapp.controls import Group, Values, ladder
from hetsim.webapp.sources import upload_changed
from hetsim.webapp.view import MAX_SEED, View

BANDWIDTHS = (0.1, 0.2, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0)
LATENCIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 20000.0)
SPEEDS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
JITTERS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
PROBABILITIES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
MICRO = (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256)
GLOBAL = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
MOST_COUNT = 64  # of a group, by its control [our choice]
MOST_OPEN = 8  # groups with a part of their own; where there are more, one is chosen [our choice]
OWN = "own profile"
Number = TypeVar("Number", int, float)


def sidebar() -> View:
    """Show the controls and return the view they say, which is now the session's."""
    view = session.current()
    with st.sidebar:
        _profile_menu(view)
        try:
            start = controls.departure(view).profile()
        except HetsimError:
            return view
        shown = _values(view, start)
        values = _cluster(start, shown)
        view = _comparison(replace(view, overrides=(*controls.split(view)[1], *controls.overrides_of(start, values))))
    session.update(view)
    return view


def _values(view: View, start: Profile) -> Values:
    try:
        return controls.values_of(view.profile(), start)
    except HetsimError as error:
        if (
            f"control/{session.generation()}/bandwidth" not in st.session_state
        ):  # a link's; else the controls' own, which still say it
            session.reject(error)
        return controls.values_of(start, start)


def _key(name: str, first: Any) -> str:
    """The key of a control, which shows `first` where it is new: in this session, after another page, or for another view."""
    key = f"control/{session.generation()}/{name}"
    if key not in st.session_state:
        st.session_state[key] = first
    return key


def _bounds(name: str, first: Number, low: Number, high: Number) -> tuple[Number, Number]:
    """Lowest and highest of a number, which may begin beyond what is usual: a profile or a link says so."""
    key = f"bounds/{session.generation()}/{name}"
    bounds: tuple[Number, Number] = st.session_state.setdefault(key, (min(low, first), max(high, first)))
    return bounds


def _steps(label: str, name: str, first: float, steps: Sequence[float], help: str, **more: Any) -> Any:
    """A slider over steps; it also has the value it starts from."""
    key = _key(name, first)
    options = ladder(steps, first, st.session_state[key])
    return st.select_slider(label, options, key=key, help=help, **more)


# ---- which profile ---------------------------------------------------------------------------------------------------------


def _profile_menu(view: View) -> None:
    names = list(shipped_profiles())
    options = names if view.shipped else [OWN, *names]
    key = _key("profile", view.source if view.shipped else OWN)
    st.selectbox(
        "Cluster profile",
        options,
        key=key,
        on_change=_profile_chosen,
        args=(key,),
        help="A cluster that comes with hetsim, to start from: which GPUs, which network. All controls below start from it.",
    )
    if view.shipped:
        st.caption(shipped_profiles()[view.source])
    st.file_uploader(
        "Your own profile (YAML, up to 1 MB)",
        type=["yaml", "yml"],
        max_upload_size=1,
        key=f"upload/{session.generation()}",
        on_change=upload_changed,
        args=(f"upload/{session.generation()}",),
        help="A profile as hetsim init or hetsim calibrate writes it. It stays on this machine; files and code that it names are not read.",
    )


def _profile_chosen(key: str) -> None:
    chosen = st.session_state[key]
    if chosen != OWN:
        session.replace(replace(session.current(), source=chosen, overrides=(), target=None))


# ---- the cluster -------------------------------------------------------------------------------------------------------------


def _cluster(start: Profile, shown: Values) -> Values:
    with st.expander("Workers", expanded=True):
        groups = _groups(start, shown)
    with st.expander("Network", expanded=True):
        network = _network(start, shown)
    with st.expander("Luck"):
        luck = _luck(shown)
    with st.expander("Training"):
        training = _training(shown)
    return replace(shown, groups=groups, **network, **luck, **training)


def _groups(start: Profile, shown: Values) -> tuple[Group, ...]:
    names = [group.name for group in shown.groups]
    chosen = names
    if len(names) > MOST_OPEN:
        picked = st.selectbox(
            "Group of workers to change", names, key=_key("group", names[0]), help="The three controls below are of it."
        )
        chosen = [picked]
    out = []
    for entry, group in zip(start.workers, shown.groups, strict=True):
        out.append(_group(start, entry, group) if group.name in chosen else group)
    return tuple(out)


def _group(start: Profile, entry: Any, group: Group) -> Group:
    name = group.name
    choices = controls.gpu_choices(start, entry)
    gpu = group.gpu
    if choices:
        gpu = st.selectbox(
            f"Worker {name}: GPU",
            choices,
            key=_key(f"gpu/{name}", group.gpu),
            help=f"Another card for {name}; speeds are those of the hardware catalogue for this workload.",
        )
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        speed = _steps(
            f"{name}: speed, ×",
            f"speed/{name}",
            group.speed,
            SPEEDS,
            f"How many times as fast as the profile's {name}: its time for any number of samples is divided by this.",
            disabled=not controls.can_scale(entry),
        )
    with right:
        count = st.number_input(
            f"{name}: count",
            *_bounds(f"count/{name}", group.count, 1, MOST_COUNT),
            key=_key(f"count/{name}", group.count),
            help=f"Number of workers like {name}.",
        )
    return Group(name=name, gpu=gpu, count=int(count), speed=float(speed))


def _network(start: Profile, shown: Values) -> dict[str, Any]:
    bandwidth = _steps(
        "Bandwidth, Gbit/s",
        "bandwidth",
        shown.bandwidth_gbit_per_s,
        BANDWIDTHS,
        "Wire rate of every worker's link, in each direction.",
    )
    latency = _steps(
        "Latency, µs", "latency", shown.latency_us, LATENCIES, "One-way latency of every link, microseconds."
    )
    choices = controls.link_choices(start, shown)
    slow = st.selectbox(
        "Worker with a slow link",
        choices,
        key=_key("slow", shown.slow_link),
        format_func=lambda name: name or "none",
        help="This worker's own link has the bandwidth below; it takes the place of links that the profile states.",
    )
    rate = _steps(
        "Slow link, Gbit/s",
        "slow-rate",
        shown.slow_gbit_per_s,
        BANDWIDTHS,
        "Wire rate of the slow link, in each direction.",
        disabled=slow == controls.NO_LINK,
    )
    return {"bandwidth_gbit_per_s": bandwidth, "latency_us": latency, "slow_link": slow, "slow_gbit_per_s": rate}


def _luck(shown: Values) -> dict[str, Any]:
    jitter = _steps(
        "Jitter of step times, share of the mean",
        "jitter",
        shown.jitter_cv,
        JITTERS,
        "Standard deviation of every worker's step times over their mean (lognormal). 0.05 is a quiet machine.",
    )
    stragglers = _steps(
        "Probability that a pass is slow",
        "stragglers",
        shown.straggler_probability,
        PROBABILITIES,
        "Chance, for each pass of each worker, that it takes several times as long (4 times unless the profile says otherwise).",
    )
    return {"jitter_cv": jitter, "straggler_probability": stragglers}


def _training(shown: Values) -> dict[str, Any]:
    micro = _steps(
        "Micro-batch, samples",
        "micro",
        shown.micro_batch_samples,
        MICRO,
        "Samples of one pass where a batch is taken in passes, as ABS-SGD does between two looks at the network.",
    )
    batch = _steps(
        "Global batch, samples",
        "global",
        shown.global_batch_samples,
        GLOBAL,
        "Samples per update over the whole cluster, where the algorithm fixes them. ABS-SGD's batch follows from the network.",
    )
    rate = st.number_input(
        "Learning rate (used where it is not tuned)",
        *_bounds("rate", shown.learning_rate, 1e-5, 10.0),
        key=_key("rate", shown.learning_rate),
        step=0.01,
        format="%.5g",
        help="Per update, as in the optimizer. Tuning replaces it by each algorithm's own best.",
    )
    return {"micro_batch_samples": int(micro), "global_batch_samples": int(batch), "learning_rate": float(rate)}


# ---- what is asked -------------------------------------------------------------------------------------------------------------


def _comparison(view: View) -> View:
    with st.expander("Comparison"):
        known = [*registry(), ABLATION, LITERAL_READING]
        algorithms = st.multiselect(
            "Algorithms",
            list(dict.fromkeys([*known, *view.algorithms])),
            key=_key("algorithms", list(view.algorithms)),
            help="What is compared. A label with :option=value is an algorithm with that option.",
        )
        tuned = st.toggle(
            "Tune learning rate and momentum of each",
            key=_key("tuned", view.tuned),
            help="Each algorithm at its own best, as hetsim compare does it; else all at the profile's.",
        )
        target = st.number_input(
            "Target loss (empty: the workload's own)",
            *_bounds("target", 1.0 if view.target is None else view.target, 1e-6, 1e6),
            key=_key("target", view.target),
            format="%.4g",
            step=0.01,
            placeholder="the workload's own",
            help="The loss that counts as trained, on the predictor's scale.",
        )
        seed = st.number_input(
            "Seed (a whole number)",
            0,
            MAX_SEED,
            key=_key("seed", view.seed),
            help="Of all luck: same seed, same result.",
        )
    target = None if target is None else float(target)
    return replace(view, algorithms=tuple(algorithms) or view.algorithms, tuned=tuned, target=target, seed=int(seed))
