"""sweep: every algorithm on many clusters, one for every point of a grid or a Latin hypercube.

    design    ranges, grids, hypercubes         spec     what is swept, and its YAML
    cells     one cluster for every point       cell     the figures of one of them
    table     the columns of the result         folder   shards, and how a sweep goes on
    summary   who wins where                    estimate what it will take
    page      the report
    composed  fields that stand for several     hetsim.speedup_map    two axes as a map

The figures depend on the specification alone: not on the number of processes, the backend, the order in which cells come in, or how often
the sweep was interrupted.
"""

from __future__ import annotations

from hetsim.sweeps.design import Axis, Latin, Span
from hetsim.sweeps.running import Sweep, run, sweep
from hetsim.sweeps.spec import SweepSpec, load_spec

__all__ = ["Axis", "Latin", "Span", "Sweep", "SweepSpec", "load_spec", "run", "sweep"]
