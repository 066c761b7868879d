"""Order-statistic intervals and paired ratios."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.intervals import CONFIDENCE, coverage, interval, paired_ratio, rank_of

numbers = st.lists(st.floats(0.1, 100), min_size=1, max_size=12)


def test_coverage_by_counting_which_halves_lie_below_the_median() -> None:
    """Every subset of seeds is equally likely to lie below the median: count those for which [x_(r), x_(m+1-r)] holds it."""
    for count in range(2, 12):
        rank, kept, everything = rank_of(count), 0, 0
        for below in range(count + 1):
            ways = sum(1 for _ in combinations(range(count), below))
            everything += ways
            kept += ways if rank <= below <= count - rank else 0
        assert coverage(count) == pytest.approx(kept / everything, abs=1e-12)


def test_known_coverages() -> None:
    assert coverage(1) is None
    assert coverage(5) == 0.9375
    assert (rank_of(5), rank_of(8), rank_of(9), rank_of(20)) == (1, 1, 2, 6)  # tables of the sign test at 5 %


@given(st.integers(6, 200))
def test_the_narrowest_interval_that_keeps_its_promise(count: int) -> None:
    rank = rank_of(count)
    tail = sum(math.comb(count, k) for k in range(rank + 1)) * 0.5**count  # one rank further in
    found = coverage(count)
    assert found is not None and found >= CONFIDENCE > 1 - 2 * tail


@given(numbers, st.randoms())
def test_order_does_not_matter_and_the_median_lies_inside(values: list[float], random: object) -> None:
    found = interval(values)
    assert interval(sorted(values, reverse=True)) == found
    if found.low is not None and found.high is not None:
        assert found.low <= found.median <= found.high


def test_seeds_that_never_reach_count_as_infinite() -> None:
    assert interval([1.0, math.inf, 2.0]).median == 2.0
    assert interval([1.0, math.inf, math.inf]).median == math.inf
    assert interval([1.0, math.inf]).median == math.inf


def test_ratios_are_taken_seed_by_seed() -> None:
    """Medians 2 and 2 would say 1; on the same seeds it is 2, 0.5, 1.5."""
    found = paired_ratio([2.0, 1.0, 3.0], [1.0, 2.0, 2.0])
    assert found is not None
    assert (found.median, found.low, found.high) == (1.5, 0.5, 2.0)
    assert paired_ratio([math.inf], [math.inf]) is None
    assert paired_ratio([1.0, 1.0, math.inf], [1.0, 1.0, 1.0]).high == math.inf  # type: ignore[union-attr]


@given(numbers)
def test_a_method_against_itself_is_one(values: list[float]) -> None:
    found = paired_ratio(values, values)
    assert found is not None and found.median == 1.0 and found.low in (1.0, None)
