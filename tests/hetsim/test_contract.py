"""What every algorithm must keep, on every kind of cluster: iterates the registry, so a new algorithm is tested by existing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.algorithms import make, registry
from hetsim.algorithms.base import OneUpdateDelay
from hetsim.cluster.spec import BandwidthChange, Cluster, Link, Slowdown
from hetsim.metrics import first_stop_s
from hetsim.schedule import Kind, Schedule, WaitCause
from hetsim.schedule.check import check
from hetsim.simulate import Result, simulate

NAMES = sorted(registry())
BYTES = 1e6


def many(speeds: list[float], **more: Any) -> Cluster:
    n = len(speeds)
    base: dict[str, Any] = {
        "gradient_bytes": BYTES,
        "bandwidths": [2e6 + 1e6 * i for i in range(n)],
        "latency_s": 1e-3,
        "global_batch_samples": 5 * n + 1,
        "micro_batch_samples": 2,
        "server": Link(bytes_per_s=3e6, latency_s=1e-3),
    }
    return cluster(speeds, **{**base, **more})


def with_events() -> Cluster:
    c = many([40.0, 20.0, 10.0], slowdowns={0: (Slowdown(at_s=1.0, until_s=3.0, factor=3.0),)}, overlap_slowdown=1.25)
    links = (
        dataclasses.replace(c.network.links[0], changes=(BandwidthChange(at_s=1.5, bytes_per_s=5e5),)),
        *c.network.links[1:],
    )
    return dataclasses.replace(c, network=dataclasses.replace(c.network, links=links))


def with_update_times() -> Cluster:
    c = many([40.0, 20.0, 10.0])
    return dataclasses.replace(
        c, workers=tuple(dataclasses.replace(w, update_s=s) for w, s in zip(c.workers, (0.25, 0.0, 0.125), strict=True))
    )


def on_nodes() -> Cluster:
    c = many([40.0, 20.0, 10.0, 30.0])
    fast, slow = Link(bytes_per_s=1e9, latency_s=1e-6), Link(bytes_per_s=1e6, latency_s=1e-3)
    network = dataclasses.replace(c.network, topology="nodes", intra_node=fast, node_links={"x": slow, "y": slow})
    workers = tuple(dataclasses.replace(w, node="x" if w.rank < 2 else "y") for w in c.workers)
    return dataclasses.replace(c, network=network, workers=workers)


DROPPING = (
    "ssp",
    "dssp",
    "ringmaster-asgd",
    "backup-workers",
    "eager-sgd",
    "rennala-sgd",
)  # a gradient may be held or dropped for good
CLUSTERS = {
    "equal": many([20.0] * 4),
    "unequal": many([40.0, 20.0, 10.0, 5.0]),
    "one": many([20.0]),
    "two": many([30.0, 10.0]),
    "five": many([30.0, 10.0, 20.0, 25.0, 11.0]),
    "sixteen": many([10.0 + i for i in range(16)]),
    "jitter": many([40.0, 20.0, 10.0], jitter_cv=0.4),
    "events": with_events(),
    "update times": with_update_times(),
    "nodes": on_nodes(),
    "memory": many([40.0, 20.0, 10.0], caps=[3, None, 1]),
    "free network": many(
        [40.0, 20.0, 10.0], bandwidths=[math.inf] * 3, latency_s=0.0, server=Link(bytes_per_s=math.inf)
    ),
    "epochs": many([40.0, 20.0, 10.0], dataset_samples=37),
    "tiny data": many([40.0, 20.0, 10.0], dataset_samples=3),
}


def spent(s: Schedule, worker: int) -> tuple[list[float], list[float], list[float]]:
    """Lengths of a worker's gradients, waits and operations on parameters."""
    mine = s.worker == worker
    length = s.end_s - s.start_s
    others = (Kind.STEP, Kind.MIX, Kind.PREDICT)
    return tuple(length[mine & np.isin(s.kind, kinds)].tolist() for kinds in ((Kind.GRAD,), (Kind.WAIT,), others))  # type: ignore[return-value]


