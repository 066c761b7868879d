from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.cluster.spec import Worker
from hetsim.compute import WorkTimer, fit_line, pass_model, passes
from hetsim.compute.model import LineModel, TableModel, TraceModel
from hetsim.errors import UsageError

PLAIN = Worker(rank=0, name="w", group="w", node="w", samples_per_s=1000.0)

seconds = st.floats(1e-4, 1e2)
tables = st.dictionaries(st.integers(1, 4096), seconds, min_size=1, max_size=8).map(lambda d: tuple(sorted(d.items())))
rising_tables = st.tuples(
    st.lists(st.integers(1, 500), min_size=1, max_size=8), st.lists(seconds, min_size=8, max_size=8)
).map(lambda p: tuple((int(m), float(t)) for m, t in zip(np.cumsum(p[0]), np.cumsum(p[1][: len(p[0])]), strict=True)))


def test_line_is_the_larger_of_floor_and_overhead_plus_rate() -> None:
    model = LineModel(0.25, 0.125, 64.0)
    assert [model.seconds(m) for m in (1, 8, 9, 16, 64)] == [0.25, 0.25, 0.265625, 0.375, 1.125]
    assert model.seconds(0) == 0.0
    assert LineModel(0.0, 0.0, math.inf).seconds(5) == 0.0
    assert not model.extrapolates(10**9)


@given(floor=seconds, overhead=seconds, rate=st.floats(1, 1e6), a=st.integers(0, 10**6), b=st.integers(0, 10**6))
def test_line_never_falls_with_the_batch(floor: float, overhead: float, rate: float, a: int, b: int) -> None:
    model = LineModel(floor, overhead, rate)
    assert model.seconds(min(a, b)) <= model.seconds(max(a, b))


@given(tables)
def test_table_returns_its_points_exactly_and_lies_between_them(points: tuple[tuple[int, float], ...]) -> None:
    model = TableModel(points)
    for m, t in points:
        assert model.seconds(m) == t and not model.extrapolates(m)
    for (m0, t0), (m1, t1) in pairwise(points):
        middle = model.seconds((m0 + m1) // 2)
        assert min(t0, t1) * (1 - 1e-12) <= middle <= max(t0, t1) * (1 + 1e-12)
    assert model.extrapolates(points[-1][0] + 1)
    assert model.extrapolates(points[0][0] - 1)


@given(tables, st.integers(1, 10**4))
def test_table_agrees_with_numpy_inside_and_stays_positive_outside(
    points: tuple[tuple[int, float], ...], samples: int
) -> None:
    model = TableModel(points)
    m, t = np.array(points, dtype=float).T
    got = model.seconds(samples)
    if m[0] <= samples <= m[-1]:
        assert got == pytest.approx(float(np.interp(samples, m, t)), rel=1e-9)
    elif samples < m[0]:
        assert t[0] * samples / m[0] * (1 - 1e-9) <= got <= t[0]  # between proportional and flat
    else:
        assert got >= t[-1]


@given(rising_tables, st.integers(0, 6000), st.integers(0, 6000))
def test_rising_table_gives_rising_times(points: tuple[tuple[int, float], ...], a: int, b: int) -> None:
    model = TableModel(points)
    assert model.seconds(min(a, b)) <= model.seconds(max(a, b)) * (1 + 1e-12)


def test_table_goes_on_with_its_outer_segments() -> None:
    model = TableModel([(16, 2.0), (32, 3.0), (64, 7.0)])
    assert [model.seconds(m) for m in (0, 8, 24, 48, 128)] == [0.0, 1.5, 2.5, 5.0, 15.0]
    steep = TableModel([(16, 1.0), (32, 9.0)])  # steeper than proportional below: proportional
    assert steep.seconds(8) == 0.5
    falling = TableModel([(16, 2.0), (32, 1.0)])
    assert (falling.seconds(8), falling.seconds(24), falling.seconds(64)) == (2.0, 1.5, 1.0)
    single = TableModel([(10, 2.0)])
    assert (single.seconds(5), single.seconds(10), single.seconds(20)) == (2.0, 2.0, 4.0)


def test_trace_replays_its_steps_in_order_and_repeats() -> None:
    trace = TraceModel([(4, 1.0), (8, 4.0), (4, 0.5)])
    assert [trace.between(a, n) for a, n in ((0, 4), (4, 8), (12, 4), (16, 4))] == [1.0, 4.0, 0.5, 1.0]
    assert trace.between(2, 4) == 0.5 + 1.0
    assert trace.between(0, 16 * 10**9) == 5.5 * 10**9
    assert trace.between(16 * 10**9 + 4, 8) == 4.0
    assert trace.seconds(16) == 5.5
    assert trace.extrapolates(9) and trace.extrapolates(3) and not trace.extrapolates(6)


@given(
    st.lists(st.tuples(st.integers(1, 64), seconds), min_size=1, max_size=6),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 200), min_size=1, max_size=8),
)
def test_trace_time_does_not_depend_on_how_samples_are_cut(
    steps: list[tuple[int, float]], start: int, cuts: list[int]
) -> None:
    trace = TraceModel(steps)
    parts, at = 0.0, start
    for n in cuts:
        parts += trace.between(at, n)
        at += n
    assert parts == pytest.approx(trace.between(start, sum(cuts)), rel=1e-9, abs=1e-9 * trace.seconds(1))


