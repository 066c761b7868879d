"""The quadratic model fitted to loss curves: known constants come back, and what is too little is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade_schedule import synchronous

from hetsim.cluster.spec import Training
from hetsim.convergence.constants import NoisyQuadraticConstants
from hetsim.convergence.plan import plan_of
from hetsim.convergence.sequence import run_sequence
from hetsim.convergence.short_run import ShortRun, loss_ratios
from hetsim.convergence.training_fit import MOST_FLOOR, fit_quadratic
from hetsim.errors import UsageError

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


def test_a_level_that_a_run_misses_is_one_the_model_must_not_meet_before() -> None:
    """Two runs cut short: what they say is that the target lies beyond, which the others say as well."""
    whole = runs_of_truth(300)
    cut = [replace(run, updates=run.updates[:40], loss=run.loss[:40]) for run in whole[:2]]
    assert min(float(run.loss.min()) for run in cut) > 0.3
    found = fit_quadratic([*cut, *whole[2:]], target_loss=0.3, largest=2.0)
    assert found.residual < 0.03
    early = [replace(run, loss=np.maximum(run.loss, 0.6)) for run in whole[:2]]  # these say that it is never met
    assert fit_quadratic([*early, *whole[2:]], target_loss=0.3, largest=2.0).residual > 2 * found.residual


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
