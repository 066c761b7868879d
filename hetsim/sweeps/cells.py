"""The cells of a sweep: one cluster for every point, with a key that stands for its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster.loader import profile_tree, rebuilt
from hetsim.cluster.spec import Cluster
from hetsim.errors import ProfileError, UsageError
from hetsim.labels import parse
from hetsim.sweeps.composed import COMPOSED, overrides_of
from hetsim.sweeps.design import points
from hetsim.sweeps.spec import SweepSpec


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point: its number, the values of the swept fields, the cluster they make, and the key of its figures.

    Cells of equal numbers have equal keys and equal figures.
    """

    index: int
    values: tuple[Any, ...]
    cluster: Cluster
    key: str


def cells(spec: SweepSpec) -> Iterator[Cell]:
    """Every cell in order. Raises ProfileError for the first one that is no valid profile, naming field and value."""
    tree = profile_tree(spec.profile)
    chosen = [parse(label) for label in spec.labels]
    for index, values in enumerate(points(spec.axes, spec.latin)):
        stated = dict(zip(spec.fields, values, strict=True))
        where = f"cell {index} ({', '.join(f'{field}={json.dumps(value)}' for field, value in stated.items())})"
        try:
            several = [
                text
                for field in COMPOSED
                if field in stated
                for text in overrides_of(spec.profile, field, stated.pop(field))
            ]
            cluster = rebuilt(tree, stated, overrides=several, name=where, flag="sweep").cluster()
            for contender in chosen:
                contender.algorithm(cluster.options)
        except ProfileError:
            raise
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        yield Cell(index=index, values=values, cluster=cluster, key=_key(spec, cluster))


def _key(spec: SweepSpec, cluster: Cluster) -> str:
    """Of the numbers: name, description and sources of a cluster are words on which no figure depends."""
    numbers = replace(cluster, name="", description="", sources={})
    how = (spec.labels, spec.predictor, spec.method, spec.seeds, spec.seed)
    return hashlib.sha256(repr((numbers, how)).encode()).hexdigest()
