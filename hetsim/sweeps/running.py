"""Runs a sweep: what is missing, in parallel, kept as it comes in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.parallel import LOKY, job_count, run_pieces, split_backend
from hetsim.sweeps.cell import run_cell
from hetsim.sweeps.cells import Cell, cells
from hetsim.sweeps.design import Axis, Latin, Span
from hetsim.sweeps.folder import Folder
from hetsim.sweeps.spec import Method, SweepSpec, make_spec
from hetsim.sweeps.table import full_table, place_of

if TYPE_CHECKING:
    import pyarrow as pa

    from hetsim.sweeps.summary import Summary

Progress = Callable[[str, int, int], None]
Watch = Callable[[Cell, "Rows"], None]
SHARD_S = 2.0  # at most so much work is lost by a kill, beside what is being computed [our choice]
SHARD_CELLS = 256  # and no shard has more cells [our choice]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A sweep done. `table`: a row for every cell and algorithm (`hetsim.sweeps.table`). `computed`: cells computed now, not found done."""

    spec: SweepSpec
    table: pa.Table
    computed: int

    def summary(self) -> Summary:
        """Who wins where, and where ABS-SGD pays."""
        from hetsim.sweeps.summary import summarise

        return summarise(self.table, self.spec.fields)

    def plot(self, algorithm: str = "abs-sgd") -> Any:
        """Speed of one algorithm over the best baseline, over two fields, as a plotly figure; None where nothing can be drawn."""
        from hetsim.sweeps.page import speedup_map

        return speedup_map(self.table, self.spec.fields, algorithm)

    def rows(self) -> Rows:
        """The table as plain rows."""
        found: Rows = self.table.to_pylist()
        return found


def sweep(
    profile: Any = None,
    *,
    over: Mapping[str, Sequence[Any]] | None = None,
    latin: Mapping[str, tuple[float, float] | Span] | None = None,
    samples: int = 100,
    algorithms: Sequence[str] | None = None,
    predictor: str = "nqm",
    method: Method = "auto",
    seeds: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    backend: str = LOKY,
    folder: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Every algorithm on many clusters, one for every point.

    `profile`: a Profile, or what `load_profile` takes. `over`: values by field, every combination a cell. `latin`: ranges by field, filled
    by `samples` points of a Latin hypercube; with both, the hypercube at every point of the grid. `algorithms`, `predictor`, `seeds`,
    `seed`, `jobs` as in `compare`, but one seed where nothing is said. `method`: `full` computes every cell like `compare`; `auto` takes
    a shorter way where there is one. `backend`: `loky`, or a cluster through joblib: `dask:tcp://host:8786`, `ray:address`. `folder`:
    where the result is kept, and an interrupted sweep goes on. Raises ProfileError for a cell that is no valid profile, UsageError for
    everything else that cannot be.

    >>> from hetsim import sweep
    >>> s = sweep("homogeneous-4", over={"network.bandwidth_gbit_per_s": [1, 10]}, algorithms=["s-sgd"], predictor="noise-scale", jobs=1)
    >>> [(row["cell"], row["algorithm"], row["reached"]) for row in s.rows()]
    [(0, 's-sgd', 1), (1, 's-sgd', 1)]
    """
    from hetsim.cluster import Profile, load_profile

    axes = [Axis(field=field, values=tuple(values)) for field, values in (over or {}).items()]
    spans = tuple((f, s if isinstance(s, Span) else Span(low=s[0], high=s[1])) for f, s in (latin or {}).items())
    spec = make_spec(
        profile if isinstance(profile, Profile) else load_profile(profile),
        axes=axes,
        latin=Latin(fields=spans, samples=samples, seed=seed) if spans else None,
        algorithms=algorithms,
        predictor=predictor,
        method=method,
        seeds=seeds,
        seed=seed,
    )
    return run(spec, jobs=jobs, backend=backend, folder=folder, force=force, progress=progress)


def run(
    spec: SweepSpec,
    *,
    jobs: int | None = None,
    backend: str = LOKY,
    folder: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    order: Callable[[Cell], Any] | None = None,
    watch: Watch | None = None,
) -> Sweep:
    """Run a specification. `progress(what, done, total)` is called before the first cell and after each.

    `order`: what cells are sorted by before they are computed; figures do not depend on it. `watch(cell, rows)` gets the figures of each
    cell that is computed now, as they come in; of cells with equal numbers the first alone.
    """
    split_backend(backend)
    all_cells = list(cells(spec))
    place = None if folder is None else Folder.open(folder, spec, force=force)
    table = None if place is None else place.table()
    if table is not None:
        return Sweep(spec=spec, table=table, computed=0)
    found = {} if place is None else place.done()
    todo = missing(all_cells, found)
    if order is not None:
        todo.sort(key=order)
    keeper = _Keeper(place, found, todo, len({cell.key for cell in all_cells}), progress, watch)
    processes = job_count(jobs) if backend == LOKY or jobs is not None else None
    try:
        run_pieces([(run_cell, piece(spec, cell)) for cell in todo], processes, keeper.take, backend)
    finally:
        keeper.keep()  # also what was done before an interruption
    table = full_table(spec.fields, [place_of(cell) for cell in all_cells], found)
    if place is not None:
        place.finish(table)
    return Sweep(spec=spec, table=table, computed=len(todo))


def missing(all_cells: Sequence[Cell], found: Mapping[str, Rows]) -> list[Cell]:
    """The cells whose figures are not there, each key once."""
    return list({cell.key: cell for cell in all_cells if cell.key not in found}.values())


def piece(spec: SweepSpec, cell: Cell) -> tuple[Any, ...]:
    """The arguments of `run_cell`."""
    return cell.cluster, spec.labels, spec.predictor, spec.method, spec.seeds, spec.seed


class _Keeper:
    """Takes figures as they come in, and writes them every few seconds."""

    def __init__(
        self,
        place: Folder | None,
        found: dict[str, Rows],
        todo: Sequence[Cell],
        total: int,
        progress: Progress | None,
        watch: Watch | None,
    ) -> None:
        self.place, self.found, self.todo, self.total = place, found, todo, total
        self.progress, self.watch = progress, watch
        self.fresh: dict[str, Rows] = {}
        self.kept_s = time.monotonic()
        self._tell("")

    def take(self, index: int, rows: Rows) -> None:
        cell = self.todo[index]
        self.found[cell.key] = self.fresh[cell.key] = rows
        if len(self.fresh) >= SHARD_CELLS or time.monotonic() - self.kept_s >= SHARD_S:
            self.keep()
        if self.watch is not None:
            self.watch(cell, rows)
        self._tell(f"cell {cell.index}")

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, len(self.found), self.total)

    def keep(self) -> None:
        """Write what is not yet written."""
        if self.place is not None and self.fresh:
            self.place.add(self.fresh)
        self.fresh, self.kept_s = {}, time.monotonic()
