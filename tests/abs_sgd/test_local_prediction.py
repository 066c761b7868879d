"""The claim of `local-prediction`: one update of delay equals synchronous training exactly where derived, and not elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules_by_hand import delayed, synchronous
from torch import Tensor

from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import State, Updater, UpdateRule
from abs_sgd.workloads.analytic import least_squares, noisy_quadratic
from abs_sgd.workloads.task import Task
from hetsim.schedule import PointRule, Schedule

pytestmark = pytest.mark.torch
UPDATES = 200


def versions(schedule: Schedule, task: Task, rule: UpdateRule, updates: int) -> list[Tensor]:
    seen: dict[int, State] = {}
    InProcess(schedule, task).train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    return [seen[k].parameters_P for k in range(1, updates + 1)]


def gap(
    shares: list[list[int]],
    task: Task,
    rule: UpdateRule,
    point: PointRule = PointRule.LOCAL_PREDICTION,
    amount: float = 1.0,
) -> float:
    """Largest relative distance between delayed and synchronous training over the run."""
    late = versions(delayed(shares, point, amount), task, rule, len(shares))
    now = versions(synchronous(shares), task, rule, len(shares))
    return max(float((a - b).norm() / b.norm()) for a, b in zip(late, now, strict=True))


EXACT = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.01, "warmup_samples": 320, "reference_batch_samples": 16},
]


@pytest.mark.parametrize("options", EXACT, ids=lambda o: "-".join(o))
def test_equals_synchronous_training(options: dict[str, float]) -> None:
    shares = [[8, 4, 3, 1]] * UPDATES
    rule = UpdateRule(learning_rate=0.1, **options)
    assert gap(shares, noisy_quadratic(), rule) < 1e-12
    assert gap(shares, noisy_quadratic(), rule, PointRule.DAMPED_PREDICTION, 0.5) < 1e-12
    assert gap(shares, noisy_quadratic(), rule, PointRule.CURRENT) > 1e-3  # the delay does matter here


@settings(max_examples=20, deadline=None)
@given(
    shares=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    momentum=st.floats(0.0, 0.95),
    rate=st.floats(0.01, 0.3),
    nesterov=st.booleans(),
)
def test_equals_synchronous_training_for_any_fixed_shares(
    shares: list[int], momentum: float, rate: float, nesterov: bool
) -> None:
    rule = UpdateRule(learning_rate=rate, momentum=momentum, nesterov=nesterov)
    assert gap([shares] * 30, noisy_quadratic(dimension=6), rule) < 1e-12


def test_equals_synchronous_training_where_the_workers_share_is_empty() -> None:
    """A worker without samples predicts with g = 0 and weighs nothing in the next batch either."""
    assert gap([[5, 0, 3]] * 50, noisy_quadratic(), UpdateRule(learning_rate=0.1, momentum=0.9)) < 1e-12


def test_blend_with_own_share_one_is_local_prediction_and_with_less_is_not() -> None:
    shares, rule = [[8, 4, 3, 1]] * 50, UpdateRule(learning_rate=0.1, momentum=0.9)
    task = noisy_quadratic()
    full = versions(delayed(shares, PointRule.BLEND, 1.0), task, rule, 50)
    local = versions(delayed(shares, PointRule.LOCAL_PREDICTION), task, rule, 50)
    half = versions(delayed(shares, PointRule.BLEND, 0.5), task, rule, 50)
    assert all(torch.equal(a, b) for a, b in zip(full, local, strict=True))
    assert not torch.allclose(half[-1], local[-1], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"optimizer": "adamw", "momentum": 0.9}, 1e-3),  # the step is not affine in the gradient
        ({"momentum": 0.9, "clip_norm": 0.5}, 1e-4),  # clipped once, predicted with the last factor
        ({"momentum": 0.9, "lr_rule": "linear", "reference_batch_samples": 16}, None),  # B is constant: still exact
    ],
)
def test_fails_where_it_is_said_to(options: dict[str, float], least: float | None) -> None:
    worst = gap([[8, 4, 3, 1]] * 100, noisy_quadratic(), UpdateRule(learning_rate=0.05, **options))
    assert worst < 1e-12 if least is None else worst > least


def test_fails_with_changing_shares_and_with_unequal_hessians() -> None:
    rng = np.random.default_rng(1)
    rule = UpdateRule(learning_rate=0.05, momentum=0.9)
    changing = rng.integers(1, 9, (100, 4)).tolist()
    assert gap(changing, noisy_quadratic(), rule) > 1e-3
    assert gap([[4, 4, 4, 4]] * 100, least_squares(), rule) > 1e-3
    assert gap([[4, 4, 4, 4]] * 100, noisy_quadratic(), rule) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_error_of_changing_shares_is_the_first_order_term(nesterov: bool) -> None:
    """x_2 is off by lr · (step's gain) · H · lr · (gain) · Σ (w'_i - w_i) g_i: on a quadratic there is nothing beyond it.

    Gain of a gradient in a step: 1, or 1 + β under Nesterov. g_i are taken at x_0, from the keyed samples themselves.
    """
    task, beta, lr = noisy_quadratic(dimension=8), 0.9, 0.05
    first, second = [6, 2, 1], [1, 3, 5]
    rule = UpdateRule(learning_rate=lr, momentum=beta, nesterov=nesterov)
    late = versions(delayed([first, second], PointRule.LOCAL_PREDICTION), task, rule, 2)[1]
    now = versions(synchronous([first, second]), task, rule, 2)[1]
    h = 1.0 / torch.arange(1, 9, dtype=torch.float64)
    noise, _ = task.batch(np.arange(9), 0)
    means = torch.stack([h + part.mean(0) for part in noise.split(first)])
    change = torch.tensor([(b - a) / 9.0 for a, b in zip(first, second, strict=True)], dtype=torch.float64)
    gain = 1.0 + beta if nesterov else 1.0
    expected = (gain * lr) ** 2 * h * (change[:, None] * means).sum(0)
    assert torch.allclose(late - now, expected, rtol=1e-9, atol=1e-15)
    assert float(expected.norm()) > 1e-4


def test_current_point_diverges_where_local_prediction_trains() -> None:
    """Delay 1 and momentum .9 bound lr · h by .1; without delay by 3.8. lr = .3 on h = 1 shows which is which."""
    task = noisy_quadratic(noise=0.1)
    rule = UpdateRule(learning_rate=0.3, momentum=0.9)
    shares = [[4, 4]] * 150
    assert InProcess(delayed(shares), task).train(rule).diverged
    kept = InProcess(delayed(shares, PointRule.LOCAL_PREDICTION), task).train(rule)
    assert not kept.diverged and kept.loss[-1] < 0.1 * kept.loss[0]


@pytest.mark.parametrize(
    ("rate", "damping", "stays"), [(0.9, 0.0, True), (1.5, 0.0, False), (1.5, 0.5, True), (2.2, 0.5, False)]
)
def test_damped_points_stay_near_each_other_up_to_curvature_times_rate_two(
    rate: float, damping: float, stays: bool
) -> None:
    """Curvatures up to 1, equal shares: without damping the workers' points part beyond lr·h = 1, with γ = ½ beyond 2."""
    task, updates = noisy_quadratic(dimension=6), 60
    schedule, seen = delayed([[4, 4]] * updates, PointRule.DAMPED_PREDICTION, damping), dict[int, State]()
    rule = UpdateRule(learning_rate=rate, momentum=0.5)
    InProcess(schedule, task).train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    points = [seen[k].parameters_P for k in sorted(seen) if k > updates]  # by update, one of each worker
    apart = [float((a - b).norm()) for a, b in zip(points[::2], points[1::2], strict=True)]
    assert (max(apart[40:]) < 10 * max(apart[:10])) == stays


