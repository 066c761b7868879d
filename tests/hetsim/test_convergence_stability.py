"""Stability bounds against spectral radii, and the warnings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim import load_profile, simulate
from hetsim.algorithms import make
from hetsim.convergence.complexity import Difficulty, asynchronous_time, minibatch_time, optimal_time
from hetsim.convergence.constants import constants_of
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.predictor import Setting
from hetsim.convergence.stability import (
    SYNCHRONOUS,
    Circumstances,
    best_kappa,
    cautions,
    largest_stable,
    largest_stable_at,
    largest_stable_look_ahead,
    noise_floor,
    transition,
)
from hetsim.errors import UsageError
from hetsim.schedule import PointRule

DELAYED = Circumstances(delay=1.0)


def radius(a: float, beta: float, delay: int) -> float:
    """From the characteristic polynomial z^τ (z² - (1+β)z + β) + a·z = 0, times what is common; written apart from the package's matrix."""
    coefficients = np.zeros(delay + 3)
    coefficients[0], coefficients[1], coefficients[2] = 1.0, -(1.0 + beta), beta
    coefficients[delay + 1] += a
    return float(np.abs(np.roots(coefficients)).max())


@given(st.floats(0.0, 0.99), st.integers(0, 32))
def test_the_bound_is_where_the_spectral_radius_passes_one(beta: float, delay: int) -> None:
    bound = largest_stable(beta, delay)
    assert radius(bound * (1 - 1e-4), beta, delay) < 1.0 < radius(bound * (1 + 1e-4), beta, delay)


@given(st.floats(0.0, 0.99), st.floats(0.01, 1.0), st.integers(0, 6))
def test_transition_has_the_characteristic_polynomial_s_radius(beta: float, share: float, delay: int) -> None:
    a = share * largest_stable(beta, delay)
    mine = float(np.abs(np.linalg.eigvals(transition(a, beta, delay))).max())
    assert mine == pytest.approx(radius(a, beta, delay), abs=1e-5)  # double roots lose half the digits


def test_closed_forms() -> None:
    assert [round(largest_stable(0.0, t), 3) for t in range(4)] == [2.0, 1.0, 0.618, 0.445]
    for beta in (0.0, 0.3, 0.9):
        assert largest_stable(beta, 0) == pytest.approx(2 * (1 + beta))
        assert largest_stable(beta, 1) == 1 - beta
        assert largest_stable(beta, 1.0 + 1e-9) == pytest.approx(
            1 - beta, rel=1e-6
        )  # the general equation gives the closed form
    assert largest_stable(1e-9, 3) == pytest.approx(2 * math.sin(math.pi / 14), rel=1e-6)


@pytest.mark.parametrize(
    ("beta", "blend", "bound"),
    [
        *[(0.9, 1, 3.8), (0.9, 0.75, 0.91), (0.9, 0.5, 0.70), (0.9, 0.3, 0.60), (0.9, 0, 0.50)],
        *[(0.0, 1, 2.0), (0.0, 0.75, 1.56), (0.0, 0.5, 1.0), (0.0, 0.3, 0.80), (0.0, 0, 0.62)],
    ],
)
def test_bounds_of_blended_points(beta: float, blend: float, bound: float) -> None:
    assert largest_stable_at(beta, PointRule.BLEND, blend) == pytest.approx(bound, abs=0.0051)


