"""Training in process against independent computations: sequential SGD written with torch.optim alone, and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from schedules_by_hand import asynchronous, averaging, delayed, synchronous
from torch import Tensor, nn
from torch.nn import functional

from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads import get
from abs_sgd.workloads.analytic import least_squares, noisy_quadratic, scalar_constant_gradient
from abs_sgd.workloads.digits import digits_mlp
from abs_sgd.workloads.task import Task
from hetsim.schedule import MixRule, PointRule, Schedule

pytestmark = pytest.mark.torch
UPDATES = 200


def unequal(updates: int, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(1, 9, (updates, 4)).tolist()


def states_of(
    schedule: Schedule, task: Task, rule: UpdateRule, *, fused: bool = True, seed: int = 0
) -> dict[int, State]:
    seen: dict[int, State] = {}
    InProcess(schedule, task, fused=fused, seed=seed).train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    return seen


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def digits_indices(numbers: np.ndarray, seed: int) -> np.ndarray:
    """The documented sample order, written again: one permutation per epoch from default_rng([seed, epoch])."""
    size = 1437
    return np.array([np.random.default_rng([seed, n // size]).permutation(size)[n % size] for n in numbers])


def sequential(shares: list[list[int]], delay: int, seed: int, **sgd: float) -> list[Tensor]:
    """SGD with `delay` updates of staleness, from scratch: whole batches, module parameters, torch.optim, a list of old versions."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    x = torch.tensor(data.data[order] / 16.0)
    y = torch.tensor(data.target[order])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    versions = [[p.detach().clone() for p in model.parameters()]]
    first = 0
    for k, batch in enumerate(shares):
        numbers = np.arange(first, first + sum(batch))
        first += sum(batch)
        index = digits_indices(numbers, seed)
        names = [n for n, _ in model.named_parameters()]
        point = {n: v.clone().requires_grad_() for n, v in zip(names, versions[max(k - delay, 0)], strict=True)}
        loss = functional.cross_entropy(torch.func.functional_call(model, point, (x[index],)), y[index])
        gradients = torch.autograd.grad(loss, list(point.values()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        versions.append([p.detach().clone() for p in model.parameters()])
    return [torch.cat([p.reshape(-1) for p in v]) for v in versions]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("delay", "momentum"), [(0, 0.9), (1, 0.0), (1, 0.9)])
def test_equals_sequential_sgd_on_the_same_samples(fused: bool, delay: int, momentum: float) -> None:
    shares = unequal(UPDATES)
    make = delayed if delay else synchronous
    rule = UpdateRule(learning_rate=0.02, momentum=momentum, weight_decay=1e-3)
    mine = states_of(make(shares, micro=3), digits_mlp(dtype=torch.float64), rule, fused=fused, seed=3)
    theirs = sequential(shares, delay, 3, lr=0.02, momentum=momentum, weight_decay=1e-3)
    for k in (1, 2, 3, 50, UPDATES):
        assert distance(mine[k].parameters_P, theirs[k]) < 1e-12
    assert distance(mine[UPDATES].parameters_P, theirs[0]) > 0.1  # and it did train


def test_one_update_of_delay_is_not_none() -> None:
    rule = UpdateRule(learning_rate=0.02)
    task = digits_mlp(dtype=torch.float64)
    shares = unequal(20)
    now, late = states_of(synchronous(shares), task, rule), states_of(delayed(shares), task, rule)
    assert distance(late[1].parameters_P, now[1].parameters_P) < 1e-14  # the first update has delay 0
    assert distance(late[2].parameters_P, now[2].parameters_P) > 1e-5


def test_unequal_shares_weigh_as_one_batch() -> None:
    """6 + 2 samples are the batch of 8 (pytorch#67253: weighted as halves they are not)."""
    task = least_squares()
    rule = UpdateRule(learning_rate=0.05)
    split = states_of(synchronous([[6, 2]]), task, rule, fused=False)[1].parameters_P
    whole = states_of(synchronous([[8]]), task, rule)[1].parameters_P
    assert distance(split, whole) < 1e-14
    x, y = task.batch(np.arange(8), 0)
    by_hand = 0.05 * (x * y).sum(0) / 8  # from 0 the gradient of half the squared error is -x y
    assert distance(split, by_hand) < 1e-14
    halves = 0.05 * 0.5 * ((x * y)[:6].mean(0) + (x * y)[6:].mean(0))
    assert distance(split, halves) > 0.05


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn"])
def test_digits_reach_their_target_with_s_sgd(name: str) -> None:
    task = get(name)
    rule = UpdateRule(learning_rate=0.05, momentum=0.9)
    curve = InProcess(synchronous([[8] * 4] * 600), task).train(rule, stop_at=task.target_loss)
    crossing = curve.crossing(task.target_loss)
    assert crossing is not None
    assert 1_000 < crossing[0] < 600 * 32  # more than half an epoch, less than the whole run
    assert curve.loss[0] > 2.0 and curve.time_s[0] == 0.0 and curve.samples[0] == 0
    assert np.all(np.diff(curve.samples) > 0) and np.all(np.diff(curve.time_s) >= 0)
    assert curve.loss[-1] <= task.target_loss < curve.loss[:-1].min()  # ends where it is first reached


def test_adamw_reaches_the_target_too() -> None:
    task = get("digits-mlp")
    rule = UpdateRule(learning_rate=0.003, momentum=0.9, optimizer="adamw", weight_decay=0.01)
    curve = InProcess(synchronous([[8] * 4] * 600), task).train(rule, stop_at=task.target_loss)
    assert curve.crossing(task.target_loss) is not None


def test_adamw_equals_torch() -> None:
    task = noisy_quadratic(dimension=5, noise=0.0)
    mine = states_of(synchronous([[2, 2]] * 30), task, UpdateRule(learning_rate=0.1, momentum=0.8, optimizer="adamw"))
    theta = nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = torch.optim.AdamW([theta], lr=0.1, betas=(0.8, 0.999), weight_decay=0.0)
    for _ in range(30):
        theta.grad = theta.detach() / torch.arange(1, 6, dtype=torch.float64)
        optimizer.step()
    assert distance(mine[30].parameters_P, theta.detach()) < 1e-13


def scalar(schedule: Schedule, **rule: float) -> list[float]:
    """The parameter of each state of the model with gradient -1, in order of id."""
    seen = states_of(schedule, scalar_constant_gradient(), UpdateRule(**rule), fused=False)
    return [float(seen[k].parameters_P) for k in sorted(seen)]


def test_scalar_golden_tables() -> None:
    """Gradient -1 everywhere: x grows by lr · v, v = β v + 1. All numbers are exact in binary."""
    shares = [[3, 1]] * 4
    assert scalar(synchronous(shares), learning_rate=1.0) == [1, 2, 3, 4]
    assert scalar(synchronous(shares), learning_rate=1.0, momentum=0.5) == [1, 2.5, 4.25, 6.125]
    assert scalar(synchronous(shares), learning_rate=1.0, momentum=0.5, nesterov=True) == [1.5, 3.25, 5.125, 7.0625]
    assert scalar(delayed(shares), learning_rate=1.0, momentum=0.5) == [1, 2.5, 4.25, 6.125]
    clipped = 0.5 / (1 + 1e-6)  # torch's clip_grad_norm_ divides by the norm and a millionth
    found = scalar(synchronous(shares), learning_rate=1.0, clip_norm=0.5)
    assert found == pytest.approx([k * clipped for k in (1, 2, 3, 4)], rel=1e-14)
    assert scalar(asynchronous([0, 1, 0, 2], batch=4), learning_rate=0.25) == [0.25, 0.5, 0.75, 1.0]


def test_scalar_local_prediction_is_one_update_ahead() -> None:
    """States 1..4 are the versions, 6.. the points of two workers: each is the version that the sum will make."""
    values = scalar(delayed([[3, 1]] * 4, PointRule.LOCAL_PREDICTION), learning_rate=1.0, momentum=0.5)
    assert values == [*[1, 2.5, 4.25, 6.125], *[1, 1, 2.5, 2.5, 4.25, 4.25, 6.125, 6.125]]


def test_scalar_look_ahead_adds_momentum_only() -> None:
    """x - κ lr v with κ = 1/2: nothing before the first update, then x + v/2."""
    values = scalar(delayed([[3, 1]] * 3, PointRule.LOOK_AHEAD, 0.5), learning_rate=1.0, momentum=0.5)
    assert values == [*[1, 2.5, 4.25], *[0, 0, 1.5, 1.5, 3.25, 3.25]]


def test_scalar_local_sgd_and_fednova() -> None:
    """Two workers with 1 and 3 steps, equal data: plain averages move by 2 a round, FedNova by (p·H)(Σ p d) = 2 · 1 as well.

    With w_i = (Σ_j p_j H_j) p_i / H_i: w = (1, 1/3), Σ w = 4/3 and the anchor enters with -1/3.
    """
    plain = averaging([1, 3], [0.5, 0.5], 2, anchored=False)
    assert scalar(plain, learning_rate=1.0) == [1, 1, 2, 3, 2, 2, 3, 3, 4, 5, 4, 4]
    nova = scalar(averaging([1, 3], [1.0, 1.0 / 3.0], 2), learning_rate=1.0)
    assert nova == pytest.approx([1, 1, 2, 3, 2, 2, 3, 3, 4, 5, 4, 4], abs=1e-15)
    half = averaging([1, 3], [0.5, 0.5], 1, anchored=False, weight=0.5)
    assert scalar(half, learning_rate=1.0) == [1, 1, 2, 3, 1.5, 2.5]


def test_averaging_keeps_or_resets_momentum() -> None:
    keep = averaging([1, 1], [0.5, 0.5], 2, rule=MixRule.KEEP)
    reset = averaging([1, 1], [0.5, 0.5], 2, rule=MixRule.RESET)
    assert scalar(keep, learning_rate=1.0, momentum=0.5) == [1, 1, 1, 1, 2.5, 2.5, 2.5, 2.5]
    assert scalar(reset, learning_rate=1.0, momentum=0.5) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_fednova_on_a_real_loss_by_its_own_formula() -> None:
    """x⁺ = x - τ_eff · Σ p_i d_i, d_i = (x - x_i) / H_i, τ_eff = Σ p_i H_i (Wang et al. 2020), from local runs made here."""
    task, lr, steps, share = least_squares(), 0.05, [1, 3], [0.25, 0.75]
    effective = sum(p * h for p, h in zip(share, steps, strict=True))
    weights = [effective * p / h for p, h in zip(share, steps, strict=True)]
    seen = states_of(averaging(steps, weights, 1, batch=4), task, UpdateRule(learning_rate=lr))
    start, ends, first = torch.zeros(10, dtype=torch.float64), [], 0
    for count in steps:
        local = start.clone()
        for _ in range(count):
            x, y = task.batch(np.arange(first, first + 4), 0)
            local = local - lr * ((x @ local - y[:, 0])[:, None] * x).mean(0)
            first += 4
        ends.append(local)
    move = sum(p * (start - end) / h for p, end, h in zip(share, ends, steps, strict=True))
    assert distance(seen[5].parameters_P, start - effective * move) < 1e-13
    assert seen[5].progress.samples == 16


def test_a_wild_rate_is_called_divergence_and_cut() -> None:
    task = noisy_quadratic()
    curve = InProcess(delayed([[8] * 4] * 600), task).train(UpdateRule(learning_rate=0.5, momentum=0.9))
    assert curve.diverged
    assert curve.updates[-1] < 100
    assert curve.crossing(curve.loss[0] * 10) is None
