"""Problems with known answers: a noisy quadratic, least squares, a scalar with constant gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from abs_sgd.workloads.order import Ints, SampleOrder, normal
from abs_sgd.workloads.task import Batch, Task, mean_loss, squared_error_sum, to_device

PURPOSE_NOISE = 3


class Theta(nn.Module):
    """A bare vector of parameters."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(start.clone())

    def forward(self) -> Tensor:
        return self.theta


def noisy_quadratic(
    *,
    dimension: int = 20,
    noise: float = 1.0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    samples: int = 4096,
    curvature: Tensor | None = None,
) -> Task:
    """Loss 1/2 Σ h_j θ_j², h_j = 1/j; a sample's gradient is h θ + noise · sqrt(h) ε (Zhang et al. 2019), from θ_0 = 1.

    ε is keyed by (seed, sample number, j): every algorithm meets the same noise, and it is additive, so all samples
    share one Hessian.
    """
    h = 1.0 / torch.arange(1, dimension + 1, dtype=dtype, device=device) if curvature is None else curvature.to(dtype)
    directions = np.arange(len(h))
    root = h.sqrt() * noise
    initial = 0.5 * float(h.sum())

    def batch(numbers: Ints, seed: int) -> Batch:
        draws = normal(seed, PURPOSE_NOISE, numbers[:, None], directions[None, :])
        return to_device(torch.from_numpy(draws).to(dtype), device) * root, torch.empty(len(numbers))

    def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
        theta: Tensor = model()
        count = len(batch[0])
        return 0.5 * count * (h * theta * theta).sum() + (batch[0].sum(0) * theta).sum()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            theta = model()
            return float(0.5 * (h * theta * theta).sum())

    return Task(
        name="noisy-quadratic",
        make_model=lambda seed: Theta(torch.ones_like(h)),
        batch=batch,
        loss_sum=loss_sum,
        evaluate=evaluate,
        samples=samples,
        separable=True,
        dtype=dtype,
        device=device,
        metric="expected loss",
        target_loss=0.05 * initial,  # a twentieth of the start
        source="noisy quadratic, curvature 1/j, noise variance = curvature (Zhang et al. 2019)",
    )


def least_squares(
    *,
    dimension: int = 10,
    samples: int = 1024,
    noise: float = 0.5,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Task:
    """Linear regression on standard normal inputs; the held-out loss is the distance to the least-squares optimum's
    loss.

    Every sample has its own Hessian a aᵀ, unlike the noisy quadratic.
    """
    rng = np.random.default_rng(0)
    design = rng.standard_normal((samples, dimension))
    answer = design @ rng.standard_normal(dimension) + noise * rng.standard_normal(samples)
    x = torch.tensor(design, dtype=dtype, device=device)
    y = torch.tensor(answer, dtype=dtype, device=device)
    solution = torch.linalg.lstsq(x, y[:, None]).solution
    floor = float(0.5 * (x @ solution - y[:, None]).square().mean())
    orders: dict[int, SampleOrder] = {}

    def batch(numbers: Ints, seed: int) -> Batch:
        order = orders.setdefault(seed, SampleOrder(samples, seed))
        index = torch.from_numpy(order.indices(numbers))
        return x[index], y[index, None]

    def make(seed: int) -> nn.Module:
        model = nn.Linear(dimension, 1, bias=False, dtype=dtype, device=device)
        nn.init.zeros_(model.weight)
        return model

    whole = mean_loss(squared_error_sum, lambda: [(x, y[:, None])])
    return Task(
        name="least-squares",
        make_model=make,
        batch=batch,
        loss_sum=squared_error_sum,
        evaluate=lambda model: whole(model) - floor,
        samples=samples,
        separable=True,
        dtype=dtype,
        device=device,
        metric="excess loss",
        target_loss=0.01,
        source="linear regression with Gaussian inputs, solution by numpy's least squares",
    )


def scalar_constant_gradient(
    *, dtype: torch.dtype = torch.float64, device: str = "cpu", samples: int = 1 << 20
) -> Task:
    """One parameter x from 0, loss -x per sample: every gradient is -1, so parameters are exact numbers (after
    torchft's tests)."""

    def batch(numbers: Ints, seed: int) -> Batch:
        count = torch.full((len(numbers),), -1.0, dtype=dtype, device=device)
        return count, count

    def evaluate(model: nn.Module) -> float:
        return -float(model().detach())

    return Task(
        name="scalar-constant-gradient",
        make_model=lambda seed: Theta(torch.zeros(1, dtype=dtype, device=device)),
        batch=batch,
        loss_sum=lambda model, batch: (batch[0] * model()).sum(),
        evaluate=evaluate,
        samples=samples,
        separable=True,
        dtype=dtype,
        device=device,
        metric="minus the parameter",
        target_loss=-1.0,
        source="one parameter, constant gradient",
    )
