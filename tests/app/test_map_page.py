"""The Map page: every control, the map and its cell, what is refused, cancelling, and two sessions at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from app_pages import PATIENCE_S, fine, page, texts
from streamlit.testing.v1 import AppTest

from hetsim.cluster import load_profile
from hetsim.webapp import jobs, session
from hetsim.webapp.mapping import BANDWIDTH, MapOrder
from hetsim.webapp.view import View

QUICK = View(source="emulated-4", algorithms=("s-sgd", "lb-bsp", "abs-sgd"), tuned=False)
OTHER = "another field, by its path"
ORDER = MapOrder(view=QUICK, x="speed-ratio=2..8:2:log", y=f"{BANDWIDTH}=0.1..1:2:log")


@pytest.fixture(autouse=True)
def a_board_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    board = jobs.Board(at_once=2)
    monkeypatch.setattr(jobs, "_BOARD", board)
    yield
    board.close()


def small(app: AppTest) -> AppTest:
    """Controls for a map of four cells."""
    for key, value in (
        ("map-x-speed-ratio-low", 2.0),
        ("map-x-speed-ratio-high", 8.0),
        ("map-x-speed-ratio-count", 2),
        (f"map-y-{BANDWIDTH}-low", 0.1),
        (f"map-y-{BANDWIDTH}-high", 1.0),
        (f"map-y-{BANDWIDTH}-count", 2),
    ):
        app.number_input(key=key).set_value(value)
    return fine(app.run())


def started(app: AppTest) -> AppTest:
    return fine(app.button(key="map-start").click().run())


def finished(app: AppTest, order: MapOrder = ORDER) -> AppTest:
    job = jobs.find(("map", order))
    assert job is not None and job.wait(PATIENCE_S) and job.state == "done", job and job.result()
    return fine(app.run())


def has(app: AppTest, key: str) -> bool:
    return key in [button.key for button in app.button]


def test_what_is_there_at_first() -> None:
    app = page("map", QUICK)
    assert app.title[0].value == "Map"
    assert app.selectbox(key="map-label").value == "abs-sgd" and app.selectbox(key="map-label").options == [
        "abs-sgd",
        "s-sgd",
        "lb-bsp",
    ]
    assert app.selectbox(key="map-x-field").value == "speed-ratio"
    assert app.selectbox(key="map-y-field").value == BANDWIDTH
    assert app.selectbox(key="map-x-field").options[-1] == OTHER
    assert "This profile has 4." in texts(app)
    assert all(element.help for kind in (app.selectbox, app.number_input, app.button) for element in kind)
    assert not app.get("plotly_chart") and not has(app, "map-cancel")


def test_a_map_from_controls_to_cell_and_into_explore(monkeypatch: pytest.MonkeyPatch) -> None:
    app = started(small(page("map", QUICK)))
    assert has(app, "map-cancel") or jobs.find(("map", ORDER)).over  # type: ignore[union-attr]
    finished(app)
    found = jobs.find(("map", ORDER)).result()  # type: ignore[union-attr]
    assert app.text[0].value == found.sentence()
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert spec["layout"]["xaxis"]["title"]["text"] == "speed ratio" and spec["layout"]["xaxis"]["ticktext"] == [
        "2",
        "8",
    ]
    assert app.get("plotly_chart")[0].proto.alt.startswith("Map of the speed-up of abs-sgd over the best baseline")
    assert any("hetsim sweep emulated-4 --over" in code.value for code in app.code)
    assert app.get("download_button")[0].proto.label == "Download as CSV"
    # another cell, by the keyboard
    app.selectbox(key="map-cell-x").set_value(1)
    app.selectbox(key="map-cell-y").set_value(0)
    fine(app.run())
    cell = found.cell(1, 0)
    assert f"fastest: {cell.winner}" in app.text[1].value
    app.button(key="map-open").click().run()
    fine(app)
    view: View = app.session_state[session.VIEW]
    wanted = load_profile("emulated-4", overrides=cell.overrides)
    assert view.profile().network == wanted.network and view.profile().network.bandwidth_gbit_per_s == 0.1
    # the speed controls of Explore have four digits
    speeds = [entry.samples_per_s for entry in view.profile().workers]
    assert speeds == pytest.approx([entry.samples_per_s for entry in wanted.workers], rel=1e-3)
    assert app.title[0].value != "Map"  # it is Explore that is shown


def test_the_map_is_there_in_part_while_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = started(page("map", View(source="mixed-gpu-4", algorithms=QUICK.algorithms, tuned=False)))
    (job,) = jobs._BOARD._jobs.values()
    end = time.monotonic() + PATIENCE_S
    while job.partial is None and not job.over and time.monotonic() < end:
        time.sleep(0.05)
    partly = job.partial
    assert partly is not None and partly.pending
    monkeypatch.setattr(job, "progress", jobs.Progress(3, 35, "3 of 35 cells"))
    fine(app.run())
    (chart,) = app.get("plotly_chart")
    assert chart.proto.alt.endswith("Not complete yet.") and has(app, "map-cancel")
    fine(app.button(key="map-cancel").click().run())
    assert job.state == "cancelled" and not app.run().get("plotly_chart")


def test_free_paths_and_whole_numbers() -> None:
    app = page("map", QUICK)
    app.selectbox(key="map-x-field").set_value(OTHER)
    fine(app.run())
    assert "Write the field's path and its values." in texts(app) and not has(app, "map-start")
    app.text_input(key="map-x-path").set_value("training.momentum")
    app.text_input(key="map-x-values").set_value("0.5,0.9")
    app.selectbox(key="map-y-field").set_value("training.global_batch_samples")
    fine(app.run())
    at = "map-y-training.global_batch_samples"
    assert app.selectbox(key=f"{at}-spacing").value == "whole numbers, equal ratios"
    app.number_input(key=f"{at}-low").set_value(120.0)
    app.number_input(key=f"{at}-high").set_value(240.0)
    app.number_input(key=f"{at}-count").set_value(2)
    app.selectbox(key=f"{at}-spacing").set_value("whole numbers, equal steps")
    started(fine(app.run()))
    order = MapOrder(view=QUICK, x="training.momentum=0.5,0.9", y="training.global_batch_samples=120..240:2:whole")
    finished(app, order)
    assert app.selectbox(key="map-cell-x").label == "training.momentum"
    assert app.selectbox(key="map-cell-y").options == ["120", "240"]


@pytest.mark.parametrize(
    ("path", "values", "says"),
    [
        ("network.bandwith", "1,2", "bandwith"),
        ("workers.z.jitter_cv", "0,1", "no item 'z'"),
        ("training.momentum", "0.5,2", "less than 1"),
        ("training.momentum", "x..y:3", "no range of numbers"),
        ("workers.a.trace", "/etc/hostname", "untrusted"),
        (BANDWIDTH, "1,2", "swept twice"),
    ],
)
def test_fields_that_cannot_be_are_told_at_once(path: str, values: str, says: str) -> None:
    app = page("map", QUICK)
    app.selectbox(key="map-x-field").set_value(OTHER)
    fine(app.run())
    app.text_input(key="map-x-path").set_value(path)
    app.text_input(key="map-x-values").set_value(values)
    started(fine(app.run()))
    assert says in texts(app) and not app.get("plotly_chart") and not has(app, "map-cancel")
    assert not jobs._BOARD._jobs


def test_a_range_that_is_none_is_told() -> None:
    app = page("map", QUICK)
    app.number_input(key="map-x-speed-ratio-low").set_value(20.0)
    started(fine(app.run()))
    assert "from the lower to the higher number" in texts(app)


def test_cancelling_ends_the_process() -> None:
    app = page("map", QUICK)
    for which in ("x-speed-ratio-count", f"y-{BANDWIDTH}-count"):
        app.number_input(key=f"map-{which}").set_value(20)
    started(fine(app.run()))
    (job,) = jobs._BOARD._jobs.values()
    assert job.state == "running"
    fine(app.button(key="map-cancel").click().run())
    assert job.state == "cancelled"
    fine(app.run())
    assert "Cancelled." in texts(app) and not app.get("plotly_chart")


def test_a_changed_view_is_said_beside_the_old_map() -> None:
    app = finished(started(small(page("map", QUICK))))
    assert "have been changed since" not in texts(app)
    app.number_input(key="map-x-speed-ratio-high").set_value(9.0)
    fine(app.run())
    assert "have been changed since" in texts(app) and app.get("plotly_chart")


def test_settings_outlive_a_visit_to_another_page() -> None:
    app = small(page("map", QUICK))
    app.switch_page("hetsim/webapp/timeline.py").run()
    app.switch_page("hetsim/webapp/map.py").run()
    fine(app)
    assert app.number_input(key="map-x-speed-ratio-high").value == 8.0
    assert app.number_input(key=f"map-y-{BANDWIDTH}-count").value == 2


def test_two_sessions_share_a_map_and_neither_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    who: dict[str, str] = {"is": "one"}
    monkeypatch.setattr(jobs, "_session", lambda: who["is"])
    one, two = small(page("map", QUICK)), small(page("map", QUICK))
    started(one)
    who["is"] = "two"
    started(two)
    (job,) = jobs._BOARD._jobs.values()
    if has(two, "map-cancel"):
        fine(two.button(key="map-cancel").click().run())
    who["is"] = "one"
    finished(one)
    assert job.state == "done" and one.get("plotly_chart")


def test_a_profile_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    app = page("map", View(source="name: x\nworkers: 3\n"))
    assert "The profile has" in texts(app) and not has(app, "map-start")


def test_a_profile_without_a_ratio_starts_with_other_fields() -> None:
    app = page("map", View(source="homogeneous-4", algorithms=("s-sgd", "abs-sgd"), tuned=False))
    chosen: list[Any] = [app.selectbox(key=f"map-{which}-field").value for which in "xy"]
    assert len(set(chosen)) == 2 and "speed-ratio" not in chosen
