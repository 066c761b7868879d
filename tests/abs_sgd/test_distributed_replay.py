"""A Schedule on real processes: the parameters of one process, refusal of what cannot run, and what happens when a rank dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from schedules_by_hand import finish, synchronous
from test_simulated_schedules import cluster, schedule_of

from abs_sgd.launch import RankFailedError
from abs_sgd.replay.distributed import Replayed, _spread, replay
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.replay.orders import Arrive, Launch, Orders, Transfer, make_orders, verify
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads.digits import digits_mlp
from hetsim.algorithms import registry
from hetsim.errors import ScheduleError, UsageError
from hetsim.schedule import Kind, Payload, PointRule, Schedule
from hetsim.schedule.log import Log
from hetsim.simulate import simulate

pytestmark = [pytest.mark.torch, pytest.mark.live]
STABLE = UpdateRule(learning_rate=0.02, momentum=0.9)
PATIENCE_S = 120.0  # for processes to start on a busy machine


def deviation(schedule: Schedule, found: Replayed, rule: UpdateRule, dtype: torch.dtype) -> float:
    """Largest distance, over the ranks, of the parameters from those of one process, over their norm."""
    seen: dict[int, State] = {}
    trainer = InProcess(schedule, digits_mlp(dtype=dtype), fused=False)
    trainer.train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    assert all(state > 0 for state in found.final)
    pairs = [(seen[s].parameters_P, p) for s, p in zip(found.final, found.parameters_P, strict=True)]
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


def run(schedule: Schedule, rule: UpdateRule = STABLE, dtype: str = "float64", **options: object) -> float:
    found = replay(schedule, "digits-mlp", rule, task_options={"dtype": dtype}, **options)  # type: ignore[arg-type]
    return deviation(schedule, found, rule, getattr(torch, dtype))


QUICK = ("abs-sgd", "asgd", "local-sgd", "one-step-delay-balanced")  # open batches, a server, averages, a delay


@pytest.mark.parametrize(
    "algorithm", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in sorted(registry())]
)
def test_every_algorithm_gives_the_parameters_of_one_process(algorithm: str) -> None:
    assert run(schedule_of(algorithm, 20)) == 0.0  # added in rank order: the same bits


@pytest.mark.parametrize("algorithm", [pytest.param("abs-sgd", marks=pytest.mark.slow), "local-sgd"])
def test_in_float32_and_summed_by_all_reduce(algorithm: str) -> None:
    assert run(schedule_of(algorithm, 20), dtype="float32", exact=False) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_two_hundred_updates(algorithm: str, dtype: str, bound: float, exact: bool) -> None:
    assert run(schedule_of(algorithm, 200), dtype=dtype, exact=exact) <= bound


def test_blended_points_and_adamw() -> None:
    schedule = simulate(cluster(), "abs-sgd", options={"compute_point": "blend"}, updates=12).schedule
    points = schedule.rows(Kind.PREDICT)
    assert len(points) and (schedule.code[points] == PointRule.BLEND).all()
    assert run(schedule, UpdateRule(learning_rate=0.002, optimizer="adamw", momentum=0.9)) == 0.0


def copied_and_continued() -> Schedule:
    """A worker pushes, copies what the server made of it, and goes on from there by itself."""
    log = Log(1)
    log.add(Kind.GRAD, 0, 0.0, 1.0, state=0, slot=0, samples=8, first=0)
    log.add(Kind.JOIN, 0, 1.0, 1.0, source=0, slot=0, samples=8)
    log.add(Kind.REDUCE, 0, 1.0, 2.0, source=0, samples=8)
    log.add(Kind.STEP, 1, 2.0, 2.0, state=1, parent=0, source=0, samples=8, first=8)
    log.add(Kind.REDUCE, 0, 2.0, 3.0, source=1, code=Payload.PARAMETERS)
    log.add(Kind.COPY, 0, 3.0, 3.0, state=1, source=1)
    log.add(Kind.WAIT, 0, 1.0, 3.0)
    log.add(Kind.GRAD, 0, 3.0, 4.0, state=1, slot=1, samples=8, first=8)
    log.add(Kind.STEP, 0, 4.0, 4.0, state=2, parent=1, slot=1, samples=8, first=8)
    schedule = finish(log, 1, 1437)
    object.__setattr__(schedule.header, "server", True)
    return schedule


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_optimizers_state_travels_where_training_goes_on_from_a_copy(optimizer: str) -> None:
    rule = UpdateRule(learning_rate=0.01, optimizer=optimizer, momentum=0.9)  # type: ignore[arg-type]
    assert run(copied_and_continued(), rule) == 0.0


def test_snapshots_lie_at_equal_distances_up_to_the_last_state() -> None:
    assert _spread([1, 2, 3, 4, 5, 6], 50) == (1, 2, 3, 4, 5, 6)
    assert _spread(list(range(1, 101)), 4) == (25, 50, 75, 100)
    assert _spread([7], 3) == (7,) and _spread([], 3) == _spread([1], 0) == ()


def test_paced_it_takes_the_time_of_the_schedule() -> None:
    schedule = synchronous([[4, 4]] * 3, dataset_samples=1437)
    found = replay(schedule, "digits-mlp", STABLE, pace=0.5)
    assert found.wall_s >= 0.5 * schedule.horizon_s > 1.0


# ---- refused before anything starts --------------------------------------------------------------------------------------


def test_a_step_on_a_transfer_that_waits_for_that_step_is_refused() -> None:
    """Worker 0 steps on a transfer that worker 1 joins later, with a gradient taken at what worker 0 has stepped to."""
    log = Log(2)
    for worker in (0, 1):
        log.add(Kind.GRAD, worker, 0.0, 1.0, state=0, slot=worker, samples=4, first=4 * worker)
    log.add(Kind.JOIN, 0, 1.0, 1.0, source=0, slot=0, samples=4)
    log.add(Kind.STEP, 1, 1.0, 1.0, state=1, parent=0, source=0, samples=8, first=8)
    log.add(Kind.GRAD, 1, 1.0, 2.0, state=1, slot=2, samples=4, first=8)
    log.add(Kind.JOIN, 1, 2.0, 2.0, source=0, slot=2, samples=4)
    log.add(Kind.REDUCE, -1, 2.0, 3.0, source=0, samples=8)
    with pytest.raises(ScheduleError, match=r"w1 waits for transfer 0, which w1 cannot join before"):
        replay(finish(log, 2, 1437), "digits-mlp", STABLE)


def test_a_step_on_a_transfer_that_never_completes_is_refused() -> None:
    log = Log(2)
    for worker in (0, 1):
        log.add(Kind.GRAD, worker, 0.0, 1.0, state=0, slot=worker, samples=4, first=4 * worker)
        log.add(Kind.JOIN, worker, 1.0, 1.0, source=0, slot=worker, samples=4)
    log.add(Kind.STEP, 0, 1.0, 1.0, state=1, parent=0, source=0, samples=8, first=8)
    with pytest.raises(ScheduleError, match="w0 waits for transfer 0"):
        replay(finish(log, 2, 1437), "digits-mlp", STABLE)


def test_ranks_that_wait_for_each_other_are_told_apart_from_ranks_that_do_not() -> None:
    wires = {t: Transfer((0, 1), ((0, 0, 1.0), (1, 0, 1.0)), False, False) for t in (0, 1)}
    ahead, behind = (Launch(0, 0.0), Launch(1, 0.0), Arrive(0, 0.0), Arrive(1, 0.0)), (Launch(0, 0.0), Arrive(0, 0.0))
    verify(Orders((ahead, (*behind, Launch(1, 0.0), Arrive(1, 0.0))), wires, (0, 0)), ["a", "b"])
    with pytest.raises(ScheduleError, match=r"a waits for transfer 1, which b cannot join before"):
        verify(Orders((ahead, behind), wires, (0, 0)), ["a", "b"])
    with pytest.raises(ScheduleError, match="in another order"):
        verify(Orders((ahead, (Launch(1, 0.0), Launch(0, 0.0))), wires, (0, 0)), ["a", "b"])


def test_a_state_that_nothing_makes_is_refused() -> None:
    log = Log(1)
    log.add(Kind.GRAD, 0, 0.0, 1.0, state=7, slot=0, samples=4, first=0)
    with pytest.raises(ScheduleError, match="w0 needs state 7, which nothing makes"):
        make_orders(finish(log, 1, 1437))
    with pytest.raises(UsageError, match="pace"):
        replay(synchronous([[4]]), "digits-mlp", STABLE, pace=0.0)


# ---- a rank that dies ----------------------------------------------------------------------------------------------------


def pid_of(folder: Path, rank: int) -> int:
    return int((folder / f"rank-{rank}.pid").read_text())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(happens: object, seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


PACE = 4.0


def long_schedule() -> Schedule:
    """Ten minutes at PACE."""
    return synchronous([[4, 4]] * 150, dataset_samples=1437)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_rank_is_named_and_the_others_stop(tmp_path: Path) -> None:
    caught: list[BaseException] = []
    ended_s: list[float] = []

    def train() -> None:
        try:
            replay(long_schedule(), "digits-mlp", STABLE, pace=PACE, folder=tmp_path)
        except BaseException as error:
            caught.append(error)
        ended_s.append(time.monotonic())

    thread = threading.Thread(target=train)
    thread.start()
    assert until(lambda: caught or (tmp_path / "rank-1.updates").exists()) and not caught
    pids = [pid_of(tmp_path, rank) for rank in (0, 1)]
    assert all(lives(pid) for pid in pids)
    killed_s = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    thread.join(PATIENCE_S)
    assert isinstance(caught[0], RankFailedError)
    assert "rank 1 (w1) was killed by SIGKILL; its last update was" in str(caught[0])
    assert ended_s[0] - killed_s < 10.0
    assert not any(lives(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from test_distributed_replay import PACE, STABLE, long_schedule\n"
        "from abs_sgd.replay.distributed import replay\n"
        "replay(long_schedule(), 'digits-mlp', STABLE, pace=PACE, folder=sys.argv[1])\n"
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


def test_an_error_of_a_rank_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="thinning"):
        replay(synchronous([[4, 4]]), "digits-mlp", STABLE, thinning=0)
    rule = UpdateRule(learning_rate=0.1, lr_rule="linear", reference_batch_samples=0)  # divides by zero when it steps
    with pytest.raises(RankFailedError, match=r"rank \d \(w\d\) failed: ZeroDivisionError"):
        replay(synchronous([[4, 4]], dataset_samples=1437), "digits-mlp", rule, folder=tmp_path)
    assert not [*tmp_path.glob("*.tmp"), *tmp_path.glob(".*.tmp")]
