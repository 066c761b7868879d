"""Who wins: hand-made rows with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_clusters import small

from hetsim.cautions import idle_workers, memory, target_cautions
from hetsim.compare import speedup
from hetsim.comparison import Row, Speedup
from hetsim.rows import time_to_target, timing_row
from hetsim.simulate import simulate
from hetsim.tuning import Crossing
from hetsim.verdict import clear_winner, fastest, rival_of

TEMPLATE = timing_row(simulate(small(), "s-sgd", updates=4))


def row(name: str, *seconds: float | None) -> Row:
    algorithm = name.split(":")[0]
    met = [None if s is None else Crossing(seconds=s, samples=10.0, updates=1) for s in seconds]
    role = "ours" if algorithm == "abs-sgd" else "baseline"
    return replace(TEMPLATE, name=name, algorithm=algorithm, role=role, time_to_target_s=time_to_target(met))


def test_speedup_is_over_the_best_baseline_seed_by_seed() -> None:
    slow, best, ours = row("s-sgd", 30, 31, 32), row("lb-bsp", 20, 24, 28), row("abs-sgd", 10, 16, 14)
    assert fastest([slow, best]) is best
    assert speedup(ours, best, 3) == Speedup(value=2.0, low=1.5, high=2.0)
    assert speedup(best, best, 3) == Speedup(value=1.0, low=1.0, high=1.0)
    assert speedup(slow, best, 3) == Speedup(value=24 / 31, low=20 / 30, high=28 / 32)


def test_nothing_to_compare_with_is_no_number() -> None:
    nothing = Speedup(value=None, low=None, high=None)
    assert speedup(row("abs-sgd", 1, 1, 1), None, 3) == nothing
    assert speedup(row("abs-sgd", None), row("s-sgd", 1, 1, 1), 3) == nothing


@pytest.mark.parametrize(
    ("ours", "baseline", "winner"),
    [
        ((10, 10, 10), (12, 12, 12), "abs-sgd"),
        ((12, 12, 12), (10, 10, 10), "s-sgd"),
        ((10, 10, 10), (12, 12, 9.9), None),  # the interval includes 1
        ((10, 10, 10), (10.05, 10.06, 10.05), None),  # a lead within the margin
        ((10, 10, 10), (10, 10, 10), None),
        ((10, 10, 10), (None,), "abs-sgd"),  # never tried again: counts as infinite
        ((10,), (12,), None),  # one seed has no interval
        ((None,), (None,), None),
    ],
)
def test_a_winner_is_clear_or_there_is_none(ours: tuple, baseline: tuple, winner: str | None) -> None:
    found = clear_winner([row("s-sgd", *baseline), row("abs-sgd", *ours)], max(len(ours), len(baseline)))
    assert (found.name if found else None) == winner


def test_options_of_one_algorithm_do_not_stand_in_its_way() -> None:
    rows = [row("s-sgd", 20, 20, 20), row("abs-sgd", 10, 10, 10), row("abs-sgd:compute_point=blend", 10, 10.1, 9.9)]
    found = clear_winner(rows, 3)
    assert found is not None and found.name == "abs-sgd"
    assert rival_of(found, rows) is rows[0]
    assert clear_winner(rows[1:], 3) is None  # where there is nothing else they are compared


def test_median_time_needs_half_of_the_seeds() -> None:
    time = row("s-sgd", 1, None, None).time_to_target_s
    assert time is not None and (time.median, time.low, time.high, time.reached, time.seeds) == (None, 1.0, None, 1, 3)
    time = row("s-sgd", 1, 2, None).time_to_target_s
    assert time is not None and (time.median, time.high, time.reached, time.by_seed) == (2.0, None, 2, (1.0, 2.0, None))


def test_cautions_of_rows() -> None:
    lazy = replace(TEMPLATE, sample_share={"fast": 0.9995, "slow": 0.0005})
    assert [c.code for c in idle_workers(lazy)] == ["idle-worker"] and not idle_workers(TEMPLATE)
    tight = replace(TEMPLATE, memory_bytes={"fast": 1.7e10, "slow": 1.5e10})
    found = memory(tight, small())
    assert [c.code for c in found] == ["out-of-memory"] and "fast needs about 17 GB" in found[0].text
    missed = target_cautions(row("s-sgd", 1, None, 2), False)
    assert [c.code for c in missed] == ["not-reached"] and "2 of 3 seeds" in missed[0].text
    edge = target_cautions(replace(row("s-sgd", 1), learning_rate=4.0), True)
    assert [c.code for c in edge] == ["grid-edge"]
