"""CIFAR-10 (Krizhevsky 2009) from a folder in the standard binary layout that the user names.

    FOLDER[/cifar-10-batches-bin]/data_batch_1.bin ... data_batch_5.bin, test_batch.bin
    each 10,000 records of 1 label byte and 3,072 pixel bytes (red, green, blue planes of 32x32, row by row)

The folder is the argument `data` or the environment variable HETSIM_CIFAR10; nothing is downloaded. Training pictures
are padded by four pixels, cropped and flipped (He et al. 2016, section 4.2); where and whether is keyed by (seed,
epoch, sample).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from abs_sgd.workloads.models import resnet18, small_resnet
from abs_sgd.workloads.order import Ints, SampleOrder, words
from abs_sgd.workloads.task import Batch, Task, cross_entropy_sum, mean_loss, seeded, split, to_device
from hetsim.errors import UsageError

VARIABLE = "HETSIM_CIFAR10"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORD_BYTES = 1 + 3 * 32 * 32
PAD = 4
SIDE = 32
EVALUATION_BATCH = 500
PURPOSE_AUGMENT = 2


def folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder with the .bin files. Raises UsageError that says what was looked for where."""
    named = data or os.environ.get(VARIABLE)
    if not named:
        raise UsageError(
            f"CIFAR-10 is needed: name a folder with its binary version (data_batch_1.bin ... test_batch.bin) by {VARIABLE}=FOLDER"
        )
    for place in (Path(named), Path(named) / "cifar-10-batches-bin"):
        if all((place / name).is_file() for name in (*TRAIN_FILES, *TEST_FILES)):
            return place
    raise UsageError(
        f"{named}: no CIFAR-10 in the binary layout here (looked for {TRAIN_FILES[0]} ... {TEST_FILES[0]}, "
        "also under cifar-10-batches-bin)"
    )


def read(files: list[Path]) -> tuple[Tensor, Tensor]:
    """Pictures (N, 3, 32, 32) uint8 and labels (N,). Raises UsageError for a file that is not whole records."""
    records = []
    for file in files:
        raw = np.fromfile(file, np.uint8)
        if len(raw) == 0 or len(raw) % RECORD_BYTES:
            raise UsageError(f"{file}: {len(raw)} bytes is not a whole number of {RECORD_BYTES}-byte CIFAR-10 records")
        records.append(raw.reshape(-1, RECORD_BYTES))
    rows = np.concatenate(records)
    if rows[:, 0].max() > 9:
        raise UsageError(f"{files[0].parent}: a label above 9 is no CIFAR-10 label")
    return torch.from_numpy(rows[:, 1:].reshape(-1, 3, SIDE, SIDE).copy()), torch.from_numpy(
        rows[:, 0].astype(np.int64)
    )


@functools.lru_cache(maxsize=1)
def _load(place: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Train and test pictures and labels, and the training pictures' mean and deviation per channel."""
    x, y = read([place / name for name in TRAIN_FILES])
    x_test, y_test = read([place / name for name in TEST_FILES])
    shades = torch.arange(256, dtype=torch.float64) / 255.0
    shares = torch.stack([torch.bincount(plane.flatten(), minlength=256) for plane in x.unbind(1)]).double()
    shares /= shares.sum(1, keepdim=True)
    mean = shares @ shades
    return x, y, x_test, y_test, mean, (shares @ shades.square() - mean.square()).sqrt()


def augment(pictures: Tensor, seed: int, numbers: Ints) -> Tensor:
    """Padded by four pixels, cropped at a place and flipped or not, both drawn for (seed, running sample number)."""
    draw = words(seed, PURPOSE_AUGMENT, numbers)
    places = np.uint64(2 * PAD + 1)
    row = torch.from_numpy((draw % places).astype(np.int64))
    column = torch.from_numpy((draw // places % places).astype(np.int64))
    flip = torch.from_numpy((draw >> np.uint64(63)).astype(bool))
    padded = torch.nn.functional.pad(pictures, (PAD, PAD, PAD, PAD))
    span = torch.arange(SIDE)
    columns = torch.where(flip[:, None], SIDE - 1 - span, span) + column[:, None]
    rows = span + row[:, None]
    sample = torch.arange(len(pictures))[:, None, None]
    return padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _task(
    name: str,
    build: Callable[[], nn.Module],
    separable: bool,
    data: str | os.PathLike[str] | None,
    dtype: torch.dtype,
    device: str,
    *,
    augmented: bool = True,
    target_loss: float,
    reference_batch_samples: int,
    learning_rates: tuple[float, ...],
) -> Task:
    x, y, x_test, y_test, mean, deviation = _load(folder(data))
    offset = mean.to(dtype).view(1, 3, 1, 1)
    scale = deviation.to(dtype).view(1, 3, 1, 1)
    orders: dict[int, SampleOrder] = {}

    def prepare(pictures: Tensor) -> Tensor:
        return to_device((pictures.to(dtype) / 255.0 - offset) / scale, device)

    def batch(numbers: Ints, seed: int) -> Batch:
        order = orders.setdefault(seed, SampleOrder(len(y), seed))
        index = torch.from_numpy(order.indices(numbers))
        pictures = augment(x[index], seed, numbers) if augmented else x[index]
        return prepare(pictures), to_device(y[index], device)

    def held_out() -> list[Batch]:
        return [(prepare(a), b.to(device)) for a, b in split(x_test, y_test, EVALUATION_BATCH)]

    return Task(
        name=name,
        make_model=seeded(build, dtype=dtype, device=device),
        batch=batch,
        loss_sum=cross_entropy_sum,
        evaluate=mean_loss(cross_entropy_sum, held_out),
        samples=len(y),
        separable=separable,
        dtype=dtype,
        device=device,
        metric="test loss",
        target_loss=target_loss,
        reference_batch_samples=reference_batch_samples,
        evaluate_every_samples=8_000,
        learning_rates=learning_rates,
        source="CIFAR-10 in the binary layout, from the folder named by the user",
    )


def cifar10_small_resnet(
    *, data: str | os.PathLike[str] | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Task:
    """Small GroupNorm ResNet. Target: test loss 1.3, reached by S-SGD with B 128, lr .05, momentum .9 after 168,000
    samples."""
    return _task(
        "cifar10-small-resnet", small_resnet, True, data, dtype, device,
        target_loss=1.3, reference_batch_samples=128, learning_rates=(0.0125, 0.025, 0.05, 0.1, 0.2),
    )  # fmt: skip


def resnet18_cifar10(
    *, data: str | os.PathLike[str] | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Task:
    """ResNet18 with BatchNorm: pass by pass, statistics per replica. Hours on a CPU; meant for a GPU.

    Target loss .3 stands for about 90 % accuracy [our choice, not measured here].
    """
    return _task(
        "resnet18-cifar10", resnet18, False, data, dtype, device,
        target_loss=0.3, reference_batch_samples=256, learning_rates=(0.025, 0.05, 0.1, 0.2),
    )  # fmt: skip


def resnet18_gn_cifar10(
    *, data: str | os.PathLike[str] | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Task:
    """ResNet18 with GroupNorm in place of BatchNorm: sample-separable, so passes are fused. Same target [our
    choice]."""
    return _task(
        "resnet18-gn-cifar10", lambda: resnet18("group"), True, data, dtype, device,
        target_loss=0.3, reference_batch_samples=256, learning_rates=(0.025, 0.05, 0.1, 0.2),
    )  # fmt: skip
