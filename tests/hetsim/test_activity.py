"""What workers did, by hand on two workers, and for every algorithm against the figures of `hetsim.metrics` over the same window."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim import load_profile, simulate
from hetsim.activity import EVERYBODY, shares, spans, update_window
from hetsim.algorithms import registry
from hetsim.metrics import WAITS
from hetsim.schedule import Kind, Schedule
from hetsim.timeline import MOST_BARS, _edge, drawable, stacked, timeline

MIXED = {name: simulate(load_profile("mixed-gpu-4"), name, updates=40) for name in registry()}


def two(name: str, **options: Any) -> Schedule:
    """Worker a computes a sample in 1 s, b in 2; an all-reduce takes 2 s; a batch of four."""
    made = cluster(
        [1.0, 0.5], gradient_bytes=4.0, bandwidths=[2.0, 4.0], global_batch_samples=4, micro_batch_samples=1
    )  # fmt: skip
    return simulate(made, name, options=options, updates=20).schedule


def test_s_sgd_by_hand() -> None:
    """Period 6: a computes 2 s, waits 2 s for b, and 2 s for the network; b computes 4 s and waits 2 s for the network."""
    s = two("s-sgd", overlap=False)
    a, b = shares(s, *update_window(s, 3, 5))
    assert (a.compute, a.waiting, a.communication, a.other) == pytest.approx((2 / 6, 2 / 6, 2 / 6, 0))
    assert (b.compute, b.waiting, b.communication, b.other) == pytest.approx((4 / 6, 0, 2 / 6, 0))
    assert a.waits_for == (s.header.workers[1], pytest.approx(2 / 6))
    assert b.waits_for is None
    assert (a.hidden, b.hidden) == (0, 0)
    assert (a.samples, b.samples) == (6, 6)


def test_abs_sgd_by_hand() -> None:
    """The link is always busy behind the computing: all of it is hidden."""
    s = two("abs-sgd")
    for worker, samples in zip(shares(s, 22.0, 42.0), (20, 10), strict=True):
        assert (worker.compute, worker.hidden) == pytest.approx((1.0, 1.0))
        assert (worker.communication, worker.waiting, worker.samples) == (0, 0, samples)


def test_the_spans_of_s_sgd_by_hand() -> None:
    s = two("s-sgd", overlap=False)
    found = [(p.activity, p.rank, p.start_s, p.end_s, p.cause, p.whom) for p in spans(s, 6.0, 12.0, (0, 1))]
    assert ("waiting", 0, 8.0, 10.0, "peers", 1) in found
    assert ("communication", 0, 10.0, 12.0, "network", -1) in found
    assert ("communication", EVERYBODY, 10.0, 12.0, "", -1) in found
    assert sum(end - start for name, rank, start, end, *_ in found if name == "compute" and rank == 1) == 4.0
    assert not [p for p in spans(s, 6.0, 12.0, (0,)) if p.rank == 1]


def test_windows_by_updates() -> None:
    s = two("s-sgd", overlap=False)
    assert update_window(s, 1, 1) == (0.0, 6.0)
    assert update_window(s, 3, 5) == (12.0, 30.0)
    assert update_window(s, 19, 99) == (108.0, 120.0)
    assert update_window(s, -3, 0) == (0.0, 6.0)
    assert update_window(s, 9, 2) == update_window(s, 9, 9)


@pytest.mark.parametrize("name", list(registry()))
def test_the_figures_are_those_of_metrics_over_its_window(name: str) -> None:
    result = MIXED[name]
    t = result.timing
    found = shares(result.schedule, t.start_s, t.end_s)
    n = len(found)
    assert [w.compute for w in found] == pytest.approx(list(t.busy_share))
    assert [w.communication + w.waiting for w in found] == pytest.approx(list(t.waiting_share_by_worker), abs=1e-12)
    for cause in WAITS:
        assert sum(w.causes[cause] for w in found) / n == pytest.approx(t.waiting[cause], abs=1e-12)
    samples = np.array([w.samples for w in found], float)
    assert samples / samples.sum() == pytest.approx(t.sample_share)


@pytest.mark.parametrize("name", list(registry()))
@settings(max_examples=25)  # of each algorithm
@given(share=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_shares_are_parts_of_a_whole_and_those_of_the_spans(name: str, share: tuple[float, float]) -> None:
    s = MIXED[name].schedule
    begin, end = sorted(part * s.horizon_s for part in share)
    seen = spans(s, begin, end, range(s.n))
    for rank, worker in enumerate(shares(s, begin, end)):
        assert 0 <= worker.hidden <= worker.compute + 1e-9
        whole = worker.compute + worker.communication + worker.waiting + worker.other
        assert whole == pytest.approx(1.0 if end > begin else 0.0, abs=1e-6)
        for activity in ("compute", "communication", "waiting"):
            drawn = sum(p.end_s - p.start_s for p in seen if p.rank == rank and p.activity == activity)
            assert drawn == pytest.approx(getattr(worker, activity) * (end - begin), abs=1e-9)


@pytest.mark.parametrize("name", ["s-sgd", "abs-sgd", "local-sgd", "ad-psgd", "asgd"])
def test_what_is_hidden_against_a_sum_over_pairs(name: str) -> None:
    s = MIXED[name].schedule
    begin, end = 0.2 * s.horizon_s, 0.7 * s.horizon_s
    reduces = [row for row in s.rows(Kind.REDUCE) if s.worker[row] < 0]
    edges = sorted({begin, end, *np.clip(s.start_s, begin, end), *np.clip(s.end_s, begin, end)})
    for rank, worker in enumerate(shares(s, begin, end)):
        grads = [row for row in s.rows(Kind.GRAD) if s.worker[row] == rank]
        total = 0.0
        for a, b in pairwise(edges):
            middle = (a + b) / 2
            if any(s.start_s[r] < middle < s.end_s[r] for r in grads) and any(
                s.start_s[r] < middle < s.end_s[r] for r in reduces
            ):
                total += b - a
        assert worker.hidden * (end - begin) == pytest.approx(total, abs=1e-9)
        if rank == 1:
            break  # two workers say it; the sum over pairs takes its time


# ---- drawn ---------------------------------------------------------------------------------------------------------------


def test_a_window_of_ones_own_and_some_of_the_workers() -> None:
    s = MIXED["abs-sgd"].schedule
    figure = timeline(s, (1.0, 1.5), ranks=(3, 1))
    assert figure.layout.xaxis.range == (0, 500.0) and figure.layout.xaxis.title.text == "ms from 1 s on"
    assert {lane for trace in figure.data for lane in trace.y} == {
        s.header.workers[3],
        s.header.workers[1],
        "all-reduce",
    }


def test_waits_say_for_whom_in_words() -> None:
    s = two("s-sgd", overlap=False)
    compute, communication, waiting = timeline(s, (6.0, 12.0)).data
    assert set(waiting.text) == {f"for {s.header.workers[1]}"}
    assert "the last to join" in waiting.customdata[0][0]
    assert (set(communication.text) == {"network", "4"} and set(compute.text) == {"1"}) or set(compute.text) == {"2"}


def test_two_are_drawn_over_the_same_time_each_from_its_own_beginning() -> None:
    s = two("s-sgd", overlap=False)
    figure = stacked({"predicted": s, "measured": s}, {"predicted": (0.0, 6.0), "measured": (6.0, 18.0)}, ranks=(0,))
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range == (0, 12.0)
    assert [a.text for a in figure.layout.annotations] == [
        "<b>predicted</b>, from the start on",
        "<b>measured</b>, from 6 s on",
    ]


def test_what_only_the_lower_one_does_is_in_the_legend_too() -> None:
    busy, idle = two("abs-sgd"), two("s-sgd", overlap=False)
    figure = stacked({"busy": busy, "idle": idle}, {"busy": (22.0, 34.0), "idle": (6.0, 18.0)}, ranks=(0,))
    named = [trace.name for trace in figure.data if trace.showlegend and trace.y]
    drawn = {trace.name for trace in figure.data if trace.y}
    assert len(named) == len(set(named)) and set(named) == drawn and "waiting" in drawn
    assert "waiting" not in {trace.name for trace in figure.data[:3] if trace.y}


def test_lines_around_narrow_bars_do_not_cover_them() -> None:
    widths = [_edge(share) for share in (0.5, 0.02, 0.01, 0.0)]
    assert widths == [1.0, 1.0, 0.5, 0.1]


def test_no_more_is_drawn_than_a_browser_bears() -> None:
    s = simulate(load_profile("mixed-gpu-4"), "s-sgd", updates=2000).schedule
    whole = (0.0, s.horizon_s)
    begin, end = drawable(s, whole)
    assert begin == 0 and end < s.horizon_s
    bars = sum(len(trace.x) for trace in timeline(s, (begin, end)).data)
    assert 0.9 * MOST_BARS < bars < 1.6 * MOST_BARS  # a wait for a collective can be two bars
    assert drawable(s, (0.0, 1.0)) == (0.0, 1.0)