def sceptical(r: Result) -> None:
    """Invariants checked in other ways than `hetsim.schedule.check` does."""
    s = r.schedule
    account = check(s)
    r.algorithm.check(s)
    assert account.handed_out == account.applied + account.in_flight + account.discarded
    grads = s.rows(Kind.GRAD)
    handed: list[int] = []
    for row in grads.tolist():
        first, count = int(s.first[row]), int(s.samples[row])
        handed += range(first, first + count)
        assert first // s.header.dataset_samples == (first + count - 1) // s.header.dataset_samples
    assert sorted(handed) == list(range(len(handed)))  # every sample of every epoch once, in whatever order
    assert account.handed_out == len(handed)
    for worker in range(s.n):
        parts = [x for group in spent(s, worker) for x in group]
        mine = np.flatnonzero(s.worker == worker)
        if not len(mine):  # never had any data, and started nothing
            continue
        assert math.fsum(parts) == pytest.approx(
            float(s.end_s[mine].max()), rel=1e-12
        )  # nothing missing, nothing twice
    t = r.timing
    all_there = all(np.any(s.worker == worker) for worker in range(s.n))
    if (
        t.window_s > 0 and t.end_s <= first_stop_s(s) and all_there
    ):  # a run too short for a rate may end after some have stopped
        update = sum(
            max(0.0, min(float(s.end_s[i]), t.end_s) - max(float(s.start_s[i]), t.start_s))
            for i in np.flatnonzero(np.isin(s.kind, (Kind.STEP, Kind.MIX, Kind.PREDICT)) & (s.worker < s.n)).tolist()
        ) / (s.n * t.window_s)
        assert t.utilisation + t.waiting_share + update == pytest.approx(1.0, abs=1e-9)
        assert sum(t.waiting.values()) == pytest.approx(t.waiting_share, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", CLUSTERS)
def test_runs_and_keeps_its_promises(label: str, name: str) -> None:
    sceptical(simulate(CLUSTERS[label], name, updates=13))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "label", ["equal", "unequal", "one", "sixteen", "jitter", "events", "epochs", "tiny data", "update times"]
)
@pytest.mark.parametrize("samples", [1, 3, 10, 97])
def test_data_ends(label: str, name: str, samples: int) -> None:
    """Ends that nothing divides, less data than workers: no hang, all of it handed out and none of it lost."""
    r = simulate(CLUSTERS[label], name, max_samples=samples)
    sceptical(r)
    account = r.samples
    assert account.handed_out == samples
    assert account.in_flight == 0
    if name not in DROPPING:
        assert account.discarded == 0


@pytest.mark.parametrize("name", NAMES)
def test_ten_samples_on_four_workers(name: str) -> None:
    """One epoch of ten samples is ten samples, not twelve (a sampler that pads would repeat two)."""
    r = simulate(
        many([20.0] * 4, dataset_samples=10, global_batch_samples=4, micro_batch_samples=1), name, max_samples=30
    )
    s = r.schedule
    grads = s.rows(Kind.GRAD)
    for epoch in range(3):
        inside = [
            i
            for row in grads.tolist()
            for i in range(int(s.first[row]), int(s.first[row] + s.samples[row]))
            if i // 10 == epoch
        ]
        assert sorted(i % 10 for i in inside) == list(range(10))
    sceptical(r)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_cluster(data: st.DataObject) -> None:
    """Random clusters with many ties: free and shared links, equal speeds, any end."""
    n = data.draw(st.integers(1, 6))
    speeds = data.draw(st.lists(st.sampled_from([8.0, 16.0, 64.0, 10.0]), min_size=n, max_size=n))
    free = data.draw(st.booleans())
    c = cluster(
        speeds,
        gradient_bytes=0.0 if free else 2.0**20,
        bandwidths=None if free else data.draw(st.lists(st.sampled_from([2.0**20, 2.0**21]), min_size=n, max_size=n)),
        latency_s=0.0 if free else data.draw(st.sampled_from([0.0, 2.0**-6])),
        global_batch_samples=data.draw(st.integers(n, 30)),
        micro_batch_samples=data.draw(st.integers(1, 5)),
        dataset_samples=data.draw(st.sampled_from([2, 10, 1000])),
        overlap_slowdown=data.draw(st.sampled_from([1.0, 1.5])),
        update_s=data.draw(st.sampled_from([0.0, 2.0**-5])),
        jitter_cv=data.draw(st.sampled_from([0.0, 0.3])),
    )
    name = data.draw(st.sampled_from(NAMES))
    options = data.draw(st.sampled_from([{}, *OPTIONS[name]]))
    sceptical(
        simulate(
            c, name, options=options, max_samples=data.draw(st.integers(1, 150)), seed=data.draw(st.integers(0, 3))
        )
    )