def test_damped_prediction_by_hand() -> None:
    """x - lr·(own + γ(own of before - last mean)), momentum and all; without samples the last mean stands for the own one."""
    updater = Updater(UpdateRule(learning_rate=0.1, momentum=0.5), keep_mean_gradient=True)
    start = State(parameters_P=torch.tensor([1.0, 2.0], dtype=torch.float64))
    state = updater.step(
        start, torch.tensor([4.0, 8.0], dtype=torch.float64), divisor=4, samples=4
    )  # mean and velocity 1, 2
    own, before = torch.tensor([6.0, -2.0], dtype=torch.float64), torch.tensor([3.0, 1.0], dtype=torch.float64)
    point = updater.point(
        state, PointRule.DAMPED_PREDICTION, 0.5, own, 2, State(parameters_P=start.parameters_P, own_mean_P=before)
    )
    gradient = [3.0 + 0.5 * (3.0 - 1.0), -1.0 + 0.5 * (1.0 - 2.0)]
    expected = [x - 0.1 * (0.5 * v + g) for x, v, g in zip((0.9, 1.8), (1.0, 2.0), gradient, strict=True)]
    assert point.parameters_P.tolist() == pytest.approx(expected, rel=1e-14)
    assert point.own_mean_P is not None and point.own_mean_P.tolist() == [3.0, -1.0]
    alone = updater.point(state, PointRule.DAMPED_PREDICTION, 0.5, None, 0, point)
    assert alone.own_mean_P is None
    assert alone.parameters_P.tolist() == pytest.approx([0.9 - 0.1 * 1.5, 1.8 - 0.1 * 3.0], rel=1e-14)
