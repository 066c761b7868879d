"""A replay that breaks: who broke it is said, nobody stays behind, and going on from a checkpoint gives the uninterrupted bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from schedules_by_hand import synchronous
from test_simulated_schedules import cluster, schedule_of

from abs_sgd.checkpoint import newest
from abs_sgd.launch import RankFailedError
from abs_sgd.replay.comparison import in_process
from abs_sgd.replay.cuts import cuts, lead_rows, updates_behind
from abs_sgd.replay.distributed import Request, replay
from abs_sgd.replay.operations import Arrive, Launch
from abs_sgd.replay.orders import make_orders
from abs_sgd.replay.results import Replayed
from abs_sgd.update import State, UpdateRule
from hetsim.algorithms import registry
from hetsim.errors import UsageError
from hetsim.schedule import Schedule
from hetsim.simulate import simulate

pytestmark = [pytest.mark.torch, pytest.mark.live]
reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
STABLE = UpdateRule(learning_rate=0.02, momentum=0.9)
FLOAT64 = {"dtype": "float64"}
PATIENCE_S = 120.0  # for processes to start on a busy machine
MOST_S = 10.0  # from the death of a rank to the error


# ---- where a checkpoint lies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_a_cut_leaves_every_transfer_whole(algorithm: str) -> None:
    """On either side of a cut a transfer is launched by all of its members or by none, and nobody waits for one of the other side."""
    schedule = schedule_of(algorithm, 20)
    orders = make_orders(schedule)
    found = cuts(schedule, 1)
    assert len(found) >= (5 if algorithm == "ad-psgd" else 18)  # where only one of the first worker's averages is a cut
    for cut in found:
        launched: dict[int, set[int]] = {}
        arrived: set[int] = set()
        for rank, (operations, rows) in enumerate(zip(orders.operations, orders.rows, strict=True)):
            assert list(rows) == sorted(rows)
            for operation, row in zip(operations, rows, strict=True):
                if row <= cut.row and isinstance(operation, Launch):
                    launched.setdefault(operation.transfer, set()).add(rank)
                elif row <= cut.row and isinstance(operation, Arrive):
                    arrived.add(operation.transfer)
        assert arrived <= launched.keys()
        for transfer, by in launched.items():
            assert by == set(orders.transfers[transfer].members)


@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_cuts_count_updates_as_training_does(algorithm: str) -> None:
    schedule = schedule_of(algorithm, 20)
    seen: dict[int, State] = {}
    in_process(Request(schedule=schedule, workload="digits-mlp", rule=STABLE), seen.__setitem__)
    updates = updates_behind(schedule)
    assert {identity: state.progress.updates for identity, state in seen.items()} == {
        identity: updates[identity] for identity in seen
    }
    found = [cut.update for cut in cuts(schedule, 5)]
    ends = [updates[int(schedule.state[row])] for row in lead_rows(schedule)]
    assert found == sorted(set(found)) and set(found) <= set(ends)
    assert len(found) == ends[-1] // 5 or algorithm in (
        "local-sgd",
        "ad-psgd",
        "streaming-diloco",
        "dasgd",
    )  # whose averages come every eight steps, or not to all
    assert cuts(schedule, 0) == [] and cuts(schedule, 10**6) == []


# ---- a rank that dies ----------------------------------------------------------------------------------------------------


def pid_of(folder: Path, rank: int) -> int:
    return int((folder / f"rank-{rank}.pid").read_text())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(happens: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.01)
    return False


def break_it(schedule: Schedule, folder: Path, victim: int, ready: Callable[[], bool], **options: object) -> str:
    """Start a replay, kill a rank when `ready`, and give the error it ends with."""
    caught: list[BaseException] = []
    ended_s: list[float] = []

    def train() -> None:
        try:
            replay(schedule, "digits-mlp", STABLE, task_options=FLOAT64, folder=folder, **options)
        except BaseException as error:
            caught.append(error)
        ended_s.append(time.monotonic())

    ranks = make_orders(schedule).ranks
    for stale in folder.glob("rank-*"):  # of an earlier run, whose progress is none of this one's
        stale.unlink()
    thread = threading.Thread(target=train)
    thread.start()
    assert until(lambda: ended_s or ready()) and not ended_s, caught
    pids = [pid_of(folder, rank) for rank in range(ranks)]
    assert all(lives(pid) for pid in pids)
    killed_s = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    thread.join(PATIENCE_S)
    assert isinstance(caught[0], RankFailedError)
    assert ended_s[0] - killed_s < MOST_S
    assert not any(lives(pid) for pid in pids)
    return str(caught[0])


def updates_of(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"rank-{rank}.updates").read_text().split()[1])
    except (FileNotFoundError, IndexError):
        return 0


def two_workers(updates: int, dataset_samples: int) -> Schedule:
    """ABS-SGD: one update of delay, open batches, points predicted by each worker."""
    three = cluster()
    two = replace(
        three,
        workers=three.workers[:2],
        network=replace(three.network, links=three.network.links[:2]),
        workload=replace(three.workload, dataset_samples=dataset_samples),
    )
    return simulate(two, "abs-sgd", updates=updates).schedule


def assert_bits_of_one_process(schedule: Schedule, found: Replayed) -> None:
    seen: dict[int, State] = {}
    in_process(Request(schedule=schedule, workload="digits-mlp", rule=STABLE, task_options=FLOAT64), seen.__setitem__)
    for state, parameters_P in zip(found.final, found.parameters_P, strict=True):
        assert state > 0 and torch.equal(parameters_P, seen[state].parameters_P)


@reads_proc
def test_a_killed_rank_is_named_and_resuming_gives_the_uninterrupted_bits(tmp_path: Path) -> None:
    schedule = two_workers(120, 1437)
    options = {"evaluations": 4, "checkpoint_every": 10, "pace": 8.0 / schedule.horizon_s}
    error = break_it(
        schedule,
        tmp_path,
        1,
        lambda: newest(tmp_path / "checkpoints") is not None and updates_of(tmp_path, 1) >= 25,
        **options,
    )
    found = newest(tmp_path / "checkpoints")
    assert found is not None and found.update >= 20
    assert error.startswith("rank 1 (w1) was killed by SIGKILL; its last update was ")
    assert f"; the last checkpoint is of update {found.update} in {tmp_path / 'checkpoints'}; " in error

    options["pace"] = None
    with pytest.raises(UsageError, match=f"holds a checkpoint of update {found.update}: resume, or remove it"):
        replay(schedule, "digits-mlp", STABLE, task_options=FLOAT64, folder=tmp_path, **options)
    with pytest.raises(UsageError, match=r"of another run: other seed$"):
        replay(schedule, "digits-mlp", STABLE, task_options=FLOAT64, folder=tmp_path, resume=True, seed=1, **options)
    other, task = UpdateRule(learning_rate=0.03), {"dtype": "float32"}
    with pytest.raises(UsageError, match="of another run: other evaluations, rule, schedule, task_options"):
        replay(
            schedule_of("s-sgd", 20), "digits-mlp", other, task_options=task, folder=tmp_path, resume=True, **options
        )

    done = replay(schedule, "digits-mlp", STABLE, task_options=FLOAT64, folder=tmp_path, resume=True, **options)
    assert done.resumed_from == found.update
    assert_bits_of_one_process(schedule, done)
    assert list(done.curve.updates) == [0, 30, 60, 90, 120] and (done.curve.time_s[1:] > 0).all()
    assert sorted(done.curve.time_s) == list(done.curve.time_s)
    last = newest(tmp_path / "checkpoints")
    assert last is not None and last.update == 120
    assert len([*(tmp_path / "checkpoints").glob("*.json")]) == 2  # the newest two are kept
    assert not [*tmp_path.rglob(".*.tmp")]


CASES = ["abs-sgd", "asgd", "local-sgd", "ssp", "one-step-delay-balanced"]


@pytest.mark.slow
@reads_proc
@pytest.mark.parametrize("moment", range(10))
def test_killed_at_random_moments_it_ends_with_the_uninterrupted_bits(moment: int, tmp_path: Path) -> None:
    """Any rank, at any update and any point within it, every other run twice."""
    chance = random.Random(moment)
    algorithm = CASES[moment % len(CASES)]
    schedule = schedule_of(algorithm, 40 if algorithm == "local-sgd" else 300)  # averages after eight steps each
    ranks = make_orders(schedule).ranks
    options = {"checkpoint_every": chance.choice([1, 3, 10]), "pace": 8.0 / schedule.horizon_s}
    for attempt in range(1 + moment % 2):
        before = newest(tmp_path / "checkpoints")
        least = (0 if before is None else before.update) + chance.randrange(1, 100)
        victim = chance.randrange(ranks)
        wait_s = chance.random() * 0.05

        def ready(least: int = least, victim: int = victim, wait_s: float = wait_s) -> bool:
            if updates_of(tmp_path, victim) < least or newest(tmp_path / "checkpoints") is None:
                return False
            time.sleep(wait_s)
            return True

        break_it(schedule, tmp_path, victim, ready, resume=attempt > 0, **options)
    options["pace"] = None
    done = replay(schedule, "digits-mlp", STABLE, task_options=FLOAT64, folder=tmp_path, resume=True, **options)
    assert done.resumed_from > 0
    assert_bits_of_one_process(schedule, done)


def long_schedule() -> Schedule:
    """Two and a half minutes."""
    return synchronous([[4, 4]] * 150, dataset_samples=1437)


@reads_proc
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from test_replay_resume import STABLE, long_schedule\n"
        "from abs_sgd.replay.distributed import replay\n"
        "replay(long_schedule(), 'digits-mlp', STABLE, pace=1.0, folder=sys.argv[1])\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")], env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        assert until(lambda: process.poll() is not None or (tmp_path / "run" / "rank-1.updates").exists())
        assert process.poll() is None
        pids = [pid_of(tmp_path / "run", rank) for rank in (0, 1)]
        assert all(lives(pid) for pid in pids)
        process.kill()
        process.wait()
        assert until(lambda: not any(lives(pid) for pid in pids), 30.0)
    finally:
        process.kill()
        process.wait()


def test_from_an_older_checkpoint_statistics_dropout_and_sums_on_the_way_come_out_the_same(tmp_path: Path) -> None:
    """BatchNorm's statistics are a rank's own; the all-reduce sums in its own order; between two updates a batch is open."""
    schedule = two_workers(20, 300)

    def train(resume: bool) -> tuple[Replayed, list[dict[str, Any]]]:
        found = replay(
            schedule,
            "mixing_net:model mixing_net:data",
            STABLE,
            exact=False,
            checkpoint_every=4,
            folder=tmp_path,
            resume=resume,
        )
        return found, [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]

    whole, first = train(resume=False)
    assert whole.resumed_from == 0
    (tmp_path / "checkpoints" / "update-000000020.json").unlink()
    resumed, second = train(resume=True)
    assert resumed.resumed_from == 16
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a["parameters_P"], b["parameters_P"])
        assert len(a["buffers"]) == 3 and all(
            torch.equal(x, y) for x, y in zip(a["buffers"], b["buffers"], strict=True)
        )
    assert not torch.equal(first[0]["buffers"][0], first[1]["buffers"][0])


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    schedule = synchronous([[4]] * 3, dataset_samples=1437)
    with pytest.raises(UsageError, match="checkpoints need a folder"):
        replay(schedule, "digits-mlp", STABLE, checkpoint_every=5)
    with pytest.raises(UsageError, match="checkpoints need a folder"):
        replay(schedule, "digits-mlp", STABLE, resume=True)
    with pytest.raises(UsageError, match="checkpoint_every"):
        replay(schedule, "digits-mlp", STABLE, checkpoint_every=-1, folder=tmp_path)
    with pytest.raises(UsageError, match="nccl moves tensors between GPUs only"):
        replay(schedule, "digits-mlp", STABLE, backend="nccl", folder=tmp_path)
    assert not [*tmp_path.iterdir()]
