"""How long a sweep takes, and what the short way costs in accuracy.

    OMP_NUM_THREADS=1 python benchmarks/sweep.py [--cells 1000] [--check 8] [--jobs 2]

A Latin hypercube over the bandwidth, the global batch and the speed of the slowest GPU of mixed-gpu-4, eight algorithms in every cell, the
predictor nqm. Goal: 1,000 cells in under 120 s on two cores. Then some cells, evenly spread, are computed once more as `hetsim compare`
does it, and times to target compared.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np
from joblib.externals.loky import get_reusable_executor

from hetsim import load_profile
from hetsim.algorithms import registry
from hetsim.sweeps import Latin, Span, run
from hetsim.sweeps.cell import run_cell
from hetsim.sweeps.cells import cells
from hetsim.sweeps.running import piece
from hetsim.sweeps.spec import SweepSpec, make_spec

GOAL_S, GOAL_CELLS = 120.0, 1000
FIELDS = (
    ("network.bandwidth_gbit_per_s", Span(low=1, high=100, log=True)),
    ("training.global_batch_samples", Span(low=128, high=2048, log=True, whole=True)),
    ("workers.d.samples_per_s", Span(low=200, high=2000, log=True)),
)


def specification(count: int) -> SweepSpec:
    """The sweep."""
    latin = Latin(fields=FIELDS, samples=count)
    return make_spec(load_profile("mixed-gpu-4"), latin=latin, algorithms=list(registry()))


def check(spec: SweepSpec, rows: list[dict[str, Any]], count: int) -> None:
    """Print how far the times of some cells are from those of comparisons."""
    every = list(cells(spec))
    chosen = [every[i] for i in np.linspace(0, len(every) - 1, count).round().astype(int)]
    errors: dict[str, list[float]] = {label: [] for label in spec.labels}
    only = dict.fromkeys(spec.labels, 0)
    same_winner = 0
    begun = time.process_time()
    for cell in chosen:
        short = [row for row in rows if row["cell"] == cell.index]
        full = run_cell(*piece(replace(spec, method="full"), cell))
        for one, other in zip(short, full, strict=True):
            if one["seconds"] and other["seconds"]:
                errors[one["algorithm"]].append(one["seconds"] / other["seconds"] - 1.0)
            elif one["seconds"] or other["seconds"]:
                only[one["algorithm"]] += 1
        same_winner += fastest(short) == fastest(full)
    print(f"\n{count} cells as compare computes them: {(time.process_time() - begun) / count:.1f} s of a core a cell")
    print(f"{'algorithm':<26}{'cells':>6}{'median error':>14}{'largest':>10}{'reached by one only':>21}")
    for label, found in errors.items():
        if found:
            middle, most = np.median(np.abs(found)), found[int(np.argmax(np.abs(found)))]
            print(f"{label:<26}{len(found):>6}{100 * middle:>12.2f} %{100 * most:>+8.1f} %{only[label]:>21}")
        else:
            print(f"{label:<26}{0:>6}{'–':>14}{'–':>10}{only[label]:>21}")
    print(f"the same algorithm is fastest in {same_winner} of {count} cells")


def processor_s() -> float:
    """Processor time of this process and of those it started that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def fastest(rows: list[dict[str, Any]]) -> str | None:
    """The label with the least time."""
    reached = [row for row in rows if row["seconds"]]
    return min(reached, key=lambda row: row["seconds"])["algorithm"] if reached else None


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=GOAL_CELLS)
    parser.add_argument("--check", type=int, default=8, metavar="N", help="cells to compute in full as well")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    spec = specification(arguments.cells)
    begun, before = time.perf_counter(), processor_s()
    rows = run(spec, jobs=arguments.jobs).rows()
    wall = time.perf_counter() - begun
    get_reusable_executor().shutdown(wait=True)  # what processes have used is known when they have ended
    used = processor_s() - before
    print(
        f"{'cells':>6}{'algorithms':>12}{'processes':>11}{'seconds':>9}{'processor s':>13}{'ms each':>9}{'goal s':>8}"
    )
    each = 1e3 * used / (arguments.cells * len(spec.labels))
    goal = GOAL_S * arguments.cells / GOAL_CELLS
    sizes = f"{arguments.cells:>6,}{len(spec.labels):>12}{arguments.jobs:>11}"
    print(f"{sizes}{wall:>9.1f}{used:>13.1f}{each:>9.1f}{goal:>8.0f}")
    ways = {way: sum(row["method"] == way for row in rows) for way in ("steady", "full")}
    print(", ".join(f"{count:,} rows {way}" for way, count in ways.items()), flush=True)
    if arguments.check:
        check(spec, rows, arguments.check)


if __name__ == "__main__":
    main()
