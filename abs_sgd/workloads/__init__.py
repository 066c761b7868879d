"""Models and data sets to train on, by name.

    digits-mlp, digits-cnn             scikit-learn's digits; no download
    cifar10-small-resnet               small GroupNorm ResNet; CIFAR-10 from a folder the user names
    resnet18-cifar10, resnet18-gn-cifar10   ResNet18 with BatchNorm or GroupNorm; the same data
    noisy-quadratic, least-squares, scalar-constant-gradient    known answers
    module:function                    a user's own model and data: `abs_sgd.workloads.user`

A new one is a builder that returns a `Task`, and a line in BUILDERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from abs_sgd.workloads.analytic import least_squares, noisy_quadratic, scalar_constant_gradient
from abs_sgd.workloads.cifar10 import cifar10_small_resnet, resnet18_cifar10, resnet18_gn_cifar10
from abs_sgd.workloads.digits import digits_cnn, digits_mlp
from abs_sgd.workloads.task import Task
from abs_sgd.workloads.user import user_task
from hetsim.cluster.spec import Workload
from hetsim.errors import UsageError, nearest

BUILDERS: dict[str, Callable[..., Task]] = {
    "digits-mlp": digits_mlp,
    "digits-cnn": digits_cnn,
    "cifar10-small-resnet": cifar10_small_resnet,
    "resnet18-cifar10": resnet18_cifar10,
    "resnet18-gn-cifar10": resnet18_gn_cifar10,
    "noisy-quadratic": noisy_quadratic,
    "least-squares": least_squares,
    "scalar-constant-gradient": scalar_constant_gradient,
}
NEEDS_DATA = frozenset({"cifar10-small-resnet", "resnet18-cifar10", "resnet18-gn-cifar10"})


def names() -> list[str]:
    """Names that `get` knows."""
    return sorted(BUILDERS)


def get(workload: str | Workload, **options: Any) -> Task:
    """The task of a name, or of a profile's workload (its `model` and `dataset` where given, else its name).

    Options go to the builder (`dtype`, `device`; `data` for CIFAR-10). Raises UsageError for an unknown name or
    missing data.
    """
    if isinstance(workload, Workload):
        if workload.model and workload.dataset:
            return user_task(workload.model, workload.dataset, **options)
        workload = workload.name
    builder = BUILDERS.get(workload)
    if builder is None:
        raise UsageError(f"no workload {workload!r} to train on ({nearest(workload, BUILDERS)})")
    return builder(**options)


def options_of(plain: Mapping[str, Any], device: str = "cpu") -> dict[str, Any]:
    """A builder's options from plain values: `dtype` by name, `device` where it is not the CPU. Raises UsageError for an unknown dtype."""
    options = dict(plain)
    if device != "cpu":
        options["device"] = device
    if isinstance(name := options.get("dtype"), str):
        options["dtype"] = getattr(torch, name, None)
        if not isinstance(options["dtype"], torch.dtype):
            raise UsageError(f"dtype: torch has no {name!r} (float32, float64, bfloat16, …)")
    return options


__all__ = ["BUILDERS", "NEEDS_DATA", "Task", "get", "names", "options_of"]
