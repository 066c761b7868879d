from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.cluster.spec import Slowdown
from hetsim.compute import SpeedProfile

EVENTS = (
    Slowdown(at_s=10.0, until_s=20.0, factor=2.0),
    Slowdown(at_s=15.0, until_s=30.0, factor=4.0),
    Slowdown(at_s=40.0, factor=0.5),
)

slowdowns = st.lists(
    st.builds(
        lambda at, length, factor: Slowdown(at_s=at, until_s=at + length, factor=factor),
        st.floats(0, 100),
        st.floats(0, 50) | st.just(math.inf),
        st.floats(0.1, 20),
    ),
    max_size=5,
)
times, works, extras = st.floats(0, 150), st.floats(0, 50), st.floats(1, 3)


def test_overlapping_slowdowns_multiply_and_intervals_are_half_open() -> None:
    speed = SpeedProfile(EVENTS)
    at = (0.0, 10.0, 14.9, 15.0, 20.0, 29.9, 30.0, 40.0, 1e9)
    assert [speed.factor(t) for t in at] == [1.0, 2.0, 2.0, 8.0, 4.0, 4.0, 1.0, 0.5, 0.5]
    assert [speed.next_change(t) for t in (0.0, 10.0, 19.0, 30.0, 40.0)] == [10.0, 15.0, 20.0, 40.0, math.inf]


def test_work_across_the_changes_in_exact_numbers() -> None:
    speed = SpeedProfile(EVENTS)
    assert speed.finish(0.0, 10.0) == 10.0
    assert speed.finish(8.0, 3.0) == 12.0  # 2 s at full speed, 1 s of work at half
    assert speed.finish(8.0, 2 + 2.5 + 0.625 + 2.5 + 1) == 31.0
    assert speed.finish(39.0, 3.0) == 41.0
    assert speed.finish(8.0, 3.0, extra_factor=2.0) == 23.5  # 2.5625 s of work done by 20 s, the rest at 1/8
    assert speed.finish(8.0, 0.0) == 8.0
    assert SpeedProfile().finish(5.0, 3.0, 1.5) == 9.5 and SpeedProfile().next_change(0.0) == math.inf
    assert SpeedProfile().constant and not speed.constant


def test_a_standstill_ends_with_its_event_or_never() -> None:
    pause = SpeedProfile([Slowdown(at_s=1.0, until_s=3.0, factor=math.inf)])
    assert pause.finish(0.0, 2.0) == 4.0
    assert SpeedProfile([Slowdown(at_s=1.0, factor=math.inf)]).finish(0.0, 2.0) == math.inf
    assert SpeedProfile([Slowdown(at_s=1.0, factor=math.inf)]).finish(2.0, 0.0) == 2.0


@given(slowdowns, times, works, extras)
def test_finish_against_numerical_quadrature(events: list[Slowdown], start: float, work: float, extra: float) -> None:
    """The work done between start and finish, integrated on a fine grid that knows nothing of the pieces."""
    end = SpeedProfile(events).finish(start, work, extra)
    cells = 4000
    step = (end - start) / cells
    middle = start + step * (np.arange(cells) + 0.5)
    factor = np.full(cells, extra)
    for s in events:
        factor[(middle >= s.at_s) & (middle < s.until_s)] *= s.factor
    fastest = math.prod(min(1.0, s.factor) for s in events)
    misplaced = 2 * len(events) * step / fastest  # at most one cell at each start and end is on the wrong side
    assert float(np.sum(step / factor)) == pytest.approx(work, rel=1e-9, abs=misplaced + 1e-9)


@given(slowdowns, times, works, works, extras)
def test_work_in_two_parts_ends_when_it_ends_in_one(
    events: list[Slowdown], start: float, a: float, b: float, extra: float
) -> None:
    speed = SpeedProfile(events)
    in_parts = speed.finish(speed.finish(start, a, extra), b, extra)
    assert in_parts == pytest.approx(speed.finish(start, a + b, extra), rel=1e-9, abs=1e-9)


@given(slowdowns, times, works, extras)
def test_done_is_the_inverse_of_finish(events: list[Slowdown], start: float, work: float, extra: float) -> None:
    speed = SpeedProfile(events)
    assert speed.done(start, speed.finish(start, work, extra), extra) == pytest.approx(work, rel=1e-9, abs=1e-9)


@given(slowdowns, times, times, works)
def test_who_starts_later_does_not_end_earlier(events: list[Slowdown], a: float, b: float, work: float) -> None:
    speed = SpeedProfile(events)
    assert speed.finish(min(a, b), work) <= speed.finish(max(a, b), work) * (1 + 1e-12) + 1e-9


def test_sums_stay_exact_at_a_horizon_of_a_billion_seconds() -> None:
    speed = SpeedProfile([Slowdown(at_s=1e9, until_s=1e9 + 4, factor=2.0)])
    assert speed.finish(1e9 - 1, 2.5) == 1e9 + 3
