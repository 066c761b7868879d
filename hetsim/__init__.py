"""hetsim: how would training run on a cluster of unequal GPUs?

load_profile     a cluster from YAML (or a shipped one by name)
simulate         one algorithm on it, in virtual time -> Result
compare          every algorithm on it, tuned, with intervals -> Comparison
Result           Schedule and figures of one run: .table(), .plot()
Comparison       figures of all: .table(), .plot(), .to_json()
sweep            many clusters, a grid or a Latin hypercube -> Sweep
Schedule         the log everything is drawn from; hetsim.schedule
Algorithm        base class of algorithms; hetsim.algorithms
HetsimError      what everything here raises; hetsim.errors

hetsim.cluster      profiles, catalogue        hetsim.compute, hetsim.network   how long things take
hetsim.runtime      programs on a virtual clock  hetsim.convergence             loss from a Schedule
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetsim.errors import HetsimError

if TYPE_CHECKING:
    from hetsim.algorithms import Algorithm
    from hetsim.cluster import Profile, load_profile
    from hetsim.compare import Comparison, compare
    from hetsim.schedule import Schedule
    from hetsim.simulate import Result, simulate
    from hetsim.sweeps import Sweep, sweep

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Comparison",
    "HetsimError",
    "Profile",
    "Result",
    "Schedule",
    "Sweep",
    "compare",
    "load_profile",
    "simulate",
    "sweep",
]

_HOME = {
    "Algorithm": "hetsim.algorithms",
    "Comparison": "hetsim.compare",
    "Profile": "hetsim.cluster",
    "Result": "hetsim.simulate",
    "Schedule": "hetsim.schedule",
    "Sweep": "hetsim.sweeps",
    "compare": "hetsim.compare",
    "load_profile": "hetsim.cluster",
    "simulate": "hetsim.simulate",
    "sweep": "hetsim.sweeps",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import hetsim` and `hetsim --help` stay quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'hetsim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `hetsim.simulate` and `hetsim.compare` the functions, also after the submodules of that name were imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if _HOME.get(name) == f"hetsim.{name}" and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