def test_worker_uses_its_trace_before_its_table_before_its_line() -> None:
    table, trace = ((16, 1.0),), ((4, 9.0),)
    assert isinstance(pass_model(replace(PLAIN, step_times_s=table, trace=trace)), TraceModel)
    assert isinstance(pass_model(replace(PLAIN, step_times_s=table)), TableModel)
    assert pass_model(replace(PLAIN, floor_s=0.1, overhead_s=0.01)) == LineModel(0.1, 0.01, 1000.0)


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(4, 0.0)], [(4, math.nan)], [(-1, 1.0)]])
def test_impossible_tables_and_traces_are_refused(points: list[tuple[int, float]]) -> None:
    for model in (TableModel, TraceModel):
        with pytest.raises(UsageError):
            model(points)


def test_table_with_a_batch_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        TableModel([(4, 1.0), (4, 2.0)])


@given(st.integers(0, 10**6), st.integers(1, 10**4) | st.none())
def test_passes_are_the_fewest_equal_parts_within_the_cap(samples: int, cap: int | None) -> None:
    parts = passes(samples, cap)
    assert sum(parts) == samples
    assert list(parts) == sorted(parts, reverse=True)
    if samples:
        assert len(parts) == (1 if cap is None else math.ceil(samples / cap))
        assert max(parts) - min(parts) <= 1 and min(parts) >= 1
        assert cap is None or max(parts) <= cap
    else:
        assert parts == ()


def test_passes_refuse_what_cannot_be() -> None:
    assert passes(200, 96) == (67, 67, 66)
    with pytest.raises(UsageError, match="not one fits"):
        passes(1, 0)
    with pytest.raises(UsageError):
        passes(-1, None)


@given(
    overhead=st.floats(0.001, 1),
    rate=st.floats(10, 1e4),
    at=st.lists(st.integers(1, 5000), min_size=3, max_size=9, unique=True),
)
def test_fit_recovers_an_exact_line(overhead: float, rate: float, at: list[int]) -> None:
    points = [(m, overhead + m / rate) for m in at]
    fit = fit_line(points)
    assert fit.residual_max < 1e-6
    assert max(abs(fit.seconds(m) / t - 1) for m, t in points) < 1e-6


def test_fit_recovers_a_floor_under_a_line() -> None:
    points = [(m, max(0.5, 0.25 + m / 64)) for m in (1, 2, 4, 8, 32, 64, 128, 256)]
    fit = fit_line(points)
    assert (fit.floor_s, fit.overhead_s, fit.samples_per_s) == pytest.approx((0.5, 0.25, 64.0), rel=1e-12)
    assert fit.residual_max < 1e-12 and fit.points == 8


def test_fit_of_few_or_repeated_points() -> None:
    assert fit_line([(10, 2.0)]).samples_per_s == 5.0
    two = fit_line([(10, 2.0), (20, 3.0)])
    assert (two.floor_s, two.overhead_s, two.samples_per_s) == pytest.approx((0.0, 1.0, 10.0))
    repeated = fit_line([(10, 1.9), (10, 2.1), (20, 3.0), (20, 3.0)])
    assert repeated.residual_median <= 0.06 and 9.5 < repeated.samples_per_s < 10.5
    same = fit_line([(10, 2.0), (10, 2.0), (10, 2.0)])
    assert (same.floor_s, same.samples_per_s) == (0.0, 5.0)
    below_proportional = fit_line([(10, 1.0), (20, 4.0)])
    assert below_proportional.overhead_s == 0.0


def test_fit_refuses_what_shows_no_speed() -> None:
    with pytest.raises(UsageError, match="no measured"):
        fit_line([])
    for bad in ([(0, 1.0)], [(1, 0.0)], [(1, math.inf)], [(1, math.nan)]):
        with pytest.raises(UsageError, match="positive"):
            fit_line(bad)
    with pytest.raises(UsageError, match="do not grow"):
        fit_line([(10, 2.0), (20, 1.0)])


@given(st.integers(0, 5000), st.integers(1, 700), tables)
def test_steady_worker_takes_exactly_its_models_time(
    samples: int, cap: int, points: tuple[tuple[int, float], ...]
) -> None:
    model = TableModel(points)
    timer = WorkTimer(replace(PLAIN, step_times_s=points, max_batch_samples=cap), seed=3, quantum_samples=16)
    for _ in range(2):  # computed, then looked up
        total, last = timer.next(samples)
        assert total == sum(model.seconds(n) for n in passes(samples, cap))
        assert last == (model.seconds(passes(samples, cap)[-1]) if samples else 0.0)


def test_trace_worker_advances_through_its_trace() -> None:
    timer = WorkTimer(replace(PLAIN, trace=((4, 1.0), (8, 4.0)), max_batch_samples=4), seed=0, quantum_samples=4)
    assert [timer.next(n) for n in (4, 8, 0, 6)] == [(1.0, 1.0), (4.0, 2.0), (0.0, 0.0), (0.75 + 1.25, 1.25)]
