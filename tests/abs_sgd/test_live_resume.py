"""kill -9 of a rank in the middle: the run goes on from its newest checkpoint, and both parts are one Schedule that says what happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_clusters import FLOAT64, RULE, deviation, two_workers

from abs_sgd import workloads
from abs_sgd.checkpoint import CHECKPOINTS, newest, seal
from abs_sgd.launch import LiveRun, RankFailedError, launch
from abs_sgd.runtime.run import Pacing
from hetsim.algorithms import make
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.check import check

pytestmark = [pytest.mark.torch, pytest.mark.live]
PATIENCE_S = 120.0  # for processes to start on a busy machine
EVERY = 5
SAMPLES = 1437 + 300  # into the second epoch
PACED = Pacing(profile=True, tolerance=1000.0)  # so slow that there is a middle to be killed in
SPEEDS = (400.0, 200.0)  # three seconds


class Killer(threading.Thread):
    """Kills a rank `after_s` seconds after the checkpoint of an update, or a later one, is there."""

    def __init__(self, folder: Path, victim: int, update: int = EVERY, after_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.folder, self.victim, self.update, self.after_s = folder, victim, update, after_s
        self.before = set(multiprocessing.active_children())
        self.killed_s = 0.0

    def run(self) -> None:
        assert until(lambda: newest_update(self.folder) >= self.update)
        time.sleep(self.after_s)
        for process in set(multiprocessing.active_children()) - self.before:
            if process.name == f"rank {self.victim}":
                os.kill(process.pid or 0, signal.SIGKILL)
                self.killed_s = time.monotonic()


def until(happens: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.005)
    return False


def newest_update(folder: Path) -> int:
    seals = [int(path.stem.removeprefix("update-")) for path in (folder / "checkpoints").glob("update-*.json")]
    return max(seals, default=0)


def assert_one_run(run: LiveRun, algorithm: str, options: dict[str, Any], samples: int = SAMPLES) -> None:
    """Every promise of an unbroken run."""
    account = check(run.schedule)
    assert (account.applied, account.in_flight, account.discarded) == (samples, 0, 0)
    make(algorithm, options).check(run.schedule)
    assert np.array_equal(np.sort(numbers(run.schedule)), np.arange(samples))
    assert len(set(run.checksums)) == 1
    assert run.samples == samples
    assert deviation(run) <= 1e-12


def numbers(schedule: Schedule) -> Any:
    grads = schedule.rows(Kind.GRAD)
    ranges = zip(schedule.first[grads], schedule.samples[grads], strict=True)
    return np.concatenate([np.arange(first, first + count) for first, count in ranges])


def kill_and_go_on(folder: Path, algorithm: str, options: dict[str, Any], victim: int, after_s: float) -> LiveRun:
    killer = Killer(folder, victim, after_s=after_s)
    killer.start()
    run = launch(
        two_workers(SPEEDS), algorithm, options=options, task_options=FLOAT64, rule=RULE, samples=SAMPLES,
        pacing=PACED, folder=folder, checkpoint_every=EVERY, restarts=1,
    )  # fmt: skip
    killer.join()
    assert killer.killed_s > 0.0
    return run


def test_a_killed_run_goes_on_by_itself_and_is_one_schedule(tmp_path: Path) -> None:
    run = kill_and_go_on(tmp_path, "abs-sgd", {"trigger": "target_batch"}, victim=1, after_s=0.3)
    assert len(run.resumed) == 1 and run.resumed[0] >= EVERY and run.resumed[0] % EVERY == 0
    assert_one_run(run, "abs-sgd", {"trigger": "target_batch"})
    assert json.loads((tmp_path / "run.json").read_text())["resumed"] == list(run.resumed)
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_was_learned_is_kept_and_a_new_start_is_by_hand(tmp_path: Path) -> None:
    """Nobody restarts it: the error names the checkpoint; going on, LB-BSP's batches are those of before, not equal ones."""
    options = {"dead_band": 0.0}
    settings: dict[str, Any] = {
        "options": options, "task_options": FLOAT64, "rule": RULE, "pacing": PACED, "folder": tmp_path, "samples": SAMPLES,
    }  # fmt: skip
    cluster = two_workers((600.0, 150.0))
    killer = Killer(tmp_path, 0, update=2 * EVERY)
    killer.start()
    with pytest.raises(
        RankFailedError,
        match=r"rank 0 \(w0\) was killed by SIGKILL; its last update was \d+; the last checkpoint is of",
    ):
        launch(cluster, "lb-bsp", checkpoint_every=EVERY, **settings)
    assert time.monotonic() - killer.killed_s < 10.0
    assert not list(tmp_path.rglob("*.tmp"))
    update = newest_update(tmp_path)
    run = launch(cluster, "lb-bsp", resume=True, **settings)
    assert run.resumed == (update,)
    assert_one_run(run, "lb-bsp", options)
    schedule = run.schedule
    joins = schedule.rows(Kind.JOIN)
    batches = {
        (int(schedule.source[j]), int(schedule.worker[j])): int(schedule.samples[j]) for j in joins
    }  # by transfer and rank
    assert batches[0, 0] == batches[0, 1] == 12
    assert batches[update, 0] >= 16  # 4 : 1 would be 19.2 : 4.8


