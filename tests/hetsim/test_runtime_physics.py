"""What changes while a pass or a transfer is under way, against hand-made timelines and closed forms."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.spec import BandwidthChange, Cluster, Link, Slowdown
from hetsim.compute import SpeedProfile
from hetsim.schedule import Kind, Schedule
from hetsim.simulate import simulate

MIB = 2.0**20


def spans(s: Schedule, kind: Kind, worker: int) -> list[tuple[float, float]]:
    rows = np.flatnonzero((s.kind == kind) & (s.worker == worker))
    return list(zip(s.start_s[rows].tolist(), s.end_s[rows].tolist(), strict=True))


def with_links(c: Cluster, changes: dict[int, tuple[BandwidthChange, ...]]) -> Cluster:
    links = tuple(dataclasses.replace(link, changes=changes.get(i, ())) for i, link in enumerate(c.network.links))
    return dataclasses.replace(c, network=dataclasses.replace(c.network, links=links))


# ---- slow-downs ---------------------------------------------------------------------------------------------------------------


def test_slow_down_in_the_middle_of_a_pass() -> None:
    """4 s of work from 0, half speed from 1 to 3: 1 + 1 by 3, two more by 5. The next pass, 5 to 9, meets a stop-and-go from 6."""
    slow = (Slowdown(at_s=1.0, until_s=3.0, factor=2.0), Slowdown(at_s=6.0, until_s=8.0, factor=4.0))
    c = cluster([1.0], global_batch_samples=4, slowdowns={0: slow})
    s = simulate(c, "s-sgd", updates=2).schedule
    assert spans(s, Kind.GRAD, 0) == [(0.0, 5.0), (5.0, 10.5)]


def test_slow_downs_multiply_and_begin_at_zero() -> None:
    slow = (Slowdown(at_s=0.0, factor=2.0), Slowdown(at_s=2.0, until_s=6.0, factor=2.0))
    c = cluster([1.0], global_batch_samples=4, slowdowns={0: slow})
    assert spans(simulate(c, "s-sgd", updates=1).schedule, Kind.GRAD, 0) == [(0.0, 10.0)]  # 1 by 2, 1 by 6, 2 more in 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 30), st.floats(0.01, 20), st.floats(0.2, 8)), max_size=4),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 3),
)
def test_random_slow_downs_against_the_integral(events: list[list[tuple[float, float, float]]], cost: float) -> None:
    """S-SGD: every pass ends where the speed profile says, the next begins one all-reduce after the last of them."""
    n = len(events)
    slow = {
        i: tuple(Slowdown(at_s=at, until_s=at + length, factor=factor) for at, length, factor in mine)
        for i, mine in enumerate(events)
    }
    c = cluster(
        [1.0 + i for i in range(n)],
        bandwidths=[1.0] * n,
        gradient_bytes=cost,
        global_batch_samples=4 * n,
        slowdowns=slow,
    )
    s = simulate(c, "s-sgd", options={"overlap": False}, updates=6).schedule
    profiles = [SpeedProfile(slow[i]) for i in range(n)]
    begin = 0.0
    grads = [spans(s, Kind.GRAD, i) for i in range(n)]
    for k in range(6):
        ends = [profiles[i].finish(begin, 4 / (1.0 + i)) for i in range(n)]
        for i in range(n):
            assert grads[i][k] == pytest.approx((begin, ends[i]), rel=1e-12, abs=1e-12)
        begin = max(ends) + (2 * (n - 1) * cost / n if n > 1 else 0.0)


# ---- compute beside a collective ------------------------------------------------------------------------------------------------


def test_overlap_slowdown_is_integrated() -> None:
    """Passes of 3 s and 4 s, half speed while the 2 s all-reduce is in flight.

    a  |0--3|3----7|7---11|11-14|     r_0 4-6: a's second pass does 1 by 4, 1 by 6, 1 by 7
    b  |0---4|4-----9|9-----14|       b's second does 1 by 6 and 3 by 9; r_1 9-11: a's third 2 by 9, 1 by 11
    """
    c = cluster(
        [1.0, 0.5],
        overheads=[1.0, 0.0],
        gradient_bytes=4.0,
        bandwidths=[2.0, 2.0],
        micro_batch_samples=2,
        global_batch_samples=4,
        overlap_slowdown=2.0,
    )
    s = simulate(c, "abs-sgd", updates=3).schedule
    assert spans(s, Kind.GRAD, 0)[:4] == [(0.0, 3.0), (3.0, 7.0), (7.0, 11.0), (11.0, 14.0)]
    assert spans(s, Kind.GRAD, 1)[:3] == [(0.0, 4.0), (4.0, 9.0), (9.0, 14.0)]
    assert spans(s, Kind.REDUCE, -1)[:3] == [(4.0, 6.0), (9.0, 11.0), (14.0, 16.0)]


def test_overlap_slowdown_of_streamed_buckets() -> None:
    """Two workers, passes of 12 s whose last 8 stream; buckets of 1 MiB and 3 MiB on 1 MiB/s take 1 s and 3 s.

    Bucket 1 is ready with 6 s of work left (8 · 3/4), at 6: it is on the wire 6-7 and slows the pass to half: 5.5 s left at 7, so the
    pass ends at 12.5, and bucket 2 is through at 15.5.
    """
    c = cluster(
        [1.0, 1.0],
        gradient_bytes=4 * MIB,
        bandwidths=[MIB] * 2,
        global_batch_samples=24,
        overlap_slowdown=2.0,
    )
    s = simulate(c, "s-sgd", updates=1).schedule
    assert spans(s, Kind.GRAD, 0) == spans(s, Kind.GRAD, 1) == [(0.0, pytest.approx(12.5, rel=1e-12))]
    assert spans(s, Kind.REDUCE, -1) == [(pytest.approx(6.0), pytest.approx(15.5, rel=1e-12))]


def test_one_worker_has_no_collective_beside_it() -> None:
    c = cluster([1.0], gradient_bytes=4.0, bandwidths=[2.0], global_batch_samples=4, overlap_slowdown=3.0)
    for name in ("s-sgd", "one-step-delay", "abs-sgd"):
        assert simulate(c, name, updates=10).timing.samples_per_s == 1.0


# ---- links --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ((BandwidthChange(at_s=5.0, bytes_per_s=1.0),), 7.0),  # 2 bytes by 5, 2 more at 1 byte/s
        ((BandwidthChange(at_s=5.0, until_s=6.0, bytes_per_s=1.0),), 6.5),  # 2 by 5, 1 by 6, 1 at 2 bytes/s
        ((BandwidthChange(at_s=5.0, bytes_per_s=8.0),), 6.0),  # the other worker's link stays at 2
        ((BandwidthChange(at_s=4.0, bytes_per_s=0.5),), 12.0),  # at the instant it starts
        ((BandwidthChange(at_s=6.0, bytes_per_s=0.5),), 6.0),  # at the instant it ends
    ],
)
def test_link_changes_in_the_middle_of_a_transfer(changes: tuple[BandwidthChange, ...], ends: float) -> None:
    """4 bytes cross 2 bytes/s from 4 on."""
    c = cluster([1.0, 0.5], gradient_bytes=4.0, bandwidths=[2.0, 2.0], global_batch_samples=4)
    s = simulate(with_links(c, {0: changes}), "s-sgd", options={"overlap": False}, updates=1).schedule
    assert spans(s, Kind.REDUCE, -1) == [(4.0, ends)]


@st.composite
def streaming(draw: st.DrawFn) -> Cluster:
    n = draw(st.integers(2, 5))
    per_worker = lambda low, high: draw(st.lists(st.floats(low, high), min_size=n, max_size=n))  # noqa: E731
    return cluster(
        per_worker(20, 2000),
        overheads=per_worker(0, 0.1),
        bandwidths=[b * 1e6 for b in per_worker(20, 2000)],
        latency_s=draw(st.floats(0, 1e-3)),
        gradient_bytes=draw(st.floats(1e3, 150e6)),
        global_batch_samples=draw(st.integers(n, 300)),
        backward_share=draw(st.floats(0, 1)),
        caps=draw(st.sampled_from([None, [7] * n])),
        jitter_cv=draw(st.sampled_from([0.0, 0.2])),
    )


@settings(max_examples=80, deadline=None)
@given(streaming(), st.sampled_from(["s-sgd", "lb-bsp"]), st.booleans(), st.data())
def test_streamed_all_reduce_by_events_is_the_closed_form(
    c: Cluster, name: str, by_link: bool, data: st.DataObject
) -> None:
    """An event that changes nothing makes the simulator follow every bucket; the times are those of the closed form."""
    at = data.draw(st.floats(0, 2))
    if by_link:
        eventful = with_links(c, {0: (BandwidthChange(at_s=at, bytes_per_s=c.network.links[0].bytes_per_s),)})
    else:
        workers = (dataclasses.replace(c.workers[0], slowdowns=(Slowdown(at_s=at, factor=1.0),)), *c.workers[1:])
        eventful = dataclasses.replace(c, workers=workers)
    options = {"dead_band": 0.5} if name == "lb-bsp" else {}  # rounding may not tip the batches
    a, b = (simulate(x, name, options=options, updates=4).schedule for x in (c, eventful))
    for worker in range(-1, c.n):
        for kind in (Kind.GRAD, Kind.REDUCE):
            assert np.array(spans(a, kind, worker)) == pytest.approx(
                np.array(spans(b, kind, worker)), rel=1e-12, abs=1e-12
            )


def test_streamed_by_hand() -> None:
    """b computes 12 s, streams the last 8: bucket 1 (1 of 4 MiB) ready at 6, on the wire 6-7; bucket 2 ready at 12, through at 15."""
    c = cluster([2.0, 1.0], gradient_bytes=4 * MIB, bandwidths=[MIB] * 2, global_batch_samples=24)
    s = simulate(c, "s-sgd", updates=1).schedule
    assert spans(s, Kind.REDUCE, -1) == [(pytest.approx(6.0, rel=1e-12), pytest.approx(15.0, rel=1e-12))]


def test_only_the_last_pass_streams() -> None:
    """12 samples in passes of 6: 12 s, of which the last pass's 4 stream. Bucket 1 is ready at 12 - 4·3/4 = 9."""
    c = cluster([1.0, 1.0], gradient_bytes=4 * MIB, bandwidths=[MIB] * 2, global_batch_samples=24, caps=[6, 6])
    s = simulate(c, "s-sgd", updates=1).schedule
    assert spans(s, Kind.REDUCE, -1) == [(pytest.approx(9.0, rel=1e-12), pytest.approx(15.0, rel=1e-12))]


