"""scikit-learn's handwritten digits (1,797 pictures of 8x8, UCI "Optical Recognition of Handwritten Digits"): no
download.

1,437 pictures train, 360 are held out, by a fixed shuffle. Two models: a perceptron and a small convolutional net.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abs_sgd.workloads.order import Ints, SampleOrder
from abs_sgd.workloads.task import Batch, Task, cross_entropy_sum, mean_loss, seeded, split, to_device

TRAIN_SAMPLES = 1437  # four fifths
# Measured with S-SGD, momentum .9, best of five learning rates, median of three seeds: the perceptron's held-out loss
# is .1 after 3,700, 4,030, 4,980 and 5,630 samples at B = 16, 32, 64 and 128, so 32 is well below the critical batch
# (of the order of 200).
TARGET_LOSS = 0.1
REFERENCE_BATCH_SAMPLES = 32
LEARNING_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
SOURCE = "scikit-learn digits, 1,437 train and 360 held-out pictures"


@functools.lru_cache(maxsize=1)
def _pictures() -> tuple[NDArray[Any], NDArray[np.int64]]:
    rows = _rows()
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    return rows[:, :-1] / 16.0, rows[:, -1].astype(np.int64)


def _rows() -> NDArray[Any]:
    """64 pixels and the digit. The file is read where scikit-learn keeps it: importing that takes a second, on every rank of a run."""
    found = find_spec("sklearn")  # does not import it
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else None
    if file is not None and file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    data = load_digits()
    return np.column_stack([data.data, data.target])


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


def _task(name: str, build: Callable[[], nn.Module], dtype: torch.dtype, device: str) -> Task:
    inputs, targets = _pictures()
    x = torch.tensor(inputs, dtype=dtype, device=device)
    y = torch.tensor(targets, device=device)
    orders: dict[int, SampleOrder] = {}

    def batch(numbers: Ints, seed: int) -> Batch:
        order = orders.setdefault(seed, SampleOrder(TRAIN_SAMPLES, seed))
        index = to_device(torch.from_numpy(order.indices(numbers)), device)
        return x[index], y[index]

    return Task(
        name=name,
        make_model=seeded(build, dtype=dtype, device=device),
        batch=batch,
        loss_sum=cross_entropy_sum,
        evaluate=mean_loss(cross_entropy_sum, lambda: split(x[TRAIN_SAMPLES:], y[TRAIN_SAMPLES:])),
        samples=TRAIN_SAMPLES,
        separable=True,
        dtype=dtype,
        device=device,
        source=SOURCE,
        target_loss=TARGET_LOSS,
        reference_batch_samples=REFERENCE_BATCH_SAMPLES,
        learning_rates=LEARNING_RATES,
    )


def digits_mlp(*, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Task:
    """Perceptron 64-64-10 with ReLU, 4,810 parameters."""
    return _task("digits-mlp", _mlp, dtype, device)


def digits_cnn(*, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Task:
    """Two convolutions (8 and 16 channels) and a linear layer, 3,818 parameters."""
    return _task("digits-cnn", _cnn, dtype, device)
