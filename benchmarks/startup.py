"""How long a person waits: `hetsim --help`, and `hetsim compare` on the default profile with both predictors.

    python benchmarks/startup.py [--runs 5] [--predictor nqm --predictor virtual]

Every command runs in a process and on a terminal of its own, from start to end; `first row` is when the first line that begins with
an algorithm's name is on the screen. Wall clock: best of `--runs` for the help, one run for a comparison.
`cpu s` is the processor time of all processes of the command: on a busy machine the wall clock says more about the others, and on two idle
cores the total is at least half of it. Goals on two cores: .5 s, 15 s, 60 s.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from hetsim.algorithms import registry

HELP_GOAL_S = 0.5
COMPARE_GOALS_S = {"nqm": 15.0, "virtual": 60.0}


def run(*arguments: str) -> tuple[float, float | None, float]:
    """Seconds until the command ends, until the first line that begins with an algorithm's name, and on all processors together."""
    command = [str(Path(sys.executable).with_name("hetsim")), *arguments]
    names = tuple(name.encode() for name in registry())
    ours, theirs = pty.openpty()
    begun, first, shown, before = time.perf_counter(), None, b"", cpu_s()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "120"})
    os.close(theirs)
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            piece = b""
        if not piece:
            break
        shown += piece
        if first is None and any(plain(line).startswith(names) for line in shown.splitlines()):
            first = time.perf_counter() - begun
    os.close(ours)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{shown.decode(errors='replace')}")
    return time.perf_counter() - begun, first, cpu_s() - before


def cpu_s() -> float:
    """Processor time of every child so far, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plain(line: bytes) -> bytes:
    """A line as a person reads it: without colours and frames."""
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", line).lstrip(" │┃|".encode())


def row(label: str, seconds: float, first: float | None, used_s: float, goal: float) -> None:
    """One line of the table."""
    shown = "" if first is None else f"{first:.2f}"
    print(f"{label:<36}{shown:>12}{seconds:>10.2f}{used_s:>8.2f}{goal:>8g}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--predictor", action="append", choices=COMPARE_GOALS_S, help="repeatable; default: both")
    o = parser.parse_args()
    print(f"{'command':<36}{'first row s':>12}{'total s':>10}{'cpu s':>8}{'goal s':>8}")
    seconds, first, used_s = min((run("--help") for _ in range(o.runs)), key=lambda found: found[0])
    row("hetsim --help", seconds, first, used_s, HELP_GOAL_S)
    for predictor in o.predictor or COMPARE_GOALS_S:
        arguments = ("compare",) if predictor == "nqm" else ("compare", "--predictor", predictor)
        seconds, first, used_s = run(*arguments)
        row("hetsim " + " ".join(arguments), seconds, first, used_s, COMPARE_GOALS_S[predictor])


if __name__ == "__main__":
    main()
