"""The line through a worker's passes: exact where they lie on one, quick where the speed changes, deaf to a straggler's moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.algorithms.balance import CHANGED, PassLine
from hetsim.commands import Computed

OVERHEAD_S, PER_SAMPLE_S = 0.01, 0.002
FIRST = (20, 30, 45, 60, 44, 46)


def seconds(size: int, slowdown: float = 1.0) -> float:
    return slowdown * (OVERHEAD_S + PER_SAMPLE_S * size)


def after(*passes: tuple[int, float], first: tuple[int, ...] = FIRST) -> PassLine:
    """Passes of some sizes at full speed, then those given: samples and by what factor they were slower."""
    line = PassLine()
    for size, factor in [*((size, 1.0) for size in first), *passes]:
        line.note(Computed(size, seconds(size, factor)))
    return line


def at(line: PassLine, size: int) -> float:
    intercept, slope = line.line()
    return intercept + slope * size


@given(
    st.lists(st.integers(2, 99), max_size=12),
    st.one_of(st.floats(0.1, 0.99 - CHANGED), st.floats(1.01 + CHANGED, 10.0)),
    st.integers(1, 100),
    st.integers(1, 100),
    st.integers(1, 200),
)
@settings(max_examples=200, deadline=None)
def test_two_passes_at_another_speed_are_enough(
    sizes: list[int], factor: float, one: int, other: int, asked: int
) -> None:
    """Whatever sizes were met before, and at whatever sizes between them the new speed shows: the whole line is the new one."""
    line = after((one, factor), (other, factor), first=(1, 100, *sizes))
    assert at(line, asked) == pytest.approx(seconds(asked, factor), rel=1e-6)


@pytest.mark.parametrize("straggled", [(45, 5.0), (50, 3.0), (30, 0.2)])
def test_one_pass_alone_moves_nothing(straggled: tuple[int, float]) -> None:
    line = after(straggled, (44, 1.0), straggled, (52, 1.0))
    for size in (1, 45, 200):
        assert at(line, size) == pytest.approx(seconds(size))


def test_a_slow_moment_and_a_fast_one_are_no_change() -> None:
    line = after((45, 2.0), (44, 0.5), (46, 1.0))
    assert at(line, 100) == pytest.approx(seconds(100))


def test_a_speed_that_changes_less_is_followed_size_by_size() -> None:
    line = after((45, 1.2), (44, 1.2))
    assert seconds(45) < at(line, 45) < seconds(45, 1.2)
    assert at(line, 20) < seconds(20, 1.2)


def test_a_size_far_from_all_others_tells_of_the_line_and_not_of_the_speed() -> None:
    """Below some size a GPU is no faster: the line through larger ones misses that, and misses it again."""
    line = PassLine()
    for size, took_s in [(60, 0.13), (50, 0.11), (40, 0.09), (4, 0.08), (4, 0.08), (60, 0.13)]:
        line.note(Computed(size, took_s))
    assert 0.1 < at(line, 60) < 0.14  # .57 where all sizes were moved by it
