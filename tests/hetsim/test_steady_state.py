"""The steady state of a Schedule against the engines that run all of it, and doubling against going step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import small

from hetsim.cluster.spec import Cluster
from hetsim.convergence import Setting, get_predictor
from hetsim.convergence.constants import constants_of
from hetsim.convergence.doubling import soonest
from hetsim.convergence.progress import progress_of
from hetsim.convergence.quadratic import power_law
from hetsim.convergence.steady import Maps, steady_state
from hetsim.simulate import simulate

EVEN = """
  - {name: fast, samples_per_s: 400}
  - {name: slow, samples_per_s: 400}
"""
UNEVEN = """
  - {name: fast, samples_per_s: 800}
  - {name: slow, samples_per_s: 200}
"""


def crossings(
    cluster: Cluster, label: str, options: dict[str, Any], setting: Setting, points: int
) -> tuple[float, float]:
    """Updates to the target by the whole run and by the steady state of its first `points` points."""
    run = simulate(cluster, label, options=options, max_samples=cluster.training.max_samples)
    nqm = get_predictor("nqm")
    target = nqm.target(cluster).value
    (curve,) = nqm.curves(run.schedule, cluster, [setting])
    below = int(np.flatnonzero(curve.loss <= target)[0])
    share = (curve.loss[below - 1] - target) / (curve.loss[below - 1] - curve.loss[below])
    start = simulate(cluster, label, options=options, updates=points).schedule
    steady = steady_state(start, cluster.training, (points // 3, len(progress_of(start).samples) - 2))
    assert steady is not None
    known = constants_of(cluster.workload)
    quadratic = known.nqm.quadratic(48 if steady.plan is not None else 24)
    maps = steady.maps(quadratic, np.array([setting.learning_rate]), np.array([setting.momentum]))
    assert maps is not None
    found = soonest(maps, quadratic, 1, known.ratio(target) * quadratic.initial_loss, math.inf)
    return below - 1 + float(share), float(found.periods[0]) * steady.updates


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("label", "options", "momentum", "rate"),
    [
        ("s-sgd", {}, 0.9, 0.05),
        ("s-sgd", {}, 0.0, 0.3),
        ("one-step-delay", {"compute_point": "current"}, 0.5, 0.1),
        ("one-step-delay", {"compute_point": "local-prediction"}, 0.9, 0.05),
        ("one-step-delay", {"compute_point": "look-ahead"}, 0.5, 0.1),
    ],
)
def test_equal_updates_take_as_long_as_the_whole_run(
    label: str, options: dict[str, Any], momentum: float, rate: float, nesterov: bool
) -> None:
    cluster = small(EVEN, nesterov=nesterov, weight_decay=1e-3, max_samples=200_000)
    whole, steady = crossings(cluster, label, options, Setting(learning_rate=rate, momentum=momentum), 60)
    # the first updates of a delayed method have no delay yet
    assert steady == pytest.approx(whole, rel=1e-6 if label == "s-sgd" else 5e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rounds_of_averaging_take_as_long_as_the_whole_run(momentum: float) -> None:
    cluster = small(EVEN, weight_decay=1e-3, max_samples=200_000, target_loss=0.3)
    setting = Setting(learning_rate=0.05, momentum=momentum)
    whole, steady = crossings(cluster, "local-sgd", {"local_steps": 4}, setting, 40)
    assert steady == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("label", "options"),
    [("asgd", {}), ("ssp", {"staleness": 2}), ("abs-sgd", {"compute_point": "look-ahead"}), ("abs-sgd", {})],
)
def test_delays_that_vary_are_met_by_their_pattern(label: str, options: dict[str, Any]) -> None:
    """Without jitter a pattern repeats almost exactly; what it misses is the batch at the end of an epoch."""
    cluster = small(UNEVEN, max_samples=100_000, target_loss=0.3)
    whole, steady = crossings(cluster, label, options, Setting(learning_rate=0.03, momentum=0.5), 240)
    assert steady == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("workers", [2, 4])
def test_equal_workers_of_a_parameter_server_have_one_delay(workers: int) -> None:
    """Gradients of n equal workers are n - 1 updates old, one after the other."""
    cluster = small("".join(f"  - {{name: w{i}, samples_per_s: 400}}\n" for i in range(workers)), max_samples=100_000)
    setting = Setting(learning_rate=0.03, momentum=0.5)
    whole, steady = crossings(
        replace(cluster, training=replace(cluster.training, target_loss=0.3)), "asgd", {}, setting, 200
    )
    assert steady == pytest.approx(whole, rel=0.02)


def test_no_steady_state_where_there_is_none() -> None:
    cluster = small()
    run = simulate(cluster, "s-sgd", updates=60).schedule
    assert steady_state(run, cluster.training, (20, 58)) is not None
    assert steady_state(run, replace(cluster.training, warmup_updates=10), (20, 58)) is None
    uneven = simulate(cluster, "local-sgd", options={"by_speed": True, "normalise": "samples"}, updates=20).schedule
    assert steady_state(uneven, cluster.training, (6, 18)) is None
    late = simulate(cluster, "dc-s3gd", options={"strength": 0.0}, updates=60).schedule  # steps from elsewhere
    assert steady_state(late, cluster.training, (20, 58)) is None
    nesterov = replace(cluster.training, nesterov=True)
    assert steady_state(simulate(cluster, "local-sgd", updates=20).schedule, nesterov, (6, 18)) is None


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.9), st.integers(1, 3))
def test_doubling_finds_what_stepping_finds(seed: int, share: float, rows: int) -> None:
    """Random maps that shrink by up to a few per cent a period, several settings and directions."""
    luck = np.random.default_rng(seed)
    quadratic, count = power_law(4), 3
    columns = count * len(quadratic)
    rates = np.tile(quadratic.h, count) * np.repeat(luck.uniform(0.001, 0.05, count), len(quadratic))
    transition = np.zeros((rows, rows, columns))
    for i in range(rows):
        transition[i, i] = 1.0 - rates
    mixing = luck.uniform(0.0, 0.002, (rows, rows))
    transition += mixing[:, :, None] * rates
    noise = np.zeros_like(transition)
    for i in range(rows):
        noise[i, i] = luck.uniform(0.0, 1e-4) * rates**2
    begins = np.array([True] + [False] * (rows - 1))
    maps = Maps(transition, noise, 0, begins)
    target = share * quadratic.initial_loss
    found = soonest(maps, quadratic, count, target, 1e6)
    expected = np.array([_step_by_step(maps, quadratic, s, target) for s in range(count)])
    reached = np.isfinite(found.periods)
    assert found.periods[reached] == pytest.approx(expected[reached], rel=1e-9, abs=1e-9)
    assert reached.any() == bool(np.isfinite(expected).any())
    if reached.any():
        assert found.periods.min() == pytest.approx(expected.min(), rel=1e-9, abs=1e-9)


def _step_by_step(maps: Maps, quadratic: Any, setting: int, target: float) -> float:
    nodes = slice(setting * len(quadratic), (setting + 1) * len(quadratic))
    t, q = maps.transition[:, :, nodes], maps.noise[:, :, nodes]
    moments = np.zeros_like(q)
    moments[0, 0] = quadratic.start
    before = quadratic.initial_loss
    for k in range(20_000):
        moments = np.einsum("ijn,jkn,lkn->iln", t, moments, t) + q
        loss = float(quadratic.weight @ moments[0, 0])
        if loss <= target:
            return k + (before - target) / (before - loss)
        before = loss
    return math.inf
