"""What the study's scripts share: every batch and variant of a contestant on one seed, pieces computed in parallel, kept and read.

A piece is a JSON file in a folder while it is computed; a whole study is kept in one file, a piece a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from design import Contestant
from joblib import Parallel, delayed

from hetsim import writing
from hetsim.cluster.spec import Cluster
from hetsim.sweeps.cell import run_cell

SEED = 0
CLEARLY = 1.1  # [our choice] several times what a steady state is off as a rule
FIGURES = ("seconds", "samples_to_target", "updates_to_target", "learning_rate", "momentum", "method")
NEEDS = frozenset({"kind", "size", "name", "tried", "best"})  # of a piece of the study


def tried(one: Contestant, cluster_at: Callable[[int], Cluster]) -> list[dict[str, Any]]:
    """Every variant, tuned, with the batches from the middle of the grid outwards, each on the cluster with that batch.

    Times have one valley over batches, so a side is left after the first batch that takes CLEARLY times as long as the soonest does, or
    does not reach the target where another did. `seconds` is None where the target is not reached.
    """
    middle = len(one.values) // 2
    rows: list[dict[str, Any]] = []
    for side in (one.values[middle:], one.values[:middle][::-1]):
        for value in side:
            found = run_cell(cluster_at(value), [*one.beside, *one.labels], "nqm", "auto", 1, SEED)[len(one.beside) :]
            here = [
                {"label": label, "batch": value} | {key: row[key] for key in FIGURES}
                for label, row in zip(one.labels, found, strict=True)
            ]
            rows += here
            best, best_here = soonest(rows), soonest(here)
            if best is not None and (best_here is None or best_here["seconds"] > CLEARLY * best["seconds"]):
                break
    return sorted(rows, key=lambda row: row["batch"])


def soonest(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of those that reach the target."""
    return min((row for row in rows if row["seconds"] is not None), key=lambda row: row["seconds"], default=None)


def compute(piece: Callable[..., str], missing: Sequence[tuple[Any, ...]], jobs: int) -> None:
    """Call `piece` with each of these arguments, in so many processes; what it returns is told as it is ready."""
    run = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    for done, said in enumerate(run(delayed(piece)(*each) for each in missing), 1):
        print(f"{done}/{len(missing)} {said}", file=sys.stderr, flush=True)


def read(place: Path, needs: Set[str] = NEEDS) -> list[dict[str, Any]]:
    """All pieces of a folder, or of the file that `keep` wrote. Raises SystemExit where there are none, or what is there is none: not an
    object of JSON with the keys that it needs."""
    if place.is_dir():
        found = [(path, path.read_text(encoding="utf-8")) for path in sorted(place.glob("*.json"))]
    elif place.exists():
        found = [(place, line) for line in place.read_text(encoding="utf-8").splitlines()]
    else:
        raise SystemExit(f"{place}: no such folder or file")
    if not found:
        raise SystemExit(f"{place}: no pieces there")
    return [_parsed(path, text, needs) for path, text in found]


def read_one(place: Path) -> dict[str, Any]:
    """The piece of one file. Raises SystemExit where the file holds none."""
    return _parsed(place, place.read_text(encoding="utf-8"), NEEDS)


def _parsed(path: Path, text: str, needs: Set[str]) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SystemExit(f"{path}: not a piece ({error}); delete it and run again") from None
    if not isinstance(document, dict) or not needs <= document.keys():
        raise SystemExit(f"{path}: not a piece; delete it and run again")
    return document


def keep(documents: Sequence[dict[str, Any]], place: Path) -> None:
    """In one file, a piece a line."""
    writing.write_file(place, "".join(json.dumps(each, allow_nan=False) + "\n" for each in documents))
