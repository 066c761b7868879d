"""Long work beside the app: each job in a process of its own, so that pages stay quick and a job can be ended at any moment.

    start(key, function, *args, slot=...) -> Job      job.state, job.progress, job.partial, job.result(), job.cancel()
    keep_only(slot, keys)                             what else the session has in that slot is given up

`function(*args, report)` is one that a process can import (not of a page's script); it calls `report(done, total, text)` as it goes, and
may hand over what there is so far: `report(done, total, text, partial)`.

One job per key, whoever asks: sessions that want the same share it, and find what earlier ones have left. A session has one job in each
slot; asking for another there gives up the earlier one, and a job that nobody wants any more is ended. Only so many run at a time, the
others wait in the order of asking; what a person waits for (`urgent`) has places of its own, and so never waits for what improves a
picture in the background. A process whose app is gone, however that came, ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from hetsim.errors import HetsimError, SimulationError
from hetsim.parallel import job_count

State = Literal["waiting", "running", "done", "failed", "cancelled"]
MOST_KEPT = 32  # finished jobs whose results are kept [our choice]; the least lately asked for go first
MOST_KEPT_BYTES = 600_000_000  # of them all [our choice]: a comparison over all seeds has 10 to 150 MB
MOST_WAITING = 64  # [our choice] so that many sessions cannot fill the memory with what is still to do


@dataclass(frozen=True)
class Progress:
    """How far a job is; `total` is 0 where it is not known yet."""

    done: int = 0
    total: int = 0
    text: str = ""

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else 0.0


class Job:
    """One piece of long work. Made by `start`."""

    def __init__(
        self, board: Board, key: Hashable, work: tuple[Callable[..., Any], tuple[Any, ...]], urgent: bool = False
    ) -> None:
        self.key = key
        self.urgent = urgent
        self.state: State = "waiting"
        self.progress = Progress()
        self.partial: Any = None
        self._board, self._work = board, work
        self._owners: set[tuple[str, str]] = set()
        self._result: Any = None
        self._bytes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self._over.is_set()

    def result(self) -> Any:
        """What the function returned; raises the HetsimError it raised, or SimulationError where it did not come to an end."""
        if self.state == "done":
            return self._result
        if isinstance(self._result, HetsimError):
            raise self._result
        raise SimulationError(str(self._result or f"not there yet: {self.state}"))

    @property
    def reason(self) -> str:
        """Why it is not done, in words."""
        return str(self._result or self.state)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is over, or so long; whether it is over."""
        return self._over.wait(timeout_s)

    def cancel(self, owner: str | None = None) -> None:
        """This session wants it no longer; it ends where no other does."""
        self._board.give_up(self, _session() if owner is None else owner)


