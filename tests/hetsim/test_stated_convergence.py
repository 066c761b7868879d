"""Convergence constants stated in a profile, and noise that falls with the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade_schedule import asynchronous, local_sgd, one_update_delay, synchronous
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim import compare, load_profile, simulate
from hetsim.cluster.spec import Training
from hetsim.convergence.constants import constants_of
from hetsim.convergence.joint import run_joint
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.operations import compile_schedule
from hetsim.convergence.plan import plan_of
from hetsim.convergence.predictor import Setting
from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.sequence import Losses, run_sequence
from hetsim.errors import ProfileError, UsageError
from hetsim.schedule import PointRule, Schedule

PLAIN = Training(global_batch_samples=24)
STATED = {
    "initial_loss": 2.3, "floor_loss": 0.05, "target_loss": 0.2, "curvature": 0.15, "exponent": 0.5, "directions": 500, "noise": 5.0,
    "noise_power": 0.75, "largest_curvature": 3.0, "min_updates": 20.0, "noise_scale_samples": 120.0, "source": "a test",
}  # fmt: skip
TEXT = """schema_version: 1
name: mine
workload: {{name: own, gradient_bytes: 1.0e5, convergence: {convergence}}}
workers: [{{name: a, count: 3, samples_per_s: 100.0}}]
training: {{global_batch_samples: 24, max_samples: 6000}}
"""


def text_of(**changed: object) -> str:
    entries = ", ".join(f"{key}: {value}" for key, value in (STATED | changed).items() if value is not None)
    return TEXT.format(convergence=f"{{{entries}}}")


def one_direction(power: float) -> Quadratic:
    one = np.ones(1)
    return Quadratic(2.0 * one, 3.0 * one, 0.5 * one, one, power)


def fast(schedule: Schedule, quadratic: Quadratic, lr: float, beta: float) -> Losses:
    return run_sequence(plan_of(schedule, PLAIN), quadratic, np.array([lr, lr / 3]), np.array([beta, 0.0]))


def joint(schedule: Schedule, quadratic: Quadratic, lr: float, beta: float) -> Losses:
    return run_joint(compile_schedule(schedule, PLAIN), quadratic, np.array([lr, lr / 3]), np.array([beta, 0.0]))


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 2.0), st.floats(0.01, 0.4))
def test_one_direction_without_momentum_has_a_closed_recursion(power: float, lr: float) -> None:
    """L' = (1 - lr h)² L + ½ lr² h c/B (L/L_0)^q, with batches that change."""
    batches = [24, 6, 12] * 5
    loss = [0.5 * 2.0 * 0.5]
    for batch in batches:
        factor = (loss[-1] / loss[0]) ** power
        loss.append((1 - 2 * lr) ** 2 * loss[-1] + 0.5 * 2.0 * lr**2 * 3.0 / batch * factor)
    schedule = synchronous([[b] for b in batches])
    for engine in (fast, joint):
        np.testing.assert_allclose(engine(schedule, one_direction(power), lr, 0.0).loss[:, 0], loss, rtol=1e-10)


@pytest.mark.parametrize(
    "schedule",
    [
        one_update_delay([[8, 4, 12], [6, 6, 6]] * 10, PointRule.CURRENT),
        one_update_delay([[8, 4, 12], [4, 2, 6]] * 10, PointRule.LOCAL_PREDICTION),
        asynchronous([0, 1, 0, 2, 0, 1, 0, 0, 3, 0, 1, 2] * 3, [8, 4, 6, 2]),
    ],
)
def test_both_engines_agree(schedule: Schedule) -> None:
    q = Quadratic(np.array([1.0, 0.1]), np.array([20.0, 3.0]), np.array([1.0, 2.0]), np.array([1.0, 5.0]), 0.8)
    a, b = fast(schedule, q, 0.1, 0.5), joint(schedule, q, 0.1, 0.5)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-9)
    still = fast(schedule, replace(q, noise_power=0.0), 0.1, 0.5)
    assert a.loss[-1, 0] < 0.9 * still.loss[-1, 0]  # noise that falls with the loss leaves less of it


