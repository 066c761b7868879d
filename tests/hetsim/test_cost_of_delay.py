"""The quadratic model's part of the study of what a delay costs: against the product's bounds, noisy runs and the reference table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hetsim.convergence.quadratic import power_law
from hetsim.convergence.stability import best_kappa, largest_stable, largest_stable_at, largest_stable_look_ahead
from hetsim.schedule import PointRule


def _load() -> ModuleType:
    file = Path(__file__).parents[2] / "benchmarks" / "cost_of_delay.py"
    spec = importlib.util.spec_from_file_location("benchmark_cost_of_delay", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


study = _load()
BY_NAME = {policy.name: policy for policy in study.POLICIES}


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_bounds_are_those_of_the_product(beta: float) -> None:
    expected = {
        "no delay": largest_stable(beta, 0),
        "current": largest_stable(beta, 1),
        "look-ahead, κ = 1": largest_stable_look_ahead(beta, 1.0),
        "look-ahead, best κ": largest_stable_look_ahead(beta, best_kappa(beta)),
        "blend, a = 0": largest_stable_at(beta, PointRule.BLEND, 0.0),
        "blend, n = 4 (a = .4)": largest_stable_at(beta, PointRule.BLEND, 0.4),
        "local-prediction": largest_stable(beta, 0),
        "no delay, Nesterov": 2.0 * (1.0 + beta) / (1.0 + 2.0 * beta),
    }
    for name, bound in expected.items():
        assert study.largest_stable(beta, BY_NAME[name]) == pytest.approx(bound, rel=1e-6), name


@pytest.mark.parametrize("name", list(BY_NAME))
def test_second_moments_are_those_of_many_noisy_runs(name: str) -> None:
    policy, beta, lr, batch, curvature, noise = BY_NAME[name], 0.9, 0.05, 4, 0.9, 2.0
    rng = np.random.default_rng(0)
    runs = 40_000
    x, u, p, last = np.ones(runs), np.zeros(runs), np.ones(runs), np.zeros(runs)

    def step(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        velocity = beta * u + lr * gradient
        return velocity, lr * gradient + beta * velocity if policy.nesterov else velocity

    for _ in range(12):
        gradient = curvature * p + rng.normal(size=runs) * np.sqrt(noise / batch)
        velocity, off = step(gradient)
        size = (1 + beta) if policy.nesterov else 1.0
        if policy.point == "current":
            following = x
        elif policy.point == "look-ahead":
            following = x - (best_kappa(beta) if policy.scale is None else policy.scale) * u
        elif policy.point == "no delay":
            following = x - off
        else:
            mixed = policy.scale * gradient + (1 - policy.scale) * last
            following = x - step(mixed)[1] + rng.normal(size=runs) * lr * size * np.sqrt(policy.jump * noise / batch)
        x, u, p, last = x - off, velocity, following, gradient
    expected = moments(policy, beta, lr, batch, curvature, noise, 12)
    assert np.mean(x**2) == pytest.approx(expected, rel=0.03)


def moments(policy: object, beta: float, lr: float, batch: int, curvature: float, noise: float, updates: int) -> float:
    """E x² after so many updates, by the study's own matrices."""
    m, q = study.matrix_of(lr * curvature, beta, policy), study.noise_of(beta, policy)
    s = np.outer(study.X + study.P, study.X + study.P)
    for _ in range(updates):
        s = m @ s @ m.T + lr**2 * noise / batch * study.spread_of(beta, policy, q)
    return float(s[0, 0])


def test_updates_to_the_target_are_those_of_the_reference_table() -> None:
    model = power_law(1000).compressed(48)
    for name, beta, updates in (("no delay", 0.0, 752), ("current", 0.0, 1248), ("no delay", 0.9, 488)):
        rates = np.geomspace(0.001, 4.0, 25)
        found = min(study.updates_to(model, float(lr), beta, 128, BY_NAME[name]) for lr in rates)
        assert found == pytest.approx(updates, abs=8), name  # the table counts in eights


def test_the_table_shows_every_policy_and_its_best_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "fewest", lambda policy, beta, batch: 100.0 * (1 + beta))
    table = study.costs(32)
    assert table.row_count == len(study.POLICIES)
    assert list(table.columns[-1].cells) == ["100"] * len(study.POLICIES)
