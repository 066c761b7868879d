"""What Explore draws, tabulates and offers: pure functions of comparisons."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from dataclasses import replace
from functools import cache

import pytest
from plotly import graph_objects as go

from hetsim.comparison import Comparison
from hetsim.webapp import figures, metrics, offers, pictures, tables
from hetsim.webapp.messages import said
from hetsim.webapp.view import View

VIEW = View(
    source="homogeneous-4",
    overrides=("training.max_samples=400000",),
    algorithms=("s-sgd", "one-step-delay", "abs-sgd"),
    target=1.7,
)


@cache
def comparison(gbit: float = 10.0, target: float = 1.7) -> Comparison:
    view = replace(VIEW, overrides=(*VIEW.overrides, f"network.bandwidth_gbit_per_s={gbit}"), target=target)
    return pictures.compute(view, full=True)


def test_the_loss_figure_tells_algorithms_apart_without_colour() -> None:
    made = figures.loss(comparison())
    assert [trace.name.split(" (")[0] for trace in made.data] == list(VIEW.algorithms)
    looks = [(trace.line.dash, trace.line.width) for trace in made.data]
    assert len(set(looks)) == len(looks)
    assert any("target" in (note.text or "") for note in made.layout.annotations)
    words = figures.described(comparison())
    assert all(name in words for name in VIEW.algorithms)


def test_a_target_that_nobody_reaches_is_said() -> None:
    c = comparison(target=1e-6)
    assert "no algorithm reaches" in figures.described(c)
    shown = {figure.label: figure for figure in metrics.figures(c)}
    assert shown["Time to target"].value == "not reached"
    assert len(figures.two_that_matter(c)) == 2
    assert all("target not reached" in row["note"] for row in tables.table(c))
    assert metrics.against(c, comparison()) == "The what-if does not reach the target; the baseline does."
    assert metrics.against(comparison(), c) == "The baseline does not reach the target."
    assert metrics.percent(math.inf, 3.0) == "was reached" and metrics.percent(3.0, math.inf) == "was not reached"


def test_the_timelines_are_of_the_fastest_and_its_rival() -> None:
    c = comparison()
    first, second = figures.two_that_matter(c)
    assert first.seconds == min(row.seconds for row in c.algorithms) and second.algorithm != first.algorithm
    made = figures.who_does_what(c)
    titles = " ".join(note.text for note in made.layout.annotations)
    assert first.name in titles and second.name in titles
    patterns = {bar.name: bar.marker.pattern.shape for bar in made.data}
    assert len(set(patterns.values())) == len(patterns), "activities differ by more than colour"
    assert first.name in figures.lanes(c)


def test_the_table_has_every_row_once_and_plain_numbers() -> None:
    c = comparison()
    rows = tables.table(c)
    assert [row["algorithm"] for row in rows] == [row["name"] for row in c.rows()]
    heads = tables.kinds(c, pinned=False)
    for row in rows:
        assert set(row) == set(heads)
        for head, (kind, means) in heads.items():
            assert means
            if kind == "text":
                assert isinstance(row[head], str)
            else:
                assert row[head] is None or isinstance(row[head], (int, float))
                assert row[head] is None or kind % row[head]
    time = next(head for head in heads if head.startswith("to target"))
    assert rows[0][time] == pytest.approx(min(row.seconds for row in c.algorithms))
    json.dumps(rows, allow_nan=False)


def test_changes_against_a_baseline() -> None:
    slow, fast = comparison(1.0), comparison(10.0)
    for row in tables.table(fast, slow):
        before, now = slow[row["algorithm"]], fast[row["algorithm"]]
        assert row["Δ to target, %"] == pytest.approx(100 * (now.seconds / before.seconds - 1))
        assert row["Δ samples/s, %"] == pytest.approx(100 * (now.samples_per_s / before.samples_per_s - 1))
        assert row["Δ busy, points"] == pytest.approx(100 * (now.utilisation - before.utilisation))
    same = tables.table(fast, fast)
    assert all(row[head] == 0 for row in same for head in tables.CHANGES)
    unmoved = metrics.figures(fast, fast)
    assert [(f.delta, f.directed) for f in unmoved] == [("no change", False)] * 4
    figure = next(f for f in metrics.figures(fast, slow) if f.label == "Time to target")
    assert figure.delta is not None and figure.delta.startswith("-") and figure.sense == "inverse"
    assert "as fast as the baseline" in metrics.against(fast, slow)
    assert "as long as the baseline" in metrics.against(slow, fast)


@pytest.mark.parametrize(
    ("change", "digits", "says"),
    [(0.0, 1, "no change"), (-0.04, 1, "no change"), (0.06, 1, "+0.1 %"), (-0.4, 0, "no change"), (-12.0, 0, "-12 %")],
)
def test_a_change_that_the_digits_do_not_show_is_none(change: float, digits: int, says: str) -> None:
    assert metrics.signed(change, digits, " %") == says


def test_a_change_that_is_hardly_any_has_no_minus() -> None:
    assert [str(tables._shown(change)) for change in (-0.04, -0.06, 0.04, None)] == ["0.0", "-0.06", "0.04", "None"]


def test_words_instead_of_a_change_point_nowhere() -> None:
    reached, missed = comparison(), comparison(target=1e-6)
    for now, before, says in ((reached, missed, "was not reached"), (missed, reached, "was reached")):
        figure = metrics.figures(now, before)[0]
        assert (figure.delta, figure.directed) == (says, False)
    assert metrics.figures(missed, missed)[0].delta is None


def test_figures_side_by_side_are_over_the_same_time() -> None:
    pair = [comparison(1.0), comparison(10.0)]
    alone = [figures.loss(c).layout.xaxis.range[1] for c in pair]
    both = [figure.layout.xaxis.range[1] for figure in figures.same_scale([figures.loss(c) for c in pair])]
    units = {figures.loss(c).layout.xaxis.title.text for c in pair}
    assert alone[0] > alone[1] and both == ([max(alone)] * 2 if len(units) == 1 else alone)
    mixed = [figures.loss(pair[0], "seconds"), figures.loss(pair[1], "samples")]
    assert [f.layout.xaxis.range[1] for f in figures.same_scale(mixed)] != [max(alone)] * 2


def test_timelines_in_milliseconds_and_in_seconds_keep_their_own_scale() -> None:
    pair = [comparison(10.0), comparison(0.1)]
    drawn = [figures.who_does_what(c) for c in pair]
    titles = [[axis.title.text for axis in figure.select_xaxes()][-1].split()[0] for figure in drawn]
    ends = [figure.layout.xaxis.range[1] for figure in drawn]
    assert titles == ["ms", "s"] and [f.layout.xaxis.range[1] for f in figures.same_scale(drawn)] == ends
    near = [figures.who_does_what(comparison(gbit)) for gbit in (10.0, 9.0)]
    longest = max(figure.layout.xaxis.range[1] for figure in near)
    assert [f.layout.xaxis.range[1] for f in figures.same_scale(near)] == [longest] * 2


def test_an_algorithm_that_the_baseline_lacks_has_no_change() -> None:
    c = comparison()
    without = replace(c, algorithms=c.algorithms[:1])
    changed = {row["algorithm"]: row["Δ samples/s, %"] for row in tables.table(c, without)}
    assert changed[c.algorithms[0].name] == 0 and changed[c.algorithms[1].name] is None


def test_the_csv_reads_back_and_starts_no_formula() -> None:
    rows = tables.table(comparison())
    read = list(csv.DictReader(io.StringIO(tables.csv_text(rows))))
    assert [row["algorithm"] for row in read] == [row["algorithm"] for row in rows]
    assert float(read[0]["samples/s"]) == rows[0]["samples/s"]
    assert "'=1+1" in tables.csv_text([{"a": "=1+1"}])
    assert tables.csv_text([]).strip() == ""


def test_the_archive_is_the_result_folder(tmp_path: object) -> None:
    c = comparison()
    with zipfile.ZipFile(io.BytesIO(offers.result_zip(c, "hetsim compare x.yaml"))) as archive:
        names = archive.namelist()
        document = json.loads(archive.read("homogeneous-4/comparison.json"))
    assert document["command"] == "hetsim compare x.yaml" and document["profile"] == "homogeneous-4"
    assert {"homogeneous-4/profile.yaml", "homogeneous-4/report.html"} <= set(names)
    assert f"homogeneous-4/runs/{c.algorithms[0].name}/schedule.parquet" in names
    assert "hetsim compare x.yaml" in offers.report(c, "hetsim compare x.yaml")


def test_dark_lines_become_light_on_dark_and_others_stay() -> None:
    made = go.Figure(go.Scatter(x=[1], y=[1], line={"color": "#000000"}))
    made.add_scatter(x=[1], y=[1], line={"color": "#0072B2"})
    made.add_bar(x=[1], y=[1])
    made.add_hline(y=1, line={"color": "#57606a"})
    dark, light = figures.adapted(made, True), figures.adapted(made, False)
    assert [trace.line.color for trace in dark.data[:2]] == ["#FFFFFF", "#0072B2"]
    assert dark.layout.shapes[0].line.color == "#9AA4AE"
    assert [trace.line.color for trace in light.data[:2]] == ["#000000", "#0072B2"]
    assert made.data[0].line.color == "#000000", "the figure itself stays"


def test_words_of_a_profile_are_no_markdown() -> None:
    assert said("*a* `b` [c](d) :red[e] $f$") != "*a* `b` [c](d) :red[e] $f$"
    assert said("abs-sgd is 1.2 times").replace("\\", "") == "abs-sgd is 1.2 times"
