"""Weights that the loss knows only by their direction: the model against closed forms and against a loss that has such weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade_clusters import cluster
from handmade_schedule import asynchronous, local_sgd, one_update_delay, synchronous
from numpy.typing import NDArray

from hetsim.cluster.spec import Training
from hetsim.convergence.joint import run_joint
from hetsim.convergence.lengthening import Lengths
from hetsim.convergence.operations import compile_schedule
from hetsim.convergence.plan import plan_of
from hetsim.convergence.quadratic import Quadratic, power_law
from hetsim.convergence.sequence import Losses, run_sequence
from hetsim.convergence.short_run import loss_ratios
from hetsim.errors import UsageError
from hetsim.schedule import Kind, PointRule, Schedule
from hetsim.simulate import simulate

Floats = NDArray[np.float64]
PLAIN = Training(global_batch_samples=24)
RADIUS = 20.0  # of the weights at the start; the directions of the model are coordinates of 1
MODEL = replace(power_law(16, noise=8.0), lengthening=RADIUS**-2)


def fast(schedule: Schedule, quadratic: Quadratic, lr: float, beta: float) -> Losses:
    return run_sequence(plan_of(schedule, PLAIN), quadratic, np.array([lr, lr / 3]), np.array([beta, 0.0]))


def joint(schedule: Schedule, quadratic: Quadratic, lr: float, beta: float) -> Losses:
    return run_joint(compile_schedule(schedule, PLAIN), quadratic, np.array([lr, lr / 3]), np.array([beta, 0.0]))


def trained(lr: float, beta: float, batch: int, updates: int, delay: int, paths: int = 400) -> Floats:
    """Mean loss of SGD on L(w) = ½ R² Σ h_j u_j², u = w/|w|, whose gradient (R²/|w|)(1 - u uᵀ)(h u + noise) is its own."""
    rng = np.random.default_rng(0)
    h, c = np.append(0.0, MODEL.h), np.append(0.0, MODEL.c)
    w = np.column_stack((np.full(paths, RADIUS), rng.standard_normal((paths, len(MODEL)))))
    v, older = np.zeros_like(w), [w.copy()] * (delay + 1)
    losses = []
    for _ in range(updates + 1):
        u = w / np.linalg.norm(w, axis=1, keepdims=True)
        losses.append(0.5 * RADIUS**2 * float(np.mean(u**2 @ h)))
        older = [*older[1:], w]
        at = older[0]
        norm = np.linalg.norm(at, axis=1, keepdims=True)
        u = at / norm
        g = RADIUS * h * u + rng.standard_normal(w.shape) * np.sqrt(c / batch)
        g = (RADIUS / norm) * (g - u * np.sum(u * g, axis=1, keepdims=True))
        v = beta * v + g
        w = w - lr * v
    return np.array(losses)


def test_constant_gradients_of_noise_have_a_closed_form() -> None:
    """ρ² = 1 + 2 lr² G/(1-β)² k/|w_0|² for white gradients of squared norm G, whatever the momentum, E v² being G/(1-β²)."""
    q = Quadratic(np.ones(1), np.ones(1), np.ones(1), np.ones(1), lengthening=0.01)
    rate, beta, updates = np.array([0.1, 0.1, 0.02]), np.array([0.0, 0.9, 0.9]), 20_000
    lengths = Lengths(q, rate, beta)
    for k in range(updates):
        lengths.step(1.0, 2.0 * (1.0 - beta ** (2 * k + 2)) / (1.0 - beta**2))
    expected = np.sqrt(1.0 + 2.0 * rate**2 * 2.0 / (1.0 - beta) ** 2 * updates * 0.01)
    np.testing.assert_allclose(lengths.ratio, expected, rtol=0.01)
    np.testing.assert_allclose(lengths.learning_rate, rate / lengths.ratio)


def test_weight_decay_and_noise_meet_in_a_balance() -> None:
    """Without momentum 2 lr λ ρ = lr² G/(ρ |w_0|²): ρ = sqrt(lr G/(2 λ |w_0|²)) (van Laarhoven 2017)."""
    q = Quadratic(np.ones(1), np.ones(1), np.ones(1), np.ones(1), lengthening=0.01)
    lengths = Lengths(q, np.array([0.1]), np.zeros(1), decay=0.01)
    for _ in range(5_000):
        lengths.step(1.0, np.array([3.0]))
    assert lengths.ratio[0] == pytest.approx(np.sqrt(0.1 * 3.0 / (2 * 0.01) * 0.01), rel=0.01)


def delayed(updates: int, batch: int, delay: int) -> Schedule:
    rounds = [[batch]] * updates
    return one_update_delay(rounds, PointRule.CURRENT) if delay else synchronous(rounds)


@pytest.mark.parametrize(("lr", "beta", "delay"), [(0.5, 0.0, 0), (0.1, 0.9, 0), (0.3, 0.5, 1), (0.35, 0.0, 1)])
def test_a_loss_of_directions_alone_trains_as_the_model_says(lr: float, beta: float, delay: int) -> None:
    model = fast(delayed(301, 2, delay), MODEL, lr, beta).loss[:, 0]
    found = trained(lr, beta, 2, 300, delay)
    plain = fast(delayed(301, 2, delay), replace(MODEL, lengthening=0.0), lr, beta).loss[:, 0]
    assert plain[300] > 1.25 * found[300]  # without lengthening the floor of the noise lies higher
    for k in (20, 60, 150, 300):
        assert found[k] == pytest.approx(model[k], rel=0.1), k


def test_past_the_bound_weights_lengthen_until_training_is_stable() -> None:
    """A delay of one at β = .9 is stable up to lr·h = .1."""
    schedule, quiet = delayed(600, 24, 1), replace(MODEL, c=0.01 * MODEL.c)
    plain, own = (fast(schedule, q, 0.2, 0.9) for q in (replace(quiet, lengthening=0.0), quiet))
    assert plain.diverged[0] and not own.diverged[0]
    assert own.loss[-1, 0] < 0.02 * own.loss[0, 0] < own.loss[:, 0].max()


ENGINES = {
    "synchronous": synchronous([[24], [6], [12]] * 20),
    "delayed": one_update_delay([[8, 4, 12]] * 40, PointRule.CURRENT),
    "predicted": one_update_delay([[8, 4], [4, 8]] * 20, PointRule.BLEND, 0.5),
    "asynchronous": asynchronous([0, 1, 2, 0, 2] * 12, [8, 4, 12]),
}


@pytest.mark.parametrize("name", ENGINES)
def test_both_engines_lengthen_alike(name: str) -> None:
    one, two = (run(ENGINES[name], MODEL, 0.15, 0.6).loss for run in (fast, joint))
    still = fast(ENGINES[name], replace(MODEL, lengthening=0.0), 0.15, 0.6).loss
    close = 0.02 if name == "predicted" else 1e-9  # the sequence engine's deviations are of leading order
    np.testing.assert_allclose(one, two, rtol=close)
    assert abs(one[-1, 0] / still[-1, 0] - 1.0) > 0.01


def test_the_fit_s_recursion_lengthens_like_the_engine() -> None:
    rates, momenta = np.array([0.3, 0.1]), np.array([0.5, 0.9])
    engine = run_sequence(plan_of(synchronous([[6]] * 50), PLAIN), MODEL, rates, momenta)
    mine = loss_ratios(MODEL, np.full(2, 6.0), rates, momenta, 50)
    np.testing.assert_allclose(mine, engine.loss / MODEL.initial_loss, rtol=1e-10)


def test_replicas_without_noise_lengthen_like_one() -> None:
    """One local step a round is synchronous SGD; many lengthen by as many, with the velocity at the end of the round."""
    quiet = replace(MODEL, c=0.0 * MODEL.c)
    own, one = (joint(s, quiet, 0.2, 0.5).loss for s in (local_sgd(40, [8, 8], [1, 1]), synchronous([[16]] * 40)))
    np.testing.assert_allclose(own, one, rtol=1e-9)
    often = joint(local_sgd(40, [8, 8], [4, 4]), MODEL, 0.2, 0.5).loss
    still = joint(local_sgd(40, [8, 8], [4, 4]), replace(MODEL, lengthening=0.0), 0.2, 0.5).loss
    assert often[-1, 0] < 0.95 * still[-1, 0]


def test_replicas_that_average_in_part_lengthen_once_for_as_many_steps() -> None:
    """Exchanges come more than twice as often as a step of all; weights lengthen by samples, as in S-SGD."""
    c = cluster([133.0, 112.0, 92.0, 64.0], bandwidths=[1e8] * 4, gradient_bytes=1e6, global_batch_samples=32)
    gossip, one = (simulate(c, name, max_samples=32 * 60).schedule for name in ("ad-psgd", "s-sgd"))
    assert len(gossip.rows(Kind.REDUCE)) > 2 * len(one.rows(Kind.REDUCE))
    spared = []  # what lengthening takes off the loss where noise is most of it
    for schedule in (gossip, one):
        with_it, without = (
            joint(schedule, model, 1.0, 0.5).loss[-1, 0] for model in (MODEL, replace(MODEL, lengthening=0.0))
        )
        spared.append(with_it / without)
    assert spared[1] < 0.7 and spared[0] == pytest.approx(spared[1], rel=0.05)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="lengthening"):
        replace(MODEL, lengthening=-1.0)
