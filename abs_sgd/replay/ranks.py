"""Rank processes of a replay on this machine: started together, watched, never left behind.

What they need and what they find are files. Each has a pipe to this process as its standard input and ends when it closes, so that
none outlives it. After the first that fails the others have a moment to end by themselves, then they are ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from abs_sgd.checkpoint import CHECKPOINTS, last_checkpoint
from abs_sgd.processes import LOOPBACK, RankFailedError, culprit, end, watch, word_of


def run_ranks(folder: Path, jobs: Sequence[Path], names: Sequence[Sequence[str]]) -> None:
    """Run as many ranks as any job has names through all jobs until they have ended well.

    Raises RankFailedError, which names the one that did not, its last update and the last checkpoint.
    """
    for stale in folder.glob("rank-*"):
        stale.unlink()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    processes: list[subprocess.Popen[bytes]] = []

    def codes() -> list[int | None]:
        return [p.poll() for p in processes]

    try:
        for rank in range(max(len(n) for n in names)):
            processes.append(_start(folder, rank, store.port, jobs))
        failed = watch(codes)
    finally:
        end(processes, codes)
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    if failed:
        raise RankFailedError(_verdict(folder, jobs, names, codes(), failed))


def _start(folder: Path, rank: int, port: int, jobs: Sequence[Path]) -> subprocess.Popen[bytes]:
    environment = {"GLOO_SOCKET_IFNAME": LOOPBACK, **os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with (folder / f"rank-{rank}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "abs_sgd.replay.process", str(folder), str(rank), str(port), *map(str, jobs)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process, which then ends the ranks
        )
    (folder / f"rank-{rank}.pid").write_text(str(process.pid))  # for whoever wants to look at it, or to end it
    return process


def _verdict(
    folder: Path,
    jobs: Sequence[Path],
    names: Sequence[Sequence[str]],
    codes: Sequence[int | None],
    failed: Sequence[int],
) -> str:
    broke = culprit(folder, failed, codes)
    what = broke.what
    if (codes[broke.rank] or 0) > 0 and word_of(folder, broke.rank) is None:
        what += f": {_last_line(folder / f'rank-{broke.rank}.log')}"
    number, updates = _last_update(folder, broke.rank)
    which = f" of run {number + 1} of {len(jobs)}" if len(jobs) > 1 else ""
    name = next(n[broke.rank] for n in (names[number], *names) if broke.rank < len(n))
    saved = last_checkpoint(jobs[number] / CHECKPOINTS)
    return f"rank {broke.rank} ({name}) {what}; its last update was {updates}{which}; {saved}; the replay has stopped, no process is left"


def _last_update(folder: Path, rank: int) -> tuple[int, int]:
    """Which job a rank was at, and how many updates it had made."""
    try:
        number, updates = (folder / f"rank-{rank}.updates").read_text().split()
    except (FileNotFoundError, ValueError):  # none yet; killed while it wrote
        return 0, 0
    return int(number), int(updates)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it said nothing"
