"""The noisy quadratic model: its reference table, its noise floors, its compressed spectrum."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_updates import Part, constant_delay, sequence

from hetsim.cluster.spec import Training
from hetsim.convergence.plan import make_plan
from hetsim.convergence.quadratic import Quadratic, power_law
from hetsim.convergence.sequence import Losses, Rule, run_sequence
from hetsim.convergence.stability import noise_floor
from hetsim.errors import UsageError

# d = 1000, h = c = 1/j, loss .05 from 3.743, best of geomspace(.001, 4, 25), granularity 8: computed independently with dense products
TABLE = {
    8: (8112, 8616, 7784, 8072),
    32: (2184, 2464, 1952, 2400),
    128: (752, 1248, 488, 1192),
    512: (568, 1096, 128, 896),
    2048: (544, 1064, 56, 856),
}
RATES = np.geomspace(0.001, 4.0, 25)


def run(q: Quadratic, count: int, batch: int, delay: int, rates: np.ndarray, beta: float, rule: Rule) -> Losses:  # type: ignore[type-arg]
    plan = make_plan(constant_delay(count, batch, delay), Training())
    return run_sequence(plan, q, rates, np.full(len(rates), beta), rule)


def first_below(losses: Losses, target: float, granularity: int = 8) -> int:
    """Fewest updates, looked at every `granularity`, over the settings."""
    with np.errstate(invalid="ignore"):
        hit = losses.loss[::granularity] <= target
    return int(min(np.flatnonzero(column)[0] for column in hit.T if column.any())) * granularity


@pytest.mark.parametrize("batch", TABLE)
def test_reference_table(batch: int) -> None:
    q = power_law(1000)
    assert q.initial_loss == pytest.approx(3.743, abs=5e-4)
    expected = TABLE[batch]
    # the settings that win are known from a run of the full grid with 48 nodes; the full model then needs only their neighbourhood
    for column, (beta, delay) in enumerate([(0.0, 0), (0.0, 1), (0.9, 0), (0.9, 1)]):
        coarse = run(q.compressed(48), 9000, batch, delay, RATES, beta, Rule(target=0.05, slack=1.02))
        with np.errstate(invalid="ignore"):
            near = np.flatnonzero((coarse.loss <= 0.05 * 1.02).any(axis=0))
        full = run(q, expected[column] + 1, batch, delay, RATES[near], beta, Rule())
        assert first_below(full, 0.05) == expected[column]


def test_compression_error() -> None:
    """48 nodes stand for 1,000 directions within .15 % of the loss, 24 within .6 %, wherever the loss is above its target."""
    q = power_law(1000)
    for nodes, bound in ((48, 0.0015), (24, 0.006)):
        small = q.compressed(nodes)
        assert len(small) <= nodes
        assert small.directions == pytest.approx(1000.0, rel=1e-12)
        assert small.initial_loss == pytest.approx(q.initial_loss, rel=1e-12)
        for beta, delay in ((0.0, 1), (0.9, 0)):
            rates = np.array([0.03, 0.3])
            a, b = (run(model, 600, 64, delay, rates, beta, Rule()).loss for model in (q, small))
            np.testing.assert_allclose(b, a, rtol=bound)


def test_compression_keeps_an_outlier_and_uneven_noise() -> None:
    q = power_law(5000, exponent=1.2, noise=7.0, noise_exponent=1.5).with_outlier(30.0)
    small = q.compressed(60)
    assert small.largest_curvature == 30.0 and len(small) <= 60
    assert float(small.multiplicity @ small.c) == pytest.approx(float(q.c.sum()), rel=1e-12)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_stationary_noise(beta: float, delay: int) -> None:
    h, c, batch, lr = 0.8, 3.0, 16, 0.1 if beta < 0.9 else 0.05
    q = Quadratic(np.array([h]), np.array([c]), np.array([1.0]), np.array([1.0]))
    count = 3000
    loss = run(q, count, batch, delay, np.array([lr]), beta, Rule()).loss[-1, 0]
    assert loss / (0.5 * h) * batch / c == pytest.approx(noise_floor(lr, h, beta, delay), rel=1e-9)


def test_samples_count_alike_wherever_they_were_taken() -> None:
    """6 + 2 samples in one update, weighted by samples, are a batch of 8."""
    q, rates, beta = power_law(20), np.array([0.2]), np.array([0.5])
    uneven = make_plan(sequence([[Part(0, 6), Part(1, 2)]] * 50), Training())
    even = make_plan(constant_delay(50, 8, 0), Training())
    np.testing.assert_allclose(
        run_sequence(uneven, q, rates, beta).loss, run_sequence(even, q, rates, beta).loss, rtol=1e-13
    )


@pytest.mark.parametrize("delay", [4, 15, 32])
def test_long_delays_against_dense_products(delay: int) -> None:
    """The rows by liveness give what A S Aᵀ gives on the state (θ_t ... θ_{t-τ}, v_t)."""
    h, c, lr, beta, batch, count = 0.7, 1.3, 0.02, 0.4, 4, 120
    size = delay + 2
    moments = np.zeros((size, size))
    moments[: delay + 1, : delay + 1] = 1.0
    a = np.zeros((size, size))
    a[-1, delay], a[-1, -1] = h, beta
    a[0] = -lr * a[-1]
    a[0, 0] += 1.0
    a[range(1, delay + 1), range(delay)] = 1.0
    q = np.zeros(size)
    q[0], q[-1] = -lr, 1.0
    expected = [0.5 * h]
    for _ in range(count):
        moments = a @ moments @ a.T + c / batch * np.outer(q, q)
        expected.append(0.5 * h * moments[0, 0])
    model = Quadratic(np.array([h]), np.array([c]), np.array([1.0]), np.array([1.0]))
    got = run(model, count, batch, delay, np.array([lr]), beta, Rule()).loss[:, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_a_setting_does_not_depend_on_its_neighbours() -> None:
    q = power_law(30)
    alone = run(q, 100, 8, 1, np.array([0.1]), 0.5, Rule()).loss[:, 0]
    among = run(q, 100, 8, 1, np.array([3.0, 0.1, 0.2]), 0.5, Rule()).loss[:, 1]
    np.testing.assert_array_equal(alone, among)


def test_bad_quadratics_are_refused() -> None:
    with pytest.raises(UsageError, match="one length"):
        Quadratic(np.ones(2), np.ones(3), np.ones(2), np.ones(2))
    with pytest.raises(UsageError, match="finite"):
        Quadratic(np.array([-1.0]), np.ones(1), np.ones(1), np.ones(1))