def literals(name: str) -> dict[str, tuple[Any, ...]]:
    fields = registry()[name].Options.model_fields
    found = {key: get_args(f.annotation) for key, f in fields.items() if get_origin(f.annotation) is Literal}
    return found | {key: (False, True) for key, f in fields.items() if f.annotation is bool}


OPTIONS: dict[str, list[dict[str, Any]]] = {
    name: [{key: value} for key, values in literals(name).items() for value in values] for name in registry()
}
OPTIONS["ssp"] += [{"staleness": s, "server_update": u} for s in (0, 1) for u in ("arrival", "clock")]
OPTIONS["dssp"] = [{"staleness": s, "extra": r} for s, r in ((0, 0), (0, 5), (1, 3))]
OPTIONS["dc-s3gd"] = [{"strength": s} for s in (0.0, 1.0)]
OPTIONS["prague"] = [{"group_size": g, "slack": s, "local_steps": h} for g, s, h in ((1, 1, 1), (2, 1, 2), (9, 3, 1))]
OPTIONS["local-sgd"] += [{"by_speed": True, "normalise": n, "local_steps": 3} for n in ("samples", "fednova")]
OPTIONS["abs-sgd"] += [
    {"trigger": "min_samples", "min_samples": 8},
    {"trigger": "min_samples", "min_samples": 20, "min_samples_scope": "global"},
    {"trigger": "target_batch", "target_batch": 30},
    {"trigger": "target_batch", "target_batch": 30, "max_local_batch": 3},
    {"trigger": "period_s", "period_s": 2.5},
    {"max_local_batch": 3},
    {"max_global_batch": 9},
    {"synchronous_updates": 3},
]
OPTIONS["dropcompute"] += [
    {"limit": "fixed", "limit_s": 0.2},
    {"limit": "fixed", "limit_s": 1e-9, "divisor": "planned"},
    {"measured_updates": 3},
]
OPTIONS["backup-workers"] += [{"backups": k} for k in (0, 2, 100)]
OPTIONS["rennala-sgd"] += [{"gradients": s} for s in (1, 2, 50)]
OPTIONS["streaming-diloco"] += [
    {"local_steps": 4, "fragments": 3, "overlap_steps": 2},
    {"local_steps": 1, "fragments": 1, "overlap_steps": 0},
    {"overlap_steps": 19},
]
OPTIONS["dasgd"] += [{"local_steps": 4, "delay_steps": 3}, {"local_steps": 1, "delay_steps": 0}]
OPTIONS["eager-sgd"] += [{"mode": "solo", "divisor": "present"}]
OPTIONS["ringmaster-asgd"] += [{"threshold": 1}, {"threshold": 2}, {"threshold": 1000}]


@pytest.mark.parametrize(("name", "options"), [(n, o) for n in NAMES for o in OPTIONS[n]], ids=str)
def test_every_choice_runs(name: str, options: dict[str, Any]) -> None:
    sceptical(simulate(CLUSTERS["unequal"], name, options=options, updates=12))
    sceptical(simulate(CLUSTERS["jitter"], name, options=options, max_samples=101))


