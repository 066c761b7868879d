"""The Timeline page: every control, and what it says against the Schedules that it shows."""

from __future__ import annotations

import gzip
import json
import time
from functools import cache, partial
from typing import Any

import pytest
from app_pages import QUICK, ROOT, fine, opened, page, texts
from streamlit.testing.v1 import AppTest

from hetsim import activity, load_profile, simulate, trace
from hetsim import timeline as drawing
from hetsim.webapp import pictures, stretch
from hetsim.webapp.view import View


@cache
def schedule(label: str, view: View = QUICK) -> Any:
    return pictures.compute(view, False).runs[label].schedule


def table(app: AppTest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = app.dataframe[0].value.to_dict("records")
    return found


def chart(app: AppTest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.get("plotly_chart")[0].proto.spec)
    return found


def test_what_is_there_at_first() -> None:
    app = page("timeline")
    assert app.title[0].value == "Timeline"
    assert app.selectbox[0].options == ["s-sgd", "abs-sgd"] and app.selectbox[0].value == "s-sgd"  # the faster one
    assert app.segmented_control[0].options == ["Steady state", "Start", "Seconds", "Updates"]
    run = schedule("s-sgd")
    assert table(app) == stretch.rows(run, stretch.window(run, stretch.Choice()))
    assert "homogeneous-4" in texts(app) and "hatched" in texts(app)


def test_another_algorithm_and_the_start() -> None:
    app = page("timeline")
    app.selectbox[0].set_value("abs-sgd")
    app.segmented_control[0].set_value("Start")
    fine(app.run())
    run = schedule("abs-sgd")
    assert table(app) == stretch.rows(run, stretch.window(run, stretch.Choice(kind="start")))
    assert "Updates 1 to" in texts(app)
    assert chart(app)["layout"]["xaxis"]["title"]["text"].endswith("from the start on")


def test_a_stretch_in_seconds_and_one_that_ends_before_it_begins() -> None:
    app = page("timeline")
    app.segmented_control[0].set_value("Seconds")
    fine(app.run())
    first, last = app.number_input
    first.set_value(0.5)
    last.set_value(0.75)
    fine(app.run())
    assert table(app) == stretch.rows(schedule("s-sgd"), (0.5, 0.75))
    assert "500 to 750 ms" in texts(app)
    app.number_input[1].set_value(0.25)
    fine(app.run())
    assert "ends before it begins" in app.warning[0].value and not app.dataframe


def test_a_stretch_in_updates() -> None:
    app = page("timeline")
    app.segmented_control[0].set_value("Updates")
    fine(app.run())
    run = schedule("s-sgd")
    assert app.number_input[0].max == app.number_input[1].max == stretch.updates(run)
    app.number_input[0].set_value(10)
    app.number_input[1].set_value(12)
    fine(app.run())
    assert "Updates 10 to 12" in texts(app)
    assert table(app) == stretch.rows(run, activity.update_window(run, 10, 12))
    app.number_input[1].set_value(9)
    fine(app.run())
    assert "ends before it begins" in app.warning[0].value


def test_a_long_stretch_is_drawn_in_part_and_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "drawable", partial(drawing.drawable, most=200))
    app = page("timeline")
    app.segmented_control[0].set_value("Updates")
    fine(app.run())
    app.number_input[0].set_value(1)
    app.number_input[1].set_value(app.number_input[1].max)
    fine(app.run())
    drawn = sum(len(trace["y"]) for trace in chart(app)["data"])
    assert 150 < drawn < 400
    assert "as far as a browser draws quickly" in texts(app)
    assert sum(row["samples"] for row in table(app)) > 10_000


def test_what_was_chosen_is_still_chosen_after_another_page() -> None:
    app = page("timeline")
    app.selectbox[0].set_value("abs-sgd")
    app.segmented_control[0].set_value("Updates")
    fine(app.run())
    app.number_input[0].set_value(7)
    fine(app.run())
    for name in ("validate", "timeline"):
        app.switch_page(str(ROOT / "hetsim" / "webapp" / f"{name}.py"))
        fine(app.run())
    assert (app.selectbox[0].value, app.segmented_control[0].value, app.number_input[0].value) == (
        "abs-sgd",
        "Updates",
        7,
    )


