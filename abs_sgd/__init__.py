"""abs_sgd trains: it executes Schedules, and runs hetsim's algorithms, with real models and real gradients.

It depends on `hetsim`, never the reverse, and needs the extra `train` (torch).

    AbsSgd              ABS-SGD for your own PyTorch loop: `loss.backward(); trainer.step(len(x))`
    OpenBatchSampler    every sample once per epoch over all ranks although batches are open
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abs_sgd.monitor import Diverged
    from abs_sgd.open_batch import OpenBatchSampler
    from abs_sgd.wrapper import AbsSgd

__all__ = ["AbsSgd", "Diverged", "OpenBatchSampler"]

_HOMES = {"AbsSgd": "abs_sgd.wrapper", "Diverged": "abs_sgd.monitor", "OpenBatchSampler": "abs_sgd.open_batch"}


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
