"""Figures of a run worked out by hand from the timelines of golden_tables, and properties that hold for any."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster

from hetsim.algorithms import registry
from hetsim.cluster.spec import Cluster, Link
from hetsim.metrics import WAITS, Timing, first_stop_s, limited_by, timing, update_times
from hetsim.schedule import Kind
from hetsim.simulate import simulate


def two(**more: Any) -> Cluster:
    base: dict[str, Any] = {
        "gradient_bytes": 4.0,
        "bandwidths": [2.0, 4.0],
        "server": Link(bytes_per_s=4.0),
        "global_batch_samples": 4,
        "micro_batch_samples": 1,
    }
    return cluster([1.0, 0.5], **{**base, **more})


def figures(name: str, updates: int = 20, c: Cluster | None = None, **options: Any) -> Timing:
    return simulate(c or two(), name, options=options, updates=updates).timing


def test_s_sgd_by_hand() -> None:
    """Period 6: a computes 2, waits 2 for b and 2 for the network; b computes 4 and waits 2 for the network."""
    t = figures("s-sgd", overlap=False)
    assert (t.updates, t.start_s, t.end_s) == (20, 60.0, 120.0)
    assert (t.samples_per_s, t.update_period_s, t.mean_batch_samples) == (4 / 6, 6.0, 4.0)
    assert t.utilisation == 6 / 12 and t.waiting_share == 6 / 12
    assert t.waiting["peers"] == pytest.approx(2 / 12) and t.waiting["network"] == pytest.approx(4 / 12)
    assert sum(v for k, v in t.waiting.items() if k not in ("peers", "network")) == 0
    assert t.busy_share == pytest.approx([2 / 6, 4 / 6]) and t.waiting_share_by_worker == pytest.approx([4 / 6, 2 / 6])
    assert t.sample_share.tolist() == [0.5, 0.5] and t.last_share.tolist() == [0.0, 1.0]
    assert (t.staleness_mean, t.staleness_max) == (0.0, 0)
    assert t.link_busy_share == pytest.approx(2 / 6)


def test_abs_sgd_by_hand() -> None:
    """All-reduces 2-4, 4-6 …: nobody waits, the link is always busy, a does two thirds of the samples, 3 a period of 2 s."""
    t = figures("abs-sgd")
    assert (t.updates, t.start_s, t.end_s) == (20, 22.0, 42.0)
    assert (t.samples_per_s, t.update_period_s, t.mean_batch_samples) == (1.5, 2.0, 3.0)
    assert (t.utilisation, t.waiting_share, t.link_busy_share) == (1.0, 0.0, 1.0)
    assert t.sample_share == pytest.approx([2 / 3, 1 / 3])
    assert t.staleness_max == 1


def test_local_sgd_by_hand() -> None:
    """Period 8 + 2: an update is an averaging round of 8 samples; nothing is stale."""
    t = figures("local-sgd", local_steps=2)
    assert (t.update_period_s, t.mean_batch_samples, t.samples_per_s) == (10.0, 8.0, 0.8)
    assert t.utilisation == pytest.approx(12 / 20)
    assert t.waiting["peers"] == pytest.approx(4 / 20) and t.waiting["network"] == pytest.approx(4 / 20)
    assert t.staleness_mean is None and t.staleness_max is None


def test_ssp_by_hand() -> None:
    """s = 0, period 7: b computes 4, pushes 1, pulls 2; a computes 2, pushes 2, is held 1 and pulls 2."""
    c = two()
    t = simulate(c, "ssp", options={"staleness": 0}, updates=41).timing
    assert t.window_s == pytest.approx(10 * 7.0, abs=2.0)
    whole = simulate(c, "ssp", options={"staleness": 0}, updates=400).timing
    assert whole.samples_per_s == pytest.approx(4 / 7, rel=0.01)
    assert whole.waiting["gate"] == pytest.approx(1 / 14, rel=0.05)
    assert whole.waiting["push"] == pytest.approx(3 / 14, rel=0.05)
    assert whole.waiting["pull"] == pytest.approx(4 / 14, rel=0.05)
    assert whole.utilisation == pytest.approx(6 / 14, rel=0.05)


@pytest.mark.parametrize("name", sorted(registry()))
def test_figures_are_shares(name: str) -> None:
    t = figures(name)
    assert tuple(t.waiting) == WAITS
    for share in (t.utilisation, t.waiting_share, t.link_busy_share, *t.waiting.values(), *t.busy_share, *t.last_share):
        assert -1e-12 <= share <= 1 + 1e-12
    assert t.sample_share.sum() == pytest.approx(1)
    assert t.utilisation == pytest.approx(t.busy_share.mean())
    assert t.waiting_share == pytest.approx(t.waiting_share_by_worker.mean())
    assert t.samples_per_s == pytest.approx(t.mean_batch_samples / t.update_period_s)


@pytest.mark.parametrize("name", sorted(registry()))
def test_time_scales(name: str) -> None:
    """Everything a power of two slower: the same shares, a power of two longer."""
    slow = two(bandwidths=[2.0 / 1024, 4.0 / 1024], server=Link(bytes_per_s=4.0 / 1024))
    slow = dataclasses.replace(
        slow, workers=tuple(dataclasses.replace(w, samples_per_s=w.samples_per_s / 1024) for w in slow.workers)
    )
    a, b = figures(name), figures(name, c=slow)
    assert (b.update_period_s, b.samples_per_s) == (1024 * a.update_period_s, a.samples_per_s / 1024)
    assert (a.utilisation, a.waiting, a.link_busy_share) == (b.utilisation, b.waiting, b.link_busy_share)


@pytest.mark.parametrize("name", sorted(registry()))
def test_window_is_the_second_half(name: str) -> None:
    r = simulate(two(), name, updates=21)
    times, samples = update_times(r.schedule)
    assert np.all(np.diff(times) >= 0) and len(times) == len(samples) == r.timing.updates
    half = (len(times) + 1) // 2
    assert (r.timing.start_s, r.timing.end_s) == (times[half - 1], times[-1])
    assert r.timing.samples_per_s == pytest.approx(samples[half:].sum() / (times[-1] - times[half - 1]))
    assert times[-1] <= first_stop_s(r.schedule)


@pytest.mark.parametrize("updates", [1, 2])
def test_short_runs_have_figures(updates: int) -> None:
    t = figures("s-sgd", updates=updates, overlap=False)
    assert (t.updates, t.update_period_s) == (updates, 6.0)
    assert t.samples_per_s == pytest.approx(4 / 6)


def test_a_run_whose_only_update_is_at_its_start_has_finite_figures() -> None:
    """AD-PSGD averages beside the computation, over a free link here: at once, before anything was computed."""
    t = simulate(cluster([1.0, 0.5], global_batch_samples=4, micro_batch_samples=4, max_samples=2), "ad-psgd").timing
    assert t.updates == 1 and t.samples_per_s == 0 and 0 <= t.utilisation <= 1


def test_what_limits_is_named() -> None:
    straggler = two(bandwidths=[400.0, 400.0])
    assert limited_by(figures("s-sgd", c=straggler, overlap=False), straggler).startswith("straggler b: 2")
    network = two(bandwidths=[2.0, 0.125])
    text = limited_by(figures("s-sgd", c=network, overlap=False), network)
    assert text.startswith("network (link of b, 1e-09 Gbit/s)")
    assert (
        limited_by(figures("abs-sgd"), two())
        == "computation; the network (link of a, 1.6e-08 Gbit/s) sets the batch of 3 samples"
    )
    free = two(bandwidths=[math.inf] * 2, server=Link(bytes_per_s=math.inf))
    assert limited_by(figures("asgd", c=free), free, server=True) == "computation: every worker is busy"
    assert "the bound on skew" in limited_by(figures("ssp", c=free, staleness=0), free, server=True)
    assert "waiting for b" in limited_by(figures("ssp", c=free, staleness=0), free, server=True)
    one = cluster([1.0], global_batch_samples=4)
    assert limited_by(figures("s-sgd", c=one), one) == "computation: one worker"
    capped = figures("abs-sgd", c=two(bandwidths=[0.25, 0.25]), max_local_batch=1)
    assert limited_by(capped, two()).startswith("the batch cap: ")


def test_a_slow_worker_is_not_charged_for_the_others() -> None:
    """b is 0.2 s late; only a waits for that, and b is named (a monitor that showed both as slow would name nobody)."""
    c = cluster([1.0, 1.0], overheads=[0.093, 0.293], bandwidths=[1e9] * 2, gradient_bytes=8.0, global_batch_samples=2)
    r = simulate(c, "s-sgd", updates=20)
    assert r.timing.waiting_share_by_worker == pytest.approx([0.2 / 1.293, 0.0], abs=1e-6)
    assert r.timing.last_share.tolist() == [0.0, 1.0]
    assert limited_by(r.timing, c).startswith("straggler b")


def test_timing_ignores_what_happens_after_the_first_worker_stopped() -> None:
    """Data that ends: what the others finish says nothing about the rate."""
    c = cluster([8.0, 1.0], gradient_bytes=0.0, global_batch_samples=16, server=Link(bytes_per_s=math.inf))
    r = simulate(c, "asgd", max_samples=400)
    assert r.timing.samples_per_s == pytest.approx(9.0, rel=0.1)
    assert r.timing.end_s <= first_stop_s(r.schedule) < r.schedule.horizon_s


def test_staleness_of_asgd_is_its_competitors_rate() -> None:
    """About total rate / rate_i - 1: 4 equal workers, 3 updates of others."""
    c = cluster([1.0] * 4, gradient_bytes=0.0, global_batch_samples=16, server=Link(bytes_per_s=math.inf))
    r = simulate(c, "asgd", updates=400)
    assert r.timing.staleness_mean == pytest.approx(3.0, abs=0.05)
    assert timing(r.schedule, c).updates == r.timing.updates


def test_every_row_kind_is_counted_once() -> None:
    s = simulate(two(), "abs-sgd", updates=20).schedule
    assert sum(len(s.rows(kind)) for kind in Kind) == len(s)
    assert s.worker_names([0, 1, 2, -1]) == ["a", "b", "server", "all"]
