"""Live runs that go wrong: the rank is named, the others stop, no process is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from live_clusters import RULE, two_workers

from abs_sgd.launch import RankFailedError, launch
from abs_sgd.runtime.run import Pacing
from hetsim.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.live]
PATIENCE_S = 120.0  # for processes to start on a busy machine


def alive(pid: int) -> bool:
    """Running, not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(happens: object, seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("algorithm", ["s-sgd", "abs-sgd"])
def test_a_killed_rank_is_named_and_the_rest_stops(algorithm: str) -> None:
    caught: list[BaseException] = []
    ended_s: list[float] = []

    def run() -> None:
        try:
            launch(two_workers((400.0, 400.0)), algorithm, rule=RULE, samples=10**7)
        except BaseException as error:
            caught.append(error)
        ended_s.append(time.monotonic())

    before = set(multiprocessing.active_children())
    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: len(set(multiprocessing.active_children()) - before) == 2)
    ranks = {p.name: p for p in set(multiprocessing.active_children()) - before}
    victim = ranks["rank 1"]
    assert until(
        lambda: len(os.listdir(f"/proc/{victim.pid}/task")) > 4
    )  # its group is up: gloo's and the store's threads
    time.sleep(2.0)
    killed_s = time.monotonic()
    os.kill(victim.pid or 0, signal.SIGKILL)
    thread.join(PATIENCE_S)
    assert isinstance(caught[0], RankFailedError)
    assert "rank 1 (w1) was killed by SIGKILL" in str(caught[0])
    assert ended_s[0] - killed_s < 10.0
    assert not any(alive(p.pid or 0) for p in ranks.values())


def test_a_profile_that_cannot_be_emulated_is_an_error_of_the_rank_that_is_too_slow() -> None:
    fast = two_workers((1e12, 1.0), micro_batch_samples=512)  # rank 1 sleeps for minutes and has to be told to end
    with pytest.raises(RankFailedError, match=r"rank 0 \(w0\) failed: w0: .* cannot be emulated on this machine"):
        launch(fast, "abs-sgd", rule=RULE, updates=5, pacing=Pacing(profile=True, tolerance=0.0), workload="digits-cnn")


def test_a_request_that_cannot_be_met_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="updates"):
        launch(two_workers(), "s-sgd", updates=0)
    with pytest.raises(UsageError, match="unknown option"):
        launch(two_workers(), "s-sgd", options={"overlapp": True}, updates=1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_ranks_end_with_the_process_that_launched_them(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from live_clusters import RULE, two_workers\n"
        "from abs_sgd.launch import launch\n"
        "if __name__ == '__main__':\n"
        "    launch(two_workers(), 's-sgd', rule=RULE, samples=10**7)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    process = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.DEVNULL
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert until(lambda: len(children.read_text().split()) >= 3)  # two ranks and multiprocessing's tracker
        pids = [int(pid) for pid in children.read_text().split()]
        assert until(lambda: all(len(os.listdir(f"/proc/{pid}/task")) > 1 for pid in pids[1:]))
        process.send_signal(how)
        process.wait(PATIENCE_S)
        assert process.returncode != 0
        assert until(lambda: not any(alive(pid) for pid in pids), 30.0)
    finally:
        process.kill()
        process.wait()