# ---- what a pass and an update cost ---------------------------------------------------------------------------------------------


def test_memory_splits_passes() -> None:
    """8 samples where 3 fit: 3 + 3 + 2, each with its overhead."""
    c = cluster([1.0], overheads=[0.5], global_batch_samples=8, caps=[3])
    assert spans(simulate(c, "s-sgd", updates=2).schedule, Kind.GRAD, 0) == [(0.0, 9.5), (9.5, 19.0)]


def test_a_trace_is_replayed() -> None:
    c = cluster([1.0], global_batch_samples=2)
    c = dataclasses.replace(c, workers=(dataclasses.replace(c.workers[0], trace=((2, 1.0), (2, 3.0))),))
    ends = [end for _, end in spans(simulate(c, "s-sgd", updates=5).schedule, Kind.GRAD, 0)]
    assert ends == [1.0, 4.0, 5.0, 8.0, 9.0]


@pytest.mark.parametrize(("name", "options", "period"), [
    ("s-sgd", {}, 4.5),
    ("one-step-delay", {"compute_point": "current"}, 4.5),
    ("one-step-delay", {"compute_point": "local-prediction"}, 5.0),  # the prediction takes a step of its own
    ("one-step-delay", {"compute_point": "blend"}, 5.0),
    ("local-sgd", {"local_steps": 1}, 5.0),  # a step, and the average
])  # fmt: skip
def test_updates_take_time(name: str, options: dict[str, Any], period: float) -> None:
    c = cluster([1.0], global_batch_samples=4, update_s=0.5)
    r = simulate(c, name, options=options, updates=11)
    assert r.timing.update_period_s == pytest.approx(period, rel=1e-12)
    steps = r.schedule.rows(Kind.STEP)
    assert (r.schedule.end_s[steps] - r.schedule.start_s[steps]).tolist() == [0.5] * len(steps)


