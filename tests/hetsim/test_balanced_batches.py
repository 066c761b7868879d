"""Batches that finish together: the sum is kept, limits are, and no other split ends sooner, also among lines that are nearly flat."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.algorithms.balance import Pacer, balanced, slowest
from hetsim.commands import Computed, Reduced

INTERCEPTS = st.sampled_from([0.0, 0.01, 0.18, 5.0]) | st.floats(0, 1)
SLOPES = st.sampled_from([0.0, 1e-12, 9.6e-9, 0.003, 2.0]) | st.floats(1e-6, 1)
LINES = st.lists(st.tuples(INTERCEPTS, SLOPES), min_size=1, max_size=4)


@given(LINES, st.data())
def test_no_other_split_ends_sooner(lines: list[tuple[float, float]], data: st.DataObject) -> None:
    n, least = len(lines), data.draw(st.integers(0, 1))
    total = data.draw(st.integers(least * n, 12))
    caps = tuple(data.draw(st.lists(st.none() | st.integers(1, 8), min_size=n, max_size=n)))
    batches = balanced(total, tuple(lines), caps, least)
    hold = sum(total if c is None else c for c in caps) >= total  # caps that cannot hold the total count for nothing
    most = [total if c is None or not hold else c for c in caps]
    assert sum(batches) == total
    assert all(least <= b <= m for b, m in zip(batches, most, strict=True))
    splits = itertools.product(*(range(least, min(m, total) + 1) for m in most))
    best = min(slowest(tuple(lines), split) for split in splits if sum(split) == total)
    assert slowest(tuple(lines), batches) == pytest.approx(best, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("total", [32, 500, 10**9])
def test_a_flat_line_behind_a_cap_is_not_filled_one_sample_at_a_time(total: int) -> None:
    lines = ((0.0, 0.011), (0.0, 0.021), (0.136, 0.005), (0.1837, 9.6e-9), (0.244, 0.003), (0.0, 0.322))
    batches = balanced(
        total, lines, (1, None, None, 1_000_000, None, None), 1
    )  # some million steps before it took any notice of the sum
    assert sum(batches) == total and min(batches) >= 1 and batches[0] == 1 and batches[3] <= 1_000_000


def test_a_worker_that_takes_no_time_keeps_its_micro_batch() -> None:
    pacer = Pacer(8, None)
    pacer.note(Computed(8, 0.0))
    pacer.update(Reduced(16, {0: (0.0,), 1: (0.1,)}, (0, 1), False))
    assert pacer.samples == 8
