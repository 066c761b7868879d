"""Who wins where, and where ABS-SGD pays: a sweep in a few figures."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.verdict import BASELINE, MARGIN

if TYPE_CHECKING:
    import pyarrow as pa

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How many times faster than the best baseline one algorithm is over the cells where both reach the target.

    `cells`: how many those are; `pays`: in how many it is faster by more than a hundredth (`hetsim.verdict.MARGIN`); `alone`: where it
    reaches the target and no baseline does. `quantiles` of the ratio at `QUANTILES`, empty without cells. `best`, `worst`: numbers of
    the cells with the largest and the smallest ratio.
    """

    algorithm: str
    cells: int
    pays: int
    alone: int
    quantiles: tuple[float, ...]
    best: int | None
    worst: int | None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Where one algorithm pays along one field: (from, to, cells, cells where it pays), for each value or quarter of the values."""

    algorithm: str
    field: str
    bands: tuple[tuple[Any, Any, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """`wins`: label -> cells in which it is the fastest, most first; `nobody`: cells without any algorithm at the target.

    `gains` and `trends` of every algorithm that is no baseline, in the order of the table.
    """

    cells: int
    wins: dict[str, int]
    nobody: int
    gains: tuple[Gain, ...]
    trends: tuple[Trend, ...]


def summarise(table: pa.Table, fields: Sequence[str]) -> Summary:
    """The summary of a sweep's table."""
    labels = [str(label) for label in dict.fromkeys(table["algorithm"].to_pylist())]
    seconds = np.array([math.inf if s is None else s for s in table["seconds"].to_pylist()]).reshape(-1, len(labels))
    roles = dict(zip(table["algorithm"].to_pylist(), table["role"].to_pylist(), strict=True))
    is_baseline = np.array([roles[label] == BASELINE for label in labels])
    reached = np.isfinite(seconds).any(axis=1)
    wins = Counter(labels[i] for i in seconds.argmin(axis=1)[reached].tolist())
    best_baseline = seconds[:, is_baseline].min(axis=1, initial=math.inf)
    ours = [(i, label) for i, label in enumerate(labels) if not is_baseline[i]]
    values = {field: table[field].to_pylist()[:: len(labels)] for field in fields}
    pays = {label: seconds[:, i] * (1.0 + MARGIN) < best_baseline for i, label in ours}
    return Summary(
        cells=len(seconds),
        wins=dict(sorted(wins.items(), key=lambda item: -item[1])),
        nobody=int((~reached).sum()),
        gains=tuple(_gain(label, seconds[:, i], best_baseline) for i, label in ours),
        trends=tuple(
            Trend(algorithm=label, field=field, bands=_bands(values[field], pays[label]))
            for _, label in ours
            for field in fields
        ),
    )


def _gain(label: str, own: np.ndarray[Any, Any], baseline: np.ndarray[Any, Any]) -> Gain:
    both = np.isfinite(own) & np.isfinite(baseline)
    ratio = baseline[both] / own[both]
    numbers = np.flatnonzero(both)
    return Gain(
        algorithm=label,
        cells=int(both.sum()),
        pays=int((ratio > 1.0 + MARGIN).sum()),
        alone=int((np.isfinite(own) & ~np.isfinite(baseline)).sum()),
        quantiles=tuple(np.quantile(ratio, QUANTILES).tolist()) if len(ratio) else (),
        best=int(numbers[ratio.argmax()]) if len(ratio) else None,
        worst=int(numbers[ratio.argmin()]) if len(ratio) else None,
    )


MOST_BANDS = 8  # single values up to here, quarters beyond [our choice]


def _bands(values: Sequence[Any], pays: np.ndarray[Any, Any]) -> tuple[tuple[Any, Any, int, int], ...]:
    distinct = sorted(set(values), key=lambda v: (isinstance(v, str), v is None, v if v is not None else 0))
    if len(distinct) <= MOST_BANDS or not all(isinstance(v, int | float) for v in distinct):
        chosen = [(v, v) for v in distinct[:MOST_BANDS]]
    else:
        edges = [distinct[round(q * (len(distinct) - 1))] for q in (0.0, 0.25, 0.5, 0.75, 1.0)]
        chosen = list(itertools.pairwise(edges))
    out = []
    for i, (low, high) in enumerate(chosen):
        last = i == len(chosen) - 1
        inside = [
            v == low if low == high else v is not None and low <= v and (v < high or (last and v <= high))
            for v in values
        ]
        mask = np.array(inside, bool)
        out.append((low, high, int(mask.sum()), int(pays[mask].sum())))
    return tuple(out)