def test_bounds_of_other_points() -> None:
    assert largest_stable_at(0.9, PointRule.LOOK_AHEAD) == pytest.approx(0.27, abs=0.005)
    assert largest_stable_at(0.0, PointRule.LOOK_AHEAD) == pytest.approx(0.618, abs=0.001)
    assert largest_stable_at(0.9, PointRule.LOCAL_PREDICTION) == pytest.approx(3.8, rel=1e-6)
    assert largest_stable_at(0.9, PointRule.LOCAL_PREDICTION, several=True) == pytest.approx(1.0)
    for damping, bound in ((0.0, 1.0), (0.3, 1 / 0.7), (0.5, 2.0), (0.8, 1.25)):
        assert largest_stable_at(0.9, PointRule.DAMPED_PREDICTION, damping, several=True) == pytest.approx(bound)
        roots = [np.abs(np.roots([1.0, a, a * damping])).max() for a in (0.999 * bound, 1.001 * bound)]
        assert roots[0] < 1.0 < roots[1]
    assert largest_stable_at(0.9, PointRule.DAMPED_PREDICTION, 0.5) == pytest.approx(3.8, rel=1e-6)
    assert largest_stable_at(0.9, PointRule.CURRENT, delay=2) == largest_stable(0.9, 2)


def predicted_by_four(a: float, updates: int) -> float:
    """|x| in float32 after updates of four workers with equal shares and local predictions on one direction of curvature 1, β = .9."""
    rng = np.random.default_rng(0)
    x, v, points, lr = np.float32(1.0), np.float32(0.0), np.ones(4, np.float32), np.float32(a)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(updates):
            g = points + np.float32(1e-3) * rng.standard_normal(4).astype(np.float32)
            mean = np.float32(0.25) * g.sum(dtype=np.float32)
            points = x - lr * (np.float32(0.9) * v + g)
            v = np.float32(0.9) * v + mean
            x = x - lr * v
    return float(np.abs(x))


@pytest.mark.parametrize(("a", "stable"), [(0.5, True), (0.95, True), (1.5, False), (2.0, False)])
def test_equal_shares_do_not_save_predictions_past_their_bound(a: float, stable: bool) -> None:
    """The mean alone would be stable to 3.8, but every worker's own deviation grows as a^k until rounding lets it through; the model of a
    Schedule with equal shares says the same."""
    assert (a < largest_stable_at(0.9, PointRule.LOCAL_PREDICTION, several=True)) == stable
    assert (predicted_by_four(a, 400) < 0.1) == stable
    cluster = load_profile("homogeneous-4").cluster()
    algorithm = make("one-step-delay", {"compute_point": "local-prediction"})
    schedule = simulate(cluster, algorithm, updates=80).schedule  # all within the first epoch: shares are equal
    largest = constants_of(cluster.workload).nqm.quadratic().largest_curvature
    (curve,) = NoisyQuadratic().curves(schedule, cluster, [Setting(learning_rate=a / largest, momentum=0.9)])
    assert curve.diverged != stable


@given(st.floats(0.0, 0.99), st.floats(0.0, 5.0))
def test_closed_bound_of_look_ahead_is_where_the_roots_of_its_polynomial_leave_the_circle(
    beta: float, kappa: float
) -> None:
    def roots(a: float) -> float:
        return float(np.abs(np.roots([1.0, -(1.0 + beta), beta + a * (1.0 + kappa), -a * kappa])).max())

    bound = largest_stable_look_ahead(beta, kappa)
    assert roots(bound * 0.999) < 1.0 < roots(bound * 1.001)


@given(st.floats(0.0, 0.99), st.floats(0.0, 10.0))
def test_no_kappa_has_a_larger_bound_than_the_best(beta: float, kappa: float) -> None:
    best = largest_stable_look_ahead(beta, best_kappa(beta))
    assert best == pytest.approx((1.0 - beta / 2.0) ** 2, rel=1e-9)
    assert largest_stable_look_ahead(beta, kappa) <= best * (1 + 1e-9)


def test_noise_floor_is_infinite_past_the_bound() -> None:
    assert noise_floor(0.11, 1.0, 0.9, 1) == math.inf
    assert noise_floor(0.09, 1.0, 0.9, 1) > noise_floor(0.09, 1.0, 0.9, 0) > 0
    with pytest.raises(UsageError):
        noise_floor(0.1, 1.0, 0.9, 2)