def test_many_workers_are_chosen_from() -> None:
    small = ("workers.0.count=20", "training.max_samples=50000")
    many = View(source="homogeneous-4", overrides=small, algorithms=("s-sgd",), tuned=False)
    app = page("timeline", many)
    for _ in range(200):  # so many are simulated beside the page
        if app.dataframe:
            break
        time.sleep(0.3)
        fine(app.run())
    assert len(app.multiselect[0].options) == 20 and len(app.multiselect[0].value) == 16
    assert len(table(app)) == 20
    app.multiselect[0].set_value([app.multiselect[0].options[19]])
    fine(app.run())
    lanes = {lane for trace in chart(app)["data"] for lane in trace["y"]}
    assert lanes == {app.multiselect[0].options[19], "all-reduce"}


def test_the_trace_is_the_whole_run() -> None:
    app = page("timeline")
    (button,) = app.download_button
    assert "Perfetto" in button.label
    found = json.loads(gzip.decompress(trace.trace_bytes(schedule("abs-sgd"))))
    assert found["otherData"]["complete"] and len(found["traceEvents"]) > 100


def test_a_profile_that_cannot_be_is_told_in_words() -> None:
    app = page("timeline", View(source="schema_version: 1\nname: wrong\nworkers: 3\n", tuned=False))
    assert "profile.yaml:3:" in texts(app) and not app.dataframe


@pytest.mark.torch
def test_measured_beside_predicted() -> None:
    app = page("timeline", **opened(1.5, ("s-sgd", "abs-sgd")))
    assert "measured" not in texts(app)
    source = app.segmented_control[0]
    assert source.options == ["This cluster, predicted", "Opened: two"]
    source.set_value("Opened: two")
    fine(app.run())
    assert app.selectbox[0].options == ["s-sgd", "abs-sgd"] and app.selectbox[0].value == "s-sgd"
    rows = table(app)
    assert {"predicted %", "measured %"} <= set(rows[0])
    for row in rows:  # everything took half as long again: shares are the same
        assert row["measured %"] == pytest.approx(row["predicted %"], abs=2.0)
    text = chart(app)["layout"]["annotations"]
    assert "predicted" in text[0]["text"] and "measured" in text[1]["text"]
    assert [b.label for b in app.download_button] == [
        "Download the predicted trace for Perfetto",
        "Download the measured trace for Perfetto",
    ]
    for name in ("Start", "Updates", "Seconds"):
        app.segmented_control[1].set_value(name)
        fine(app.run())
        assert table(app)


# ---- stretches, as functions ---------------------------------------------------------------------------------------------

MIXED = simulate(load_profile("mixed-gpu-4"), "s-sgd", updates=40).schedule


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (stretch.Choice(kind="seconds", first=-1.0, last=1e9), (0.0, MIXED.horizon_s)),
        (stretch.Choice(kind="seconds", first=1.0, last=2.0), (1.0, 2.0)),
        (stretch.Choice(kind="seconds", first=1e9, last=2e9), (MIXED.horizon_s, MIXED.horizon_s + 1e-9)),
        (stretch.Choice(kind="updates", first=1, last=40), activity.update_window(MIXED, 1, 40)),
    ],
)
def test_stretches_lie_within_the_run(choice: stretch.Choice, expected: tuple[float, float]) -> None:
    assert stretch.window(MIXED, choice) == pytest.approx(expected)


def test_updates_of_a_stretch() -> None:
    assert stretch.covered(MIXED, activity.update_window(MIXED, 7, 9)) == (7, 9)
    assert stretch.covered(MIXED, (0.0, 1e-6)) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((0.0, 0.412), "0 to 412 ms"),
        ((275.94, 276.31), "275.94 to 276.31 s"),
        ((1000.0, 2000.0), "1,000 to 2,000 s"),
        ((0.1234, 0.1239), "123.40 to 123.90 ms"),
    ],
)
def test_stretches_in_words(seconds: tuple[float, float], text: str) -> None:
    assert stretch.said(seconds) == text


def test_what_is_said_of_s_sgd_names_the_slowest() -> None:
    """On the mixed cluster everybody waits for the T4, d, which waits for nobody."""
    found = activity.shares(MIXED, *activity.update_window(MIXED, 20, 40))
    text = stretch.sentence(found)
    assert text.startswith("d is busiest") and "d to join" in text
    idlest = min(found, key=lambda w: w.compute).worker
    assert f"; {idlest} waits most" in text
    rows = stretch.side_by_side(
        {"predicted": MIXED, "measured": MIXED}, {side: (1.0, 3.0) for side in ("predicted", "measured")}
    )
    assert {row["difference, points"] for row in rows} == {0.0}
    assert {row["worker"] for row in rows} == set(MIXED.header.workers)
