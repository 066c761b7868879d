"""Jobs: shared by key, one in each slot, bounded, ended for good."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetsim.errors import HetsimError, SimulationError, UsageError
from hetsim.webapp.jobs import Board, Job, Progress

HERE = Path(__file__).parent


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def begin(
    board: Board, key: str, function: str, *args: Any, owner: str = "me", slot: str = "", urgent: bool = False
) -> Job:
    import job_functions

    return board.start(key, getattr(job_functions, function), args, owner, slot, urgent)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    made = Board(at_once=1)
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_a_job_says_how_far_it_is_and_returns_what_it_found(board: Board) -> None:
    job = begin(board, "sum", "add", 2, 3)
    assert job.wait(30) and job.state == "done" and job.result() == 5
    assert job.progress == Progress(2, 2, "added") and job.partial == 2 and job.progress.share == 1.0


def test_one_key_is_one_job_and_its_result_stays(board: Board) -> None:
    first = begin(board, "sum", "add", 2, 3)
    assert begin(board, "sum", "add", 2, 3, owner="another") is first
    first.wait(30)
    assert begin(board, "sum", "add", 2, 3, owner="a third") is first and board.find("sum") is first


def test_errors_of_hetsim_come_back_as_they_are_and_others_in_words(board: Board) -> None:
    refused = begin(board, "refused", "refuse")
    refused.wait(30)
    with pytest.raises(UsageError, match="that cannot be"):
        refused.result()
    broken = begin(board, "broken", "divide")
    broken.wait(30)
    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        broken.result()
    again = begin(board, "broken", "divide")
    assert again is not broken, "what failed may be tried again"


def test_a_job_killed_from_outside_fails_in_words(board: Board) -> None:
    job = begin(board, "long", "sleep")
    until(lambda: job.partial)
    os.kill(job.partial, 9)
    assert job.wait(30) and job.state == "failed"
    with pytest.raises(HetsimError, match="ended before it was done"):
        job.result()


def test_what_prints_does_not_come_between(board: Board) -> None:
    job = begin(board, "loud", "shout")
    assert job.wait(30) and job.result() == "heard"


def test_cancelling_ends_the_process_and_lets_the_next_begin(board: Board) -> None:
    job = begin(board, "long", "sleep")
    after = begin(board, "after", "add", 1, 1, owner="another")
    until(lambda: job.partial)
    assert after.state == "waiting", "one at a time"
    pid = job.partial
    job.cancel("me")
    assert job.state == "cancelled" and job.over
    until(lambda: not alive(pid))
    assert after.wait(30) and after.result() == 2


def test_who_still_wants_it_keeps_it(board: Board) -> None:
    job = begin(board, "long", "sleep", owner="me")
    begin(board, "long", "sleep", owner="you")
    job.cancel("me")
    assert job.state == "running"
    job.cancel("you")
    assert job.state == "cancelled"


def test_another_in_the_same_slot_takes_its_place(board: Board) -> None:
    old = begin(board, "long", "sleep", slot="tuning")
    aside = begin(board, "aside", "sleep", slot="map")
    new = begin(board, "new", "add", 1, 2, slot="tuning")
    assert old.state == "cancelled" and aside.state in ("waiting", "running")
    aside.cancel("me")
    assert new.wait(30) and new.result() == 3


def test_what_a_person_waits_for_does_not_wait_for_the_background(board: Board) -> None:
    background = begin(board, "long", "sleep", slot="full")
    asked = begin(board, "asked", "add", 1, 2, slot="map", urgent=True)
    assert asked.wait(30) and asked.result() == 3 and background.state == "running"
    first = begin(board, "map", "sleep", owner="one", urgent=True)
    second = begin(board, "plan", "sleep", owner="another", urgent=True)
    assert (first.state, second.state) == ("running", "waiting"), "of its own kind, one at a time"


def test_what_is_out_of_date_is_given_up(board: Board) -> None:
    old = begin(board, "old", "sleep", slot="full")
    aside = begin(board, "aside", "sleep", slot="map", urgent=True)
    board.keep_only("full", ["new"], "another")
    assert old.state == "running", "who asks has no part in it"
    board.keep_only("full", ["new"], "me")
    assert (old.state, aside.state) == ("cancelled", "running")
    kept = begin(board, "kept", "sleep", slot="full")
    board.keep_only("full", ["kept"], "me")
    assert kept.state == "running"


def test_who_has_left_wants_nothing_in_the_background(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsim.webapp import jobs

    background = begin(board, "full", "sleep", owner="gone")
    shared = begin(board, "shared", "sleep", owner="gone", slot="of the baseline")
    begin(board, "shared", "sleep", owner="me", slot="of mine")
    asked = begin(board, "map", "sleep", owner="gone", slot="map", urgent=True)
    monkeypatch.setattr(jobs, "_is_there", lambda owner: owner != "gone")
    begin(board, "mine", "add", 1, 2, owner="me", urgent=True)
    assert (background.state, asked.state) == ("cancelled", "running")
    assert shared.state == "running", "its turn has come, and one who wants it is there"


def test_what_is_no_longer_asked_for_is_forgotten(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsim.webapp import jobs

    monkeypatch.setattr(jobs, "MOST_KEPT", 2)
    for k in range(4):
        assert begin(board, f"sum {k}", "add", k, k).wait(30)
    assert begin(board, "last", "add", 0, 0).wait(30)
    assert board.find("sum 0") is None and board.find("sum 3") is not None


def test_there_is_an_end_to_what_waits(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsim.webapp import jobs

    monkeypatch.setattr(jobs, "MOST_WAITING", 2)
    for k in range(3):
        begin(board, f"long {k}", "sleep", owner=f"{k}")
    with pytest.raises(SimulationError, match="too much is waiting"):
        begin(board, "more", "sleep", owner="more")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes in groups are of POSIX systems")
def test_an_app_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = tmp_path / "app_that_dies.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import job_functions\n"
        "from hetsim.webapp import jobs\n"
        "job = jobs.start('long', job_functions.sleep, owner='me')\n"
        "while not job.partial: time.sleep(0.02)\n"
        f"open({str(note)!r}, 'w').write(str(job.partial))\n"
        "os.kill(os.getpid(), 9)\n",
        encoding="utf-8",
    )
    assert subprocess.run([sys.executable, str(script)], timeout=60).returncode != 0
    until(lambda: not alive(int(note.read_text())))
