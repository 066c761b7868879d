"""One cell of a sweep: every algorithm on its cluster, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.sweeps.table import figures


def run_cell(
    cluster: Cluster, labels: Sequence[str], predictor: str, method: str, seeds: int, seed: int
) -> list[dict[str, Any]]:
    """The figures of all algorithms on one cluster, in the order of the labels; the same in any process."""
    from hetsim.compare import compare

    found = compare(cluster, labels, predictor=predictor, seeds=seeds, seed=seed, jobs=1)
    return [figures(row, "full") for row in found.algorithms]
