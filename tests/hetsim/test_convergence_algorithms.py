"""Every registered algorithm's Schedule through the predictors, and through both engines where both apply."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from hetsim.algorithms import registry
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.convergence import Setting, get_predictor
from hetsim.convergence.joint import run_joint
from hetsim.convergence.operations import compile_schedule
from hetsim.convergence.plan import compensated, plan_of
from hetsim.convergence.quadratic import power_law
from hetsim.convergence.sequence import run_sequence
from hetsim.schedule import Kind
from hetsim.simulate import simulate

LINK = Link(bytes_per_s=1e9, latency_s=5e-5)
SPEEDS = (1000.0, 800.0, 400.0, 200.0)
CLUSTER = Cluster(
    name="four",
    workers=tuple(
        Worker(rank=i, name=f"w{i}", group=f"w{i}", node=f"w{i}", samples_per_s=v, overhead_s=0.004, jitter_cv=0.1)
        for i, v in enumerate(SPEEDS)
    ),
    network=Network(links=(LINK,) * 4, server=LINK),
    workload=Workload(name="mine", gradient_bytes=1e7, dataset_samples=50_000),
    training=Training(global_batch_samples=64, micro_batch_samples=8, max_samples=8_000),
)
Q = power_law(200, noise=2.0).compressed(16)
RATES, MOMENTA = np.array([0.002, 0.01]), np.array([0.9, 0.5])


@pytest.mark.parametrize("name", list(registry()))
@pytest.mark.parametrize("predictor", ["nqm", "noise-scale"])
def test_every_algorithm_gets_a_curve(name: str, predictor: str) -> None:
    schedule = simulate(CLUSTER, name).schedule
    settings = [Setting(learning_rate=0.002, momentum=0.9), Setting(learning_rate=50.0, momentum=0.9)]
    good, bad = get_predictor(predictor).curves(schedule, CLUSTER, settings)
    assert np.all(np.isfinite(good.loss)) and good.loss[-1] < good.loss[0] and not good.diverged
    assert bad.diverged == (predictor == "nqm")  # the noise scale knows no learning rate
    assert np.all(np.diff(good.time_s) >= 0) and np.all(np.diff(good.samples) >= 0)
    assert 0 < good.samples[-1] <= 8_000


def points_of(name: str) -> list[str | None]:
    """Compute points an algorithm can be asked for; None where it has no such option."""
    option = registry()[name].Options.model_fields.get("compute_point")
    return list(get_args(option.annotation)) if option else [None]


@pytest.mark.parametrize(("name", "point"), [(name, point) for name in registry() for point in points_of(name)])
def test_engines_agree_on_simulated_schedules(name: str, point: str | None) -> None:
    """To 1e-9 where the sequence engine is exact; predicted points with changing shares to leading order, here within 1 % of the loss."""
    schedule = simulate(CLUSTER, name, options={"compute_point": point} if point else {}).schedule
    if len(schedule.rows(Kind.MIX)):
        assert not schedule.updates.is_sequence  # averaged replicas: the joint engine's alone
        return
    if compensated(schedule):
        return  # not linear in the gradient: the joint engine's alone
    plan = plan_of(schedule, CLUSTER.training)
    fast = run_sequence(plan, Q, RATES, MOMENTA).loss
    exact = run_joint(compile_schedule(schedule, CLUSTER.training), Q, RATES, MOMENTA).loss
    np.testing.assert_allclose(fast, exact, rtol=1e-2 if plan.share_change.any() else 1e-9)
