"""Weights before a normalisation: found by their gradient, and lengthened by steps as Pythagoras says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from abs_sgd import workloads
from abs_sgd.gradients import FlatModel
from abs_sgd.weight_lengths import lengths
from abs_sgd.workloads.task import Batch, Task

pytestmark = pytest.mark.torch
NORMALISED = ("0.weight", "3.weight")


def net(seed: int = 0) -> nn.Module:
    """Two convolutions before group norms, and a linear layer that is before none."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    ).double()  # fmt: skip


def task_of(batch: Batch) -> Task:
    inputs, targets = batch
    own = workloads.get("digits-mlp")
    return replace(own, make_model=net, batch=lambda numbers, seed: (inputs[: len(numbers)], targets[: len(numbers)]))


def batches(count: int = 4) -> list[Batch]:
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 1, 8, 8, generator=rng, dtype=torch.float64), torch.randint(10, (16,), generator=rng))
        for _ in range(count)
    ]


def places(data: list[Batch], count: int, lr: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters along plain SGD on the first batch, and the gradients between them."""
    task, model = task_of(data[0]), FlatModel(net())
    points, gradients = [model.parameters_P.clone()], []
    for _ in range(count - 1):
        model.load(points[-1])
        gradients.append(model.gradient_sum(lambda m: task.loss_sum(m, data[0])) / 16)
        points.append(points[-1] - lr * gradients[-1])
    return points, gradients


def parts(vector: torch.Tensor) -> dict[str, torch.Tensor]:
    out, at = {}, 0
    for name, p in net().named_parameters():
        out[name] = vector[at : at + p.numel()]
        at += p.numel()
    return out


def test_what_stands_before_a_normalisation_is_found_and_its_squared_norm_is_one_for_all() -> None:
    data = batches()
    points, _ = places(data, 4, 0.5)
    found = lengths(task_of(data[0]), points, data)
    assert found.square is not None and found.ratios[0] == pytest.approx(1.0)
    shares = dict.fromkeys(NORMALISED, 0.0)
    model = FlatModel(net())
    for point in points:
        model.load(point)
        squares = {name: 0.0 for name in parts(point)}
        for each in data:
            for name, g in parts(model.gradient_sum(lambda m, each=each: task_of(each).loss_sum(m, each))).items():
                squares[name] += float(g.square().sum())
        for name in NORMALISED:
            shares[name] += squares[name] / sum(squares.values()) / len(points)
    first = {name: float(parts(points[0])[name].square().sum()) for name in NORMALISED}
    assert found.square == pytest.approx(1.0 / sum(shares[n] ** 2 / first[n] for n in NORMALISED), rel=1e-6)


def test_their_length_does_not_matter_and_steps_lengthen_them_by_pythagoras() -> None:
    data = batches()
    task, model = task_of(data[0]), net()
    before = task.loss_sum(model, data[0]).item()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(3.0 if name in NORMALISED else 1.0)
    assert task.loss_sum(model, data[0]).item() == pytest.approx(before, rel=1e-3)  # the norm's ε is not nothing
    points, gradients = places(data, 2, 0.5)
    for name in NORMALISED:
        now, then, g = parts(points[1])[name], parts(points[0])[name], parts(gradients[0])[name]
        grown = float(now.square().sum() - then.square().sum())
        assert grown == pytest.approx(0.25 * float(g.square().sum()), rel=1e-2)


def test_a_network_without_normalisations_has_none() -> None:
    task = workloads.get("digits-mlp")
    points = [FlatModel(task.make_model(seed)).parameters_P for seed in range(3)]
    found = lengths(task, points, [task.batch(np.arange(32), 0), task.batch(np.arange(32, 64), 0)])
    assert found.square is None and found.ratios == (1.0, 1.0, 1.0)