class Board:
    """All jobs of one app."""

    def __init__(self, at_once: int | None = None) -> None:
        self._lock = threading.RLock()
        # One processor is left to the pages.
        self._at_once = max(1, job_count(None) - 1) if at_once is None else at_once
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()

    def start(
        self,
        key: Hashable,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        owner: str,
        slot: str,
        urgent: bool = False,
    ) -> Job:
        with self._lock:
            self._leave_to_none()
            job = self._jobs.get(key)
            if job is None or job.state in ("failed", "cancelled"):
                waiting = sum(j.state == "waiting" for j in self._jobs.values())
                if waiting >= MOST_WAITING:
                    raise SimulationError("too much is waiting to be computed; try again in a while")
                job = self._jobs[key] = Job(self, key, (function, args), urgent)
            job._owners.add((owner, slot))
            self._jobs.move_to_end(key)
            for other in list(self._jobs.values()):
                if other is not job and (owner, slot) in other._owners:
                    self._release(other, {(owner, slot)})
            self._forget()
            self._next()
            return job

    def find(self, key: Hashable) -> Job | None:
        with self._lock:
            return self._jobs.get(key)

    def give_up(self, job: Job, owner: str) -> None:
        with self._lock:
            self._release(job, {entry for entry in job._owners if entry[0] == owner})
            self._next()

    def keep_only(self, slot: str, keys: Collection[Hashable], owner: str) -> None:
        with self._lock:
            for job in list(self._jobs.values()):
                if job.key not in keys:
                    self._release(job, {(owner, slot)})
            self._next()

    def _leave_to_none(self) -> None:
        """What is computed in the background for people who have left is given up; what they asked for is not: they may come back."""
        for job in list(self._jobs.values()):
            if not job.urgent and not job.over and not any(_is_there(owner) for owner, _ in job._owners):
                self._release(job, set(job._owners))

    def close(self) -> None:
        """End all."""
        with self._lock:
            for job in self._jobs.values():
                self._release(job, set(job._owners))

    def _release(self, job: Job, owners: set[tuple[str, str]]) -> None:
        job._owners -= owners
        if not job._owners and not job.over:
            job.state = "cancelled"
            job._over.set()
            if job._process is not None:
                job._process.kill()

    def _forget(self) -> None:
        kept = [job for job in self._jobs.values() if job.over]
        size = sum(job._bytes for job in kept)
        while len(kept) > 1 and (len(kept) > MOST_KEPT or size > MOST_KEPT_BYTES):
            oldest = kept.pop(0)
            size -= oldest._bytes
            del self._jobs[oldest.key]

    def _next(self) -> None:
        for urgent in (True, False):
            mine = [job for job in self._jobs.values() if job.urgent == urgent]
            free = self._at_once - sum(job.state == "running" for job in mine)
            for job in [job for job in mine if job.state == "waiting"][: max(0, free)]:
                job.state = "running"
                threading.Thread(target=self._follow, args=(job,), daemon=True, name="hetsim job").start()

    def _follow(self, job: Job) -> None:
        """Run one job's process and take in what it says."""
        outcome: tuple[State, Any] = ("failed", "it could not be started")
        try:
            with _process() as process:
                with self._lock:
                    job._process = process
                    if job.over:
                        process.kill()
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):
                    pickle.dump(job._work, process.stdin)
                    process.stdin.flush()
                outcome = self._listen(job, process.stdout)
                process.kill()
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        except OSError as error:
            outcome = ("failed", f"it could not be started: {error.strerror or error}")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            outcome = ("failed", f"it cannot be handed to a process: {error}")
        finally:
            with self._lock:
                if not job.over:
                    job.state, job._result = outcome
                    job._over.set()
                job._process = None
                self._forget()
                self._next()

    def _listen(self, job: Job, stream: Any) -> tuple[State, Any]:
        while True:
            try:
                kind, content = pickle.load(stream)
            except (EOFError, pickle.UnpicklingError, OSError):
                return "failed", "its process ended before it was done (too little memory?)"
            if kind == "progress":
                job.progress, partial = content
                job.partial = job.partial if partial is None else partial
            elif kind == "done":
                job._bytes = len(content)
                return kind, pickle.loads(content)
            else:
                return kind, content


def _process() -> subprocess.Popen[bytes]:
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "hetsim.webapp.job_process"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **threads, "PYTHONPATH": path},
        start_new_session=sys.platform
        != "win32",  # Ctrl-C in the terminal is the app's; closing its pipe ends the process
    )


_BOARD = Board()


def start(
    key: Hashable,
    function: Callable[..., Any],
    *args: Any,
    slot: str = "",
    owner: str | None = None,
    urgent: bool = False,
) -> Job:
    """The job of that key, begun where there is none; `owner` is the session by default. Raises SimulationError where too much waits."""
    return _BOARD.start(key, function, args, _session() if owner is None else owner, slot, urgent)


def keep_only(slot: str, keys: Collection[Hashable]) -> None:
    """Give up what this session has in that slot, but for these keys."""
    _BOARD.keep_only(slot, keys, _session())


def find(key: Hashable) -> Job | None:
    """The job of that key where somebody has started it."""
    return _BOARD.find(key)


def _session() -> str:
    """Who asks: the id of the streamlit session."""
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else context.session_id


def _is_there(owner: str) -> bool:
    """Whether the browser of that session is connected; where there is no server, whoever asks is there."""
    from streamlit import runtime

    return not owner or not runtime.exists() or bool(runtime.get_instance().is_active_session(owner))
