"""The Explore page: complete at first sight, every control, what is refused, the baseline, two sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from app_pages import PATIENCE_S, QUICK, ROOT, fine, texts
from streamlit.proto.Metric_pb2 import Metric as MetricProto
from streamlit.testing.v1 import AppTest

from hetsim.cluster.document import MAX_TEXT_BYTES
from hetsim.webapp import jobs, offers, pictures, session
from hetsim.webapp.view import View

OWN = (
    "schema_version: 1\nname: own-two\nworkers:\n  - {name: a, samples_per_s: 500.0}\n"
    "  - {name: b, samples_per_s: 100.0}\ntraining: {max_samples: 50000}\n"
)


def explore(view: View = QUICK, **state: Any) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=PATIENCE_S)
    app.session_state[session.VIEW] = view
    for key, value in state.items():
        app.session_state[key] = value
    return fine(app.run())


def linked(**query: str) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=PATIENCE_S)
    for key, value in query.items():
        app.query_params[key] = value
    return fine(app.run())


def view_of(app: AppTest) -> View:
    view: View = app.session_state[session.VIEW]
    return view


def widget(app: AppTest, label: str) -> Any:
    """The control of that label, in the sidebar or on the page."""
    kinds = ("select_slider", "selectbox", "number_input", "toggle", "multiselect", "text_area", "button")
    found = [w for kind in kinds for w in app.get(kind) if w.label == label]
    assert len(found) == 1, (label, [w.label for kind in kinds for w in app.get(kind)])
    return found[0]


def test_complete_at_first_sight() -> None:
    app = explore()
    said = texts(app)
    comparison = pictures.picture(QUICK)
    assert app.title[0].value.replace("\\", "") == "Which algorithm trains fastest on homogeneous-4?"
    assert comparison.sentence().partition(". ")[0] in said
    assert [metric.label for metric in app.metric][:2] == ["Time to target", "Ours / best baseline"]
    assert len(app.get("plotly_chart")) == 2
    assert {row["algorithm"] for row in app.dataframe[0].value.to_dict("records")} == {"s-sgd", "abs-sgd"}
    assert "profile's learning rate" in said and "hetsim compare homogeneous-4" in said
    assert len(app.get("download_button")) == 4
    commands = [code.value for code in app.code if code.value.startswith("hetsim compare")]
    assert commands == [QUICK.command(quick=True), QUICK.command()] and commands[0].endswith("--quick --fixed")


def test_nothing_changed_is_neither_good_nor_bad() -> None:
    app = explore()
    widget(app, "Pin as baseline").click()
    fine(app.run())
    arrows = [(metric.delta, metric.proto.color, metric.proto.direction) for metric in app.metric]
    grey, nowhere = MetricProto.MetricColor.GRAY, MetricProto.MetricDirection.NONE
    assert {delta for delta, *_ in arrows} <= {"no change", ""} and ("no change", grey, nowhere) in arrows
    assert all((color, direction) == (grey, nowhere) for _, color, direction in arrows)


def test_every_control_has_a_help_text_and_a_unit_where_it_is_a_number() -> None:
    app = explore()
    kinds = ("select_slider", "selectbox", "number_input", "toggle", "multiselect", "file_uploader")
    controls = [w for kind in kinds for w in app.sidebar.get(kind)]
    assert len(controls) > 15
    units = ("×", "count", "Gbit/s", "µs", "samples", "share", "Probability", "rate", "loss", "number")
    for control in controls:
        assert control.proto.help, control.proto.label
    for control in (*app.sidebar.select_slider, *app.sidebar.number_input):
        assert any(unit in control.label for unit in units), control.label


CHANGES = [
    ("b: speed, ×", 2.0, "workers.b.step_times_s="),
    ("Worker b: GPU", "A100", "workers.b.gpu=A100"),
    ("b: count", 2, "workers.b.count=2"),
    ("Bandwidth, Gbit/s", 1.0, "network.bandwidth_gbit_per_s=1.0"),
    ("Latency, µs", 500.0, "network.latency_us=500.0"),
    ("Worker with a slow link", "b", "network.links={b: {bandwidth_gbit_per_s: 1.0}}"),
    ("Jitter of step times, share of the mean", 0.2, "workers.a.jitter_cv=0.2"),
    ("Probability that a pass is slow", 0.01, "workers.a.stragglers={probability: 0.01, slowdown: 4.0}"),
    ("Micro-batch, samples", 64, "training.micro_batch_samples=64"),
    ("Global batch, samples", 256, "training.global_batch_samples=256"),
    ("Learning rate (used where it is not tuned)", 0.01, "training.learning_rate=0.01"),
]
MIXED = View(overrides=("training.max_samples=50000",), algorithms=("s-sgd",), tuned=False)


@pytest.mark.parametrize("label, value, override", CHANGES)
def test_a_control_becomes_an_override_and_changes_the_picture(label: str, value: Any, override: str) -> None:
    app = explore(MIXED)
    before = app.dataframe[0].value.to_dict("records")
    widget(app, label).set_value(value)
    fine(app.run())
    overrides = view_of(app).overrides
    assert overrides[0] == "training.max_samples=50000", "what no control stands for stays"
    assert any(o.startswith(override) for o in overrides[1:])
    assert "--set" in texts(app) and override.split("=")[0] in texts(app)
    if "Learning rate" not in label:  # nobody comes to the target here
        assert app.dataframe[0].value.to_dict("records") != before or "Micro" in label
    assert widget(app, label).value == value


@pytest.mark.parametrize(
    ("override", "target", "label", "value"),
    [
        ("training.learning_rate=20.0", None, "Learning rate (used where it is not tuned)", 20.0),
        ("training.learning_rate=1e-09", None, "Learning rate (used where it is not tuned)", 1e-9),
        ("training.momentum=0.5", 1e-9, "Target loss (empty: the workload's own)", 1e-9),
        ("training.momentum=0.5", 1e9, "Target loss (empty: the workload's own)", 1e9),
        ("workers.a.count=70", None, "a: count", 70),
    ],
)
def test_numbers_beyond_the_usual_stay_as_they_are(
    override: str, target: float | None, label: str, value: float
) -> None:
    view = View(overrides=("training.max_samples=5000", override), algorithms=("s-sgd",), tuned=False, target=target)
    app = explore(view)
    job = jobs.find(("quick", view))
    if job is not None:
        assert job.wait(PATIENCE_S)
        fine(app.run())
    assert widget(app, label).value == value and set(view_of(app).overrides) == set(view.overrides)
    assert view_of(app).target == target and len(app.metric) == 4


def test_algorithms_target_seed_and_tuning() -> None:
    app = explore()
    widget(app, "Algorithms").set_value(["s-sgd"])
    widget(app, "Target loss (empty: the workload's own)").set_value(2.0)
    widget(app, "Seed (a whole number)").set_value(5)
    fine(app.run())
    view = view_of(app)
    assert (view.algorithms, view.target, view.seed, view.tuned) == (("s-sgd",), 2.0, 5, False)
    assert app.metric[0].value != "not reached"
    widget(app, "Tune learning rate and momentum of each").set_value(True)
    fine(app.run())
    assert view_of(app).tuned and app.metric[0].value != "not reached"
    assert "Quick picture" in app.get("progress")[0].proto.text
    widget(app, "Algorithms").set_value([])
    fine(app.run())
    assert view_of(app).algorithms == ("s-sgd",), "an empty list is no question"


def test_another_profile_starts_its_own_controls() -> None:
    app = explore()
    widget(app, "Bandwidth, Gbit/s").set_value(1.0)
    fine(app.run())
    widget(app, "Cluster profile").set_value("slow-link-4")
    fine(app.run())
    view = view_of(app)
    assert (view.source, view.overrides) == ("slow-link-4", ())
    assert widget(app, "Bandwidth, Gbit/s").value == 10.0 and widget(app, "Slow link, Gbit/s").value == 1.0


def test_what_the_cluster_cannot_do_is_said_and_can_be_put_right() -> None:
    app = explore(MIXED)
    widget(app, "a: count").set_value(64)
    widget(app, "b: count").set_value(64)
    widget(app, "Global batch, samples").set_value(16)
    fine(app.run())
    assert app.error and "global_batch_samples:" in texts(app) and not app.metric
    widget(app, "Global batch, samples").set_value(512)
    widget(app, "a: count").set_value(1)
    widget(app, "b: count").set_value(1)
    fine(app.run())
    assert not app.error and len(app.metric) == 4


def test_what_a_link_s_cluster_cannot_do_is_said_and_left_out() -> None:
    app = explore(
        View(source="homogeneous-4", overrides=(*QUICK.overrides, "network.latency_us=-5"), algorithms=("s-sgd",))
    )
    assert app.error and "--set network.latency_us=-5: network.latency_us:" in texts(app)
    assert view_of(app).overrides == QUICK.overrides and len(app.metric) == 4


def test_the_baseline_stands_beside_with_all_changes() -> None:
    app = explore(MIXED)
    widget(app, "Pin as baseline").click()
    fine(app.run())
    widget(app, "Bandwidth, Gbit/s").set_value(1.0)
    fine(app.run())
    assert [s.value for s in app.subheader] == ["Baseline", "What-if"] * 2
    assert len(app.get("plotly_chart")) == 4
    deltas = {metric.label: metric.delta for metric in app.metric}
    assert deltas["Samples/s of the fastest"].startswith("-") and deltas["Busy, of the fastest"].endswith("points")
    row = app.dataframe[0].value.to_dict("records")[0]
    assert row["Δ samples/s, %"] < 0 and row["Δ busy, points"] < 0
    assert "base-set" in texts(app), "the link brings both"
    widget(app, "Back to the baseline").click()
    fine(app.run())
    assert view_of(app) == MIXED and widget(app, "Bandwidth, Gbit/s").value == 10.0
    widget(app, "Unpin").click()
    fine(app.run())
    assert not app.subheader and len(app.get("plotly_chart")) == 2


# ---- profiles that are brought -----------------------------------------------------------------------------------------------


def edited(app: AppTest, text: str) -> AppTest:
    widget(app, "Profile").set_value(text)
    widget(app, "Apply").click()
    return fine(app.run())


def test_the_editor_takes_a_profile() -> None:
    app = edited(explore(), OWN)
    assert view_of(app).source == OWN and "own-two" in app.title[0].value.replace("\\", "")
    assert widget(app, "Cluster profile").value == "own profile"
    assert "hetsim compare own-two.yaml" in texts(app) and "yaml=" in texts(app)
    widget(app, "b: speed, ×").set_value(2.0)
    fine(app.run())
    assert "workers.b.samples_per_s=200.0" in view_of(app).overrides
    assert "samples_per_s: 200.0" in widget(app, "Profile").value, "the editor has the profile as it is now"


BAD = [
    ("", "profile.yaml:1:1: is empty"),
    ("workers: [", "profile.yaml:"),
    (OWN.replace("samples_per_s: 500.0", "samples_per_sec: 500.0"), "profile.yaml:4:15: workers[0].samples_per_sec:"),
    (OWN.replace("500.0", "-1"), "profile.yaml:4:30: workers[0].samples_per_s:"),
    (OWN + "workload: {name: w, gradient_bytes: 1.0e6, model: 'os:system'}\n", "profile.yaml:7:"),
]


@pytest.mark.parametrize("text, said", BAD)
def test_what_is_wrong_in_the_editor_is_said_at_its_line(text: str, said: str) -> None:
    app = edited(explore(), text)
    assert said in texts(app) and app.error
    assert view_of(app) == QUICK and len(app.get("plotly_chart")) == 2, "the picture before stays"
    line = said.split(":")[1]
    if line.isdigit() and text:
        assert f"{line:>5} | {text.splitlines()[int(line) - 1]}"[:90] in texts(app)
    app = edited(app, OWN)
    assert not app.error and view_of(app).source == OWN


def uploaded(app: AppTest, data: bytes, name: str = "mine.yaml") -> AppTest:
    app.sidebar.file_uploader[0].upload(name, data, "application/yaml")
    return fine(app.run())


def test_an_uploaded_profile() -> None:
    app = uploaded(explore(), OWN.encode())
    assert view_of(app).source == OWN and not app.error


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "mine.yaml:1:1: is not UTF-8"),
        (b"# \n" * (MAX_TEXT_BYTES * 2 // 3), "is larger than 1,000 kB"),
        (b"a: &a [1]\nb: [*a, *a]\n", "profile.yaml:"),
    ],
)
def test_an_upload_that_is_none_is_refused_in_words(data: bytes, said: str) -> None:
    app = uploaded(explore(), data)
    assert said in texts(app) and view_of(app) == QUICK


# ---- links and sessions --------------------------------------------------------------------------------------------------------


def test_a_link_restores_view_and_baseline() -> None:
    view = View(source=OWN, overrides=("network.bandwidth_gbit_per_s=1.0",), algorithms=("s-sgd",), tuned=False)
    app = linked(**session.link(view, QUICK))
    assert view_of(app) == view and app.session_state[session.BASELINE] == QUICK
    assert widget(app, "Bandwidth, Gbit/s").value == 1.0
    assert offers.address(session.link(view, QUICK)) in texts(app)


@pytest.mark.parametrize("query", [{"profile": "nowhere"}, {"yaml": "%"}, {"seed": "x"}, {"base-target": "nan"}])
def test_a_link_that_cannot_be_followed_says_why(query: dict[str, str]) -> None:
    app = linked(**query)
    assert "This link cannot be followed" in app.error[0].value
    assert view_of(app) == View() and len(app.metric) == 4
    assert not app.run().error, "said once"


def test_two_sessions_do_not_meet() -> None:
    one, other = explore(), explore(MIXED)
    widget(one, "Bandwidth, Gbit/s").set_value(1.0)
    fine(one.run())
    widget(one, "Pin as baseline").click()
    fine(one.run())
    fine(other.run())
    assert view_of(other) == MIXED and widget(other, "Bandwidth, Gbit/s").value == 10.0
    assert session.BASELINE not in other.session_state
    assert view_of(one).overrides[-1] == "network.bandwidth_gbit_per_s=1.0"


def test_a_cluster_that_changes_is_simulated_beside_the_page() -> None:
    text = f"{OWN}events:\n  - {{at_s: 1.0, worker: a, slowdown: 3.0}}\n"
    view = View(source=text, algorithms=("s-sgd",), tuned=False)
    assert pictures.is_long(view) and not pictures.is_long(QUICK)
    app = explore(view)
    assert app.get("progress") and not app.metric, "how far it is, and nothing that is not known yet"
    job = jobs.find(("quick", view))
    assert job is not None and job.wait(PATIENCE_S)
    fine(app.run())
    assert len(app.metric) == 4 and not app.get("progress")


def test_the_view_is_still_there_after_another_page() -> None:
    app = explore(MIXED)
    widget(app, "Bandwidth, Gbit/s").set_value(1.0)
    fine(app.run())
    fine(app.switch_page(str(ROOT / "hetsim" / "webapp" / "timeline.py")).run())
    fine(app.switch_page(str(ROOT / "hetsim" / "webapp" / "explore.py")).run())
    assert widget(app, "Bandwidth, Gbit/s").value == 1.0
    assert json.dumps(view_of(app).query())
