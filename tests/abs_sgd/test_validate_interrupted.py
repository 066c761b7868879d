"""Ctrl-C and SIGTERM while `hetsim validate` runs: no process, no namespace, no temporary folder and no half-written result is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from finished_runs import TWO

from abs_sgd import namespaces

pytestmark = [pytest.mark.torch, pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


def until(happens: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.05)
    return False


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """What it has started itself, but for multiprocessing's tracker, which comes first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children[1:]]


def at_work(pid: int) -> bool:
    """Connected to the others."""
    return any(name.read_text() == "gloo_tcp_loop\n" for name in Path(f"/proc/{pid}/task").glob("*/comm"))


def left_of(group: int) -> list[str]:
    """Processes of the group that are not ended, by name."""
    out = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state not in "ZX":
            out.append(name)
    return out


@pytest.mark.parametrize(
    ("links", "number"),
    [
        ("--unshaped", signal.SIGINT),
        pytest.param("--shaped", signal.SIGTERM, marks=pytest.mark.netns),
        pytest.param("--unshaped", signal.SIGTERM, marks=pytest.mark.slow),  # six seconds each: the other two say most
        pytest.param("--shaped", signal.SIGINT, marks=[pytest.mark.netns, pytest.mark.slow]),
    ],
)
def test_an_interrupted_validation_leaves_nothing(tmp_path: Path, links: str, number: signal.Signals) -> None:
    for name in ("results", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "two.yaml").write_text(TWO, encoding="utf-8")
    command = [sys.executable, "-m", "hetsim", "validate", str(tmp_path / "two.yaml"), "-a", "s-sgd", links]
    command += ["--updates", "100000", "--pace-tolerance", "1000", "-o", str(tmp_path / "results" / "out")]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path / "temporary"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),  # torch's own, else in TMPDIR
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    mine = f"hetsim-{process.pid}-"
    try:
        assert until(lambda: len(ranks_of(process)) == 2 and all(map(at_work, ranks_of(process))))
        assert len(left_of(process.pid)) == 4  # the command, the tracker and two ranks
        if links == "--shaped":
            assert (
                len([name for name in namespaces.existing() if name.startswith(mine)]) == 3
            )  # two hosts and the bridges
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + number, err
        assert out == "" and "Traceback" not in err
        assert err == ("interrupted; nothing was left half-written\n" if number == signal.SIGINT else "")
        assert until(lambda: not left_of(process.pid))
        assert [list((tmp_path / name).iterdir()) for name in ("results", "temporary")] == [[], []]
        if links == "--shaped":
            assert not [name for name in namespaces.existing() if name.startswith(mine)]
    finally:
        if left_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if links == "--shaped":
            namespaces.sweep()
