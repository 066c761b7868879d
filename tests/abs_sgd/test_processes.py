"""Rank processes: failures seen whenever they come, nobody left behind, the right one named."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from abs_sgd.processes import culprit, end, folder_or_temporary, forget_words, leave_word, watch, word_of
from abs_sgd.runtime.wire import PeerLostError
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


class Ending:
    """Exit codes of ranks that end with `code` when asked for the `asks`-th time; None: never."""

    def __init__(self, *ranks: tuple[int | None, int]) -> None:
        self.ranks, self.asked = ranks, 0

    def __call__(self) -> list[int | None]:
        self.asked += 1
        return [code if self.asked > asks else None for code, asks in self.ranks]


@pytest.mark.parametrize("asks", range(4))
def test_a_failure_is_seen_whenever_its_exit_code_comes(asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abs_sgd.processes.STOP_BY_ITSELF_S", 0.2)
    monkeypatch.setattr("abs_sgd.processes.POLL_S", 0.01)
    assert watch(Ending((None, 0), (1, asks), (0, asks))) == [1]
    assert watch(Ending((0, asks), (0, 0))) == []
    assert watch(Ending((1, asks + 2), (-9, asks))) == [1, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_nobody_is_left_behind_whatever_it_makes_of_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abs_sgd.processes.STOP_ON_SIGNAL_S", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    programs = (deaf, "import time; print(flush=True); time.sleep(600)", "print()")
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for program in programs]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    processes[2].wait()
    end(processes, lambda: [p.poll() for p in processes])
    assert [p.returncode for p in processes] == [-signal.SIGKILL, -signal.SIGTERM, 0]
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()


def test_who_broke_the_run_is_the_one_without_a_word_then_the_one_with_an_error_of_its_own(tmp_path: Path) -> None:
    leave_word(tmp_path, 0, PeerLostError("all-reduce 3 failed"))
    leave_word(tmp_path, 1, ValueError("no memory left"))
    leave_word(tmp_path, 2, UsageError("cannot be emulated here"))
    leave_word(tmp_path, 3, dist.DistNetworkError("connection reset"))
    codes = [1, 1, 1, 1, -signal.SIGKILL, 7]
    for failed, rank, what, again in (
        ([0, 1, 2, 4], 4, "was killed by SIGKILL", True),
        ([0, 5, 1], 5, "ended with exit code 7", True),
        ([0, 3, 1, 2], 1, "failed: ValueError: no memory left", True),
        ([3, 2], 2, "failed: cannot be emulated here", False),  # it would come again
        ([3, 0], 3, "failed: DistNetworkError: connection reset", True),
    ):
        found = culprit(tmp_path, failed, codes)
        assert (found.rank, found.what, found.again) == (rank, what, again)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"rank-{rank}.error.json" for rank in range(4)]
    forget_words(tmp_path, 4)
    assert word_of(tmp_path, 1) is None and not list(tmp_path.iterdir())


def test_a_word_that_cannot_be_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_word(tmp_path / "gone", 1, UsageError("the disk is full"))
    assert "rank 1 failed: the disk is full" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/run"):
        with pytest.raises(UsageError, match=r"file.*: cannot be written"), folder_or_temporary(tmp_path / place):
            pass
