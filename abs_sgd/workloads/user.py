"""A user's own model and data, named as "module:function".

    model() -> torch.nn.Module
    dataset() -> (train, held_out), each a pair of tensors (inputs, targets) or a map-style data set of (input, target)

Integer targets are trained by cross entropy, others by half the squared error; another loss is the attribute
`loss_sum(model, (inputs, targets))` of the function `model`, a sum over the samples. `model.separable = True`
declares that passes may be fused (no BatchNorm, no dropout, nothing else that makes a sample's gradient depend on its
companions).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from abs_sgd.workloads.order import Ints, SampleOrder
from abs_sgd.workloads.task import (
    EVALUATION_SAMPLES,
    Batch,
    Task,
    cross_entropy_sum,
    mean_loss,
    seeded,
    split,
    squared_error_sum,
    to_device,
)
from hetsim.errors import UsageError

MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
NO_TARGET = -float("inf")


def resolve(name: str) -> Callable[[], Any]:
    """The function behind "module:function", modules of the current folder included. Raises UsageError."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError(f'{name}: write it as "module:function"')
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{name}: cannot import {module_name}: {error}") from error
    except Exception as error:
        raise UsageError(f"{name}: cannot import {module_name}: {_what(error)}") from error
    finally:
        if added:
            sys.path.remove(here)
    found = getattr(module, function_name, None)
    if not callable(found):
        raise UsageError(f"{name}: {module_name} has no function {function_name}")
    return found  # type: ignore[no-any-return]


def _what(error: Exception) -> str:
    """What went wrong in a user's code, and where."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise UsageError(f"{name}: raised {_what(error)}") from error


def is_separable(build: Callable[[], nn.Module], model: nn.Module) -> bool:
    """Declared separable, and without modules that are known to mix samples or to draw per pass."""
    return bool(getattr(build, "separable", False)) and not any(isinstance(m, MIXING) for m in model.modules())


def user_task(
    model: str,
    dataset: str,
    *,
    target_loss: float | None = None,
    reference_batch_samples: int = 32,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """The task of a user's `model` and `dataset`. Raises UsageError where they are not what this module's text says."""
    build, data = resolve(model), resolve(dataset)
    example = _called(model, build)
    if not isinstance(example, nn.Module):
        raise UsageError(f"{model}: returned {type(example).__name__}, not a torch.nn.Module")
    parts = _called(dataset, data)
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        raise UsageError(f"{dataset}: must return (train, held_out)")
    train, held_out = parts
    samples = _length(train, dataset)
    size = _length(held_out, dataset)
    orders: dict[int, SampleOrder] = {}

    def batch(numbers: Ints, seed: int) -> Batch:
        order = orders.setdefault(seed, SampleOrder(samples, seed))
        return _take(train, torch.from_numpy(order.indices(numbers)), dtype, device)

    def evaluation() -> list[Batch]:
        return split(*_take(held_out, torch.arange(size), dtype, device), size=EVALUATION_SAMPLES)

    _, targets = _take(train, torch.arange(1), dtype, device)
    loss_sum = getattr(build, "loss_sum", None) or (
        squared_error_sum if targets.is_floating_point() else cross_entropy_sum
    )
    return Task(
        name=f"{model} on {dataset}",
        make_model=seeded(build, dtype=dtype, device=device),
        batch=batch,
        loss_sum=loss_sum,
        evaluate=mean_loss(loss_sum, evaluation),
        samples=samples,
        separable=is_separable(build, example),
        dtype=dtype,
        device=device,
        target_loss=NO_TARGET if target_loss is None else target_loss,
        reference_batch_samples=reference_batch_samples,
        evaluate_every_samples=4 * reference_batch_samples,
        source=f"{dataset}, the user's",
    )


def _length(part: Any, name: str) -> int:
    try:
        size = len(part[0]) if _is_pair(part) else len(part)
    except TypeError as error:
        raise UsageError(f"{name}: a part has no length (tensors or a map-style data set are needed)") from error
    if size == 0:
        raise UsageError(f"{name}: a part is empty")
    if _is_pair(part) and len(part[1]) != size:
        raise UsageError(f"{name}: {size} inputs but {len(part[1])} targets")
    return size


def _is_pair(part: Any) -> bool:
    return isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(p, Tensor) for p in part)


def _take(part: Any, index: Tensor, dtype: torch.dtype, device: str) -> Batch:
    if _is_pair(part):
        inputs, targets = part[0][index], part[1][index]
    else:
        inputs, targets = default_collate([part[int(i)] for i in index])
    cast: list[Tensor] = []
    for tensor in (inputs, targets):
        cast.append(to_device(tensor.to(dtype) if tensor.is_floating_point() else tensor, device))
    return cast[0], cast[1]
