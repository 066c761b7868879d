"""The best unequal batches against every way of splitting there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.spec import Worker
from hetsim.compute import pass_model, passes
from hetsim.errors import UsageError
from hetsim.split import batch_seconds, best_split


def worker(**fields: object) -> Worker:
    return Worker(rank=0, name="w", group="w", node="w", **fields)  # type: ignore[arg-type]


def all_splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def slowest(workers: list[Worker], batches: tuple[int, ...]) -> float:
    """Pass by pass, as the simulator cuts them."""
    return max(
        sum(pass_model(w).seconds(m) for m in passes(b, w.max_batch_samples))
        for w, b in zip(workers, batches, strict=True)
    )


workers = st.lists(
    st.builds(
        worker,
        samples_per_s=st.floats(1.0, 200.0),
        overhead_s=st.floats(0.0, 0.3),
        floor_s=st.floats(0.0, 0.3),
        max_batch_samples=st.one_of(st.none(), st.integers(1, 12)),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=150)
@given(workers=workers, extra=st.integers(0, 14))
def test_no_split_is_faster(workers: list[Worker], extra: int) -> None:
    total = len(workers) + extra
    found = best_split(total, [batch_seconds(w) for w in workers])
    assert sum(found) == total and min(found) >= 1
    best = min(slowest(workers, batches) for batches in all_splits(total, len(workers)))
    assert slowest(workers, found) == pytest.approx(best, rel=1e-12)


def test_two_fast_and_two_slow_cards_under_memory_caps() -> None:
    """Fast ones hold 9 samples in a pass and slow ones 4; a pass costs 20 ms beside its samples: unequal, and no split of 26 is better."""
    fast = worker(samples_per_s=300.0, overhead_s=0.02, max_batch_samples=9)
    slow = worker(samples_per_s=100.0, overhead_s=0.02, max_batch_samples=4)
    cards = [fast, fast, slow, slow]
    found = best_split(26, [batch_seconds(w) for w in cards])
    assert found == (9, 9, 4, 4)
    assert slowest(cards, found) == min(slowest(cards, b) for b in all_splits(26, 4)) < slowest(cards, (7, 7, 6, 6))
    uncapped = [worker(samples_per_s=w.samples_per_s, overhead_s=0.02) for w in cards]
    assert best_split(26, [batch_seconds(w) for w in uncapped]) == (10, 10, 3, 3)


def test_timm_s_case() -> None:
    """Pull request 580: 200 each is 2000 images/s; 300 on the two fast cards, 2500."""
    cards = [worker(samples_per_s=v) for v in (750.0, 750.0, 500.0, 500.0)]
    found = best_split(1000, [batch_seconds(w) for w in cards])
    assert found == (300, 300, 200, 200)
    assert 1000 / slowest(cards, found) == pytest.approx(2500)


def test_ties_go_to_the_lower_rank_and_workers_that_take_no_time_get_what_is_left() -> None:
    assert best_split(10, [batch_seconds(worker(samples_per_s=100.0))] * 4) == (3, 3, 2, 2)
    assert best_split(10, [batch_seconds(worker()), batch_seconds(worker(samples_per_s=1.0))]) == (9, 1)
    assert best_split(3, [batch_seconds(worker())] * 3) == (1, 1, 1)


def test_a_sample_each_is_the_least() -> None:
    with pytest.raises(UsageError, match="fewer than the 3 workers"):
        best_split(2, [batch_seconds(worker())] * 3)
