"""Commands on a leash, and progress in lines: what a program that starts them relies on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetsim.cli import terminal

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def start(*words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hetsim.cli.leashed", *words],
        cwd=ROOT,
        env={**os.environ, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_on_a_leash_does_what_it_does_without() -> None:
    process = start("profiles", "--json")
    assert process.stdout is not None and '"mixed-gpu-4"' in process.stdout.read()
    assert process.wait(PATIENCE_S) == 0
    wrong = start("simulate", "nothing-like-it", "-a", "s-sgd")
    assert wrong.stderr is not None and "nothing-like-it" in wrong.stderr.read()
    assert wrong.wait(PATIENCE_S) == 2


def test_closing_the_leash_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("simulate", "mixed-gpu-16", "-a", "asgd", "--updates", "400000", "-o", str(tmp_path / "out"))
    process = start(*words)
    assert process.stdin is not None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)  # it is at work
    process.stdin.close()
    assert process.wait(PATIENCE_S) != 0
    assert process.stderr is not None and "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_progress_in_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setenv(terminal.PROGRESS, "lines")
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with terminal.progress_bar("working") as advance:
        advance(0, 9, "a")
        advance(1, 9, "a")  # too soon
        now[0] += 1.0
        advance(2, 9, "a")
        advance(3, 9, "b")  # another thing
        advance(9, 9, "b")  # done
        advance(9, 9, "")
    assert capsys.readouterr().err.splitlines() == [
        "progress 0/9 a",
        "progress 2/9 a",
        "progress 3/9 b",
        "progress 9/9 b",
        "progress 9/9 working",
    ]