def test_a_share_that_does_not_fit_is_named_and_nobody_hangs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rule": RULE, "folder": tmp_path, "updates": 2 * EVERY}
    launch(two_workers(SPEEDS), "abs-sgd", checkpoint_every=EVERY, **settings)
    found = newest(tmp_path / CHECKPOINTS)
    assert found is not None
    path = found.share(1)
    said = torch.load(path, weights_only=True)
    for state in said["state"]["states"].values():
        state["parameters_P"] = torch.zeros(3)
    torch.save(said, path)
    seal(path.parent, found.update, 2, found.meta)
    with pytest.raises(
        RankFailedError, match=r"rank 1 .*\.rank-1\.pt: damaged \(ValueError: other parameters than the model's\)"
    ):
        launch(two_workers(SPEEDS), "abs-sgd", resume=True, **settings)


MATRIX: list[tuple[str, dict[str, Any]]] = [
    ("abs-sgd", {}),
    ("abs-sgd", {"compute_point": "blend", "trigger": "period_s", "period_s": 0.05, "micro_batch": "equal-time"}),
    ("abs-sgd", {"max_global_batch": 30}),
    ("one-step-delay-balanced", {"compute_point": "look-ahead", "synchronous_updates": 8}),
    ("local-sgd", {"local_steps": 2, "by_speed": True}),
    ("local-sgd", {"local_steps": 2}),
    ("lb-bsp", {}),
    ("s-sgd", {}),
    ("one-step-delay", {}),
    ("abs-sgd", {"compute_point": "current"}),
    ("abs-sgd", {"compute_point": "damped-prediction"}),
    ("dc-s3gd", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MATRIX)))
def test_ten_random_moments(number: int, tmp_path: Path) -> None:
    algorithm, options = MATRIX[number]
    luck = random.Random(number)
    run = kill_and_go_on(tmp_path, algorithm, options, luck.randrange(2), luck.uniform(0.0, 1.5))
    assert len(run.resumed) == 1
    assert_one_run(run, algorithm, options)


@pytest.mark.slow
def test_statistics_and_dropout_of_a_users_model_go_on_too(tmp_path: Path) -> None:
    """BatchNorm's statistics belong to a replica; dropout is drawn by sample."""
    cluster = two_workers(SPEEDS)
    own = replace(
        cluster.workload, name="own", model="mixing_net:model", dataset="mixing_net:data", dataset_samples=300
    )
    cluster = replace(cluster, workload=own)
    killer = Killer(tmp_path, victim=0, after_s=0.4)
    killer.start()
    run = launch(
        cluster, "abs-sgd", task_options=FLOAT64, rule=RULE, samples=SAMPLES // 12 * 12, pacing=PACED, folder=tmp_path,
        checkpoint_every=EVERY, restarts=1,
    )  # fmt: skip
    killer.join()
    assert killer.killed_s > 0.0 and len(run.resumed) == 1
    assert check(run.schedule).applied == SAMPLES // 12 * 12
    assert deviation(run, task=workloads.get(own, dtype=torch.float64)) <= 1e-12


@pytest.mark.slow
def test_a_run_killed_three_times(tmp_path: Path) -> None:
    killers = [Killer(tmp_path, victim, update) for victim, update in ((0, EVERY), (1, 4 * EVERY), (0, 8 * EVERY))]

    def one_after_another() -> None:
        for killer in killers:
            killer.before = set()
            killer.run()
            assert until(lambda: not any(p.name.startswith("rank ") for p in multiprocessing.active_children()))

    thread = threading.Thread(target=one_after_another)
    thread.start()
    run = launch(
        two_workers((600.0, 300.0)), "abs-sgd", task_options=FLOAT64, rule=RULE, samples=2 * SAMPLES, pacing=PACED,
        folder=tmp_path, checkpoint_every=EVERY, restarts=3,
    )  # fmt: skip
    thread.join()
    assert len(run.resumed) == 3 and list(run.resumed) == sorted(run.resumed)
    assert_one_run(run, "abs-sgd", {}, 2 * SAMPLES)