def test_each_worker_takes_its_own_time_to_update() -> None:
    """a updates at once, b in 0.5 s: the same states, a's rows first, b's next pass half a second later."""
    c = cluster([1.0, 1.0], gradient_bytes=4.0, bandwidths=[2.0, 2.0], global_batch_samples=8)
    c = dataclasses.replace(c, workers=(c.workers[0], dataclasses.replace(c.workers[1], update_s=0.5)))
    s = simulate(c, "s-sgd", options={"overlap": False}, updates=2).schedule
    assert spans(s, Kind.GRAD, 0) == [(0.0, 4.0), (6.0, 10.0)]
    assert spans(s, Kind.GRAD, 1) == [(0.0, 4.0), (6.5, 10.5)]
    steps = s.rows(Kind.STEP)
    assert s.state[steps].tolist() == [1, 1, 2, 2] and s.worker[steps].tolist() == [0, 1, 0, 1]
    swapped = dataclasses.replace(
        c, workers=tuple(dataclasses.replace(w, update_s=0.5 - w.update_s) for w in c.workers)
    )
    s = simulate(swapped, "s-sgd", options={"overlap": False}, updates=2).schedule  # a is asked first and ends later
    assert spans(s, Kind.GRAD, 0) == [(0.0, 4.0), (6.5, 10.5)]
    assert spans(s, Kind.GRAD, 1) == [(0.0, 4.0), (6.0, 10.0)]


