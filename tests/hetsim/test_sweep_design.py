"""Grids and Latin hypercubes: every combination once, every stratum once, ends to the bit; and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.errors import UsageError
from hetsim.sweeps.design import (
    MOST_CELLS,
    Axis,
    Latin,
    Span,
    cell_count,
    fields_of,
    points,
    read_axis,
    read_latin,
)

NAMES = ("a", "b.c", "workers.d.samples_per_s")


@st.composite
def spans(draw: Any) -> Span:
    log, whole = draw(st.booleans()), draw(st.booleans())
    if whole:
        low = draw(st.integers(1 if log else -1000, 1000))
        return Span(low=low, high=low + draw(st.integers(1, 5000)), log=log, whole=True)
    low = draw(st.floats(1e-6 if log else -1e6, 1e6))
    return Span(low=low, high=low + draw(st.floats(1e-3, 1e6)), log=log)


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=4, unique=True), min_size=1, max_size=3))
def test_a_grid_has_every_combination_once_the_last_field_fastest(values: list[list[int]]) -> None:
    axes = [Axis(field=name, values=tuple(v)) for name, v in zip(NAMES, values, strict=False)]
    found = list(points(axes, None))
    assert found == list(itertools.product(*values))
    assert len(found) == cell_count(axes, None) == math.prod(map(len, values))


@given(spans(), st.integers(2, 50))
def test_a_range_ends_where_it_says_and_rises(span: Span, count: int) -> None:
    values = span.even(count)
    assert (values[0], values[-1]) == (span.low, span.high)
    assert list(values) == sorted(set(values)) and len(values) <= count
    if not span.whole and not span.log:
        assert np.allclose(np.diff(values), (span.high - span.low) / (count - 1), rtol=1e-6, atol=1e-9)
    if not span.whole and span.log:
        ratios = np.diff(np.log(values))
        assert np.allclose(ratios, ratios[0], rtol=1e-5, atol=1e-12)


@given(st.lists(spans(), min_size=1, max_size=3), st.integers(1, 60), st.integers(0, 2**31))
def test_a_hypercube_has_one_point_in_every_stratum_of_every_field(ranges: list[Span], samples: int, seed: int) -> None:
    latin = Latin(fields=tuple(zip(NAMES, ranges, strict=False)), samples=samples, seed=seed)
    found = latin.points()
    assert found == latin.points() and len(found) == samples
    for (_, span), column in zip(latin.fields, zip(*found, strict=True), strict=True):
        assert all(span.low <= v <= span.high for v in column)
        if span.whole:
            assert all(isinstance(v, int) for v in column)
            continue
        scale = np.log if span.log else np.asarray
        low, high = scale(span.low), scale(span.high)
        share = (scale(np.array(column)) - low) / (high - low) * samples
        # a point may lie on the edge of its stratum by rounding of the value
        assert np.all(np.abs(np.sort(share) - (np.arange(samples) + 0.5)) <= 0.5 + 1e-6 * samples)


@given(st.integers(-50, 50), st.integers(1, 40), st.integers(0, 2**31))
def test_whole_numbers_of_a_hypercube_come_equally_often(low: int, width: int, seed: int) -> None:
    span = Span(low=low, high=low + width, whole=True)
    found = Latin(fields=(("a", span),), samples=4 * (width + 1), seed=seed).points()
    assert sorted(v for (v,) in found) == sorted(list(range(low, low + width + 1)) * 4)


def test_a_hypercube_is_repeated_at_every_point_of_the_grid() -> None:
    latin = Latin(fields=(("b.c", Span(low=0, high=1)),), samples=3, seed=7)
    found = list(points([Axis(field="a", values=("x", "y"))], latin))
    inner = latin.points()
    assert found == [("x", *p) for p in inner] + [("y", *p) for p in inner]


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("a.b=1,2.5,x,true", "a.b", (1, 2.5, "x", True)),
        (" a . b = 7 ", "a.b", (7,)),
        ("a=0.1..0.9:3", "a", (0.1, 0.5, 0.9)),
        ("a=1..10000:3:log", "a", (1.0, 100.0, 10000.0)),
        ("a=1..4:10:whole", "a", (1, 2, 3, 4)),
        ("a=-2..2:3", "a", (-2.0, 0.0, 2.0)),
        ("a=1e-3..1e-1:3:log", "a", (1e-3, 1e-2, 1e-1)),
        ("a=null,4", "a", (None, 4)),
    ],
)
def test_axes_as_typed(text: str, field: str, values: tuple[Any, ...]) -> None:
    axis = read_axis(text)
    assert axis.field == field and axis.values == pytest.approx(values) if "x" not in values else axis.values == values
    assert [type(v) for v in axis.values] == [type(v) for v in values]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "must read path=a,b,c"),
        ("a=", "must read path=a,b,c"),
        ("a=1,1", "the value 1 is given twice"),
        ("a=1..2", "how many values"),
        ("a=2..1:3", "from the lower to the higher"),
        ("a=1..1:3", "from the lower to the higher"),
        ("a=0..1:3:log", "must start above 0"),
        ("a=1..inf:3", "has no end"),
        ("a=nan..1:3", "has no end"),
        ("a=x..y:3", "no range of numbers"),
        ("a=1..9:3:lag", "a count, log and whole"),
        ("a=1..9:3:4", "a count, log and whole"),
        ("a=1..9:1", "at least 2 values"),
        ("a=1.5..9:3:whole", "must start and end at one"),
        (f"a=0..1:{MOST_CELLS + 1}", "the most a sweep has"),
    ],
)
def test_axes_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("(", r"\(")) as refused:
        read_axis(text)
    assert "\n" not in str(refused.value)


def test_hypercubes_as_typed_and_refused() -> None:
    latin = read_latin(["a=1..9:whole", "b=0.1..10:log"], 5, 3)
    assert latin == Latin(
        fields=(("a", Span(low=1, high=9, whole=True)), ("b", Span(low=0.1, high=10, log=True))), samples=5, seed=3
    )
    assert read_latin([], 5, 3) is None
    for text in ("a=1,2", "a=1..2:5"):
        with pytest.raises(UsageError, match="--samples says how many"):
            read_latin([text], 5, 0)


def test_too_much_and_twice() -> None:
    many = [Axis(field=name, values=tuple(range(100))) for name in NAMES]
    with pytest.raises(UsageError, match="1,000,000 cells are more than 100,000"):
        cell_count(many, None)
    with pytest.raises(UsageError, match="nothing to sweep over"):
        fields_of([], None)
    for one, other in (("a.b", "a.b"), ("a", "a.b"), ("a.b.c", "a.b")):
        with pytest.raises(UsageError, match="is swept twice"):
            fields_of([Axis(field=one, values=(1,))], Latin(fields=((other, Span(low=0, high=1)),), samples=2))
    assert fields_of([Axis(field="a.b", values=(1,)), Axis(field="a.bc", values=(1,))], None) == ("a.b", "a.bc")
