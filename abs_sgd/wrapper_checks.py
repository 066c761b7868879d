"""What the wrapper of training loops refuses, before it would go wrong without a word."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hetsim.errors import UsageError

MOST_COUNT = 2**53  # counts travel in float64
STATE = frozenset(
    [
        "rank",
        "progress",
        "parameters",
        "buffers",
        "seen",
        "optimizer",
        "learning_rates",
        "mean_gradient",
        "summed",
        "in_flight",
        "losses",
        "contributed",
        "sampler",
    ]
)


def check_asked(
    options: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    reduction: str,
    lr_rule: str,
    reference: int | None,
    wire_dtype: torch.dtype | None,
    diverged_factor: float | None,
) -> None:
    """Raise UsageError for what AbsSgd cannot be asked for."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UsageError(
            "give AbsSgd the bare model (ddp.module): DDP synchronizes by itself and divides by ranks, not by samples"
        )
    if reduction not in ("mean", "sum"):
        raise UsageError(f'loss_reduction is "mean" or "sum", not {reduction!r}')
    if lr_rule not in ("none", "linear", "sqrt"):
        raise UsageError(f'lr_rule is "none", "linear" or "sqrt", not {lr_rule!r}')
    if reference is not None and not reference >= 1:
        raise UsageError(f"reference_batch_samples must be at least 1, not {reference}")
    if lr_rule != "none" and reference is None:
        raise UsageError("lr_rule needs reference_batch_samples, the batch that the learning rate was chosen for")
    if options.micro_batch != "equal":
        raise UsageError(
            "micro_batch=equal-time: in your own loop the batch size is yours; give faster ranks larger batches"
        )
    if options.trigger == "target_batch" or options.max_global_batch or options.min_samples_scope == "global":
        raise UsageError(
            "counts over all ranks in the middle of a batch are not known to a loop: use trigger, min_samples, max_local_batch"
        )
    if wire_dtype is not None and not (isinstance(wire_dtype, torch.dtype) and wire_dtype.is_floating_point):
        raise UsageError(f"wire_dtype is one of torch's floating-point dtypes, not {wire_dtype}")
    if diverged_factor is not None and not diverged_factor > 0:
        raise UsageError(f"diverged_factor must be a positive number or None, not {diverged_factor}")
    if any(p.requires_grad and not p.is_floating_point() for p in model.parameters()):
        raise UsageError("parameters must be real floating-point numbers")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} needs a closure that computes the gradient again: take another optimizer"
        )


def whole(count: Any) -> int:
    """A count of samples. Raises UsageError for what is none."""
    try:
        number = operator.index(count)
    except TypeError:
        raise UsageError(f"step() needs a count of samples, a whole number, not {count!r}") from None
    if not 0 <= number <= MOST_COUNT:
        raise UsageError(f"step() needs a count of samples, 0 or more, not {number}")
    return number


def check_gradients(parameters: Iterable[Tensor]) -> None:
    """Raise UsageError where no parameter has a gradient: samples would be counted that taught nothing."""
    if all(p.grad is None for p in parameters):
        raise UsageError("step() without backward(): no parameter has a gradient (step() clears them itself)")


def places(parameters: Sequence[Tensor]) -> list[int]:
    """Where parameters lie in memory."""
    return [p.data_ptr() for p in parameters]


def check_places(parameters: Sequence[Tensor], before: list[int]) -> None:
    """Raise UsageError where parameters lie elsewhere than `before`: updates would no longer reach the model."""
    if places(parameters) != before:
        raise UsageError(
            "the model's parameters were moved since AbsSgd was made (model.to(...), or a second AbsSgd over the same model): move it "
            "before, and make one"
        )


def check_state(state: Mapping[str, Any], parameters_P: Tensor, buffers: Sequence[Tensor], groups: int) -> None:
    """Raise UsageError for what is no state of this model and optimizer."""
    if missing := sorted(STATE.difference(state)):
        raise UsageError(f"no checkpoint of AbsSgd: {missing[0]} is missing")
    found = state["parameters"]
    if not isinstance(found, Tensor) or found.shape != parameters_P.shape:
        size = f"{found.numel():,}" if isinstance(found, Tensor) else "no"
        raise UsageError(f"this checkpoint holds {size} parameters, the model has {parameters_P.numel():,}")
    shapes = [[tuple(b.shape) for b in each] for each in (state["buffers"], buffers)]
    if shapes[0] != shapes[1]:
        raise UsageError("this checkpoint holds other buffers than the model has")
    if len(state["learning_rates"]) != groups or len(state["optimizer"].get("param_groups", ())) != groups:
        raise UsageError(f"this checkpoint is of an optimizer with other parameter groups than these {groups}")
    progress = state["progress"]
    if len(progress) != 4 or not all(isinstance(n, int) and n >= 0 for n in progress[:2]):
        raise UsageError("no checkpoint of AbsSgd: its progress is not one")


def warn_of_untrained(model: nn.Module, parameters: Iterable[Tensor]) -> None:
    """Warn of parameters that want a gradient and are not among `parameters`."""
    known = {id(p) for p in parameters}
    names = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
    if names:
        more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
        warnings.warn(
            f"{names[0]}{more} not trained: added or unfrozen after AbsSgd was made; make another then", stacklevel=5
        )