def test_cautions() -> None:
    def codes(where: Circumstances = DELAYED, **changes: float) -> list[str]:
        arguments: dict[str, float] = {"learning_rate": 0.05, "momentum": 0.9, "largest_curvature": 1.0}
        return [c.code for c in cautions(**{**arguments, **changes}, circumstances=where)]

    assert codes() == []
    assert codes(learning_rate=0.09) == ["learning-rate-near-bound"]
    assert codes(learning_rate=0.2) == ["unstable-learning-rate"]
    assert codes(SYNCHRONOUS, learning_rate=0.2) == []
    assert codes(batch_samples=300, critical_batch_samples=200) == ["batch-past-critical"]
    predicted = Circumstances(delay=1.0, point=PointRule.LOCAL_PREDICTION, several=True)
    assert codes(predicted, learning_rate=2.0) == ["unstable-learning-rate"]


def test_time_complexity() -> None:
    times = [1 / 100, 1 / 800, 1 / 200, 1 / 400]
    difficulty = Difficulty(l_delta=1.0, epsilon=0.01, sigma2=0.1)  # σ²/ε = 10
    best = optimal_time(times, difficulty)
    assert best.workers == 3 and best.seconds == pytest.approx(0.929, abs=5e-4)
    assert minibatch_time(times, difficulty) == pytest.approx(3.50)
    assert asynchronous_time(times, difficulty) == pytest.approx(0.933, abs=5e-4)


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=12), st.floats(0.0, 100.0))
def test_nothing_is_faster_than_the_yardstick(times: list[float], sigma2: float) -> None:
    difficulty = Difficulty(l_delta=1.0, epsilon=0.1, sigma2=sigma2)
    least = optimal_time(times, difficulty).seconds * (1 - 1e-12)
    assert least <= minibatch_time(times, difficulty) and least <= asynchronous_time(times, difficulty)
    assert optimal_time([*times, 5.0], difficulty).seconds <= least / (1 - 1e-12) * (
        1 + 1e-12
    )  # one worker more never hurts


@pytest.mark.parametrize("times", [[], [0.0], [-1.0, 1.0], [math.inf], [math.nan]])
def test_time_complexity_refuses(times: list[float]) -> None:
    with pytest.raises(UsageError, match="positive"):
        optimal_time(times, Difficulty(1.0, 0.1, 1.0))


@given(st.floats(0.0, 0.95), st.floats(0.0, 2.0), st.floats(0.02, 1.5))
def test_local_step_s_transition_against_its_recursion(beta: float, kappa: float, a: float) -> None:
    """x' = x - u', u' = βu + a·p with the point p' = x - κ·a·p one update later; written out once more, over 50 updates."""
    m = transition(a, beta, 1, PointRule.LOCAL_STEP, kappa)
    x, u, p = 1.0, 0.0, 1.0
    state = np.array([x, u, p])
    for _ in range(50):
        g = a * p
        u_next = beta * u + g
        x, u, p = x - u_next, u_next, x - kappa * g
        state = m @ state
    assert state == pytest.approx([x, u, p], rel=1e-9, abs=1e-9)


def test_local_step_s_bounds() -> None:
    """κ = 0 is a plain delay; without momentum κ = 1 is local-prediction; with β = .9 it gains nearly nothing over a plain delay."""
    for beta in (0.0, 0.5, 0.9):
        assert largest_stable_at(beta, PointRule.LOCAL_STEP, 0.0) == pytest.approx(1 - beta, rel=1e-6)
    assert largest_stable_at(0.0, PointRule.LOCAL_STEP) == pytest.approx(2.0, rel=1e-3)
    assert largest_stable_at(0.0, PointRule.LOCAL_STEP, several=True) == 1.0
    at_nine = largest_stable_at(0.9, PointRule.LOCAL_STEP)
    assert 0.1 < at_nine < largest_stable_at(0.9, PointRule.LOOK_AHEAD)
