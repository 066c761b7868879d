"""What `run.py` and `drawn.py` share: every batch and variant of a contestant on one seed, and pieces computed in parallel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from design import REFERENCE, Contestant
from joblib import Parallel, delayed

from hetsim.cluster.spec import Cluster
from hetsim.sweeps.cell import run_cell

SEED = 0
FIGURES = ("seconds", "samples_to_target", "learning_rate", "momentum", "method")


def tried(one: Contestant, cluster_at: Callable[[int], Cluster]) -> list[dict[str, Any]]:
    """Every variant with every batch, tuned, on the cluster with that batch; `seconds` is None where the target is not reached."""
    rows = []
    for value in one.values:
        beside = [label for label in (REFERENCE,) if label not in one.labels]
        found = run_cell(cluster_at(value), [*beside, *one.labels], "nqm", "auto", 1, SEED)[len(beside) :]
        for label, row in zip(one.labels, found, strict=True):
            rows.append({"label": label, "batch": value} | {key: row[key] for key in FIGURES})
    return rows


def soonest(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of those that reach the target."""
    return min((row for row in rows if row["seconds"] is not None), key=lambda row: row["seconds"], default=None)


def compute(piece: Callable[..., str], missing: Sequence[tuple[Any, ...]], jobs: int) -> None:
    """Call `piece` with each of these arguments, in so many processes; what it returns is told as it is ready."""
    run = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    for done, said in enumerate(run(delayed(piece)(*each) for each in missing), 1):
        print(f"{done}/{len(missing)} {said}", file=sys.stderr, flush=True)
