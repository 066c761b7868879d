"""Parts of live runs without processes: the dispenser, the shared count, merging, pacing."""

from __future__ import annotations

import dataclasses
import random
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_clusters import two_workers

from abs_sgd import workloads
from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.computing import Passes, spread
from abs_sgd.runtime.pacing import ALLOWANCE_S, Pace, TooSlowError, lateness
from abs_sgd.runtime.record import RankLog, merge
from abs_sgd.runtime.run import schedule_of
from abs_sgd.runtime.samples import Clerk, SampleDispenser, SharedCount
from abs_sgd.runtime.wire import Wire
from hetsim.cluster.spec import Slowdown, Worker
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind
from hetsim.schedule.check import check
from hetsim.schedule.table import Header

pytestmark = pytest.mark.torch


class Counters:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def later(self, key: str, amount: int) -> Future[int]:
        future: Future[int] = Future()
        future.set_result(self.add(key, amount))
        return future


@settings(max_examples=200, deadline=None)
@given(
    ranks=st.integers(1, 5),
    epoch=st.integers(1, 40),
    budget=st.integers(0, 150),
    seed=st.integers(0, 2**32),
)
def test_samples_are_handed_out_once_whoever_asks(ranks: int, epoch: int, budget: int, seed: int) -> None:
    store, choice = Counters(), random.Random(seed)
    desks = [SampleDispenser(lambda n: store.later("samples", n), epoch, budget) for _ in range(ranks)]
    active, numbers = list(desks), []
    while active:
        desk = choice.choice(active)
        wanted = choice.randint(1, 30)
        ranges = desk.take(wanted)
        if choice.random() < 0.7:
            desk.ahead(choice.randint(1, 30))
        taken = [n for first, count in ranges for n in range(first, first + count)]
        assert len(taken) <= wanted and all(count > 0 for _, count in ranges)
        assert len({n // epoch for n in taken}) <= 1  # never across an epoch's end
        numbers += taken
        more = desk.has_more()
        if not taken:
            assert not more
            active.remove(desk)
    assert sorted(numbers) == list(range(budget))
    assert all(desk.take(5) == [] for desk in desks)


def test_claims_ahead_are_made_while_nobody_waits() -> None:
    """The claim is on its way when `ahead` returns; only a `take` that needs it waits."""
    store, gate = Counters(), threading.Event()

    class Slow(Counters):
        def add(self, key: str, amount: int, /) -> int:
            gate.wait()
            return store.add(key, amount)

    clerk = Clerk(Slow())
    desk = SampleDispenser(lambda n: clerk.add("samples", n), 100, 50)
    desk.ahead(8)
    assert store.values == {}
    gate.set()
    assert desk.take(8) == [(0, 8)]
    desk.ahead(8)
    desk.ahead(8)  # one claim at a time
    assert desk.has_more() and desk.take(10) == [(8, 10)]
    clerk.close()
    assert store.values == {"samples": 18}


def test_the_shared_count_knows_its_own_at_once_and_starts_anew_with_each_synchronization() -> None:
    store = Counters()
    one, two = SharedCount(store.later), SharedCount(store.later)
    assert one.count(0, 4) == 4
    assert two.count(0, 3) == 7
    assert one.count(0, 4) == 11
    assert one.count(1, 2) == 2
    assert two.count(0, 1) == 12

    never = SharedCount(lambda key, n: Future())
    assert [never.count(0, 4), never.count(0, 5)] == [4, 9]


def test_payloads_are_padded_and_buffers_used_again_as_zeros() -> None:
    wire = Wire(0, 1, 10, torch.float32, least_bytes=99.0)
    buffer_P = wire.buffer()
    assert len(buffer_P) == 25 and len(Wire(0, 1, 10, torch.float32, least_bytes=39.0).buffer()) == 10
    buffer_P += 1.0
    wire.release(buffer_P)
    again_P = wire.buffer()
    assert again_P is buffer_P and not again_P.any()
    assert wire.buffer() is not buffer_P  # one in flight, one being summed


def _log(rank: int, at: float) -> RankLog:
    """One synchronous update: a gradient, a collective, a step."""
    log = RankLog(rank)
    log.add(Kind.GRAD, 0.0, at, state=0, slot=0, samples=4, first=4 * rank)
    log.add(Kind.JOIN, at, at, source=0, slot=0, samples=4)
    log.seen_s[0] = 3.0 + rank
    log.add(Kind.WAIT, at, 3.0 + rank, source=0)
    log.add(Kind.STEP, 3.0 + rank, 3.5 + rank, state=1, parent=0, source=0, samples=8, first=8)
    log.polls += b"\x00\x01"
    log.outcomes.append(2.5)
    return log


def test_logs_of_two_ranks_become_one_schedule() -> None:
    logs = [RankLog.unpack(log.pack()) for log in (_log(1, 2.0), _log(0, 1.0))]
    header = Header(algorithm="s-sgd", options={}, seed=0, workers=("a", "b"), dataset_samples=100, origin="measured")
    schedule = schedule_of(logs, header)
    check(schedule)
    kinds = [Kind(k).name for k in schedule.kind]
    assert kinds == ["GRAD", "JOIN", "GRAD", "JOIN", "REDUCE", "WAIT", "STEP", "WAIT", "STEP"]
    reduce = schedule.rows(Kind.REDUCE)[0]
    assert (schedule.start_s[reduce], schedule.end_s[reduce], schedule.samples[reduce]) == (2.0, 3.0, 8)
    assert schedule.state[schedule.rows(Kind.STEP)].tolist() == [1, 1]  # replicas share the state
    assert schedule.slot[schedule.rows(Kind.GRAD)].tolist() == [0, 1]  # accumulators do not
    assert [bytes(p) for p in schedule.polls] == [b"\x00\x01", b"\x00\x01", b""]
    assert [o.tolist() for o in schedule.outcomes] == [[2.5], [2.5], []]


def test_own_steps_are_states_of_their_own() -> None:
    logs = []
    for rank in (0, 1):
        log = RankLog(rank)
        log.add(Kind.GRAD, 0.0, 1.0, state=0, slot=0, samples=4, first=4 * rank)
        log.add(Kind.STEP, 1.0, 1.5, state=1, parent=0, slot=0, samples=4, first=4)
        logs.append(log)
    assert sorted(merge(logs)["state"].tolist()) == [0, 0, 1, 2]
    with pytest.raises(ScheduleError, match="not all there"):
        merge(logs[1:])


def slow_worker() -> Worker:
    return Worker(
        rank=0,
        name="slow",
        group="g",
        node="n",
        samples_per_s=10.0,
        slowdowns=(Slowdown(at_s=5.0, until_s=7.0, factor=2.0),),
    )


class Sleeper:
    """A clock that only sleeping moves; every sleep takes `longer_s` more than asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longer_s: float = 0.0) -> None:
        self.slept: list[float] = []
        self.now_s, self.longer_s = 0.0, longer_s
        monkeypatch.setattr("abs_sgd.runtime.pacing.time.sleep", self.sleep)
        monkeypatch.setattr("abs_sgd.runtime.pacing.time.monotonic", lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.longer_s


def test_a_pace_is_the_profiles_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    pace.keep(10, 1.0, 1.25)  # a second's work
    pace.waited()
    pace.keep(10, 4.5, 4.6)  # half of it at half speed
    pace.waited()
    pace.keep(10, 8.0, 9.05)  # late, within the tolerance
    assert np.allclose(sleeper.slept, [0.75, 1.4])


def test_passes_that_overslept_are_made_up_for_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch, longer_s=0.002)
    pace, n = Pace(slow_worker(), 0, 4, tolerance=0.1), 50
    for _ in range(n):
        start_s = sleeper.now_s = sleeper.now_s if sleeper.now_s > 8.0 else 8.0  # after the slow-down
        sleeper.now_s += 0.001
        pace.keep(10, start_s, sleeper.now_s)
    assert sleeper.now_s - 8.0 == pytest.approx(n * 1.0 + 0.002, abs=1e-9)  # the last one's is still owed


def test_what_is_made_up_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    pace.keep(10, 8.0, 9.5)  # half a second late
    pace.keep(10, 9.5, 9.7)
    pace.keep(10, 10.5 - ALLOWANCE_S, 10.7)
    assert np.allclose(sleeper.slept, [0.8 - ALLOWANCE_S, 0.8 - ALLOWANCE_S])


def test_what_comes_between_two_passes_is_made_up_for_and_a_wait_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    pace.keep(10, 8.0, 8.5)
    pace.keep(10, 9.002, 9.5)  # 2 ms after the first has ended
    pace.waited()
    pace.keep(10, 10.003, 10.5)
    assert np.allclose(sleeper.slept, [0.5, 0.5, 0.503])


def test_an_update_takes_the_profiles_time_and_begins_where_the_pass_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    pace = Pace(dataclasses.replace(slow_worker(), update_s=0.25), 0, 4, tolerance=0.1)
    pace.keep_update(8.0, 8.05)
    pace.keep(10, 8.253, 8.5)  # 3 ms late, of its second
    pace.keep_update(9.2505, 9.251)
    pace.keep_update(9.75, 9.76)  # .25 s after it could have begun: 5 ms of them are forgiven
    assert np.allclose(sleeper.slept, [0.2, 0.75, 0.249, 0.235])


def test_a_moment_is_forgiven_and_a_slow_worker_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Sleeper(monkeypatch)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    late, within = 1.1 + ALLOWANCE_S + 1e-6, 1.1 + ALLOWANCE_S - 1e-3
    for took_s in [within, late] * 20:  # half of them: a busy machine
        pace.keep(10, 10.0, 10.0 + took_s)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    for _ in range(4):
        pace.keep(10, 10.0, 11.2)
    told = r"slow: 10 samples took 1\.2 s here, the profile gives them 1 s; 5 of its last 5 passes were too late: this profile cannot"
    with pytest.raises(TooSlowError, match=told):
        pace.keep(10, 10.0, 11.2)


@pytest.mark.parametrize("once_fast", [10, 1000])
def test_a_worker_that_grows_slow_is_found_however_long_it_was_not(
    once_fast: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sleeper(monkeypatch)
    pace = Pace(slow_worker(), 0, 4, tolerance=0.1)
    for _ in range(once_fast):
        pace.keep(10, 10.0, 10.5)
    for _ in range(5):
        pace.keep(10, 10.0, 11.2)
    with pytest.raises(TooSlowError, match="6 of its last 10"):
        pace.keep(10, 10.0, 11.2)


def test_late_passes_are_counted_from_the_schedule_alone() -> None:
    cluster = two_workers((10.0, 20.0))
    rows = [
        (0, 0.0, 1.0, 10),
        (0, 1.5, 2.0, 5),
        (0, 2.0, 2.7, 5),
        (0, 3.0, 4.1, 10),
        (1, 0.0, 0.5, 10),
        (1, 0.6, 1.1, 10),
    ]
    log = [RankLog(0), RankLog(1)]
    for rank, start_s, end_s, samples in rows:
        log[rank].add(Kind.GRAD, start_s, end_s, state=0, slot=0, samples=samples, first=0)
    header = Header(algorithm="s-sgd", options={}, seed=0, workers=("w0", "w1"), dataset_samples=100, origin="measured")
    schedule = schedule_of(log, header)
    found = lateness(schedule, cluster, 0.1)
    assert (found["w0"].passes, found["w0"].late) == (
        3,
        1,
    )  # 1.2 s for a batch in two pieces; 1.1 s is within the tolerance
    assert found["w0"].worst_s == pytest.approx(0.1 - ALLOWANCE_S)
    assert (found["w1"].passes, found["w1"].late, found["w1"].worst_s) == (2, 0, 0.0)


# ---- a batch that lies in several ranges ---------------------------------------------------------------------------------


def test_ranges_in_one_pass_give_the_sum_of_their_passes_and_share_its_time() -> None:
    task = workloads.get("digits-cnn", dtype=torch.float64)
    model = FlatModel(task.make_model(0))
    ranges = [(5, 3), (100, 9), (300, 4)]
    clock = iter((10.0, 20.0, 30.0))
    sums = [torch.zeros_like(model.parameters_P) for _ in range(2)]
    assert Passes(task, model, 0, None).all(ranges, sums[0], None, lambda: next(clock)) == [10.0]
    apart = Passes(dataclasses.replace(task, separable=False), model, 0, None)
    assert apart.all(ranges, sums[1], None, lambda: next(clock, 40.0)) == [20.0, 30.0, 40.0]
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-12, atol=1e-12)
    assert Passes(task, model, 0, 15).all(ranges, sums[0], None, lambda: 0.0) == [0.0] * 3  # more than memory allows
    assert [float(end) for end in spread(2.0, [10.0], ranges)] == [2 + 8 * 3 / 16, 2 + 8 * 12 / 16, 10.0]
    assert spread(2.0, [5.0, 6.0, 7.0], ranges) == [5.0, 6.0, 7.0]