COMPANIONS = {  # what an option needs beside it to matter
    "normalise": {"by_speed": True},
    "min_samples_scope": {"trigger": "min_samples", "min_samples": 40},
    "limit": {"measured_updates": 5, "limit_s": 0.25},
    "divisor": {"limit": "fixed", "limit_s": 0.25},
    "trigger": {"min_samples": 40, "period_s": 3.0, "target_batch": 60},
}


@pytest.mark.parametrize(("name", "key"), [(n, key) for n in NAMES for key in literals(n)])
def test_no_option_is_without_effect(name: str, key: str) -> None:
    """Every value of every choice gives another Schedule somewhere."""
    size = 1e3 if key in ("limit", "divisor") else 40e6  # beside a long all-reduce no limit pays, and nobody is late
    c = many([40.0, 20.0, 10.0, 5.0], gradient_bytes=size, jitter_cv=0.2)
    seen: dict[bytes, Any] = {}
    for value in literals(name)[key]:
        fields = registry()[name].Options.model_fields
        beside = {k: v for k, v in COMPANIONS.get(key, {}).items() if k in fields}
        s = simulate(c, name, options={**beside, key: value}, updates=25).schedule
        log = b"".join(
            getattr(s, column).tobytes()
            for column in ("kind", "end_s", "state", "parent", "code", "scale", "samples", "first")
        )
        assert log not in seen, f"{value} does what {seen[log]} does"
        seen[log] = value


@pytest.mark.parametrize("name", NAMES)
def test_is_described(name: str) -> None:
    cls = registry()[name]
    assert cls.name == name and make(name).name == name
    assert len(cls.summary()) > 20 and cls.summary().endswith(".")
    assert cls.source
    assert cls.role in ("baseline", "ours")
    assert cls.live is True or (isinstance(cls.live, str) and cls.live)
    for key, f in cls.Options.model_fields.items():
        assert f.description, f"{name}: {key} says nothing"
        assert not f.is_required(), f"{name}: {key} has no default"
    assert (name == "abs-sgd") == (cls.role == "ours")


