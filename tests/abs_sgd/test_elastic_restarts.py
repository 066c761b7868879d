"""Training loops under torchrun: a rank is killed, all are started again, and go on from the checkpoint."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="calls the loopback interface lo, reads /proc"),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT_S = 90.0
EPOCHS = 3
PICTURES = 1500  # of an epoch of the example


def torchrun(folder: Path, number: int, arguments: list[str], script: list[str]) -> subprocess.Popen[bytes]:
    """An agent and its workers, as a process group of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # torch 2.13: ranks started again may meet addresses of dead ones on a shared store
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "2", *arguments, *script]
    with (folder / f"agent-{number}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def ended(agents: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until all agents end well; nothing is left of them in any case."""
    until = time.monotonic() + TIMEOUT_S
    try:
        for agent in agents:
            agent.wait(max(1.0, until - time.monotonic()))
    finally:
        for agent in agents:
            try:
                os.killpg(agent.pid, signal.SIGTERM)
                agent.wait(10)
            except ProcessLookupError:
                pass
    logs = "\n".join(log.read_text() for log in sorted(folder.glob("agent-*.log")))
    assert [agent.returncode for agent in agents] == [0] * len(agents), logs[-6000:]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("nodes", "kills"),
    [(1, 1), pytest.param(1, 2, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
    ids=["one node", "one node, killed twice", "two nodes"],
)
def test_no_sample_is_lost_or_used_twice_when_a_rank_is_killed(tmp_path: Path, nodes: int, kills: int) -> None:
    """A rank kills itself between two checkpoints in the middle of an epoch; each weight counts the uses of one sample."""
    meet = ["--standalone"] if nodes == 1 else ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    arguments = [f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--rdzv-id=test", *meet]
    script = [str(HERE / "elastic_job.py"), str(tmp_path), str(EPOCHS), str(kills)]
    ended([torchrun(tmp_path, number, arguments, script) for number in range(nodes)], tmp_path)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    assert end["resumed"] and end["samples"] == EPOCHS * len(end["used"])
    assert torch.allclose(end["used"], torch.full_like(end["used"], EPOCHS), rtol=0, atol=1e-12)
    assert len(list(tmp_path.glob("killed-*"))) == kills
    assert len(list(tmp_path.glob("started-*"))) >= 2 * (1 + kills)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.slow
def test_the_example_goes_on_after_kill_9(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")
    checkpoint, epochs = tmp_path / "digits.pt", 40
    script = [str(ROOT / "examples" / "train_abs_sgd.py"), f"--epochs={epochs}", f"--checkpoint={checkpoint}"]
    agent = torchrun(tmp_path, 0, ["--standalone", "--nproc-per-node=2"], script)
    try:
        until = time.monotonic() + TIMEOUT_S
        while not checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert (
            torch.load(checkpoint, weights_only=True)["progress"][1] < epochs * PICTURES
        )  # there is something left to do
        os.kill(children(agent.pid)[-1], signal.SIGKILL)
    finally:
        ended([agent], tmp_path)
    assert torch.load(checkpoint, weights_only=True)["progress"][1] == epochs * PICTURES
    said = [line for line in (tmp_path / "agent-0.log").read_text().splitlines() if line.startswith("epoch ")]
    assert list(dict.fromkeys(line.split(":")[0] for line in said)) == [f"epoch {k + 1}" for k in range(epochs)]
    assert float(said[-1].split(": ")[1].split("%")[0]) > 90
