"""What a map is of, and its picture: ranges that suit a profile, what a stranger's path may not do, the same cells by the command."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetsim import look
from hetsim.cli import main
from hetsim.cluster import load_profile, shipped_profiles
from hetsim.errors import ProfileError, UsageError
from hetsim.speedup_map import PENDING, MapCell, SpeedupMap
from hetsim.sweeps.design import read_axis
from hetsim.webapp import map_figure
from hetsim.webapp.mapping import (
    BANDWIDTH,
    MOST_VALUES,
    SPACINGS,
    MapOrder,
    axis_text,
    cell_view,
    choices,
    clicked_cell,
    compute,
    said,
)
from hetsim.webapp.view import View

QUICK = View(source="emulated-4", algorithms=("s-sgd", "lb-bsp", "abs-sgd"))
ORDER = MapOrder(view=QUICK, x="speed-ratio=2,8", y=f"{BANDWIDTH}=0.1,1")
RATIO, BAND = "speed ratio", "bandwidth, Gbit/s"


def ignored(*_: Any) -> None:
    """A report that nobody reads."""


# ---- fields ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(shipped_profiles()))
def test_every_range_of_the_menu_makes_valid_profiles(name: str) -> None:
    view = View(source=name)
    known = choices(view.profile())
    assert len({choice.field for choice in known}) == len(known) and all(choice.means for choice in known)
    for choice in known:
        text = axis_text(choice.field, choice.low, choice.high, choice.count, choice.spacing)
        other = f"{BANDWIDTH}=1" if choice.field != BANDWIDTH else "network.latency_us=10"
        order = MapOrder(view=view, x=text, y=other)
        assert len(order.axes()[0].values) >= 3
        order.check()


def test_a_profile_without_two_speeds_to_set_has_no_ratio() -> None:
    assert choices(load_profile("homogeneous-4"))[0].field == BANDWIDTH
    assert choices(load_profile("mixed-gpu-4"))[0].field == "speed-ratio"


@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_range_is_written_as_the_command_line_reads_it(spacing: str) -> None:
    values = read_axis(axis_text("a.b", 2, 32, 5, spacing)).values
    assert values[0] == 2 and values[-1] == 32 and len(values) == 5
    assert all(isinstance(v, int) for v in values) == spacing.startswith("whole")
    steps = np.diff(np.log(values) if "ratios" in spacing else values)
    assert np.allclose(steps, steps[0], rtol=0.3 if spacing.startswith("whole") else 1e-9)


# ---- what is refused ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ("network.bandwith=1,2", "bandwith"),
        ("nothing.at.all=1", "nothing"),
        ("workers.z.jitter_cv=0,1", "no item 'z'"),
        ("training.momentum=0.5,1.5", "less than 1"),
        ("training.momentum=high", "number"),
        ("training.momentum=", "must read path=a,b,c"),
        ("training.momentum=0..0.9:40", f"up to {MOST_VALUES}"),
        ("speed-ratio=0.5,2", "a number from 1"),
        ("speed-ratio=2,,4", "speed-ratio"),
        ("workers.a.samples_per_s=1..1e9:5:logg", "log"),
    ],
)
def test_fields_and_values_that_cannot_be(x: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        MapOrder(view=QUICK, x=x, y=f"{BANDWIDTH}=1,2").check()


def test_a_path_reads_no_file_and_names_no_code(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("samples,seconds\n16,0.123\n", encoding="utf-8")
    for x in (f"workers.a.trace={secret}", "workload.model=os:system", "workload.dataset=os:system"):
        order = MapOrder(view=QUICK, x=x, y=f"{BANDWIDTH}=1,2")
        for refuse in (order.check, lambda order=order: compute(order, ignored)):
            with pytest.raises(ProfileError, match=r"untrusted|no file|no module") as refused:
                refuse()
            assert "0.123" not in str(refused.value)


# ---- the job -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def computed() -> SpeedupMap:
    seen: list[tuple[Any, ...]] = []
    found = compute(ORDER, lambda *now: seen.append(now))
    counted, shown = [now for now in seen if len(now) == 3], [now[3] for now in seen if len(now) == 4]
    assert [now[:2] for now in counted] == [(i, 4) for i in range(5)] and counted[-1][2] == "4 of 4 cells"
    assert shown[0].pending == 3, "the first cell is shown at once"
    return found


def test_the_command_gives_the_same_cells(computed: SpeedupMap, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(ORDER.command(computed.labels))[1:], "--json", "-j", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    mine = [s for i in range(2) for j in range(2) for _, s in computed.cell(i, j).seconds]
    assert [row["seconds"] for row in rows] == mine


def test_a_command_states_what_the_view_states() -> None:
    view = replace(QUICK, overrides=("training.momentum=0.5",), target=0.4, seed=3)
    command = MapOrder(view=view, x=ORDER.x, y=ORDER.y).command(("s-sgd",))
    assert command == (
        "hetsim sweep emulated-4 --set training.momentum=0.5 --set training.target_loss=0.4 "
        f"--over speed-ratio=2,8 --over {BANDWIDTH}=0.1,1 -a s-sgd --seed 3"
    )


def test_a_cell_opens_as_the_cluster_it_was_computed_on(computed: SpeedupMap) -> None:
    view = cell_view(replace(QUICK, overrides=(f"{BANDWIDTH}=7", "training.momentum=0.5")), computed.cell(1, 0))
    assert view.overrides[0] == "training.momentum=0.5" and view.overrides[-1] == f"{BANDWIDTH}=0.1"
    assert sum(o.startswith(BANDWIDTH) for o in view.overrides) == 1
    speeds = [w.samples_per_s for w in view.profile().cluster().workers]
    assert max(speeds) / min(speeds) == pytest.approx(8, rel=1e-4)


def test_a_swept_target_takes_the_place_of_the_views() -> None:
    order = MapOrder(view=replace(QUICK, target=0.5), x="training.target_loss=0.6,0.8", y=f"{BANDWIDTH}=0.2")
    found = compute(order, ignored)
    opened = cell_view(order.view, found.cell(1, 0))
    assert opened.target is None and opened.profile().training.target_loss == 0.8


def test_the_clicked_cell() -> None:
    assert clicked_cell(None) is None and clicked_cell({"selection": {"points": []}}) is None
    points = [{"customdata": [0, 1]}, {"customdata": [3, 2]}, {"x": 1}]
    assert clicked_cell({"selection": {"points": points}}) == (3, 2)


# ---- the picture -------------------------------------------------------------------------------------------------------------------------


def made(values: list[list[float]], winners: list[list[str | None]], clear: bool = True) -> SpeedupMap:
    """A map of these speed-ups, rows from below."""
    labels = ("s-sgd", "lb-bsp", "asgd", "abs-sgd")

    def cell(i: int, j: int) -> MapCell:
        value, winner = values[j][i], winners[j][i]
        seconds = tuple((label, 10.0 if label == winner else None) for label in labels)
        why = "abs-sgd does not reach the target" if math.isnan(value) else ""
        return MapCell(
            x=i + 1.0,
            y=j * 10,
            speedup=value,
            why=why,
            winner=winner,
            clear=clear,
            baseline="s-sgd",
            seconds=seconds,
            overrides=(),
        )

    columns, rows = len(values[0]), len(values)
    return SpeedupMap(
        x="speed-ratio",
        x_values=tuple(i + 1.0 for i in range(columns)),
        y=BANDWIDTH,
        y_values=tuple(j * 10 for j in range(rows)),
        label="abs-sgd",
        labels=labels,
        seed=0,
        cells=tuple(tuple(cell(i, j) for i in range(columns)) for j in range(rows)),
        steady=0,
    )


MIXED = made([[0.5, 2.0], [math.nan, 1.25]], [["lb-bsp", "abs-sgd"], [None, "abs-sgd"]])


def trace(figure: Any, part: str) -> Any:
    return next(t for t in figure.data if t.name and part in t.name)


def test_colour_number_letter_and_stripes_say_the_same() -> None:
    figure = map_figure.figure(MIXED, RATIO, BAND)
    shown = trace(figure, "speed-up").z
    assert np.array_equal(shown, np.log2(MIXED.speedup), equal_nan=True)
    texts = {(a.x, a.y): a.text for a in figure.layout.annotations}
    assert texts == {(0, 0): "<b>L</b><br>0.50", (1, 0): "<b>A</b><br>2.00", (0, 1): "–", (1, 1): "<b>A</b><br>1.25"}
    stripes = trace(figure, "no number")
    points = [(x, y) for x, y in zip(stripes.x, stripes.y, strict=True) if x is not None]
    assert points and all(-0.5 <= x <= 0.5 and 0.5 <= y <= 1.5 for x, y in points)  # over cell (0, 1) alone
    names = [t.name for t in figure.data]
    assert "A: abs-sgd is fastest in 2 of 4" in names and "L: lb-bsp is fastest in 1 of 4" in names
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (RATIO, BAND)
    assert list(figure.layout.yaxis.ticktext) == ["0", "10"]


def test_what_is_not_computed_yet_is_left_blank() -> None:
    later = replace(MIXED.cell(0, 0), speedup=math.nan, why=PENDING, winner=None, seconds=(), pending=True)
    partly = replace(MIXED, cells=((later, MIXED.cell(1, 0)), MIXED.cells[1]))
    figure = map_figure.figure(partly, RATIO, BAND)
    assert (0, 0) not in {(a.x, a.y) for a in figure.layout.annotations}
    stripes = trace(figure, "no number")
    assert all(0.5 <= y <= 1.5 for y in stripes.y if y is not None), "stripes are for what has no number"
    assert [0, 0] not in [list(at) for at in trace(figure, "cells").customdata]
    assert partly.pending == 1 and MIXED.pending == 0
    assert map_figure.described(partly, RATIO, BAND).endswith("Not complete yet.")


def test_the_line_at_one_runs_along_the_edges_between_faster_and_slower() -> None:
    line = trace(map_figure.figure(MIXED, RATIO, BAND), "1×")
    assert list(zip(line.x, line.y, strict=True)) == [(0.5, -0.5), (0.5, 0.5), (None, None)]
    everywhere = made([[1.1, 1.2]], [["abs-sgd", "abs-sgd"]])
    assert not [t for t in map_figure.figure(everywhere, RATIO, BAND).data if t.name and t.name.startswith("1×")]


def test_points_carry_their_cell_and_its_words() -> None:
    points = trace(map_figure.figure(MIXED, RATIO, BAND), "cells")
    found = {tuple(c): text for c, text in zip(points.customdata, points.text, strict=True)}
    assert set(found) == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert (
        "abs-sgd: 0.50× the speed of s-sgd, the best baseline" in found[0, 0] and "fastest: lb-bsp, 10 s" in found[0, 0]
    )
    assert "abs-sgd does not reach the target" in found[0, 1] and "×" not in found[0, 1]
    assert f"{RATIO}: 2<br>{BAND}: 0" in found[1, 0]


def test_a_lead_that_is_not_clear_is_marked() -> None:
    close = made([[1.005]], [["abs-sgd"]], clear=False)
    figure = map_figure.figure(close, RATIO, BAND)
    assert figure.layout.annotations[0].text == "<b>A</b>≈<br>1.00" and trace(figure, "≈: leads by under 1 %")
    assert "no clear winner" in trace(figure, "cells").text[0]


def test_many_columns_have_letters_only_and_nothing_at_all_is_drawn_too() -> None:
    wide = made([[1.5] * 12], [["abs-sgd"] * 12])
    assert {a.text for a in map_figure.figure(wide, RATIO, BAND).layout.annotations} == {"<b>A</b>"}
    nothing = made([[math.nan]], [[None]])
    assert "Nothing reaches" in map_figure.described(nothing, RATIO, BAND)
    assert map_figure.figure(nothing, RATIO, BAND, (0, 0)).to_json()


def test_letters_are_unique_and_the_first_choice_is_the_winners() -> None:
    found = map_figure.letters(MIXED)
    assert found == {"abs-sgd": "A", "lb-bsp": "L", "s-sgd": "S", "asgd": "G"}
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("speedup", [*np.geomspace(0.1, 10, 41).tolist(), math.nan])
def test_text_can_be_read_on_every_colour(speedup: float) -> None:
    bright = map_figure._luminance(map_figure.colour(speedup))
    ink = 1.0 if map_figure.ink(speedup) == "#FFFFFF" else 0.0
    light, dark = max(bright, ink), min(bright, ink)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2.2, 1.4.3


def test_colours_are_those_of_the_scale() -> None:
    for speedup, text in ((1 / 3, look.VERMILLION), (1.0, "#f0f0f0"), (3.0, look.BLUE), (30.0, look.BLUE)):
        assert map_figure.colour(speedup) == pytest.approx(map_figure._rgb(text), abs=1e-12)


def test_the_chosen_cell_is_framed() -> None:
    (outer, inner) = map_figure.figure(MIXED, RATIO, BAND, (1, 0)).layout.shapes
    assert (outer.x0, outer.x1, outer.y0, outer.y1) == (0.5, 1.5, -0.5, 0.5) and inner.line.color != outer.line.color


def test_values_are_said_short() -> None:
    assert [said(v) for v in (2.154434690031884, 512, 10000, True, "ring", None, 0.1)] == [
        "2.15",
        "512",
        "10,000",
        "True",
        "ring",
        "None",
        "0.1",
    ]
