"""Figures say what the results say, and nothing by colour alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim import plots
from hetsim.algorithms import registry
from hetsim.cluster import load_profile
from hetsim.convergence import Curve
from hetsim.schedule import Kind
from hetsim.simulate import simulate


def curve(scale: float, size: int = 50, diverged: bool = False) -> Curve:
    k = np.arange(size)
    return Curve(updates=k, samples=k * 64, time_s=k * scale, loss=2.3 * np.exp(-k / 10.0), diverged=diverged)


def row(name: str, role: str, median: float | None, rate: float = 100.0) -> dict[str, Any]:
    time = {
        "median": median,
        "low": median and median * 0.9,
        "high": median and median * 1.2,
        "reached": 3 if median else 0,
        "seeds": 3,
    }
    return {"name": name, "role": role, "time_to_target_s": time, "samples_per_s": rate, "utilisation": 0.5}


@pytest.mark.parametrize(("against", "factor"), [("seconds", 0.5), ("samples", 64.0)])
def test_loss_draws_every_algorithm_and_the_target(against: Any, factor: float) -> None:
    figure = plots.loss({"s-sgd": curve(0.5), "abs-sgd": curve(0.5)}, target=0.5, against=against, ours=["abs-sgd"])
    assert [t.name for t in figure.data] == ["s-sgd", "abs-sgd"]
    assert np.allclose(figure.data[0].x, np.arange(50) * factor)
    assert len({t.line.dash for t in figure.data}) == 2  # told apart without colour too
    assert figure.data[1].line.width > figure.data[0].line.width
    assert figure.layout.shapes[0].y0 == 0.5


def test_what_was_not_reached_or_diverged_is_said_in_the_legend() -> None:
    figure = plots.loss({"slow": curve(1.0, size=3), "wild": curve(1.0, diverged=True), "good": curve(1.0)}, target=0.5)
    assert [t.name for t in figure.data] == ["slow (not reached)", "wild (diverged)", "good"]


def test_the_figure_ends_at_a_few_times_the_fastest_so_that_it_can_be_read() -> None:
    figure = plots.loss({"fast": curve(1.0), "slow": curve(100.0)}, target=0.5)
    end = figure.layout.xaxis.range[1] * 60  # drawn in minutes
    assert 4 * 49 <= end < 5 * 49


def test_a_target_of_zero_is_drawn_on_a_linear_axis() -> None:
    done = Curve(updates=np.arange(3), samples=np.arange(3), time_s=np.arange(3.0), loss=np.array([1.0, 0.5, 0.0]))
    figure = plots.loss({"x": done}, target=0.0)
    assert figure.layout.yaxis.type is None and list(figure.data[0].y) == [1.0, 0.5, 0.0]


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e15))
def test_a_logarithmic_axis_has_some_ticks_and_not_too_many(low: float, ratio: float) -> None:
    ticks = plots._log_ticks(low, low * ratio)
    assert plots.LEAST_TICKS <= len(ticks) <= plots.MOST_TICKS
    assert all(low <= tick <= low * ratio for tick in ticks) and ticks == sorted(set(ticks))
    assert len({f"{tick:g}" for tick in ticks}) == len(ticks), "each is told from the next"


def test_ticks_are_round() -> None:
    assert plots._log_ticks(0.23, 3.1) == [0.3, 0.4, 0.5, 0.6, 0.8, 1, 2, 3]
    assert plots._log_ticks(0.01, 3) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
    assert plots._log_ticks(1.4, 2.8) == [1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8]
    assert plots._log_ticks(1e-9, 3) == [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1]


def test_many_algorithms_get_styles_of_their_own() -> None:
    names = [f"a{i}" for i in range(14)]
    looks = plots.styles(names, names[:2])
    assert len({(v["color"], v["dash"]) for v in looks.values()}) == 14


def test_long_curves_are_thinned_with_both_ends_kept() -> None:
    figure = plots.loss({"x": curve(0.001, size=20_000)})
    assert len(figure.data[0].x) <= plots.MOST_POINTS
    assert figure.data[0].x[0] == 0


def test_not_reached_is_said_and_never_drawn_as_a_number() -> None:
    figure = plots.time_to_target([row("good", "ours", 50.0), row("bad", "baseline", None)])
    assert list(figure.data[0].x) == [50.0, 0.0]
    assert [a.text for a in figure.layout.annotations] == ["50 s", "not reached"]
    assert figure.data[0].error_x.array[0] == pytest.approx(10.0)
    assert figure.data[0].error_x.arrayminus[0] == pytest.approx(5.0)
    assert figure.data[0].marker.pattern.shape == ("", "/")


@pytest.mark.parametrize("name", list(registry()))
@pytest.mark.parametrize("window", ["start", "steady"])
def test_timelines_lie_in_their_window_and_show_no_worker_twice_at_once(name: str, window: Any) -> None:
    s = simulate(load_profile("mixed-gpu-4"), name, updates=40).schedule
    figure = plots.timeline(s, window)
    begin, end = plots.window_of(s, window)
    assert (begin == 0) == (window == "start")
    scale = 1e3 if end - begin < 3 else 1.0
    assert [t.name for t in figure.data] == ["compute", "communication", "waiting"]
    assert [t.marker.pattern.shape for t in figure.data] == ["", "/", "."]
    lanes: dict[str, list[tuple[float, float]]] = {}
    for t in figure.data:
        for lane, base, length in zip(t.y or (), t.base or (), t.x or (), strict=True):
            assert base >= 0 and length > 0
            assert base + length <= (end - begin) * scale * (1 + 1e-9)
            lanes.setdefault(lane, []).append((base, base + length))
    for spans in lanes.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))
    assert set(s.header.workers) <= set(lanes)


def test_a_timeline_accounts_for_all_compute_of_its_window() -> None:
    s = simulate(load_profile("mixed-gpu-4"), "s-sgd", updates=40).schedule
    begin, end = plots.window_of(s, "steady")
    drawn = sum(plots.timeline(s).data[0].x) / (1e3 if end - begin < 3 else 1.0)
    grads = s.rows(Kind.GRAD)
    inside = np.clip(np.minimum(s.end_s[grads], end) - np.maximum(s.start_s[grads], begin), 0, None)
    assert drawn == pytest.approx(float(inside.sum()))


def test_notebooks_get_figures_and_tables() -> None:
    result = simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=20)
    assert "abs-sgd on mixed-gpu-4" in result.plot().layout.title.text
    assert "samples/s" in result._repr_html_() and "<table>" in result._repr_html_()
    assert result.table().row_count == 8
