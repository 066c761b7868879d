"""How long a person waits: `hetsim --help`, and `hetsim compare` on the default profile with both predictors.

    python benchmarks/startup.py [--runs 5] [--predictor nqm --predictor virtual]

Every command runs in a process of its own, from start to end, its output through a pipe read as it comes: `first row` is when the first
algorithm's line is there. Times are wall clock: best of `--runs` for the help, one run for a comparison. Goals on
two cores: .5 s, 15 s, 60 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from hetsim.algorithms import registry

HELP_GOAL_S = 0.5
COMPARE_GOALS_S = {"nqm": 15.0, "virtual": 60.0}


def run(*arguments: str) -> tuple[float, float | None]:
    """Seconds until the command ends, and until the first line that begins with an algorithm's name, on either stream."""
    command = Path(sys.executable).with_name("hetsim")
    names = tuple(registry())
    begun, first = time.perf_counter(), None
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if first is None and line.lstrip(" │|").startswith(names):
                first = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"hetsim {' '.join(arguments)} ended with {process.returncode}")
    return time.perf_counter() - begun, first


def row(label: str, seconds: float, first: float | None, goal: float) -> None:
    """One line of the table."""
    shown = "" if first is None else f"{first:.2f}"
    print(f"{label:<36}{shown:>12}{seconds:>10.2f}{goal:>8g}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--predictor", action="append", choices=COMPARE_GOALS_S, help="repeatable; default: both")
    o = parser.parse_args()
    print(f"{'command':<36}{'first row s':>12}{'total s':>10}{'goal s':>8}")
    row("hetsim --help", min(run("--help")[0] for _ in range(o.runs)), None, HELP_GOAL_S)
    for predictor in o.predictor or COMPARE_GOALS_S:
        arguments = ("compare",) if predictor == "nqm" else ("compare", "--predictor", predictor)
        seconds, first = run(*arguments)
        row("hetsim " + " ".join(arguments), seconds, first, COMPARE_GOALS_S[predictor])


if __name__ == "__main__":
    main()
