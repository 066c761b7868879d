"""Calibration: numbers whose answer is known, a clock that is made up, and one small real measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from abs_sgd.calibration import (
    RankTimes,
    Subject,
    all_reduce_medians,
    busy_all_reduces,
    estimate,
    line_with_errors,
    middle,
    overlap,
)
from abs_sgd.measuring import Cycle, beside, cycles, in_a_row, long_enough, rounds
from hetsim import load_profile
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.simulate import simulate

BATCHES = (8, 16, 32, 64)
SUBJECT = Subject(workload="digits-cnn", gradient_bytes=15_272, dataset_samples=1437)
OUTLIER_S = 35.0  # seen among passes of 550 ms


def jittered(seconds: float, count: int = 21) -> list[float]:
    """Symmetric about `seconds`, 1 % at most."""
    return [seconds * (1 + 0.01 * (i - count // 2) / (count // 2)) for i in range(count)]


def two_ranks(odd: bool = False) -> list[RankTimes]:
    """0.5 s + m / 640 and m / 1280, on a ring of 1 ms and 125 MB/s, slowed by 1.2."""
    found = []
    for overhead_s, rate in ((0.45, 640.0), (0.1, 1280.0)):
        passes = {m: jittered(overhead_s + m / rate) for m in BATCHES}
        collectives = {size: jittered(2 * (1e-3 + size / (2 * 125e6))) for size in (10**4, 10**6, 10**7)}
        idle, busy = jittered(0.5), jittered(0.6)
        if odd:
            for times in (*passes.values(), *collectives.values(), idle, busy):
                times[3] = OUTLIER_S
        found.append(
            RankTimes(device="Some CPU", host="h", passes_s=passes, collectives_s=collectives, idle_s=idle, busy_s=busy)
        )
    return found


def made(ranks: Sequence[RankTimes], subject: Subject = SUBJECT):  # type: ignore[no-untyped-def]
    return estimate(ranks, subject, name="c", date="2026-01-02", versions="torch 9", backend="gloo")


@pytest.mark.parametrize("odd", [False, True])
def test_what_was_put_in_comes_out_whatever_one_outlier_says(odd: bool) -> None:
    found = made(two_ranks(odd))
    cluster = load_profile(found.profile.to_yaml()).cluster()
    first, second = cluster.workers
    assert first.samples_per_s == pytest.approx(640, rel=0.01) and first.overhead_s == pytest.approx(0.45, rel=0.01)
    assert second.samples_per_s == pytest.approx(1280, rel=0.01) and second.overhead_s == pytest.approx(0.1, rel=0.01)
    assert {w.speed_source for w in cluster.workers} == {"calibrated"}
    assert all(0.003 < w.jitter_cv < 0.015 for w in cluster.workers)
    assert found.link is not None
    assert found.link.bytes_per_s.value == pytest.approx(125e6, rel=0.01)
    assert found.link.latency_s.value == pytest.approx(1e-3, rel=0.01)
    table = dict(cluster.network.all_reduce_table)
    assert table[1e7] == pytest.approx(2 * (1e-3 + 1e7 / 250e6), rel=0.01)
    assert cluster.network.overlap_slowdown == pytest.approx(1.2, rel=0.01)
    sources = found.profile.sources
    assert sources["workers.r0.samples_per_s"].startswith("calibrated 2026-01-02, torch 9, residual ")
    for key in ("workers.r0.samples_per_s", "network.all_reduce_table", "network.overlap_slowdown"):
        assert "standard error" in sources[key] and "%" in sources[key]


def test_a_bent_curve_becomes_a_table_of_medians() -> None:
    seconds = {8: 0.1, 16: 0.3, 32: 0.31, 64: 0.9}
    rank = RankTimes(device="d", host="h", passes_s={m: jittered(t) for m, t in seconds.items()})
    worker = made([rank]).profile.workers[0]
    assert worker.step_times_s == pytest.approx(seconds) and worker.samples_per_s is None


def test_one_rank_says_that_nothing_was_communicated() -> None:
    found = made([RankTimes(device="d", host="h", passes_s={8: [0.1], 16: [0.2]})])
    assert found.link is None and found.overlap_slowdown is None and not found.profile.network.all_reduce_table
    assert "one rank" in found.profile.sources["network"]


def test_a_catalogue_gpu_is_named_and_its_memory_is_the_measured_one() -> None:
    rank = RankTimes(device="NVIDIA Tesla V100", host="h", memory_bytes=16.9e9, passes_s={8: [0.1], 16: [0.2]})
    worker = made([rank]).profile.workers[0]
    assert (worker.gpu, worker.memory_bytes) == ("V100", 16.9e9)


def test_ones_own_model_stands_in_the_profile() -> None:
    own = Subject(workload="own", gradient_bytes=400, dataset_samples=7, model="m:f", dataset="m:g")
    workload = made(two_ranks(), own).profile.cluster().workload
    assert (workload.gradient_bytes, workload.dataset_samples) == (400, 7)
    assert (workload.model, workload.dataset) == ("m:f", "m:g")


def test_a_collective_took_what_the_last_to_join_saw() -> None:
    ranks = [RankTimes(device="d", host="h", collectives_s={4: t}) for t in ([9.0, 1.0, 1.0], [1.0, 1.0, 9.0])]
    assert [(size, found.value) for size, found in all_reduce_medians(ranks)] == [(4, 1.0)]


def test_overlap_is_never_a_gain_and_unknown_where_nothing_was_caught() -> None:
    slower = RankTimes(device="d", host="h", idle_s=[2.0], busy_s=[1.0])
    found = overlap([slower], 100)
    assert found is not None and found.value == 1.0
    assert overlap([RankTimes(device="d", host="h", idle_s=[2.0])], 100) is None


def test_standard_errors_by_hand() -> None:
    """Deviations 2 1 0 1 2: median 1."""
    assert middle([1.0, 2.0, 3.0, 4.0, 5.0]).error == pytest.approx(1.2533 * 1.4826 / 5**0.5, rel=1e-4)
    assert middle([1.0, 2.0]).error is None
    intercept, slope = line_with_errors([(1.0, 3.0), (2.0, 5.0)])
    assert (intercept.value, slope.value) == (pytest.approx(1.0), pytest.approx(2.0)) and slope.error is None
    with pytest.raises(UsageError, match="one size"):
        line_with_errors([(1.0, 3.0), (1.0, 5.0)])
    with pytest.raises(UsageError, match="does not grow"):
        line_with_errors([(1.0, 5.0), (2.0, 4.0), (3.0, 3.0)])


class Virtual:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now, self.calls, self.waited, self.in_flight = 0.0, 0, 0, [True, False]

    def work(self, size: int) -> None:
        self.calls += 1
        self.now += 100.0 if self.calls <= 4 else float(size)

    def is_completed(self) -> bool:
        return not self.in_flight[self.waited % 2]

    def wait(self) -> None:
        self.waited += 1
        self.now += 1000.0


def test_warm_up_is_dropped_and_sizes_take_turns() -> None:
    world = Virtual()
    barrier: Callable[[], None] = lambda: setattr(world, "now", world.now + 7.0)  # noqa: E731
    found = rounds(world.work, (1, 2), repeats=3, warm_up=2, clock=lambda: world.now, barrier=barrier)
    assert found == {1: [1.0] * 3, 2: [2.0] * 3}


def test_only_passes_that_end_in_flight_count_and_every_collective_is_waited_for() -> None:
    world = Virtual()
    idle, busy = beside(
        lambda: world.work(3), lambda: world, repeats=4, warm_up=2, clock=lambda: world.now, barrier=lambda: None
    )
    assert (idle, busy, world.waited) == ([3.0] * 4, [3.0] * 2, 6)


def computing_beside(slow: float, flight_s: float, odd: bool) -> list[RankTimes]:
    """Two ranks with passes of 0.1 and 0.2 s alone that take `slow` times as long beside collectives of `flight_s`;
    the second rank joins 0.05 s later."""
    found = []
    for pass_s, early_s in ((0.1, 0.05), (0.2, 0.0)):
        each = [
            Cycle(
                flight_s=flight_s + early_s,
                computing_s=flight_s + 0.1,
                passes=round((flight_s / slow + 0.1) / pass_s),
            )
        ] * 20
        if odd:
            each[4] = Cycle(flight_s=OUTLIER_S, computing_s=OUTLIER_S, passes=1)
        found.append(RankTimes(device="d", host="h", passes_s={8: [pass_s] * 9}, cycles={100: each}, micro_batch=8))
    return found


@pytest.mark.parametrize("odd", [False, True])
def test_a_collective_beside_computation_and_what_it_costs_by_hand(odd: bool) -> None:
    ranks = computing_beside(1.25, 1.0, odd)  # 0.8 s of work done in 1 s of flight, 0.1 s without one
    ((size, busy),) = busy_all_reduces(ranks, [(100, middle([0.4]))])
    assert size == 100 and busy.value == pytest.approx(1.0)  # as the last to join saw it
    found = overlap(ranks, 100)
    assert found is not None
    # 9 passes of 0.1 s are 0.9; of 0.2 s there are 4 (of 4.5): 0.8 s, 0.7 beside the collective
    assert found.value == pytest.approx((1 / 0.8 + 1 / 0.7) / 2)
    ((_, never_less),) = busy_all_reduces(ranks, [(100, middle([3.0]))])
    assert never_less.value == 3.0


def test_cycles_start_the_next_collective_when_the_last_is_seen_complete() -> None:
    now = [0.0]
    lasts = iter((9.0, 1.0, 2.5, 4.0, 7.0))

    class Flying:
        def __init__(self) -> None:
            self.end_s = now[0] + next(lasts)

        def is_completed(self) -> bool:
            return now[0] >= self.end_s

        def completed_s(self) -> float:
            return self.end_s

        def wait(self) -> None:
            now[0] += 0.25

    def work() -> None:
        now[0] += 1.0

    found = cycles(work, Flying, repeats=3, warm_up=1, clock=lambda: now[0])
    assert [(c.flight_s, c.computing_s, c.passes) for c in found] == [(1.0, 1.0, 1), (2.5, 3.0, 3), (4.0, 4.0, 4)]


def test_short_passes_are_done_in_a_row_so_that_a_quota_is_seen() -> None:
    assert in_a_row(0.0, [1e-9]) == 1 and in_a_row(0.1, [0.03, 0.5, 0.03]) == 4 and in_a_row(0.1, [0.2]) == 1
    # half a core: five seconds of work, then five of standing still
    clock = [0.0]

    def work(size: int) -> None:
        done = float(size)
        while done > 0:
            free = 5.0 - clock[0] % 10.0
            step = min(done, free) if free > 0 else 0.0
            done -= step
            clock[0] += step if step else 10.0 - clock[0] % 10.0

    how = {"repeats": 9, "warm_up": 1, "clock": lambda: clock[0], "barrier": lambda: None}
    alone = rounds(work, [1], **how)[1]  # type: ignore[arg-type]
    row = rounds(work, [1], least_s=100.0, **how)[1]  # type: ignore[arg-type]
    assert sorted(alone)[4] == 1.0 and sorted(row)[4] == pytest.approx(2.0, rel=0.06)


def test_the_payload_outlasts_the_pass_within_its_bound() -> None:
    assert long_enough(1.0, 1000, 0.5, 10**9) == 6000
    assert long_enough(1e-9, 1000, 0.5, 10**9) == 1000
    assert long_enough(1.0, 1000, 1e-9, 10**6) == 10**6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--batches", "8,x"], "whole numbers"),
        (["--batches", "8,8"], "each once"),
        (["--model", "a:b"], "go together"),
        (["--workload", "digits-cmm"], "did you mean"),
    ],
)
@pytest.mark.torch
def test_what_cannot_be_measured_is_said_before_a_process_starts(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("started a process"))
    assert main(["calibrate", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.live
def test_a_real_measurement_loads_and_simulates(tmp_path: Path) -> None:
    file = tmp_path / "here.yaml"
    sizes = ["--ranks", "2", "--batches", "4,16", "--payloads", "4096,65536", "--repeats", "3"]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "hetsim", "calibrate", "--workload", "digits-mlp", *sizes, "-o", str(file)],
        capture_output=True, text=True, timeout=200, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "all-reduce of" in done.stderr and [p.name for p in tmp_path.iterdir()] == [file.name]
    profile = load_profile(file)
    cluster = profile.cluster()
    assert cluster.n == 2 and {w.speed_source for w in cluster.workers} == {"calibrated"}
    assert [size for size, _ in cluster.network.all_reduce_table] == [4096.0, 65536.0]
    timing = simulate(profile, "s-sgd", updates=5).timing
    assert timing.samples_per_s > 0 and json.dumps(timing.update_period_s) != "null"
