"""Does the prediction hold: three kinds of cluster, four algorithms, five paired seeds, run for real on this machine.

    python benchmarks/validate_clusters.py -o held
    python benchmarks/validate_clusters.py -o held --profiles emulated-4 --algorithms s-sgd,abs-sgd --runs 1 --updates 20

Each cell (a profile and an algorithm) is a file of its own in the folder; one that is there already with the same runs and updates is not
run again. The table at the end is of all cells asked for, in Markdown; the exit code is 3 where a prediction did not hold. Links are
shaped, which needs root and tc; `--unshaped` goes without and says so. Takes some 20 s a run, 20 minutes in all.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from abs_sgd.validate import validate
from hetsim import load_profile, writing
from hetsim.errors import HetsimError

PROFILES = ("emulated-4", "emulated-4-slow-link", "emulated-4-changing")
# Balancers that react to .5 %, where the default band of 2 % lets batches rest 2 % apart, which is two runs and two answers.
ALGORITHMS = ("s-sgd", "lb-bsp:dead_band=0.005", "one-step-delay-balanced:dead_band=0.005", "abs-sgd")
OUTSIDE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table."""
    asked = _parse(arguments)
    folder = Path(asked.output)
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for profile in asked.profiles.split(","):
        for algorithm in asked.algorithms.split(","):
            cells.append(_cell(folder, profile, algorithm, asked))
            print(f"{profile}, {algorithm}: {cells[-1]['verdict']}", file=sys.stderr, flush=True)
    print(table(cells))
    print(f"\n`{shlex.join(['python', 'benchmarks/validate_clusters.py', *(arguments or sys.argv[1:])])}`")
    return 0 if all(cell["within"] for cell in cells) else OUTSIDE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a JSON file per cell")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--unshaped", action="store_true", help="links as they are here")
    return parser.parse_args(arguments)


def _cell(folder: Path, profile: str, algorithm: str, asked: argparse.Namespace) -> dict[str, Any]:
    """What the folder has of it, or run now."""
    place = folder / f"{profile}.{algorithm.replace(':', '_').replace('=', '-')}.json"
    if place.exists():
        found = dict(json.loads(place.read_text(encoding="utf-8")))
        same = (len(found["seeds"]), found["updates"], found["shaped"]) == (
            asked.runs,
            asked.updates,
            not asked.unshaped,
        )
        if same:
            return found
    made = validate(
        load_profile(profile), [algorithm], runs=asked.runs, updates=asked.updates, shape=not asked.unshaped
    )
    writing.write_file(place, json.dumps(made.document, indent=2, allow_nan=False) + "\n")
    return made.document


def _median_period(row: dict[str, Any], side: str) -> float:
    return median(run[side]["update_period_s"] for run in row["runs"])


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Markdown, a row per cell. Periods carry the sign of measured over predicted."""
    lines = [
        "| profile | algorithm | period, median | period, worst | worst share | time to target, median | late passes | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        row = cell["algorithms"][0]
        periods = [run["measured"]["update_period_s"] / run["predicted"]["update_period_s"] - 1 for run in row["runs"]]
        shares = [run["share_error"] for run in row["runs"]]
        share = "infinite" if any(each is None for each in shares) else f"{max(shares):.1%}"
        time = row["errors"]["time_to_target_median"]
        late = sum(sum(run["late_passes"].values()) for run in row["runs"])
        numbers = [
            f"{_median_period(row, 'measured') / _median_period(row, 'predicted') - 1:+.1%}",
            f"{max(periods, key=abs):+.1%}",
            share,
            "not compared" if time is None else f"{time:.1%}",
            str(late),
        ]
        verdict = "held" if row["within"] else "**did not hold**"
        lines.append(f"| {cell['profile']} | {row['name']} | {' | '.join(numbers)} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HetsimError as error:
        sys.exit(f"error: {error}")
