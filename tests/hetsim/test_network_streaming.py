"""Buckets that leave during the backward pass: the closed form for equal buckets, and every event simulated one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.network import bucket_bytes, stream_ready, streamed_finish

MIB = 2**20
seconds = st.floats(0.0, 10.0, allow_subnormal=False)
shares = st.floats(0.0, 1.0, allow_subnormal=False)


@given(st.integers(0, 2_000_000_000))
def test_buckets_sum_to_the_payload_and_are_full_but_for_the_last(payload: int) -> None:
    sizes = bucket_bytes(payload)
    assert sum(sizes) == payload
    assert sizes[0] == min(MIB, payload)
    assert all(size == 25 * MIB for size in sizes[1:-1])
    assert all(0 < size <= 25 * MIB for size in sizes[1:])


def test_resnet18_leaves_in_three_buckets() -> None:
    assert bucket_bytes(44_695_848) == (MIB, 25 * MIB, 44_695_848 - 26 * MIB)


def test_other_sizes_and_nothing_at_all() -> None:
    assert bucket_bytes(10.0, first=4.0, later=4.0) == (4.0, 4.0, 2.0)
    assert bucket_bytes(0.0) == (0.0,)
    with pytest.raises(ValueError, match="positive"):
        bucket_bytes(1.0, later=0.0)


def test_a_free_payload_is_ready_at_the_end() -> None:
    assert stream_ready(3.0, 2.0, 0.5, bucket_bytes(0.0)) == [3.0]


@given(
    st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5),  # (end, pass)
    shares,
    seconds,
    st.integers(1, 12),
)
@settings(deadline=None)
def test_equal_buckets_follow_the_closed_form(
    workers: list[tuple[float, float]], f: float, total: float, k: int
) -> None:
    ready = [stream_ready(end, t, f, [1.0] * k) for end, t in workers]
    closed = max(
        max(end - f * t * (1 - 1 / k) for end, t in workers) + total,
        max(end for end, _ in workers) + total / k,
    )
    assert streamed_finish(ready, [total / k] * k) == pytest.approx(closed, rel=1e-12, abs=1e-12)


def by_events(ready: list[list[float]], cost: list[float]) -> float:
    """One channel, first bucket first: it takes a bucket when all workers have reported it and the one before is through."""
    reports = sorted((at, j) for row in ready for j, at in enumerate(row))
    missing = [len(ready)] * len(cost)
    channel_free, following = 0.0, 0
    for at, j in reports:
        missing[j] -= 1
        while following < len(cost) and missing[following] == 0:
            channel_free = max(channel_free, at) + cost[following]
            following += 1
    assert following == len(cost)
    return channel_free


@given(st.data(), st.integers(1, 5), st.integers(1, 6))
@settings(deadline=None)
def test_unequal_buckets_follow_the_events(data: st.DataObject, n: int, k: int) -> None:
    ready = [sorted(data.draw(st.lists(seconds, min_size=k, max_size=k))) for _ in range(n)]
    cost = data.draw(st.lists(seconds, min_size=k, max_size=k))
    finish = streamed_finish(ready, cost)
    assert finish == pytest.approx(by_events(ready, cost), rel=1e-12)
    assert finish == pytest.approx(max(max(row[j] for row in ready) + sum(cost[j:]) for j in range(k)), rel=1e-12)


@given(seconds, seconds, shares, st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8))
def test_gradients_appear_evenly_by_bytes_and_last_at_the_end(
    end: float, t: float, f: float, sizes: list[float]
) -> None:
    ready = stream_ready(end, t, f, sizes)
    assert ready[-1] == end and ready == sorted(ready)
    assert ready[0] == pytest.approx(end - f * t * (1 - sizes[0] / sum(sizes)) if len(sizes) > 1 else end, abs=1e-9)


def test_without_overlap_all_buckets_wait_for_the_end() -> None:
    assert (
        streamed_finish([stream_ready(1.0, 1.0, 0.0, [1.0, 1.0]), stream_ready(2.0, 1.0, 0.0, [1.0, 1.0])], [0.5, 0.25])
        == 2.75
    )
