"""Rank processes on this machine: watched until all have ended, none left behind, and who broke the run, in words.

    failed = watch(codes)            # codes(): every rank's exit code, None while it runs
    end(processes, codes)            # on every way out
    raise RankFailedError(f"… {culprit(folder, failed, codes()).what} …")

Live runs and replays start their ranks in their own ways and share this. A rank that fails leaves a word in the run's folder
(`leave_word`); one that is killed leaves none, which is how the two are told apart.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hetsim import writing
from hetsim.errors import HetsimError, SimulationError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
POLL_S = 0.05  # [our choice]
STOP_BY_ITSELF_S = 4.0  # ranks of a run that broke see the broken connection at once, or at their next poll
STOP_ON_SIGNAL_S = 2.0  # with the four seconds above well under ten [our choice]

Codes = Callable[[], Sequence[int | None]]


class RankFailedError(SimulationError):
    """A rank failed or died; the message names it. `again`: a new attempt may go better, as after a death."""

    again = False


class Process(Protocol):
    """What is asked of a process."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The rank that broke a run, what happened to it, and whether a new attempt may go better."""

    rank: int
    what: str
    again: bool


@contextmanager
def folder_or_temporary(folder: str | Path | None) -> Iterator[Path]:
    """The folder, made where it is missing, or one that goes when the block ends. Raises UsageError where it cannot be made."""
    if folder is not None:
        with writing.told(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hetsim-run-") as made:
        yield Path(made)


def watch(codes: Codes, meanwhile: Callable[[], None] = lambda: None) -> list[int]:
    """Wait until all have ended; after the first failure those that are left have a moment. Ranks in the order in which they failed.

    `meanwhile` is called again and again."""
    failed: list[int] = []
    until = float("inf")
    while True:
        now = codes()
        failed += [rank for rank, code in enumerate(now) if code and rank not in failed]
        if failed:
            until = min(until, time.monotonic() + STOP_BY_ITSELF_S)
        if None not in now or time.monotonic() >= until:
            return failed
        meanwhile()
        time.sleep(POLL_S)


def end(processes: Sequence[Process], codes: Codes) -> None:
    """No process is left behind; all of them have been started."""
    for process, code in zip(processes, codes(), strict=True):
        if code is None:
            process.terminate()
    until = time.monotonic() + STOP_ON_SIGNAL_S
    while None in codes() and time.monotonic() < until:
        time.sleep(POLL_S)
    for process, code in zip(processes, codes(), strict=True):
        if code is None:
            process.kill()
    while None in codes():
        time.sleep(POLL_S)


def culprit(folder: str | Path, failed: Sequence[int], codes: Sequence[int | None]) -> Culprit:
    """Which rank broke the run: one that died without a word, else one whose own error it was, else the first to fail."""
    words = {rank: word_of(folder, rank) for rank in failed}
    silent = [rank for rank in failed if words[rank] is None]
    own = [rank for rank in failed if (word := words[rank]) is not None and not word["peer"]]
    rank = [*silent, *own, *failed][0]
    word, code = words[rank], codes[rank]
    if word is not None:
        return Culprit(rank=rank, what=f"failed: {word['message']}", again=not word["final"])
    if code is not None and code < 0:
        return Culprit(rank=rank, what=f"was killed by {signal.Signals(-code).name}", again=True)
    return Culprit(rank=rank, what=f"ended with exit code {code}", again=True)


def leave_word(folder: str | Path, rank: int, error: BaseException) -> None:
    """What a rank failed of. `peer`: of another rank's going; `final`: it would come again."""
    import torch.distributed as dist

    from abs_sgd.checkpoint import whole_file
    from abs_sgd.runtime.wire import PeerLostError

    peer, known = isinstance(error, PeerLostError | dist.DistError), isinstance(error, HetsimError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    said = {"rank": rank, "peer": peer, "final": known and not peer, "message": message}
    try:
        with whole_file(_word(folder, rank)) as temporary:
            temporary.write_text(json.dumps(said), encoding="utf-8")
    except OSError as unwritten:  # a full disk is often what it failed of
        print(f"rank {rank} failed: {message} (and {unwritten.strerror} for its word)", file=sys.stderr, flush=True)


def word_of(folder: str | Path, rank: int) -> dict[str, Any] | None:
    """What a rank left; None where it left nothing."""
    try:
        return dict(json.loads(_word(folder, rank).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget_words(folder: str | Path, ranks: int) -> None:
    """Before a run: what an earlier one left says nothing about it."""
    for rank in range(ranks):
        _word(folder, rank).unlink(missing_ok=True)


def _word(folder: str | Path, rank: int) -> Path:
    return Path(folder, f"rank-{rank}.error.json")
