"""How many times faster one algorithm is than the best baseline, over two fields of a profile; a sweep of two axes as a map.

    m = speedup_map(load_profile("mixed-gpu-4"), "speed-ratio=1..8:5:log", "network.bandwidth_gbit_per_s=1..100:7:log")
    m.speedup        a number for every cell, nan where there is none; m.cell(i, j).why says why
    m.winner         who is the fastest

Every cell is one of `hetsim sweep`, computed the same way and with the same figures; `m.command(...)` is the sweep that gives them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster import Profile
from hetsim.errors import SimulationError, UsageError
from hetsim.sweeps.cells import Cell
from hetsim.sweeps.composed import COMPOSED, overrides_of
from hetsim.sweeps.design import Axis, read_axis
from hetsim.sweeps.running import run
from hetsim.sweeps.spec import SweepSpec, make_spec
from hetsim.verdict import BASELINE, MARGIN

LABEL = "abs-sgd"
PENDING = "not computed yet"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """One cluster of a map. `speedup`: the best baseline's seconds over the algorithm's own, nan where there is no such number, and `why`.

    `winner`: the fastest, None where nobody reaches the target; `clear`: it leads the second by more than `hetsim.verdict.MARGIN`.
    `seconds`: to the target, by label; None where it was not reached. `overrides`: what makes this cell of the profile, for `--set`.
    `pending`: of a map that is still being computed, and not there yet.
    """

    x: Any
    y: Any
    speedup: float
    why: str
    winner: str | None
    clear: bool
    baseline: str | None
    seconds: tuple[tuple[str, float | None], ...]
    overrides: tuple[str, ...]
    pending: bool = False


@dataclass(frozen=True, kw_only=True)
class SpeedupMap:
    """The cells by row, rows by `y_values`, in each by `x_values`. `label` is the algorithm whose speed-up it is.

    `steady`: how many of all rows are from the steady state of a short run (docs/sweeps.md), not followed to the target.
    """

    x: str
    x_values: tuple[Any, ...]
    y: str
    y_values: tuple[Any, ...]
    label: str
    labels: tuple[str, ...]
    seed: int
    cells: tuple[tuple[MapCell, ...], ...]
    steady: int

    def cell(self, i: int, j: int) -> MapCell:
        """The cell of `x_values[i]` and `y_values[j]`."""
        return self.cells[j][i]

    @property
    def speedup(self) -> NDArray[np.float64]:
        """`speedup[j, i]` at `x_values[i]`, `y_values[j]`."""
        return np.array([[cell.speedup for cell in row] for row in self.cells], dtype=np.float64)

    @property
    def winner(self) -> tuple[tuple[str | None, ...], ...]:
        """`winner[j][i]` at `x_values[i]`, `y_values[j]`."""
        return tuple(tuple(cell.winner for cell in row) for row in self.cells)

    @property
    def wins(self) -> dict[str, int]:
        """Label -> cells in which it is the fastest, most first."""
        found = Counter(cell.winner for row in self.cells for cell in row if cell.winner is not None)
        return dict(sorted(found.items(), key=lambda item: (-item[1], self.labels.index(item[0]))))

    @property
    def pending(self) -> int:
        """How many cells are not there yet."""
        return sum(cell.pending for row in self.cells for cell in row)

    def sentence(self) -> str:
        """What the map says, in a sentence or two."""
        values = self.speedup
        total, known = values.size, values[np.isfinite(values)]
        nobody = sum(cell.winner is None for row in self.cells for cell in row)
        if nobody == total:
            return f"Nothing reaches the target in any of {total} cells."
        first, cells = next(iter(self.wins.items()))
        said = f"{first} is the fastest in {cells} of {total} cells."
        if len(known):
            pays = int((known > 1.0 + MARGIN).sum())
            said += f" {self.label} pays in {pays} of the {known.size} where it and a baseline reach the target"
            said += f" ({known.min():.2f}× to {known.max():.2f}×)."
        return said + (f" Nobody reaches it in {nobody}." if nobody else "")

    def csv(self) -> str:
        """A line per cell: both fields, speed-up, winner, seconds by label; empty where the target was not reached."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [self.x, self.y, f"speedup_of_{self.label}", "why_not", "winner", "best_baseline"]
            + [f"{label}_s" for label in self.labels]
        )
        for row in self.cells:
            for cell in row:
                speedup = "" if math.isnan(cell.speedup) else repr(cell.speedup)
                times = ["" if s is None else repr(s) for _, s in cell.seconds]
                writer.writerow([cell.x, cell.y, speedup, cell.why, cell.winner or "", cell.baseline or "", *times])
        return out.getvalue()