def test_local_steps_keep_the_noise_of_the_round_s_start() -> None:
    """Two replicas, two steps a round: the first round's noise is c, the next round's c (L_1/L_0)^q for both steps."""
    schedule, q, lr = local_sgd(2, [8, 8], [2, 2]), one_direction(1.0), 0.1
    found = joint(schedule, q, lr, 0.0).loss[:, 0]
    x2, loss = 0.5, [0.5]
    for _ in range(2):
        noise = 3.0 / 8 * loss[-1] / loss[0]
        a = 1 - 2 * lr
        x2 = a**4 * x2 + lr**2 * noise * (1 + a**2) / 2  # the mean of two replicas from one point
        loss.append(x2)
    np.testing.assert_allclose(found, loss, rtol=1e-12)


def test_a_quadratic_refuses_a_power_below_0() -> None:
    with pytest.raises(UsageError, match="noise_power"):
        one_direction(-0.5)


def test_stated_constants_reach_the_model() -> None:
    known = constants_of(load_profile(text_of()).cluster().workload)
    quadratic = known.nqm.quadratic(None)
    assert quadratic.largest_curvature == 3.0 and quadratic.noise_power == 0.75 and quadratic.lengthening == 0.0
    bulk = np.sort(quadratic.h)[:-1][::-1]
    np.testing.assert_allclose(bulk, 0.15 * np.arange(1, 501) ** -0.5)
    np.testing.assert_allclose(np.sort(quadratic.c)[::-1], 5.0 * np.sort(quadratic.h)[::-1])
    assert known.loss(known.nqm.target_ratio) == pytest.approx(0.2)
    assert known.noise_scale.min_updates == 20.0 and known.noise_scale.noise_scale_samples == 120.0


def test_stated_weights_before_normalisations_lengthen() -> None:
    """|w|² = 100 in the units in which ½ Σ h θ² is the loss above its floor, 2.25 at the start."""
    cluster = load_profile(text_of(weight_square=100.0), overrides=["training.learning_rate=2.0"]).cluster()
    quadratic = constants_of(cluster.workload).nqm.quadratic()
    assert quadratic.lengthening == pytest.approx(2.25 / quadratic.initial_loss / 100.0)
    schedule = simulate(cluster, "s-sgd", updates=20).schedule
    (curve,) = NoisyQuadratic().curves(schedule, cluster, [Setting(learning_rate=0.1, momentum=0.9)])
    assert any("lengthen" in sentence for sentence in curve.assumptions)
    (caution,) = (
        c for c in NoisyQuadratic().cautions(schedule, cluster, Setting(learning_rate=2.0, momentum=0.9))
        if c.code == "unstable-learning-rate"
    )  # fmt: skip
    assert "until weights before normalisations have lengthened" in caution.text


def test_compare_uses_them_and_says_so() -> None:
    found = compare(load_profile(text_of()), ["s-sgd", "abs-sgd"], seeds=1, jobs=1)
    assert found.target.value == 0.2 and "own (a test)" in found.target.metric
    assert all(row.seconds < float("inf") for row in found.algorithms)
    harder = compare(load_profile(text_of(target_loss=0.1)), ["s-sgd"], seeds=1, jobs=1)
    assert harder.algorithms[0].seconds > found.algorithms[0].seconds


def test_a_profile_with_stated_constants_comes_back_from_its_text() -> None:
    profile = load_profile(text_of())
    again = load_profile(profile.to_yaml())
    assert again == profile and again.digest() == profile.digest()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"floor_loss": 2.5}, "workload.convergence.floor_loss: floor_loss must be below initial_loss"),
        ({"target_loss": 0.01}, "target_loss must lie between floor_loss and initial_loss"),
        ({"noise": -1.0}, "workload.convergence.noise: must be at least 0"),
        ({"nose": 1.0}, r"workload.convergence.nose: unknown key \(did you mean noise\?\)"),
        ({"curvature": None}, "workload.convergence.curvature: required key is missing"),
    ],
)
def test_bad_constants_are_told_where_they_stand(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profile(text_of(**changed))
