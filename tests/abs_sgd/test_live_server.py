"""Parameter servers run live: what is recorded is a Schedule that keeps every promise and reproduces the server's parameters."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from finished_runs import TWO
from live_clusters import FLOAT64, RULE, deviation, two_workers
from test_live_failures import PATIENCE_S, alive, until

from abs_sgd.agreement import Tolerances
from abs_sgd.launch import LiveRun, RankFailedError, launch
from abs_sgd.netlab import NetLab
from abs_sgd.runtime.run import Pacing
from abs_sgd.validate import validate
from hetsim import load_profile
from hetsim.algorithms import make
from hetsim.schedule import DiscardReason, Kind, Payload, Schedule
from hetsim.schedule.check import check
from hetsim.schedule.kinds import WaitCause

sys.path.append(str(Path(__file__).parents[1] / "hetsim"))
from test_runtime_outcomes import Replay

pytestmark = [pytest.mark.torch, pytest.mark.live]
UPDATES = 20
RUNS: list[Any] = [
    ("asgd", {}),
    pytest.param("ssp", {"staleness": 0}, marks=pytest.mark.slow),
    pytest.param("ringmaster-asgd", {"threshold": 1}, marks=pytest.mark.slow),
    pytest.param("dc-asgd", {}, marks=pytest.mark.slow),
    pytest.param("delay-adaptive-asgd", {}, marks=pytest.mark.slow),
    pytest.param("dssp", {"staleness": 1, "extra": 3}, marks=pytest.mark.slow),
    pytest.param("ssp", {"staleness": 2, "server_update": "clock"}, marks=pytest.mark.slow),
]
PACED = Pacing(profile=True, tolerance=1000.0)  # on a busy machine a pass may take any time


def waited_s(schedule: Schedule, worker: int, cause: WaitCause) -> float:
    rows = schedule.rows(Kind.WAIT)
    rows = rows[(schedule.worker[rows] == worker) & (schedule.code[rows] == cause)]
    return float((schedule.end_s[rows] - schedule.start_s[rows]).sum())


def check_all(run: LiveRun, algorithm: str, options: dict[str, Any]) -> None:
    """Every invariant, the algorithm's promise, the server's parameters, and that the log alone makes the programs do it again."""
    schedule = run.schedule
    assert schedule.header.origin == "measured" and schedule.header.server
    account = check(schedule)
    assert account.applied == run.samples and (account.discarded == 0 or "threshold" in options)
    if options.get("server_update") == "clock":
        assert (
            account.in_flight <= 24
        )  # of a clock whose other gradient nobody made: still at the server, as in the simulator
    else:
        assert account.in_flight == 0
    make(algorithm, options).check(schedule)
    assert deviation(run) <= 1e-12
    steps = schedule.rows(Kind.STEP)
    assert set(schedule.worker[steps].tolist()) == {schedule.n}
    assert len(steps) == run.updates
    dropped = schedule.rows(Kind.DISCARD)
    assert set(schedule.code[dropped].tolist()) <= {DiscardReason.STALE}
    reduces = schedule.rows(Kind.REDUCE)
    pushed = schedule.code[reduces] == Payload.GRADIENT
    assert sorted(schedule.source[reduces[pushed]].tolist()) == sorted(schedule.source[schedule.rows(Kind.JOIN)])
    assert sorted(schedule.source[reduces[~pushed]].tolist()) == sorted(schedule.source[schedule.rows(Kind.COPY)])
    Replay(schedule, two_workers(), algorithm, options).run()


@pytest.mark.parametrize(("algorithm", "options"), RUNS, ids=lambda v: v if isinstance(v, str) else str(v))
def test_a_live_run_is_reproduced_by_its_own_schedule(algorithm: str, options: dict[str, Any]) -> None:
    run = launch(two_workers(), algorithm, options=options, task_options=FLOAT64, rule=RULE, updates=UPDATES)
    check_all(run, algorithm, options)
    assert UPDATES <= run.updates <= UPDATES + 3  # what is on its way when the last update is made is applied as well
    assert len(run.checksums) == 3 and len(set(run.checksums)) == 1
    assert set(run.schedule.worker[run.schedule.rows(Kind.GRAD)].tolist()) == {0, 1}


@pytest.mark.slow
def test_every_sample_once_and_none_left_over() -> None:
    """More than an epoch: no worker is told to stop while it holds samples, and nobody is held for one that has left."""
    samples = 1437 + 100
    run = launch(two_workers(global_batch_samples=96), "ssp", task_options=FLOAT64, rule=RULE, samples=samples)
    schedule = run.schedule
    account = check(schedule)
    assert (account.applied, account.in_flight, account.discarded) == (samples, 0, 0)
    make("ssp", {}).check(schedule)
    grads = schedule.rows(Kind.GRAD)
    numbers = [np.arange(f, f + c) for f, c in zip(schedule.first[grads], schedule.samples[grads], strict=True)]
    assert np.array_equal(np.sort(np.concatenate(numbers)), np.arange(samples))
    assert deviation(run) <= 1e-12


@pytest.mark.slow
def test_who_runs_ahead_waits_at_the_gate_and_nobody_waits_there_without_one() -> None:
    """A worker eight times as fast, padded payloads: with s = 0 most of its waiting is the server's doing, in ASGD none is, and there it
    does most of the updates."""
    live = two_workers((512.0, 64.0))
    live = dataclasses.replace(live, workload=dataclasses.replace(live.workload, gradient_bytes=2.0**17))
    pacing = dataclasses.replace(PACED, pad=True)
    shares = {}
    for algorithm, options in (("ssp", {"staleness": 0}), ("asgd", {})):
        run = launch(live, algorithm, options=options, task_options=FLOAT64, rule=RULE, updates=12, pacing=pacing)
        check_all(run, algorithm, options)
        schedule = run.schedule
        grads = schedule.rows(Kind.GRAD)
        given_s = schedule.samples[grads] / np.array([512.0, 64.0])[schedule.worker[grads]]
        took_s = schedule.end_s[grads] - schedule.start_s[grads]
        for worker in range(schedule.n):  # one pass may make up for another's oversleeping, never more than that
            mine = schedule.worker[grads] == worker
            assert (np.cumsum(took_s[mine]) >= np.cumsum(given_s[mine]) - 1e-6).all()
        shares[algorithm] = float(schedule.samples[grads[schedule.worker[grads] == 0]].sum()) / run.samples
        gate_s = waited_s(schedule, 0, WaitCause.GATE)
        if algorithm == "ssp":
            assert gate_s > waited_s(schedule, 0, WaitCause.PULL) + waited_s(schedule, 0, WaitCause.PUSH)
        else:
            assert gate_s == waited_s(schedule, 1, WaitCause.GATE) == 0.0
    assert shares["ssp"] == pytest.approx(0.5, abs=0.1) and shares["asgd"] > 0.6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("victim", ["server", pytest.param("w1", marks=pytest.mark.slow)])
def test_a_killed_server_or_worker_is_named_and_the_rest_stops(victim: str) -> None:
    rank = {"w1": 1, "server": 2}[victim]
    caught: list[BaseException] = []
    ended_s: list[float] = []

    def run() -> None:
        try:
            launch(two_workers((400.0, 400.0)), "asgd", rule=RULE, samples=10**7)
        except BaseException as error:
            caught.append(error)
        ended_s.append(monotonic())

    before = set(active_children())
    thread = Thread(target=run)
    thread.start()
    assert until(lambda: len(set(active_children()) - before) == 3)
    ranks = {p.name: p for p in set(active_children()) - before}
    pid = ranks[f"rank {rank}"].pid or 0
    # its connections with the server are up: two threads each beside those of gloo and the store
    assert until(lambda: len(os.listdir(f"/proc/{pid}/task")) > 5)
    sleep(2.0)
    killed_s = monotonic()
    os.kill(pid, signal.SIGKILL)
    thread.join(PATIENCE_S)
    assert isinstance(caught[0], RankFailedError)
    assert f"rank {rank} ({victim}) was killed by SIGKILL; its last update was" in str(caught[0])
    assert ended_s[0] - killed_s < 10.0
    assert not any(alive(p.pid or 0) for p in ranks.values())


@pytest.mark.netns
@pytest.mark.skipif(not NetLab.probe().ok, reason=NetLab.probe().reason or "links can be shaped")
def test_the_server_is_a_host_of_its_own_with_a_shaped_link() -> None:
    """Answers of 1 MiB over links of 4 MiB/s take a quarter of a second; over loopback they would take milliseconds."""
    live = two_workers()
    live = dataclasses.replace(live, workload=dataclasses.replace(live.workload, gradient_bytes=2.0**20))
    live = dataclasses.replace(
        live,
        network=dataclasses.replace(
            live.network, links=tuple(dataclasses.replace(link, bytes_per_s=2.0**22) for link in live.network.links)
        ),
    )
    with NetLab(live, server=True) as lab:
        hosts = [lab.namespace(rank) for rank in range(3)]
        run = launch(live, "asgd", task_options=FLOAT64, rule=RULE, updates=4, pacing=Pacing(pad=True), hosts=hosts)
    check_all(run, "asgd", {})
    schedule = run.schedule
    answers = schedule.rows(Kind.REDUCE)
    answers = answers[schedule.code[answers] == Payload.PARAMETERS]
    assert float(np.median(schedule.end_s[answers] - schedule.start_s[answers])) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["asgd", "ssp"])
def test_validate_compares_the_servers_parameters(algorithm: str) -> None:
    """Mechanics, not figures: what was run is reproduced to the rounding of float32."""
    anything = Tolerances(period=1000.0, share=1000.0, time=1000.0)
    found = validate(load_profile(TWO), [algorithm], updates=6, tolerances=anything, shape=False, pace_tolerance=1000.0)
    assert found.within
    run = found.document["algorithms"][0]["runs"][0]
    assert 0.0 <= run["replay_deviation"] <= 1e-5
