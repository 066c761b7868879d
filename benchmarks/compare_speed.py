"""How long a comparison takes: every algorithm, tuned, on all seeds of a profile, and when the first algorithm is complete.

    python benchmarks/compare_speed.py [PROFILE ...] [--predictor nqm] [--jobs 2]

Goals on two cores for the default profile: nqm within 15 s, virtual within 60 s. Every comparison runs in a process of its own, so that the
imports count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

GOALS_S = {"nqm": 15.0, "virtual": 60.0}
ONE = """
import sys, time
from hetsim import load_profile
from hetsim.compare import compare

if __name__ == "__main__":
    name, predictor, jobs = sys.argv[1:]
    begun, first = time.perf_counter(), []
    profile = load_profile(name or None)
    found = compare(profile, predictor=predictor, jobs=int(jobs) or None,
                    progress=lambda *_: first.append(time.perf_counter() - begun))
    reached = sum(row.time_to_target_s.reached > 0 for row in found.algorithms)
    print(found.profile, f"{first[0]:.1f}", reached, len(found.algorithms), sep="\\t")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", default=[""])
    parser.add_argument("--predictor", action="append", help="repeatable; default: nqm")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: one per CPU")
    arguments = parser.parse_args()
    print(f"{'profile':<22}{'predictor':<13}{'first done s':>13}{'total s':>9}{'goal s':>8}   reached")
    for profile in arguments.profiles or [""]:
        for predictor in arguments.predictor or ["nqm"]:
            begun = time.perf_counter()
            command = [sys.executable, "-c", ONE, profile, predictor, str(arguments.jobs)]
            name, first, reached, rows = subprocess.run(command, check=True, text=True, stdout=-1).stdout.split("\t")
            total = time.perf_counter() - begun
            goal = GOALS_S.get(predictor, float("nan"))
            print(
                f"{name:<22}{predictor:<13}{first:>13}{total:>9.1f}{goal:>8.0f}   {reached} of {rows.strip()}",
                flush=True,
            )


if __name__ == "__main__":
    main()