def speedup_map(
    profile: Profile,
    x: str | Axis,
    y: str | Axis,
    algorithms: Sequence[str] | None = None,
    *,
    label: str = LABEL,
    seed: int = 0,
    jobs: int | None = 1,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    watch: Callable[[Callable[[], SpeedupMap]], None] | None = None,
) -> SpeedupMap:
    """The map over two axes, each as `hetsim sweep --over` takes it or made. `label` is taken along where `algorithms` lacks it.

    Corners come first, then what is half-way, so that what there is early shows the whole range: `watch` gets after each cell a function
    that makes the map as it is so far, the other cells pending. `progress(done, total)` counts cells; where `should_stop()` says so after
    one, it ends with SimulationError. Raises UsageError for axes or algorithms that cannot be, ProfileError for a cell that is no valid
    profile.
    """
    spec = map_spec(profile, x, y, algorithms, label=label, seed=seed)
    label, known = _normal(label), dict[int, Sequence[dict[str, Any]]]()
    ranks = [coarse_first(len(axis.values)) for axis in spec.axes]

    def order(cell: Cell) -> tuple[int, int]:
        i, j = divmod(cell.index, len(spec.axes[1].values))  # the last axis of a sweep changes fastest
        return max(ranks[0][i], ranks[1][j]), cell.index

    def seen(cell: Cell, rows: Sequence[dict[str, Any]]) -> None:
        if watch is not None:
            known[cell.index] = rows
            watch(lambda: _of_cells(spec, known, label))

    def told(_: str, done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)
        if should_stop is not None and should_stop():
            raise SimulationError(f"stopped after {done} of {total} cells")

    found = run(spec, jobs=jobs, progress=told, order=order, watch=seen)
    return of_rows(spec, found.rows(), label=label)


