"""The largest curvatures of a loss, against matrices that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from abs_sgd import workloads
from abs_sgd.curvature import hessian_product, largest_curvatures
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


def test_of_a_noisy_quadratic_they_are_its_own() -> None:
    task = workloads.get("noisy-quadratic", dimension=40)
    batch = task.batch(np.arange(8), 0)
    found = largest_curvatures(task, [task.make_model(0)], batch, count=3)
    np.testing.assert_allclose(found, [1.0, 1 / 2, 1 / 3], rtol=1e-2)


def test_of_least_squares_they_are_those_of_the_batch_s_own_matrix() -> None:
    task = workloads.get("least-squares")
    x, _ = batch = task.batch(np.arange(64), 0)
    exact = np.sort(np.linalg.eigvalsh((x.T @ x / 64).numpy()))[::-1]
    np.testing.assert_allclose(largest_curvatures(task, [task.make_model(0)], batch, count=2), exact[:2], rtol=1e-2)


def test_one_parameter_needs_no_lanczos() -> None:
    task = workloads.get("noisy-quadratic", dimension=1, curvature=torch.tensor([0.7]))
    assert largest_curvatures(task, [task.make_model(0)], task.batch(np.arange(4), 0)) == pytest.approx([0.7])
    flat = workloads.get("scalar-constant-gradient")
    assert largest_curvatures(flat, [flat.make_model(0)], flat.batch(np.arange(4), 0)) == pytest.approx([0.0])


def test_products_of_a_network_agree_with_differences_of_its_gradients() -> None:
    task = workloads.get("digits-mlp", dtype=torch.float64)
    model, batch = task.make_model(0), task.batch(np.arange(64), 0)

    def loss(m: nn.Module) -> torch.Tensor:
        return task.loss_sum(m, batch) / 64

    trained = list(model.parameters())
    rng = np.random.default_rng(1)
    v = rng.standard_normal(sum(p.numel() for p in trained))
    product = hessian_product(model, loss)(v)
    step = 1e-5

    def gradient(sign: float) -> np.ndarray:
        moved, at = task.make_model(0), 0
        with torch.no_grad():
            for p in moved.parameters():
                p += sign * step * torch.from_numpy(v[at : at + p.numel()]).view_as(p)
                at += p.numel()
        rows = torch.autograd.grad(loss(moved), list(moved.parameters()))
        return np.concatenate([row.reshape(-1).numpy() for row in rows])

    np.testing.assert_allclose(product, (gradient(1) - gradient(-1)) / (2 * step), rtol=1e-4, atol=1e-4)


def test_a_training_that_diverged_has_no_curvature() -> None:
    task = workloads.get("digits-mlp")
    model = task.make_model(0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(UsageError, match="not finite"):
        largest_curvatures(task, [model], task.batch(np.arange(8), 0))


def test_the_model_s_mode_is_left_as_it_was() -> None:
    task = replace(workloads.get("digits-mlp"))
    model = task.make_model(0).eval()
    largest_curvatures(task, [model], task.batch(np.arange(8), 0))
    assert not model.training


def test_of_several_models_it_is_that_of_their_mean_hessian() -> None:
    task = workloads.get("digits-mlp", dtype=torch.float64)
    models, batch = [task.make_model(s) for s in (0, 1)], task.batch(np.arange(32), 0)
    products = [hessian_product(m, lambda m: task.loss_sum(m, batch) / 32) for m in models]
    each = [float(largest_curvatures(task, [m], batch)[0]) for m in models]
    mean = float(largest_curvatures(task, models, batch)[0])
    v = np.random.default_rng(0).standard_normal(4810)
    for _ in range(300):  # power iteration, shifted so that the largest wins over the most negative
        v = 0.5 * (products[0](v) + products[1](v)) + 0.2 * v
        v /= np.linalg.norm(v)
    assert mean == pytest.approx(v @ (0.5 * (products[0](v) + products[1](v))), rel=0.02)
    assert mean < 0.98 * max(each)  # directions differ, so the mean's is flatter
