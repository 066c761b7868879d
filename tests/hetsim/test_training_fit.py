"""The quadratic model fitted to loss curves: known constants come back, and what is too little is said."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_schedule import one_update_delay, synchronous

from hetsim.cluster.spec import Training
from hetsim.convergence.constants import NoisyQuadraticConstants
from hetsim.convergence.plan import plan_of
from hetsim.convergence.sequence import run_sequence
from hetsim.convergence.short_run import ShortRun, loss_ratios
from hetsim.convergence.training_fit import MOST_FLOOR, fit_quadratic
from hetsim.errors import UsageError
from hetsim.schedule import PointRule

TRUTH = NoisyQuadraticConstants(
    directions=300, exponent=0.5, noise=5.0, target_ratio=0.1, source="", outlier=2.0, curvature=0.2, noise_power=0.7
)
INITIAL, FLOOR = 2.3, 0.05


def runs_of_truth(updates: int) -> list[ShortRun]:
    quadratic = TRUTH.quadratic()
    settings = [(b, lr) for b in (16, 64) for lr in (0.05, 0.1, 0.2)]
    batch, rate = (np.array(c, np.float64) for c in zip(*settings, strict=True))
    ratios = loss_ratios(quadratic, batch, rate, np.full(len(settings), 0.9), updates)
    return [
        ShortRun(
            batch_samples=b,
            learning_rate=lr,
            momentum=0.9,
            updates=np.arange(updates + 1),
            loss=FLOOR + (INITIAL - FLOOR) * ratios[:, i],
        )
        for i, (b, lr) in enumerate(settings)
    ]


def test_its_recursion_is_the_engine_s() -> None:
    quadratic = TRUTH.quadratic()
    engine = run_sequence(
        plan_of(synchronous([[16]] * 60), Training(global_batch_samples=16)),
        quadratic,
        np.array([0.05, 0.2]),
        np.array([0.9, 0.0]),
    )
    mine = loss_ratios(quadratic, np.full(2, 16.0), np.array([0.05, 0.2]), np.array([0.9, 0.0]), 60)
    np.testing.assert_allclose(mine, engine.loss / quadratic.initial_loss, rtol=1e-10)


def test_late_runs_follow_the_engine_too() -> None:
    quadratic = TRUTH.quadratic()
    late = one_update_delay([[16]] * 61, PointRule.CURRENT)
    engine = run_sequence(
        plan_of(late, Training(global_batch_samples=16)), quadratic, np.array([0.02, 0.2]), np.array([0.9, 0.0])
    )
    batch, rate, momentum = np.full(3, 16.0), np.array([0.02, 0.2, 0.2]), np.array([0.9, 0.0, 0.0])
    mine = loss_ratios(quadratic, batch, rate, momentum, 60, np.array([1, 1, 0]))
    np.testing.assert_allclose(mine[:, :2], engine.loss[:61] / quadratic.initial_loss, rtol=1e-9)
    np.testing.assert_allclose(mine[:, 2:], loss_ratios(quadratic, batch[2:], rate[2:], momentum[2:], 60), rtol=1e-12)


def test_late_runs_tell_the_largest_curvature() -> None:
    quadratic = TRUTH.quadratic()
    rates = np.array([0.02, 0.04, 0.045])  # stable up to (1 - β)/h = .05
    ratios = loss_ratios(quadratic, np.full(3, 16.0), rates, np.full(3, 0.9), 500, np.ones(3, np.int64))
    late = [
        ShortRun(
            batch_samples=16, learning_rate=float(lr), momentum=0.9, delay=1,
            updates=np.arange(501), loss=FLOOR + (INITIAL - FLOOR) * ratios[:, i],
        )
        for i, lr in enumerate(rates)
    ]  # fmt: skip
    found = fit_quadratic([*runs_of_truth(300), *late], target_loss=0.3, largest=1.2)  # measured too low
    assert found.steepest == pytest.approx(2.0, rel=0.1)
    assert found.values["largest_curvature"].value == found.steepest
    assert fit_quadratic(runs_of_truth(300), target_loss=0.3, largest=1.2).steepest == 1.2


def test_curves_of_a_known_model_give_its_noise_and_its_updates_back() -> None:
    found = fit_quadratic(runs_of_truth(300), target_loss=0.3, largest=2.0)
    assert found.residual < 0.03 and found.residual_at_target < 0.03 and not found.extrapolates
    assert found.values["noise"].value == pytest.approx(5.0, rel=0.3)
    assert found.values["noise_power"].value == pytest.approx(0.7, abs=0.2)


def test_a_constant_at_the_end_of_its_range_has_no_standard_error_but_a_reason() -> None:
    inside = fit_quadratic(runs_of_truth(300), target_loss=0.3, largest=2.0).values["floor_loss"]
    assert inside.error is not None and inside.error > 0 and not inside.reason
    target = 0.8 * FLOOR / MOST_FLOOR  # the true floor lies past what is allowed
    past = fit_quadratic(runs_of_truth(400), target_loss=target, largest=2.0).values["floor_loss"]
    assert past.value == pytest.approx(MOST_FLOOR * target, rel=0.02)
    assert past.error is None and past.reason == "at the upper end of what is allowed"


def test_runs_that_are_too_short_are_refused_with_a_reason() -> None:
    with pytest.raises(UsageError, match="too short to fit: 0 of 6 came below 80% of the initial loss"):
        fit_quadratic(runs_of_truth(2), target_loss=0.3, largest=2.0)
    with pytest.raises(UsageError, match="must lie between"):
        fit_quadratic(runs_of_truth(20), target_loss=2.4, largest=2.0)
