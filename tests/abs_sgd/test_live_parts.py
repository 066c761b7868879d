"""Parts of live runs without processes: the dispenser, the shared count, merging, pacing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abs_sgd.runtime.pacing import Pace, TooSlowError
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


def test_a_pace_is_the_profiles_time_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("abs_sgd.runtime.pacing.time.sleep", slept.append)
    worker = Worker(
        rank=0,
        name="slow",
        group="g",
        node="n",
        samples_per_s=10.0,
        slowdowns=(Slowdown(at_s=5.0, until_s=7.0, factor=2.0),),
    )
    pace = Pace(worker, 0, 4, tolerance=0.1)
    pace.keep(10, 1.0, 1.25)  # a second's work
    pace.keep(10, 4.5, 4.6)  # half of it at half speed
    pace.keep(10, 8.0, 9.05)  # late, within the tolerance
    assert np.allclose(slept, [0.75, 1.4])
    with pytest.raises(TooSlowError, match=r"slow: 10 samples took 1\.2 s here, the profile gives them 1 s"):
        pace.keep(10, 10.0, 11.2)
