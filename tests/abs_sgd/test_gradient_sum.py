"""Gradients of a batch added up with their weights: against plain sums, with gaps, sparse ones, and no copy where none is needed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from abs_sgd.gradient_sum import GradientSum
from abs_sgd.update import State, Updater, UpdateRule

pytestmark = pytest.mark.torch
SHAPES = ((3, 2), (4,), (1,))


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]


def views() -> list[Tensor]:
    return [torch.full(shape, 7.0, dtype=torch.float64) for shape in SHAPES]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=5),
    st.booleans(),
    st.integers(0, 100),
)
def test_sums_and_means_are_those_of_plain_addition(
    passes: list[tuple[int, list[bool]]], means: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours, held = GradientSum(means), parameters()
    expected = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for count, used in passes:
        for parameter, total, there in zip(held, expected, used, strict=True):
            if there:  # a pass need not reach every parameter
                parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                total.add_(parameter.grad, alpha=(count if means else 1) if count else 0)
        ours.take(held, count, loss=None)
        assert all(p.grad is None for p in held)
    samples = sum(count for count, _ in passes)
    again = GradientSum(means)
    again.load(ours.state())
    for one in (ours, again):
        assert one.samples == samples
        for mean, divisor in ((False, 1), (True, samples or 1)):
            one.write(found := views(), mean=mean)
            for mine, total in zip(found, expected, strict=True):
                assert torch.allclose(mine, total / divisor, rtol=1e-12, atol=1e-12)


def test_the_gradients_of_one_pass_are_not_copied_and_their_mean_is_themselves() -> None:
    ours, held = GradientSum(True), parameters()
    gradients = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    for parameter, gradient in zip(held, gradients, strict=True):
        parameter.grad = gradient
    ours.take(held, 7, loss=torch.tensor(2.0))
    assert all(part is gradient for part, gradient in zip(ours.parts, gradients, strict=True))
    ours.write(found := views(), mean=True)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True))
    assert ours.loss == (14.0, 7)


def test_sparse_gradients_are_summed() -> None:
    table = nn.Embedding(4, 2, sparse=True, dtype=torch.float64)
    ours = GradientSum(True)
    for count in (2, 3):
        table(torch.tensor([1, 1, 3])).sum().backward()
        ours.take([table.weight], count, loss=None)
    ours.write([found := torch.empty(4, 2, dtype=torch.float64)])
    assert found.tolist() == [[0, 0], [10, 10], [0, 0], [5, 5]]


def test_an_optimizer_that_writes_into_gradients_leaves_the_kept_mean_alone() -> None:
    """torch's foreach Nesterov adds the velocity to the gradient in place; `blend` uses the mean gradient again later."""

    class Foreach(Updater):
        def _torch_step(self, state: State, gradient_P: Tensor, rate: float) -> tuple[Tensor, dict[str, Tensor]]:
            parameter = nn.Parameter(state.parameters_P.clone())
            parameter.grad = gradient_P
            torch.optim.SGD([parameter], lr=rate, momentum=0.9, nesterov=True, foreach=True).step()
            return parameter.data, {}

    updater = Foreach(UpdateRule(learning_rate=0.1), keep_mean_gradient=True)
    made = updater.step(State(parameters_P=torch.zeros(3)), torch.tensor([2.0, 4.0, 6.0]), divisor=2, samples=2)
    assert made.mean_gradient_P is not None and made.mean_gradient_P.tolist() == [1.0, 2.0, 3.0]
    assert made.parameters_P.tolist() == pytest.approx([-0.19, -0.38, -0.57])
