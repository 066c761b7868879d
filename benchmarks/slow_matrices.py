"""The tests that take minutes: the full matrices, file by file, with what each took.

    python benchmarks/slow_matrices.py                  # all of them
    python benchmarks/slow_matrices.py replay wrapper   # files whose name contains a word
    python benchmarks/slow_matrices.py --list

One file after the other, since many of them fill the cores with processes of their own and some hang on the clock: run it on a machine
that does nothing else. First what needs no torch, then what trains, last what shapes links. A line is printed when a file has ended. What
failed is named below the table, and all that pytest said stays in the folder named there. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests/hetsim", "tests/cli", "tests/app", "tests/abs_sgd")
LAST = ("netlab", "validate")  # links of a shaped network, figures that hang on the clock
NOTHING_TO_RUN = 5  # pytest's exit code


@dataclass(frozen=True)
class Outcome:
    """How one file's slow tests ended."""

    file: str
    counts: Counter[str]
    seconds: float
    code: int
    log: Path

    @property
    def failed(self) -> bool:
        return self.code not in (0, NOTHING_TO_RUN)


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", "slow", "-p", "no:cacheprovider", *arguments]


def files() -> list[str]:
    """Test files with slow tests, in the order in which they are run."""
    said = subprocess.run(pytest("--collect-only", "-q"), cwd=ROOT, capture_output=True, text=True, check=False)
    if said.returncode not in (0, NOTHING_TO_RUN):
        sys.exit(said.stdout + said.stderr)
    found = dict.fromkeys(line.partition("::")[0] for line in said.stdout.splitlines() if "::" in line)
    return sorted(found, key=_rank)


def _rank(file: str) -> tuple[int, int, str]:
    last = max((LAST.index(word) + 1 for word in LAST if word in file), default=0)
    folder = next((at for at, name in enumerate(FOLDERS) if file.startswith(name)), len(FOLDERS))
    return last, folder, file


def run(file: str, logs: Path) -> Outcome:
    """All slow tests of one file."""
    log = logs / f"{Path(file).stem}.txt"
    report = log.with_suffix(".xml")
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        code = subprocess.run(
            pytest("--durations=5", f"--junitxml={report}", file),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            check=False,
        ).returncode
    seconds = time.monotonic() - began
    return Outcome(file, _counts(report), seconds, code, log)


def _counts(report: Path) -> Counter[str]:
    if not report.exists():
        return Counter(crashed=1)
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    cases = ET.parse(report).getroot().iter("testcase")
    return Counter(next((kinds[inner.tag] for inner in case if inner.tag in kinds), "passed") for case in cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only files whose name contains one of them")
    parser.add_argument("--list", action="store_true", help="name the files and run nothing")
    options = parser.parse_args()
    chosen = [file for file in files() if not options.words or any(word in file for word in options.words)]
    if options.list or not chosen:
        print("\n".join(chosen) or "no slow test fits")
        return 0 if chosen else 2
    logs = Path(tempfile.mkdtemp(prefix="hetsim-slow-"))
    width = max(map(len, chosen))
    print(f"{'file':<{width}}  passed  failed  skipped     time", flush=True)
    outcomes: list[Outcome] = []
    for file in chosen:
        found = run(file, logs)
        outcomes.append(found)
        passed, failed, skipped = (found.counts[kind] for kind in ("passed", "failed", "skipped"))
        print(f"{file:<{width}}  {passed:>6}  {failed:>6}  {skipped:>7}  {found.seconds:>5.0f} s", flush=True)
    total = sum((found.counts for found in outcomes), Counter[str]())
    seconds = sum(found.seconds for found in outcomes)
    print(f"{'all':<{width}}  {total['passed']:>6}  {total['failed']:>6}  {total['skipped']:>7}  {seconds:>5.0f} s")
    for found in outcomes:
        if found.failed:
            lines = found.log.read_text(encoding="utf-8", errors="replace").splitlines()
            print(
                f"\n{found.file}: exit code {found.code}\n"
                + "\n".join(x for x in lines if x.startswith(("FAILED", "ERROR")))
            )
    print(f"\nwhat pytest said: {logs}")
    return int(any(found.failed for found in outcomes))


if __name__ == "__main__":
    sys.exit(main())
