"""The Plan page: every control, the plan's figures against the plan itself, what is refused, cancelling, and two sessions at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from app_pages import PATIENCE_S, fine, page, texts
from small_clusters import SMALL
from streamlit.testing.v1 import AppTest

from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.marginal import named
from hetsim.plan import Plan, plan
from hetsim.webapp import jobs, planning
from hetsim.webapp.planning import MOST_BATCHES, PlanOrder, compute
from hetsim.webapp.view import View

QUICK = View(source=SMALL, algorithms=("s-sgd", "lb-bsp"), tuned=False)
ORDER = PlanOrder(view=QUICK, every=False)


@cache
def planned() -> Plan:
    found: Plan = plan(QUICK.profile(), list(QUICK.algorithms), jobs=1)
    return found


@pytest.fixture(autouse=True)
def a_board_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    board = jobs.Board(at_once=2)
    monkeypatch.setattr(jobs, "_BOARD", board)
    yield
    board.close()


def started(app: AppTest, batches: str = "", which: str = "those chosen on the first page") -> AppTest:
    app.selectbox(key="plan-which").set_value(which)
    app.text_input(key="plan-batches").set_value(batches)
    return fine(app.button(key="plan-start").click().run())


def finished(app: AppTest, order: PlanOrder = ORDER) -> AppTest:
    job = jobs.find(("plan", order))
    assert job is not None and job.wait(PATIENCE_S) and job.state == "done", job and job.result()
    return fine(app.run())


def has(app: AppTest, key: str) -> bool:
    return key in [button.key for button in app.button]


def tables(app: AppTest) -> list[list[dict[str, Any]]]:
    return [frame.value.to_dict("records") for frame in app.dataframe]


# ---- the order and its words -------------------------------------------------------------------------------------------------------------


def test_the_command_gives_the_same_plan(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    order = replace(ORDER, batches=(64, 32))
    (tmp_path / QUICK.file_name()).write_text(SMALL, encoding="utf-8")
    seen: list[Any] = []
    found = compute(order, lambda *now: seen.append(now))
    assert main([*shlex.split(order.command())[1:], "--json", "-j", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(planning.document(found))
    assert seen and all(0 < done <= total and f"{done} of {total}" in text for done, total, text in seen)


def test_a_command_states_what_the_view_states() -> None:
    view = View(
        source="emulated-4",
        algorithms=("s-sgd", "abs-sgd:trigger=target_batch"),
        overrides=("training.momentum=0.5",),
        target=0.4,
    )
    assert (
        PlanOrder(view=view).command()
        == "hetsim plan emulated-4 --set training.momentum=0.5 --set training.target_loss=0.4"
    )
    order = PlanOrder(view=replace(view, target=None, overrides=(), seed=2), every=False, batches=(240, 480))
    assert (
        order.command() == "hetsim plan emulated-4 -a s-sgd -a abs-sgd:trigger=target_batch --batches 240,480 --seed 2"
    )


def test_what_is_too_much_or_too_little_is_refused() -> None:
    with pytest.raises(UsageError, match=f"up to {MOST_BATCHES}"):
        PlanOrder(view=QUICK, batches=tuple(range(64, 64 + MOST_BATCHES + 1)))
    with pytest.raises(UsageError, match="smaller than the 2 workers"):
        PlanOrder(view=QUICK, batches=(1, 64)).check()


# ---- rows --------------------------------------------------------------------------------------------------------------------------------


def test_rows_are_the_plans_numbers() -> None:
    p = planned()
    rows = planning.workers(p)
    assert [row["worker"] for row in rows] == ["fast", "slow"]
    assert sum(row["share, %"] for row in rows) == pytest.approx(100)
    assert sum(row["batch, samples"] for row in rows) == pytest.approx(64)
    for row, share in zip(rows, p.workers, strict=True):
        assert row["memory, GB"] == pytest.approx(share.memory.needs / 1e9) and row["of, GB"] == 16.0
        assert row["full, %"] == pytest.approx(100 * share.memory.needs / 16e9)
        assert row["computes, ms"] == pytest.approx(1e3 * share.seconds)
    assert set(rows[0]) == set(planning.WORKER_MEANS)
    for row, one in zip(planning.worth(p), p.marginal, strict=True):
        assert row["without"] == named(one.without) and row["in words"] == one.text
        assert row["time, %"] == pytest.approx(100 * (one.seconds_ratio - 1), abs=0.051)
        assert row["cost, %"] == pytest.approx(100 * (one.cost_ratio - 1), abs=0.051)  # type: ignore[operator]
    assert len(planning.others(p)) == len(p.alternatives) >= 1
    assert next(what for what, _ in planning.reasons(p)) == "algorithm"


def test_not_reached_is_said_and_unknown_memory_and_prices_are_left_out() -> None:
    p = planned()
    lost = replace(
        p.alternatives[0], seconds=None, slower=replace(p.alternatives[0].slower, value=None, low=None, high=None)
    )
    bare = replace(
        p,
        alternatives=(lost,),
        cost=None,
        marginal=tuple(replace(one, cost_ratio=None, energy_ratio=None) for one in p.marginal),
        workers=tuple(replace(w, memory=replace(w.memory, has=None)) for w in p.workers),
    )
    (row,) = planning.others(bare)
    assert row["to target"] == "not reached" and row["× as long"] is None
    assert {figure.label for figure in planning.figures(p)} - {figure.label for figure in planning.figures(bare)} == {
        "Cost",
        "Energy",
    }
    assert all("cost, %" not in row and "energy, %" not in row for row in planning.worth(bare))
    assert all(row["of, GB"] is None and row["full, %"] is None for row in planning.workers(bare))
    assert planning.tight(bare) == []
    short = replace(p, workers=tuple(replace(w, memory=replace(w.memory, has=1.0)) for w in p.workers))
    assert [use.worker for use in planning.tight(short)] == ["fast", "slow"]


def test_a_ratio_of_hardly_anything_has_no_sign() -> None:
    assert [str(planning._change(r)) for r in (0.9999, 1.0001, 0.99, None)] == ["0.0", "0.0", "-1.0", "None"]


# ---- the page ----------------------------------------------------------------------------------------------------------------------------


def test_what_is_there_at_first() -> None:
    app = page("plan", QUICK)
    assert app.title[0].value == "Plan" and app.text[0].value == "Cluster: small"
    assert app.selectbox(key="plan-which").options == ["all that hetsim plans with", "those chosen on the first page"]
    assert app.text_input(key="plan-batches").placeholder.startswith("64")
    assert all(element.help for kind in (app.selectbox, app.text_input, app.button) for element in kind)
    assert not app.dataframe and not has(app, "plan-cancel")


def test_the_plan_on_the_page_is_the_planners() -> None:
    app = finished(started(page("plan", QUICK)))
    p = planned()
    assert app.header[0].value.replace("\\", "") == planning.headline(p)
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics == {figure.label: figure.value for figure in planning.figures(p)} and {"Cost", "Energy"} <= set(
        metrics
    )
    assert "Cost: fast" in texts(app) and "hosts and network are not in it" in texts(app)
    first, second, third = tables(app)
    assert [row["worker"] for row in first] == ["fast", "slow"]
    assert [row["in words"] for row in second] == [one.text for one in p.marginal]
    assert [row["also tried"] for row in third] == [one.name for one in p.alternatives]
    told = texts(app)
    assert all(why.split(" ")[0] in told for _, why in planning.reasons(p))
    codes = [code.value for code in app.code]
    assert any(code.startswith("batch = [") for code in codes)
    assert any(code.startswith("hetsim simulate small.yaml -a") for code in codes)
    assert "hetsim plan small.yaml -a s-sgd -a lb-bsp" in codes
    assert app.get("download_button")[0].proto.label == "Plan (JSON)"
    assert "small.yaml is the profile" in told


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ("512;1024", "whole numbers of samples"),
        ("-5", "whole numbers of samples"),
        ("64.5", "whole numbers of samples"),
        (",", "whole numbers of samples"),
        ("1", "smaller than the 2 workers"),
        (",".join(map(str, range(64, 80))), f"up to {MOST_BATCHES}"),
    ],
)
def test_batches_that_cannot_be_are_told(batches: str, says: str) -> None:
    app = started(page("plan", QUICK), batches)
    assert says in texts(app) and not app.dataframe and not has(app, "plan-cancel")
    assert not jobs._BOARD._jobs


def test_what_nothing_reaches_is_told_as_the_command_line_tells_it() -> None:
    view = replace(QUICK, overrides=("training.max_samples=100",))
    app = started(page("plan", view))
    job = jobs.find(("plan", PlanOrder(view=view, every=False)))
    assert job is not None and job.wait(PATIENCE_S) and job.state == "failed"
    fine(app.run())
    assert "reaches the target within 100 samples" in texts(app)


def test_cancelling_ends_the_process() -> None:
    app = started(page("plan", View(source="mixed-gpu-4", tuned=False)), which="all that hetsim plans with")
    (job,) = jobs._BOARD._jobs.values()
    assert job.state == "running"
    fine(app.button(key="plan-cancel").click().run())
    assert job.state == "cancelled"
    fine(app.run())
    assert "Cancelled." in texts(app) and not app.dataframe


def test_two_sessions_share_a_plan_and_neither_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    who = {"is": "one"}
    monkeypatch.setattr(jobs, "_session", lambda: who["is"])
    one, two = page("plan", QUICK), page("plan", QUICK)
    started(one)
    who["is"] = "two"
    started(two)
    (job,) = jobs._BOARD._jobs.values()
    if has(two, "plan-cancel"):
        fine(two.button(key="plan-cancel").click().run())
    who["is"] = "one"
    finished(one)
    assert job.state == "done" and one.dataframe


def test_a_profile_that_is_none_is_told() -> None:
    app = page("plan", View(source="name: x\nworkers: 3\n"))
    assert "The profile has" in texts(app) and not has(app, "plan-start")
