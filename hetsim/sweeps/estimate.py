"""What a sweep will take, from a few of its cells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hetsim.parallel import LOKY, job_count
from hetsim.sweeps.cell import run_cell
from hetsim.sweeps.cells import Cell, cells
from hetsim.sweeps.folder import Folder
from hetsim.sweeps.running import missing, piece
from hetsim.sweeps.spec import SweepSpec
from hetsim.sweeps.table import full_table, place_of

TIMED = 4  # cells that are computed for the estimate, spread over the sweep [our choice]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Cells in all, those still to compute, algorithms; seconds of one core for each of the cells that were timed; seconds and bytes of the
    whole on so many processes (None where a cluster's size is not known)."""

    cells: int
    todo: int
    algorithms: int
    rows: int
    cell_s: tuple[float, ...]
    processes: int | None
    seconds: float | None
    size_bytes: float


def estimate(
    spec: SweepSpec, *, jobs: int | None = None, backend: str = LOKY, folder: str | Path | None = None
) -> Estimate:
    """Compute a few cells here, the first one once more to warm up, and say what all would take; nothing is written."""
    all_cells = list(cells(spec))
    found = {}
    if folder is not None and Path(folder).exists():
        place = Folder.look(folder, spec)
        found = place.done() if place.table() is None else {cell.key: [] for cell in all_cells}
    todo = missing(all_cells, found)
    sample = (
        [todo[i] for i in sorted({round(j * (len(todo) - 1) / max(TIMED - 1, 1)) for j in range(TIMED)})]
        if todo
        else []
    )
    times, size = _timed(spec, sample)
    processes = job_count(jobs) if backend == LOKY or jobs is not None else None
    mean = sum(times) / len(times) if times else 0.0
    return Estimate(
        cells=len(all_cells),
        todo=len(todo),
        algorithms=len(spec.labels),
        rows=len(all_cells) * len(spec.labels),
        cell_s=tuple(times),
        processes=processes,
        seconds=None if processes is None else mean * len(todo) / min(processes, max(len(todo), 1)),
        size_bytes=size * len(all_cells),
    )


def _timed(spec: SweepSpec, sample: Sequence[Cell]) -> tuple[list[float], float]:
    """Seconds of each cell, and bytes per cell."""
    if not sample:
        return [], 0.0
    run_cell(*piece(spec, sample[0]))
    times, found = [], {}
    for cell in sample:
        begun = time.perf_counter()
        found[cell.key] = run_cell(*piece(spec, cell))
        times.append(time.perf_counter() - begun)
    table = full_table(spec.fields, [place_of(cell) for cell in sample], found)
    return times, table.nbytes / len(sample)
