"""Task: a model, its data and its loss, as an executor sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from abs_sgd.workloads.order import words

Ints = NDArray[np.int64]
Batch = tuple[Tensor, Tensor]
PURPOSE_DROPOUT = 1  # keys its draws apart from others of the seed
SEED_BITS = 2**63 - 1  # torch.manual_seed takes 64 bits signed
EVALUATION_SAMPLES = 1000  # per forward pass; bounds memory only


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained on what.

    `batch(numbers, seed)` gives the samples with these running numbers (any epoch) in the order of that seed;
    `loss_sum(model, batch)` is a **sum** over them; `evaluate(model)` is the held-out loss. `separable`: the gradient
    of a sum over samples is the sum of their gradients and passes leave nothing behind (no BatchNorm, no dropout), so
    passes at one point may be fused. The defaults of training (`reference_batch_samples` to `learning_rates`) are in
    the regime people train in: batch below the critical one, tens of updates per epoch; each builder says where they
    come from.
    """

    name: str
    make_model: Callable[[int], nn.Module]
    batch: Callable[[Ints, int], Batch]
    loss_sum: Callable[[nn.Module, Batch], Tensor]
    evaluate: Callable[[nn.Module], float]
    samples: int
    separable: bool
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    metric: str = "held-out loss"
    target_loss: float = 0.0
    reference_batch_samples: int = 32
    evaluate_every_samples: int = 128
    learning_rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2)
    momenta: tuple[float, ...] = (0.0, 0.9)
    source: str = ""  # of data and defaults, a sentence for the reader


def seeded(build: Callable[[], nn.Module], *, dtype: torch.dtype, device: str) -> Callable[[int], nn.Module]:
    """A model factory whose initial parameters depend on its seed alone; the global generator is left as it was."""

    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build().to(dtype=dtype, device=device)

    return make


@contextmanager
def dropout_of(task: Task, seed: int, first: int) -> Iterator[None]:
    """A pass whose dropout is keyed by (seed, first sample), whoever makes it; nothing to do for separable tasks, which have none."""
    if task.separable:
        yield
        return
    with torch.random.fork_rng(devices=[] if task.device == "cpu" else [task.device]):
        torch.manual_seed(int(words(seed, PURPOSE_DROPOUT, first)) & SEED_BITS)
        yield


def to_device(tensor: Tensor, device: str) -> Tensor:
    """The tensor on the device. Through pinned memory, for a plain copy to a GPU waits for all that was queued there."""
    if device == "cpu" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def cross_entropy_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Sum of cross entropies."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets, reduction="sum")


def squared_error_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Half the sum of squared errors."""
    inputs, targets = batch
    return 0.5 * functional.mse_loss(model(inputs), targets, reduction="sum")


def mean_loss(loss_sum: Callable[[nn.Module, Batch], Tensor], batches: Callable[[], list[Batch]]) -> HeldOut:
    """Evaluation: mean loss over fixed batches, in evaluation mode, without gradients."""
    return HeldOut(loss_sum, batches)


class HeldOut:
    """The mean loss of a model over fixed samples, or over the first `most` of them."""

    def __init__(
        self,
        loss_sum: Callable[[nn.Module, Batch], Tensor],
        batches: Callable[[], list[Batch]],
        most: int | None = None,
    ) -> None:
        self.loss_sum, self.batches, self.most = loss_sum, batches, most
        self.fixed: list[Batch] = []

    def first(self, samples: int) -> HeldOut:
        """The same over fewer samples."""
        return HeldOut(self.loss_sum, self.batches, samples)

    def samples(self) -> int:
        """How many it evaluates."""
        return sum(len(batch[1]) for batch in self._fixed())

    def _fixed(self) -> list[Batch]:
        if not self.fixed:
            left = self.most
            for inputs, targets in self.batches():
                if left is not None:
                    inputs, targets = inputs[:left], targets[:left]
                    left -= len(targets)
                if len(targets):
                    self.fixed.append((inputs, targets))
        return self.fixed

    def __call__(self, model: nn.Module) -> float:
        was_training = model.training
        model.eval()
        with torch.no_grad():
            total = sum(float(self.loss_sum(model, batch)) for batch in self._fixed())
        model.train(was_training)
        return total / self.samples()


def split(inputs: Tensor, targets: Tensor, size: int = EVALUATION_SAMPLES) -> list[Batch]:
    """Tensors cut into batches of at most `size`."""
    return list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))