def test_every_delayed_method_chooses_its_compute_point() -> None:
    delayed = [n for n, cls in registry().items() if issubclass(cls, OneUpdateDelay)]
    assert {"one-step-delay", "one-step-delay-balanced", "abs-sgd"} <= set(delayed)
    for name in delayed:
        points = get_args(registry()[name].Options.model_fields["compute_point"].annotation)
        assert points[:5] == ("current", "look-ahead", "local-prediction", "blend", "damped-prediction")
        assert points[5:] == (("local-step",) if name == "od-sgd" else ())
        assert {"kappa", "blend", "damping", "synchronous_updates"} <= set(registry()[name].Options.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_parts_sum_to_the_whole_at_a_billion_seconds(name: str) -> None:
    c = many([40.0, 20.0, 10.0], overheads=[1e8, 1.3e8, 2.1e8])
    r = simulate(c, name, updates=40)
    assert r.schedule.horizon_s > 1e9
    sceptical(r)


@pytest.mark.parametrize("name", NAMES)
def test_compute_of_no_length(name: str) -> None:
    c = many([math.inf, math.inf, math.inf], gradient_bytes=0.0, latency_s=0.0, server=Link(bytes_per_s=math.inf))
    r = simulate(c, name, max_samples=60)
    assert r.samples.handed_out == 60 and r.schedule.horizon_s == 0.0
    assert r.timing.utilisation == 0.0
    c = many([math.inf, 10.0, 20.0])
    sceptical(simulate(c, name, max_samples=600))


# ---- ABS-SGD's options say what they do ---------------------------------------------------------------------------------------


def batches(r: Result) -> np.ndarray[Any, Any]:
    """Samples by update and worker."""
    u, n = r.schedule.updates, r.schedule.n
    out = np.zeros((len(u), n), np.int64)
    np.add.at(out, (u.owner, u.worker), u.part_samples)
    return out


def test_min_samples_local() -> None:
    r = simulate(CLUSTERS["unequal"], "abs-sgd", options={"trigger": "min_samples", "min_samples": 7}, updates=20)
    assert batches(r).min() >= 7
    assert not len(r.schedule.rows(Kind.WAIT))


@pytest.mark.parametrize(
    "options",
    [
        {"trigger": "min_samples", "min_samples": 120, "min_samples_scope": "global"},
        {"trigger": "target_batch", "target_batch": 120},
    ],
)
def test_global_counts(options: dict[str, Any]) -> None:
    """At least the target, and at most what is under way when it is reached (a micro-batch each and what came in one latency)."""
    c = CLUSTERS["unequal"]
    r = simulate(c, "abs-sgd", options=options, updates=20)
    total = batches(r).sum(axis=1)
    assert total.min() >= 120
    back_to_back = batches(simulate(c, "abs-sgd", updates=20)).sum(axis=1)
    assert back_to_back.max() < 120, "the trigger was met anyway"
    assert total.max() <= 120 + 2 * 2 * c.n + 1e-3 * 75


def test_target_of_zero_is_the_global_batch() -> None:
    c = many([40.0, 20.0, 10.0, 5.0], global_batch_samples=80)
    a = simulate(c, "abs-sgd", options={"trigger": "target_batch"}, updates=20)
    b = simulate(c, "abs-sgd", options={"trigger": "target_batch", "target_batch": 80}, updates=20)
    assert a.schedule.end_s.tobytes() == b.schedule.end_s.tobytes()
    assert batches(a).sum(axis=1).min() >= 80


def test_period() -> None:
    r = simulate(CLUSTERS["unequal"], "abs-sgd", options={"trigger": "period_s", "period_s": 4.0}, updates=10)
    joins = r.schedule.rows(Kind.JOIN)
    for worker in range(4):
        times = r.schedule.start_s[joins[r.schedule.worker[joins] == worker]]
        assert np.diff(times).min() >= 4.0
        assert np.diff(times).max() <= 4.0 + 2 / (40.0, 20.0, 10.0, 5.0)[worker] + 1e-9


@pytest.mark.parametrize("options", [{"max_local_batch": 3}, {"max_global_batch": 12}])
def test_caps_idle_with_that_cause(options: dict[str, Any]) -> None:
    r = simulate(many([40.0, 20.0, 10.0, 5.0], gradient_bytes=20e6), "abs-sgd", options=options, updates=20)
    waits = r.schedule.rows(Kind.WAIT)
    assert len(waits) and set(r.schedule.code[waits].tolist()) == {WaitCause.CAP}
    assert r.timing.waiting["cap"] == pytest.approx(r.timing.waiting_share) and r.timing.waiting["cap"] > 0.1
    sizes = batches(r)
    if "max_local_batch" in options:
        assert sizes.max() == 3
    else:
        assert (
            sizes.sum(axis=1).max() < 12 + 2 * 4 * 2
        )  # one micro-batch each under way, one more begun before the others' counts came


def test_out_of_data_idles_with_that_cause() -> None:
    r = simulate(many([40.0, 20.0, 10.0, 5.0], gradient_bytes=40e6), "abs-sgd", max_samples=60)
    waits = r.schedule.rows(Kind.WAIT)
    assert set(r.schedule.code[waits].tolist()) == {WaitCause.DATA}


@pytest.mark.parametrize("name", ["one-step-delay", "one-step-delay-balanced", "abs-sgd"])
@pytest.mark.parametrize("warm", [0, 1, 3])
def test_synchronous_warm_up(name: str, warm: int) -> None:
    """Updates 0 … warm have no delay (the first after the warm-up has nothing under way either), all others exactly one."""
    r = simulate(CLUSTERS["unequal"], name, options={"synchronous_updates": warm}, updates=9)
    u = r.schedule.updates
    assert u.staleness.tolist() == [int(k > warm) for k in u.owner.tolist()]
    assert u.owner.max() == 8
