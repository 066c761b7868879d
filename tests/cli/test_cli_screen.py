"""How the command behaves as a process: start-up, terminals, pipes, colours, widths, interruption."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HETSIM = [sys.executable, "-m", "hetsim"]
SIMULATE = [*HETSIM, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "20"]
LONG = [
    *HETSIM,
    "compare",
    "mixed-gpu-16",
    "--set",
    "training.max_samples=50000000",
    "--set",
    "training.target_loss=0.05",
    "--jobs",
    "2",
]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")}
    return {**kept, **more}


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom hetsim.cli import main\nassert main(['--help']) == 0\nprint(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "hetsim.cli" in loaded
    heavy = {
        "numpy",
        "scipy",
        "plotly",
        "pydantic",
        "pyarrow",
        "ruamel",
        "simpy",
        "joblib",
        "torch",
        "streamlit",
        "abs_sgd",
    }
    assert not heavy & loaded


def test_no_escape_codes_outside_a_terminal_and_no_progress() -> None:
    done = subprocess.run(SIMULATE, capture_output=True, text=True, check=True, env=environment())
    assert "\x1b" not in done.stdout and done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
@pytest.mark.parametrize("no_color", [False, True])
def test_no_color_is_honoured_on_a_terminal(no_color: bool) -> None:
    import pty

    parent, child = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="100", **({"NO_COLOR": "1"} if no_color else {}))
    command = [*HETSIM, "compare", "homogeneous-4", "-a", "s-sgd", "-a", "abs-sgd"]
    command += ["--set", "training.target_loss=1.2", "--set", "training.seeds=2", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=env, close_fds=True)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes with the process
        while chunk := os.read(parent, 65536):
            shown += chunk
    os.close(parent)
    assert process.wait() == 0
    text = shown.decode()
    assert "timing first" in text  # first rows come before the learning
    assert text.index("timing first") < text.index("to target")
    colours = re.findall(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;[\d;]+)m", text)
    assert bool(colours) != no_color
    assert "▶" in text  # the best row is not told by colour alone


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_fit_the_width(width: int) -> None:
    command = [
        *HETSIM,
        "compare",
        "homogeneous-4",
        "-a",
        "one-step-delay-balanced:compute_point=current",
        "-a",
        "s-sgd",
        "-a",
        "abs-sgd",
    ]
    command += ["--set", "training.target_loss=1.2", "--set", "training.seeds=2", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(COLUMNS=str(width)))
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert ("update" in "".join(lines[:6])) == (width >= 120)  # wider screens show more
    said = [line for line in lines if "hidden" in line]
    assert said == ([] if width >= 120 else ["busy, batch, update hidden: 102 columns or --json show them"])
    assert "…" not in "".join(lines[:14])  # nothing is cut


def test_what_goes_into_a_pipe_has_whole_tables() -> None:
    command = [*HETSIM, "compare", "homogeneous-4", "-a", "s-sgd", "-a", "abs-sgd", "--quick"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, env=environment()
    )
    assert "update" in "".join(done.stdout.splitlines()[:6]) and "hidden" not in done.stdout
    assert 80 < max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file on a disk that is full")
@pytest.mark.parametrize("words", ["profiles", "schema"])
def test_a_full_disk_is_one_line_and_a_closed_output_none(words: str) -> None:
    def said(redirect: str) -> tuple[int, str]:
        line = " ".join([*map(shlex.quote, HETSIM), words, redirect])
        done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stderr

    assert said(">/dev/full") == (1, "error: the output cannot be written: No space left on device\n")
    assert said(">&-") == (0, "")


def test_a_closed_pipe_is_quiet() -> None:
    first = subprocess.Popen([*HETSIM, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert first.stdout is not None and first.stderr is not None
    first.stdout.close()  # the reader leaves before anything is written
    assert first.stderr.read() == b""
    assert first.wait() == 0


def test_output_survives_a_terminal_that_knows_only_ascii() -> None:
    done = subprocess.run(
        SIMULATE, capture_output=True, check=False, env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    )
    assert done.returncode == 0, done.stderr
    assert b"samples/s" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a process group are a Unix thing")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_no_file_and_no_process(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*LONG, "-o", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment(),
    )
    time.sleep(4)
    assert process.poll() is None, "the comparison was over before it could be interrupted"
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)  # as a terminal does
    else:
        process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err.decode()
    assert out == b"" and b"Traceback" not in err
    if sent == signal.SIGINT:
        assert err.decode().strip() == "interrupted; nothing was left half-written"
    assert list(tmp_path.iterdir()) == []
    for _ in range(100):  # ended workers are reaped by then
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a worker process is left")
