"""Clocks of several machines brought together: offsets measured between two processes, rows in times that can have been."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from abs_sgd.launch import _tcp_store
from abs_sgd.processes import LOOPBACK
from abs_sgd.runtime.offsets import causal, clock_offsets, machine
from abs_sgd.runtime.record import RankLog
from abs_sgd.runtime.run import schedule_of
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind
from hetsim.schedule.check import check
from hetsim.schedule.table import Header

pytestmark = pytest.mark.torch
SKEW_S = 1234.5


def _measure(rank: int, port: int, results: Any) -> None:
    import os

    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    dist.init_process_group("gloo", store=_tcp_store(port, is_master=False), rank=rank, world_size=3)
    skewed = (lambda: time.monotonic() + SKEW_S) if rank else time.monotonic
    apart = clock_offsets(["x", "y", "y"], rank, skewed)
    together = clock_offsets([machine()] * 3, rank, skewed)
    results.put((rank, [(o.offset_s, o.round_trip_s) for o in apart], [o.offset_s for o in together]))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.live
def test_the_offset_between_two_machines_is_measured_within_half_a_round_trip() -> None:
    context = multiprocessing.get_context("spawn")
    results, store = context.Queue(), _tcp_store(0, is_master=True)
    ranks = [context.Process(target=_measure, args=(rank, store.port, results)) for rank in range(3)]
    for process in ranks:
        process.start()
    try:
        found = [results.get(timeout=60) for _ in ranks]
    finally:
        for process in ranks:
            process.join(30)
            process.kill()
    for _, apart, together in found:
        assert apart == found[0][1]  # all know all
        assert apart[0] == (0.0, 0.0) and apart[1] == apart[2]
        offset_s, round_trip_s = apart[1]
        assert 0.0 < round_trip_s < 1.0
        assert abs(offset_s + SKEW_S) <= round_trip_s / 2
        assert together == [0.0, 0.0, 0.0]


def _logs(ranks: int, updates: int, seed: int, skews_s: list[float]) -> list[RankLog]:
    """S-SGD on ranks whose clocks differ: computing, joining, waiting for the last, a step."""
    luck = random.Random(seed)
    logs = [RankLog(rank) for rank in range(ranks)]
    now_s, first = [0.0] * ranks, 0
    for k in range(updates):
        joins_s = []
        for rank, log in enumerate(logs):
            begun_s = now_s[rank] + skews_s[rank]
            now_s[rank] += luck.uniform(0.1, 1.0)
            end_s = now_s[rank] + skews_s[rank]
            log.add(Kind.GRAD, begun_s, end_s, state=k, slot=k, samples=4, first=first)
            log.add(Kind.JOIN, end_s, end_s, source=k, slot=k, samples=4)
            joins_s.append(now_s[rank])
            first += 4
        for rank, log in enumerate(logs):
            waited_s, skew_s = now_s[rank], skews_s[rank]
            now_s[rank] = max(joins_s) + luck.uniform(0.01, 0.1)
            log.seen_s[k] = now_s[rank] + skew_s
            log.add(Kind.WAIT, waited_s + skew_s, now_s[rank] + skew_s, source=k)
            log.add(
                Kind.STEP,
                now_s[rank] + skew_s,
                now_s[rank] + skew_s,
                state=k + 1,
                parent=k,
                source=k,
                samples=4 * ranks,
                first=4 * ranks,
            )
    return logs


def _schedule(logs: list[RankLog]) -> Any:
    header = Header(
        algorithm="s-sgd", options={}, seed=0, workers=tuple("abcd"[: len(logs)]), dataset_samples=10**6, origin="measured"
    )  # fmt: skip
    return schedule_of(logs, header)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 4),
    updates=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    skews_s=st.lists(st.floats(-5.0, 5.0), min_size=4, max_size=4),
)
def test_rows_of_clocks_that_differ_become_a_schedule_that_keeps_every_promise(
    ranks: int, updates: int, seed: int, skews_s: list[float]
) -> None:
    logs = _logs(ranks, updates, seed, skews_s)
    moved, _, most_s = causal(logs)
    check(_schedule(moved))
    assert most_s <= max(skews_s) - min(skews_s) + 1e-9
    for before, after in zip(logs, moved, strict=True):
        assert [r[4:] for r in before.rows] == [r[4:] for r in after.rows]  # nothing but times
        assert all(b[2] <= a[2] and b[3] <= a[3] for b, a in zip(before.rows, after.rows, strict=True))


def test_one_clock_moves_nothing() -> None:
    logs = _logs(3, 5, 1, [0.0] * 3)
    moved, count, most_s = causal(logs)
    assert (count, most_s) == (0, 0.0)
    assert [log.rows for log in moved] == [log.rows for log in logs]
    assert [log.seen_s for log in moved] == [log.seen_s for log in logs]


def test_a_clock_that_is_late_by_more_than_a_wait_breaks_the_order_unless_it_is_moved() -> None:
    logs = _logs(2, 3, 1, [0.0, -5.0])
    with pytest.raises(ScheduleError, match=r"before it is complete|already complete"):
        check(_schedule(logs))
    moved, count, most_s = causal(logs)
    check(_schedule(moved))
    assert count > 0 and 4.0 < most_s <= 5.0
