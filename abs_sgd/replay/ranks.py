"""Rank processes of a replay on this machine: started together, watched, never left behind.

What they need and what they find are files. Each has a pipe to this process as its standard input and ends when it closes, so that
none outlives it. After the first that fails the others have a moment to end by themselves, then they are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from abs_sgd.checkpoint import last_checkpoint
from abs_sgd.launch import LOOPBACK, RankFailedError
from abs_sgd.replay.job import CHECKPOINTS

POLL_S = 0.05  # [our choice]
STOP_BY_ITSELF_S = 4.0  # those that wait for the lost rank see the broken connection at once
STOP_ON_SIGNAL_S = 2.0  # with the four seconds above well under ten [our choice]


def run_ranks(folder: Path, jobs: Sequence[Path], names: Sequence[Sequence[str]]) -> None:
    """Run as many ranks as any job has names through all jobs until they have ended well.

    Raises RankFailedError, which names the one that did not, its last update and the last checkpoint.
    """
    for stale in folder.glob("rank-*"):
        stale.unlink()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(max(len(n) for n in names)):
            processes.append(_start(folder, rank, store.port, jobs))
        failed = _watch(processes)
    finally:
        _end(processes)
    if failed:
        raise RankFailedError(_verdict(folder, jobs, names, [p.returncode for p in processes], failed))


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


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Ranks that failed, in the order in which they did."""
    failed: list[int] = []
    until = float("inf")
    while any(p.poll() is None for p in processes) and time.monotonic() < until:
        _note(processes, failed)
        if failed:
            until = min(until, time.monotonic() + STOP_BY_ITSELF_S)
        time.sleep(POLL_S)
    _note(processes, failed)
    return failed


def _note(processes: Sequence[subprocess.Popen[bytes]], failed: list[int]) -> None:
    failed += [rank for rank, p in enumerate(processes) if p.poll() not in (None, 0) and rank not in failed]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + STOP_ON_SIGNAL_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _verdict(
    folder: Path,
    jobs: Sequence[Path],
    names: Sequence[Sequence[str]],
    codes: Sequence[int | None],
    failed: Sequence[int],
) -> str:
    """Which rank broke the run: one that died without a word, else one whose own error it was, else the first."""
    said = {rank: _error_of(folder, rank) for rank in failed}
    silent = [rank for rank in failed if said[rank] is None]
    own = [rank for rank in failed if (error := said[rank]) is not None and not error["peer"]]
    culprit = [*silent, *own, *failed][0]
    error, code = said[culprit], codes[culprit]
    if error is not None:
        what = f"failed: {error['message']}"
    elif code is not None and code < 0:
        what = f"was killed by {signal.Signals(-code).name}"
    else:
        what = f"ended with exit code {code}: {_last_line(folder / f'rank-{culprit}.log')}"
    number, updates = _last_update(folder, culprit)
    which = f" of run {number + 1} of {len(jobs)}" if len(jobs) > 1 else ""
    name = next(n[culprit] for n in (names[number], *names) if culprit < len(n))
    return (
        f"rank {culprit} ({name}) {what}; its last update was {updates}{which}; {last_checkpoint(jobs[number] / CHECKPOINTS)}; "
        "the replay has stopped, no process is left"
    )


def _last_update(folder: Path, rank: int) -> tuple[int, int]:
    """Which job a rank was at, and how many updates it had made."""
    try:
        number, updates = (folder / f"rank-{rank}.updates").read_text().split()
    except (FileNotFoundError, ValueError):  # none yet; killed while it wrote
        return 0, 0
    return int(number), int(updates)


def _error_of(folder: Path, rank: int) -> dict[str, object] | None:
    try:
        return dict(json.loads((folder / f"rank-{rank}.error.json").read_text()))
    except FileNotFoundError:
        return None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it said nothing"
