"""The largest curvatures of a training loss, at a point or in the mean of several, by products of the Hessian with vectors.

H v is the gradient of g·v (Pearlmutter 1994): two backward passes, no matrix. Lanczos on these products (scipy's `eigsh`, ARPACK) gives the
largest eigenvalues; a plain power iteration would need one over the relative gap between the first two, which in networks is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from abs_sgd.workloads.task import Batch, Task
from hetsim.errors import UsageError

Floats = NDArray[np.float64]
TOLERANCE = (
    1e-2  # relative, of an eigenvalue; curvature changes by more between neighbouring points of a training [our choice]
)


def hessian_product(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Callable[[Floats], Floats]:
    """v -> H v at the model's parameters, vectors flat over its trainable ones in order.

    The first backward pass is made once and its graph kept, so memory is that of one pass of `loss`."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss(model), trained, create_graph=True, materialize_grads=True)

    def product(v: Floats) -> Floats:
        parts, at = [], 0
        for p in trained:
            part = np.ascontiguousarray(v[at : at + p.numel()])
            parts.append(torch.from_numpy(part).to(dtype=p.dtype, device=p.device).view_as(p))
            at += p.numel()
        dotted = sum((g * part).sum() for g, part in zip(gradients, parts, strict=True))
        if not isinstance(dotted, Tensor) or not dotted.requires_grad:  # a loss that is linear in all of them
            return np.zeros(at)
        rows = torch.autograd.grad(dotted, trained, retain_graph=True, materialize_grads=True)
        return np.concatenate([row.detach().reshape(-1).double().cpu().numpy() for row in rows])

    return product


def largest_curvatures(
    task: Task,
    models: Sequence[nn.Module],
    batch: Batch,
    *,
    count: int = 1,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> Floats:
    """The `count` largest eigenvalues of the Hessian of the mean loss over `batch`, descending, to 1 %; of several models of one shape,
    those of their mean Hessian, each times its weight (default: all 1).

    `seed` draws the start vector. Models are in training mode meanwhile, as they are where gradients are taken. Raises UsageError where
    Lanczos does not converge or the loss is not finite."""
    was_training = [model.training for model in models]
    samples = len(batch[1])
    try:
        for model in models:
            model.train()
        products = [hessian_product(model, lambda m: task.loss_sum(m, batch) / samples) for model in models]
        factors = [1.0] * len(models) if weights is None else weights
        size = sum(p.numel() for p in models[0].parameters() if p.requires_grad)

        def mean(v: Floats) -> Floats:
            rows = [f * product(v) for f, product in zip(factors, products, strict=True)]
            return np.asarray(np.mean(rows, axis=0), np.float64)

        return _largest(mean, size, count, seed)
    finally:
        for model, before in zip(models, was_training, strict=True):
            model.train(before)


def _largest(product: Callable[[Floats], Floats], size: int, count: int, seed: int) -> Floats:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    start = np.random.default_rng(seed).standard_normal(size)
    if not np.all(np.isfinite(product(start))):
        raise UsageError("the curvature is not finite here: the training has diverged")
    if size <= count + 1:  # ARPACK wants more dimensions than eigenvalues
        matrix = np.stack([product(row) for row in np.eye(size)])
        return np.asarray(np.linalg.eigvalsh(0.5 * (matrix + matrix.T))[::-1][:count])
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values = eigsh(operator, k=count, which="LA", v0=start, tol=TOLERANCE, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise UsageError("the largest curvature was not found: Lanczos did not converge") from error
    return np.sort(np.asarray(values, np.float64))[::-1]
