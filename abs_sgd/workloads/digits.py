"""scikit-learn's handwritten digits (1,797 pictures of 8x8, UCI "Optical Recognition of Handwritten Digits"): no download.

1,437 pictures train, 360 are held out, by a fixed shuffle. Two models: a perceptron and a small convolutional net.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

from abs_sgd.workloads.order import Ints, SampleOrder
from abs_sgd.workloads.task import Batch, Task, cross_entropy_sum, mean_loss, seeded, split

TRAIN_SAMPLES = 1437  # four fifths
SOURCE = "scikit-learn digits, 1,437 train and 360 held-out pictures"


@functools.lru_cache(maxsize=1)
def _pictures() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order] / 16.0, data.target[order].astype(np.int64)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def _task(name: str, build: type[nn.Module] | object, dtype: torch.dtype, device: str) -> Task:
    inputs, targets = _pictures()
    x = torch.tensor(inputs, dtype=dtype, device=device)
    y = torch.tensor(targets, device=device)
    orders: dict[int, SampleOrder] = {}

    def batch(numbers: Ints, seed: int) -> Batch:
        order = orders.setdefault(seed, SampleOrder(TRAIN_SAMPLES, seed))
        index = torch.from_numpy(order.indices(numbers))
        return x[index], y[index]

    return Task(
        name=name,
        make_model=seeded(build, dtype=dtype, device=device),  # type: ignore[arg-type]
        batch=batch,
        loss_sum=cross_entropy_sum,
        evaluate=mean_loss(cross_entropy_sum, lambda: split(x[TRAIN_SAMPLES:], y[TRAIN_SAMPLES:])),
        samples=TRAIN_SAMPLES,
        separable=True,
        dtype=dtype,
        device=device,
        source=SOURCE,
        **DEFAULTS[name],  # type: ignore[arg-type]
    )


DEFAULTS: dict[str, dict[str, object]] = {
    "digits-mlp": {"target_loss": 0.2},
    "digits-cnn": {"target_loss": 0.2},
}


def digits_mlp(*, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Task:
    """Perceptron 64-64-10 with ReLU, 4,810 parameters."""
    return _task("digits-mlp", _mlp, dtype, device)


def digits_cnn(*, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Task:
    """Two convolutions (8 and 16 channels) and a linear layer, 3,818 parameters."""
    return _task("digits-cnn", _cnn, dtype, device)