# ---- the server -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_incast(n: int) -> None:
    """n pushes of 4 bytes at once share the server's 4 bytes/s: n seconds each, as do the answers. Passes take 2 s."""
    c = cluster(
        [1.0] * n,
        gradient_bytes=4.0,
        bandwidths=[1024.0] * n,
        server=Link(bytes_per_s=4.0),
        global_batch_samples=2 * n,
    )
    s = simulate(c, "asgd", updates=2 * n).schedule
    for worker in range(n):
        assert spans(s, Kind.GRAD, worker)[:2] == [(n, n + 2.0), (3.0 * n + 2, 3.0 * n + 4)]
    pushed = s.rows(Kind.REDUCE)[(s.code[s.rows(Kind.REDUCE)] == 0)][:n]
    assert s.end_s[pushed].tolist() == [2.0 * n + 2] * n


@pytest.mark.parametrize("name", ["asgd", "ssp"])
def test_nobody_wins_every_tie(name: str) -> None:
    """Equal workers reach the server at the same instants; a seeded draw decides who is first, over 80 instants about evenly."""
    c = cluster(
        [1.0] * 4, gradient_bytes=4.0, bandwidths=[4.0] * 4, server=Link(bytes_per_s=4.0), global_batch_samples=8
    )
    s = simulate(c, name, updates=320, seed=1).schedule
    steps = s.rows(Kind.STEP)[:320]
    owner = dict(zip(s.source[s.rows(Kind.JOIN)].tolist(), s.worker[s.rows(Kind.JOIN)].tolist(), strict=True))
    first: Counter[int] = Counter()
    last: Counter[int] = Counter()
    for at in np.unique(s.end_s[steps]):
        here = steps[s.end_s[steps] == at]
        assert len(here) == 4
        first[owner[int(s.source[here[0]])]] += 1
        last[owner[int(s.source[here[-1]])]] += 1
    assert min(first.values()) >= 8 and min(last.values()) >= 8 and len(first) == len(last) == 4  # 20 expected, sd 3.9


def test_ssp_gate_holds_the_fast_worker_back() -> None:
    """s = 1, passes of 1 s and 8 s, free links: a starts clock c when b has pushed c - 1."""
    c = cluster([2.0, 0.25], global_batch_samples=4)
    s = simulate(c, "ssp", options={"staleness": 1}, updates=12).schedule
    assert spans(s, Kind.GRAD, 0)[:5] == [(0.0, 1.0), (1.0, 2.0), (8.0, 9.0), (16.0, 17.0), (24.0, 25.0)]
    assert spans(s, Kind.GRAD, 1)[:3] == [(0.0, 8.0), (8.0, 16.0), (16.0, 24.0)]


def test_ssp_without_slack_is_bulk_synchronous_in_time() -> None:
    c = cluster([2.0, 0.25], global_batch_samples=4)
    s = simulate(c, "ssp", options={"staleness": 0}, updates=8).schedule
    assert spans(s, Kind.GRAD, 0)[:3] == [(0.0, 1.0), (8.0, 9.0), (16.0, 17.0)]


def test_nodes_share_their_link() -> None:
    """Two nodes of two: the ring crosses each node's 2 bytes/s once, 2(n-1)/n · 4 bytes = 6 bytes in 3 s; inside is free."""
    c = cluster([1.0] * 4, gradient_bytes=4.0, bandwidths=[math.inf] * 4, global_batch_samples=4)
    network = dataclasses.replace(
        c.network,
        topology="nodes",
        intra_node=Link(bytes_per_s=math.inf),
        node_links={"x": Link(bytes_per_s=2.0), "y": Link(bytes_per_s=2.0)},
    )
    workers = tuple(dataclasses.replace(w, node="xy"[w.rank // 2]) for w in c.workers)
    s = simulate(
        dataclasses.replace(c, network=network, workers=workers), "s-sgd", options={"overlap": False}, updates=1
    ).schedule
    assert spans(s, Kind.REDUCE, -1) == [(1.0, 4.0)]
