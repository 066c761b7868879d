"""A validation on this machine beside the app: `hetsim validate` in a process of its own, on a leash, its progress followed.

    run = start(Order(profile_yaml=…, algorithms=("abs-sgd",), updates=30), alive=…)
    run.state, run.progress, run.words        # from a fragment that runs again and again
    run.cancel()

One at a time in the whole app: two that share the cores would spoil each other's figures. A run ends with the session that started it
(`alive` says whether it lives), with the app, and when it is cancelled; its process takes down its ranks and network namespaces.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hetsim.errors import HetsimError, UsageError
from hetsim.export import safe_label
from hetsim.validation_page import ValidationMaterial

State = Literal["running", "ending", "done", "failed", "cancelled"]
PACE_TOLERANCE, MOST_LATE = 0.25, 10.0  # of `hetsim validate`; beyond ten times it says nothing [our choice]
LEAST_UPDATES, MOST_UPDATES, MOST_RUNS = 4, 200, 3  # some minutes at most [our choice]
GONE_S = 15.0  # a session that has been away so long has not just reloaded its page [our choice]
LOOK_EVERY_S = 1.0
END_S = 25.0  # what a command on a leash gives itself, and a moment
MOST_WORDS = 40  # lines of what it said
HELD, MISSED = 0, 3  # exit codes of `hetsim validate` that leave a result
PROGRESS = re.compile(r"progress (\d+)/(\d+) (.*)")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be run."""

    profile_yaml: str
    name: str
    algorithms: tuple[str, ...]
    updates: int = 30
    runs: int = 1
    seed: int = 0
    pace_tolerance: float = PACE_TOLERANCE

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise UsageError("name an algorithm")
        if not LEAST_UPDATES <= self.updates <= MOST_UPDATES:
            raise UsageError(f"updates: {LEAST_UPDATES} to {MOST_UPDATES}, not {self.updates}")
        if not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(f"runs: 1 to {MOST_RUNS}, not {self.runs}")
        if not 0 <= self.pace_tolerance <= MOST_LATE:
            raise UsageError(f"pace tolerance: 0 to {MOST_LATE:g}, not {self.pace_tolerance:g}")

    def words(self) -> list[str]:
        """The options, as `hetsim validate` takes them after the profile."""
        named = [word for label in self.algorithms for word in ("-a", label)]
        numbers = {"updates": self.updates, "runs": self.runs, "seed": self.seed, "pace-tolerance": self.pace_tolerance}
        return [*named, *(word for name, value in numbers.items() for word in (f"--{name}", str(value)))]


class Run:
    """One validation under way, or what came of it. Made by `start`."""

    def __init__(self, order: Order, alive: Callable[[], bool]) -> None:
        self.order = order
        self.state: State = "running"
        self.progress: tuple[int, int, str] = (0, order.updates * order.runs * len(order.algorithms), "starting")
        self.words: deque[str] = deque(maxlen=MOST_WORDS)
        self.material: ValidationMaterial | None = None
        self.archive = b""
        self.began_s = time.monotonic()
        self._alive, self._lock = alive, threading.Lock()
        self._place = tempfile.TemporaryDirectory(prefix="hetsim-explorer-")
        try:
            self._process = self._started(Path(self._place.name))
        except OSError as error:
            self._place.cleanup()
            raise UsageError(f"hetsim validate cannot be started: {error.strerror or error}") from None
        for task in (self._follow, self._mind):
            threading.Thread(target=task, daemon=True, name="hetsim validation").start()

    @property
    def over(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Until it is over, or so long; whether it is over."""
        end = time.monotonic() + timeout_s
        while not self.over and time.monotonic() < end:
            time.sleep(0.05)
        return self.over

    def cancel(self) -> None:
        """Let go of the leash; at once, the process takes its time to clear up."""
        with self._lock:
            if self.state != "running":
                return
            self.state = "ending"
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        threading.Thread(target=self._make_sure, daemon=True, name="hetsim validation").start()

    # ---- the process and its threads ---------------------------------------------------------------------------------

    def _started(self, place: Path) -> subprocess.Popen[str]:
        (place / "profile.yaml").write_text(self.order.profile_yaml, encoding="utf-8")
        command = [sys.executable, "-m", "hetsim.cli.leashed", "validate", "profile.yaml", *self.order.words()]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        return subprocess.Popen(
            [*command, "-o", "result"],
            cwd=place,
            env={**os.environ, "HETSIM_PROGRESS": "lines", "PYTHONUTF8": "1", "PYTHONPATH": path, "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=os.name == "posix",  # Ctrl-C in the terminal is the app's
        )

    def _follow(self) -> None:
        """Take in what the process says, and at its end what it left."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := PROGRESS.match(line):
                self.progress = (int(found[1]), int(found[2]), found[3])
            elif line.strip():
                self.words.append(line.rstrip()[:2000])
        code = self._process.wait()
        state: State = "failed"
        if self.state == "ending":
            state = "cancelled"
        elif code in (HELD, MISSED):
            try:
                result = Path(self._place.name, "result")
                self.material, self.archive = _read(result), packed(result, safe_label(self.order.name))
                state = "done"
            except (HetsimError, OSError) as error:
                self.words.append(str(error))
        elif not self.words:
            self.words.append(f"the process ended with exit code {code}")
        self._place.cleanup()
        with self._lock:
            self.state = state

    def _mind(self) -> None:
        """End it where nobody is left who could want it."""
        gone_s: float | None = None
        while not self.over:
            time.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            gone_s = None if self._alive() else now if gone_s is None else gone_s
            if gone_s is not None and now - gone_s >= GONE_S:
                self.cancel()
                return

    def _make_sure(self) -> None:
        """A process that has not ended after its time is killed, and all that it has started with it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            return
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()


def _read(folder: Path) -> ValidationMaterial:
    from hetsim import validation_folder

    return validation_folder.read(folder)


def packed(folder: Path, name: str) -> bytes:
    """A folder as a zip archive, its files under `name`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"{name}/{path.relative_to(folder).as_posix()}")
    return out.getvalue()


# ---- one at a time ---------------------------------------------------------------------------------------------------------

_guard = threading.Lock()
_last: Run | None = None


def start(order: Order, alive: Callable[[], bool] = lambda: True) -> Run:
    """Begin. Raises UsageError where another one is under way, or torch is missing."""
    global _last
    why = unavailable()
    if why is not None:
        raise UsageError(why)
    with _guard:
        if _last is not None and not _last.over:
            raise UsageError(
                "another validation is under way in this explorer; two at once would spoil each other's figures"
            )
        _last = Run(order, alive)
        return _last


def unavailable() -> str | None:
    """Why nothing can be run on this machine; None where it can."""
    if find_spec("torch") is None or find_spec("abs_sgd") is None:
        return "Running for real needs torch: pip install 'hetsim[train]', or a CPU build of torch from pytorch.org."
    if find_spec("sklearn") is None:
        return "The workloads that are trained need scikit-learn: pip install 'hetsim[train]'."
    return None
