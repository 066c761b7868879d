"""Ranks started by torchrun: one machine, two that are one, a rank that is killed, ranks that do not fit or do not come."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_clusters import deviation
from test_live_failures import PATIENCE_S, alive, until
from test_live_resume import assert_one_run, newest_update

from abs_sgd.agreement import Tolerances
from abs_sgd.run_folder import read
from abs_sgd.train import main
from abs_sgd.validate_runs import validate_runs
from hetsim.export import read_material

pytestmark = [pytest.mark.torch, pytest.mark.live]
ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SAMPLES = 1437 + 300
PROFILE = f"""\
schema_version: 1
name: two
workload: digits-mlp
workers:
  - {{name: a, samples_per_s: 400.0}}
  - {{name: b, samples_per_s: 200.0}}
network: {{bandwidth_gbit_per_s: 1.0, latency_us: 50.0}}
training: {{global_batch_samples: 24, micro_batch_samples: 4, learning_rate: 0.05, momentum: 0.9, max_samples: {SAMPLES}}}
"""
RUN = ("--dtype", "float64", "--pace", "--pace-tolerance", "1000", "--checkpoint-every", "5")


@contextmanager
def torchrun(
    folder: Path, launcher: Sequence[str], arguments: Sequence[str], agents: int = 1
) -> Iterator[list[subprocess.Popen[str]]]:
    """So many agents, each with what it is told and its output; none is left."""
    (folder / "two.yaml").write_text(PROFILE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "abs_sgd", "two.yaml", "-o", "out"]
    processes = [
        subprocess.Popen(
            [*command, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )
        for _ in range(agents)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate(timeout=PATIENCE_S)


def ranks_of(agent: int) -> list[int]:
    """Process ids of an agent's ranks, by rank."""
    found: dict[int, int] = {}
    for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found.update({int(v.partition(b"=")[2]): int(pid) for v in variables if v.startswith(b"RANK=")})
    return [found[rank] for rank in sorted(found)]


def test_ranks_of_torchrun_leave_the_folder_of_a_live_run(tmp_path: Path) -> None:
    arguments = ("-a", "s-sgd", "--updates", "12", "--dtype", "float64")
    with torchrun(tmp_path, ("--standalone", "--nproc-per-node", "2"), arguments) as (agent,):
        said, _ = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 0, said
    assert "12 updates, 288 samples; wrote out" in said
    run = read(tmp_path / "out")
    assert deviation(run) <= 1e-12
    assert run.schedule.header.workers == ("a", "b")
    found = validate_runs(
        [tmp_path / "out"], tolerances=Tolerances(period=1e3, share=1e3, time=1e3)
    )  # unpaced: mechanics, not figures
    assert found.within and found.document["algorithms"][0]["runs"][0]["updates"] == 12
    assert found.document["algorithms"][0]["runs"][0]["replay_deviation"] <= 1e-12
    material = read_material(tmp_path / "out")  # what hetsim report reads
    assert material.document["updates"] == 12 and "digits-mlp" in material.profile_yaml


@pytest.mark.slow
@LINUX
def test_a_killed_rank_is_named_and_torchrun_starts_the_run_again_where_it_was(tmp_path: Path) -> None:
    """By itself: nobody says --resume."""
    launcher = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    with torchrun(tmp_path, launcher, ("-a", "abs-sgd", *RUN)) as (agent,):
        assert until(lambda: newest_update(tmp_path / "out") >= 10)
        ranks = ranks_of(agent.pid)
        os.kill(ranks[1], signal.SIGKILL)
        said, _ = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 0, said
    assert "rank 1 (b) is gone; its last update was " in said and "the last checkpoint is of update " in said
    run = read(tmp_path / "out")
    assert len(run.resumed) == 1 and run.resumed[0] >= 10
    assert f"going on from update {run.resumed[0]} in " in said
    assert_one_run(run, "abs-sgd", {})
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("victim", [0, 1])
def test_two_agents_as_two_machines(victim: int, tmp_path: Path) -> None:
    """A rank of either dies: both agents start their ranks again, although only one of them counts it as a restart."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job")
    launcher = ("--nnodes", "2", "--nproc-per-node", "1", *where, "--max-restarts", "2")
    with torchrun(tmp_path, launcher, ("-a", "lb-bsp", *RUN), agents=2) as agents:
        assert until(lambda: newest_update(tmp_path / "out") >= 10)
        by_rank = {
            int(v.partition(b"=")[2]): pid
            for agent in agents
            for pid in ranks_of(agent.pid)
            for v in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if v.startswith(b"RANK=")
        }
        os.kill(by_rank[victim], signal.SIGKILL)
        said = [agent.communicate(timeout=PATIENCE_S)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(said)
    name = "ab"[victim]
    assert any(f"rank {victim} ({name}) is gone; its last update was " in text for text in said)
    run = read(tmp_path / "out")
    assert len(run.resumed) == 1
    assert_one_run(run, "lb-bsp", {})


@pytest.mark.slow
def test_a_world_that_does_not_fit_is_refused_by_all_and_said_once(tmp_path: Path) -> None:
    with torchrun(tmp_path, ("--standalone", "--nproc-per-node", "3"), ("-a", "s-sgd")) as (agent,):
        said, _ = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode != 0
    assert said.count("error: two has 2 workers, 3 ranks were started: nodes times --nproc-per-node must be 2") == 1
    assert "abs_sgd/train.py" not in said  # in no traceback; torchrun shows its own


@pytest.mark.slow
def test_without_torchrun_a_rank_that_never_comes_is_named_by_the_one_that_did(tmp_path: Path) -> None:
    """The plain variables are enough, as a batch system sets them; rank 0 then serves the store."""
    (tmp_path / "two.yaml").write_text(PROFILE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "abs_sgd", "two.yaml", "-a", "s-sgd", "-o", "out", "--assemble-s", "2"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **place}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rank 0 (a) failed: rank 1 (b) did not come up within 2 s")


def test_a_rank_by_itself_says_how_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["two.yaml", "-a", "s-sgd", "-o", str(tmp_path)]) == 2
    assert "torchrun --nproc-per-node N -m abs_sgd PROFILE" in capsys.readouterr().err


def test_refusals_name_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.yaml").write_text(PROFILE)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    profile, out = str(tmp_path / "two.yaml"), str(tmp_path / "out")
    for arguments, words in (
        (["-a", "asgd"], "parameter server"),
        (["-a", "s-sgdd"], "unknown algorithm"),
        (["-a", "s-sgd", "--updates", "0"], "--updates: a run needs at least one"),
        (["-a", "s-sgd", "--set", "training.nothing=1"], "nothing"),
    ):
        assert main([profile, "-o", out, *arguments]) == 2
        assert words in capsys.readouterr().err
    assert not Path(out).exists()
