"""The study: how much faster than the best tuned baseline is ABS-SGD, over three kinds of cluster and three sizes.

    python benchmarks/study/run.py -o study            # computes what is missing, then prints the tables
    python benchmarks/study/run.py -o study --kinds unequal --sizes 4
    python benchmarks/study/run.py -o study --from benchmarks/study/found.jsonl    # goes on from what was found and kept in one file

1. **Choose.** Every algorithm with the batches of its grid on one seed, learning rate and momentum tuned for each: steady states
   (docs/sweeps.md), a changing cluster as it stays after its last change. The soonest batch (and variant) is kept; the grid is walked
   from its middle as long as batches get sooner.
2. **Repeat.** At that batch the whole run, as `hetsim compare` does it, changes included: tuned on the first of five seeds, repeated on the
   others. All algorithms meet the same luck on the same seed. Where over 20,000 updates are expected one seed must do.

Each piece is a file of its own in the folder, so a run that was stopped goes on where it was; Ctrl-C loses the pieces under way.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results
from design import KINDS, LONG, MAX_SAMPLES, ROOM, SEEDS, SIZES, Contestant, after_changes, contestants, profile_of
from pieces import SEED, compute, read, read_one, soonest, tried

from hetsim import compare, writing
from hetsim.simulate import versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, then print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a JSON file per piece")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: all")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="default: all")
    parser.add_argument("--algorithms", default=None, help="default: every registered one")
    parser.add_argument(
        "--from", dest="kept", type=Path, metavar="FILE", help="put the pieces of this file where the folder lacks them"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="count what is missing")
    asked = parser.parse_args(arguments)
    kinds, sizes = asked.kinds.split(","), asked.sizes.split(",")
    chosen = [c for c in contestants() if asked.algorithms is None or c.name in asked.algorithms.split(",")]
    known = {"--kinds": (kinds, list(KINDS)), "--sizes": (sizes, [*map(str, SIZES)])}
    if asked.algorithms is not None:
        known["--algorithms"] = (asked.algorithms.split(","), [c.name for c in contestants()])
    for option, (given, there) in known.items():
        if odd := [each for each in given if each not in there]:
            parser.error(f"{option}: {', '.join(odd)}: not one of {', '.join(there)}")
    folder = Path(asked.output)
    if asked.kept is not None:
        _unpack(asked.kept, folder)
    pieces = [(kind, size, one) for size in map(int, sizes) for kind in kinds for one in chosen]
    missing = [p for p in pieces if not _is_kept(folder, *p)]
    print(f"{len(pieces)} pieces, {len(missing)} to compute", file=sys.stderr)
    if asked.dry_run:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    compute(piece, [(folder, *each) for each in missing], asked.jobs)
    print("\n\n".join(results.tables(results.read(folder))))
    return 0


def _place(folder: Path, kind: str, size: int, name: str) -> Path:
    return folder / f"{KINDS[kind]}-{size}.{name.replace(':', '_').replace('=', '-')}.json"


def _unpack(kept: Path, folder: Path) -> None:
    """Each piece of one file into a file of its own, unless the folder has it."""
    folder.mkdir(parents=True, exist_ok=True)
    for document in read(kept):
        place = _place(folder, document["kind"], document["size"], document["name"])
        if not place.exists():
            _write(place, document)


def _write(place: Path, document: dict[str, Any]) -> None:
    writing.write_file(place, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _is_kept(folder: Path, kind: str, size: int, one: Contestant) -> bool:
    """Whether the piece is there, of the variants that are asked for now, with batches of the grid, repeated as often as it should be."""
    place = _place(folder, kind, size, one.name)
    if (rows := _chosen(place, one)) is None:
        return False
    best, repeated = soonest(rows), read_one(place)["best"]
    return best is None or repeated is None or repeated["seeds"] >= _seeds(best)


def _chosen(place: Path, one: Contestant) -> list[dict[str, Any]] | None:
    """What was tried, where all of that is what is asked for now; None otherwise."""
    if not place.exists():
        return None
    rows: list[dict[str, Any]] = read_one(place)["tried"]
    wanted = {row["label"] for row in rows} == set(one.labels) and {row["batch"] for row in rows} <= set(one.values)
    return rows if wanted else None


def _seeds(best: dict[str, Any]) -> int:
    return SEEDS if best.get("updates_to_target", math.inf) <= LONG else 1


def piece(folder: Path, kind: str, size: int, one: Contestant) -> str:
    """One algorithm on one cluster: choose its batch, repeat the run, keep both."""
    rows = _chosen(_place(folder, kind, size, one.name), one)
    if rows is None:
        rows = tried(
            one, lambda batch: after_changes(profile_of(kind, size, one.path, batch, one.max_samples).cluster())
        )
    best = soonest(rows)
    document: dict[str, Any] = {
        "kind": kind, "size": size, "name": one.name, "path": one.path, "seed": SEED, "versions": versions(),
        "tried": rows, "best": None if best is None else _repeated(kind, size, one.path, best),
    }  # fmt: skip
    _write(_place(folder, kind, size, one.name), document)
    seconds = None if document["best"] is None else document["best"]["row"]["seconds"]
    return f"{kind} {size} {one.name}: " + ("not reached" if seconds is None else f"{seconds:.0f} s")


def _repeated(kind: str, size: int, path: str, best: dict[str, Any]) -> dict[str, Any]:
    room = max(MAX_SAMPLES, math.ceil(ROOM * best["samples_to_target"]))
    seeds = _seeds(best)
    found = compare(profile_of(kind, size, path, best["batch"], room), [best["label"]], seeds=seeds, seed=SEED, jobs=1)
    (row,) = found.algorithms
    time = row.time_to_target_s
    assert time is not None
    return {
        "label": best["label"], "batch": best["batch"], "seeds": seeds, "seconds_by_seed": [*time.by_seed],
        "row": {
            "seconds": time.median, "learning_rate": row.learning_rate, "momentum": row.momentum,
            "samples": row.samples_to_target, "updates": row.updates_to_target, "samples_per_s": row.samples_per_s,
            "period_s": row.update_period_s, "batch_samples": row.mean_batch_samples, "utilisation": row.utilisation,
            "limited_by": row.limited_by, "role": row.role, "over_least": row.yardsticks.time_over_least,
            "over_critical": row.yardsticks.batch_over_critical,
        },
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
