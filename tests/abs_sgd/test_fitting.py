"""hetsim fit: short runs of a network become constants that a profile states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abs_sgd import workloads
from abs_sgd.fitted_profile import fitted_profile, settings_of, task_of
from abs_sgd.fitting import Settings, fit
from hetsim import load_profile
from hetsim.convergence.constants import constants_of
from hetsim.convergence.training_fit import Estimate
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


def test_a_network_s_constants_stand_in_its_profile_and_are_used() -> None:
    profile = load_profile("emulated-4", overrides=["training.global_batch_samples=64"])
    task = task_of(profile)
    asked = Settings(learning_rates=(0.1, 0.2), seeds=1, target_loss=0.3)
    found = fit(task, settings_of(profile, asked))
    assert found.settings.batches == (32, 128) and len(found.runs) == 4
    assert 0.5 < found.curvature.value < 10 and found.quadratic.residual < 0.4
    made = fitted_profile(profile, task, found, date="2026-01-01")
    known = constants_of(made.cluster().workload)
    assert known.target(made.cluster()).value == 0.3
    assert known.nqm.outlier == pytest.approx(found.quadratic.steepest, rel=1e-4)
    assert "4 runs of synchronous SGD" in made.sources["workload.convergence"]
    assert found.weight_square is None and "workload.convergence.weight_square" not in made.sources
    normalised = replace(found, weight_square=Estimate(value=200.0, error=15.0))
    made = fitted_profile(profile, task, normalised, date="2026-01-01")
    assert made.cluster().workload.convergence.weight_square == 200.0  # type: ignore[union-attr]
    assert "standard error 15" in made.sources["workload.convergence.weight_square"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(samples=32), "less than two batches"),
        (Settings(samples=256, seeds=1), "too short"),
        (Settings(batches=(32,)), "at least two"),
        (Settings(learning_rates=(0.0,)), "above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(workloads.get("digits-mlp"), settings)


def test_adaptive_optimizers_have_no_quadratic_model() -> None:
    with pytest.raises(UsageError, match="adamw"):
        settings_of(load_profile("emulated-4", overrides=["training.optimizer=adamw"]), Settings())