def coarse_first(count: int) -> tuple[int, ...]:
    """For each of so many places in a row, in which round it comes: both ends, what is half-way between them, and so on.

    >>> coarse_first(7)
    (0, 2, 3, 1, 2, 3, 0)
    """
    rounds = {0: 0, count - 1: 0}
    spans, number = [(0, count - 1)], 0
    while spans:
        number += 1
        halves = [(low, (low + high) // 2, high) for low, high in spans if high - low > 1]
        rounds |= {middle: number for _, middle, _ in halves}
        spans = [span for low, middle, high in halves for span in ((low, middle), (middle, high))]
    return tuple(rounds[place] for place in range(count))


def map_spec(
    profile: Profile,
    x: str | Axis,
    y: str | Axis,
    algorithms: Sequence[str] | None = None,
    *,
    label: str = LABEL,
    seed: int = 0,
) -> SweepSpec:
    """The sweep behind a map. Raises UsageError for axes and algorithms that cannot be."""
    axes = [read_axis(axis) if isinstance(axis, str) else axis for axis in (x, y)]
    wanted = None if algorithms is None else list(algorithms)
    spec = make_spec(profile, axes=axes, algorithms=wanted, seed=seed)
    if _normal(label) not in spec.labels:
        spec = make_spec(profile, axes=axes, algorithms=[*(wanted or spec.labels), label], seed=seed)
    if not any(_role(name) == BASELINE for name in spec.labels):
        raise UsageError(f"a speed-up needs something to compare with: name a baseline beside {label}, such as s-sgd")
    return spec


def of_rows(spec: SweepSpec, rows: Sequence[dict[str, Any]], *, label: str = LABEL) -> SpeedupMap:
    """The map of a sweep's rows (`Sweep.rows()`), whose two axes are x and y."""
    each = len(spec.labels)
    return _of_cells(spec, {k: rows[k * each : (k + 1) * each] for k in range(len(rows) // each)}, label)


def _of_cells(spec: SweepSpec, known: Mapping[int, Sequence[dict[str, Any]]], label: str) -> SpeedupMap:
    """The map of the cells that are known, by their number in the sweep."""
    x, y = spec.axes
    high = len(y.values)

    def cell(i: int, j: int) -> MapCell:
        point = x.values[i], y.values[j]
        rows = known.get(i * high + j)
        return _pending(*point) if rows is None else _cell(spec, point, rows, label)

    return SpeedupMap(
        x=x.field,
        x_values=x.values,
        y=y.field,
        y_values=y.values,
        label=label,
        labels=spec.labels,
        seed=spec.seed,
        cells=tuple(tuple(cell(i, j) for i in range(len(x.values))) for j in range(high)),
        steady=sum(row["method"] == "steady" for rows in known.values() for row in rows),
    )


def _pending(x: Any, y: Any) -> MapCell:
    return MapCell(
        x=x,
        y=y,
        speedup=math.nan,
        why=PENDING,
        winner=None,
        clear=False,
        baseline=None,
        seconds=(),
        overrides=(),
        pending=True,
    )


def _cell(spec: SweepSpec, point: tuple[Any, Any], rows: Sequence[dict[str, Any]], label: str) -> MapCell:
    reached = sorted((row for row in rows if row["seconds"] is not None), key=lambda row: float(row["seconds"]))
    baseline = next((row for row in reached if row["role"] == BASELINE), None)
    own = next(row for row in rows if row["algorithm"] == label)
    return MapCell(
        x=point[0],
        y=point[1],
        speedup=math.nan if own["speedup"] is None else own["speedup"],
        why=_why(label, own["seconds"] is not None, baseline is not None),
        winner=reached[0]["algorithm"] if reached else None,
        clear=bool(reached) and (len(reached) < 2 or reached[1]["seconds"] > reached[0]["seconds"] * (1.0 + MARGIN)),
        baseline=None if baseline is None else baseline["algorithm"],
        seconds=tuple((row["algorithm"], row["seconds"]) for row in rows),
        overrides=overrides_at(spec.profile, dict(zip(spec.fields, point, strict=True))),
    )


def _why(label: str, own: bool, baseline: bool) -> str:
    if own:
        return "" if baseline else f"no baseline reaches the target, {label} does"
    return f"{label} does not reach the target" if baseline else f"neither {label} nor a baseline reaches the target"


def overrides_at(profile: Profile, values: dict[str, Any]) -> tuple[str, ...]:
    """What makes the cell of these values by field, as `--set` takes it."""
    out = [text for field in COMPOSED if field in values for text in overrides_of(profile, field, values[field])]
    return (*out, *(f"{field}={json.dumps(value)}" for field, value in values.items() if field not in COMPOSED))


def command(source: str, overrides: Sequence[str], axes: Sequence[str], labels: Sequence[str], seed: int = 0) -> str:
    """The `hetsim sweep` whose cells are those of a map; `axes` as `--over` takes them."""
    words = ["hetsim", "sweep", source]
    for override in overrides:
        words += ["--set", override]
    for axis in axes:
        words += ["--over", axis]
    for label in labels:
        words += ["-a", label]
    return shlex.join([*words, *(["--seed", str(seed)] if seed else [])])


def _normal(label: str) -> str:
    from hetsim.labels import parse

    return parse(label).label


def _role(label: str) -> str:
    from hetsim.algorithms import get
    from hetsim.labels import parse

    return get(parse(label).name).role
