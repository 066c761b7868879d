"""Collectives that take longer while workers compute: closed forms, and bounds for any cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim import load_profile
from hetsim.cluster.spec import Cluster
from hetsim.schedule import Kind
from hetsim.simulate import Result, simulate

PROFILE = """
schema_version: 1
name: beside
workload: {name: own, gradient_bytes: 1000000, dataset_samples: 100000}
workers:
  - {name: a, samples_per_s: 1000}
  - {name: b, samples_per_s: 500}
network:
  all_reduce_table: [{bytes: 1000000, seconds: 0.1}]
  all_reduce_busy_table: [{bytes: 1000000, seconds: 0.4}]
training: {global_batch_samples: 200, micro_batch_samples: 1}
"""


def cluster_with(busy_s: float | None = 0.4, **speeds: float) -> Cluster:
    cluster = load_profile(PROFILE).cluster()
    table = () if busy_s is None else ((1_000_000.0, busy_s),)
    workers = tuple(replace(w, samples_per_s=speeds.get(w.name, w.samples_per_s)) for w in cluster.workers)
    return replace(cluster, workers=workers, network=replace(cluster.network, all_reduce_busy_table=table))


def flights_s(run: Result) -> np.ndarray:
    rows = run.schedule.rows(Kind.REDUCE)
    return run.schedule.end_s[rows] - run.schedule.start_s[rows]


def test_while_everybody_computes_it_takes_the_busy_time() -> None:
    run = simulate(cluster_with(), "abs-sgd", updates=20)
    assert flights_s(run)[1:-1] == pytest.approx(0.4)


def test_while_nobody_computes_it_takes_the_time_alone() -> None:
    run = simulate(cluster_with(), "s-sgd", options={"overlap": False}, updates=20)
    assert flights_s(run) == pytest.approx(0.1)
    assert run.timing.update_period_s == pytest.approx(100 / 500 + 0.1)


def test_part_of_the_members_computing_by_hand() -> None:
    # One-step delay: a computes 0.1 s, b 0.2 s beside it. Rates 1/4 with two, 1/2.5 with one, 1 with none computing: after 0.1 s 0.025 of
    # 0.1 s are done, after 0.2 s 0.065, the rest takes 0.035 s: 0.235 s, and then the next starts.
    run = simulate(cluster_with(), "one-step-delay", updates=20)
    assert flights_s(run)[1:-1] == pytest.approx(0.235)
    assert run.timing.update_period_s == pytest.approx(0.235)


def test_a_bucket_that_leaves_during_the_backward_pass_is_slowed_too() -> None:
    # Both compute until the only bucket is ready: nothing is slowed; with several, the early ones are.
    large = load_profile(PROFILE.replace("1000000", "100000000")).cluster()
    assert len(large.network.all_reduce_busy_table) == 1
    slowed = simulate(large, "s-sgd", updates=10).timing.update_period_s
    free = replace(large, network=replace(large.network, all_reduce_busy_table=()))
    assert slowed > simulate(free, "s-sgd", updates=10).timing.update_period_s


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.1, 3.0),
    st.floats(20.0, 5000.0),
    st.floats(20.0, 5000.0),
    st.sampled_from(["s-sgd", "lb-bsp", "one-step-delay", "one-step-delay-balanced", "abs-sgd", "local-sgd"]),
)
def test_never_faster_than_alone_nor_slower_than_busy(busy_s: float, a: float, b: float, algorithm: str) -> None:
    run = simulate(cluster_with(busy_s, a=a, b=b), algorithm, updates=8)
    took = flights_s(run)
    assert np.all(took >= 0.1 * (1 - 1e-9)) and np.all(took <= max(busy_s, 0.1) * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("algorithm", ["s-sgd", "one-step-delay-balanced", "abs-sgd", "asgd"])
def test_a_busy_table_that_says_the_same_changes_no_figure(algorithm: str) -> None:
    same, without = (simulate(cluster_with(busy), algorithm, updates=15).timing for busy in (0.1, None))
    assert same.update_period_s == pytest.approx(without.update_period_s, rel=1e-9)
    assert same.sample_share == pytest.approx(without.sample_share)
