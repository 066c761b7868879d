"""The Validate page: what is opened, what is refused, and a run on this machine, by a stand-in and for real."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from app_pages import fine, opened, page, result_archive, shown, texts, validation, validation_archive
from streamlit.testing.v1 import AppTest

from hetsim import validation_folder
from hetsim.errors import UsageError
from hetsim.webapp import opening, validation_run
from hetsim.webapp.messages import said
from hetsim.webapp.opened import figure_rows, summary_rows
from hetsim.webapp.opening import OPENED
from hetsim.webapp.validation_run import Order

ZIP = "application/zip"


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "local_only", lambda address: True)


def upload(app: AppTest, data: bytes, name: str = "held.zip") -> AppTest:
    app.file_uploader[0].set_value((name, data, ZIP))
    return fine(app.run())


# ---- open ----------------------------------------------------------------------------------------------------------------


def test_what_is_there_at_first() -> None:
    app = page("validate")
    assert app.title[0].value == "Validate"
    assert app.file_uploader[0].allowed_type == [".zip"] and not app.file_uploader[0].value
    assert app.multiselect[0].value == ["abs-sgd"] and "ssp" in app.multiselect[0].options
    assert not app.dataframe and not app.error


@pytest.mark.torch
@pytest.mark.parametrize(("factor", "mark"), [(1.0, "✓ held"), (1.2, "✗ did not hold")])
def test_a_validation_is_opened_shown_and_closed(factor: float, mark: str, tmp_path: Path) -> None:
    app = upload(page("validate"), validation_archive(tmp_path, factor))
    told = app.success if factor == 1.0 else app.error
    assert shown(told[0]) == f"The prediction for s-sgd {'held' if factor == 1.0 else 'did not hold'}."
    (row,) = app.dataframe[0].value.to_dict("records")
    assert row["algorithm"] == "s-sgd" and row["verdict"] == mark
    assert any(name.startswith("time per update") for name in row) and any(name.startswith("share") for name in row)
    if factor == 1.2:
        assert "✗ +20.0 %" in row.values() and "20 % off, tolerance 5 %" in texts(app)
    assert len(app.get("plotly_chart")) == 2
    app.button(key="opened-close").click()
    fine(app.run())
    assert OPENED not in app.session_state and not app.dataframe


@pytest.mark.torch
def test_several_algorithms_and_runs() -> None:
    app = page("validate", **opened(1.0, ("s-sgd", "abs-sgd"), seeds=2))
    assert len(app.dataframe[0].value) == 2
    app.selectbox(key="opened-algorithm").set_value("abs-sgd")
    fine(app.run())
    assert "bands from the lowest to the highest" in texts(app)
    figures = app.dataframe[1].value.to_dict("records")
    assert {"time per update, seed 0", "time per update, seed 1"} <= {row["figure"] for row in figures}


@pytest.mark.torch
def test_rows_are_those_of_the_tables() -> None:
    document = validation(1.2).document
    (row,) = summary_rows(document)
    assert row["verdict"] == "✗ did not hold" and "✗ +20.0 %" in row.values()
    lines = figure_rows(document["algorithms"][0])
    assert next(line for line in lines if line["figure"] == "time per update")["off"] == "+20.0 %"


def test_a_result_of_compare_is_opened(tmp_path: Path) -> None:
    app = upload(page("validate"), result_archive(tmp_path), "compared.zip")
    rows = app.dataframe[0].value.to_dict("records")
    assert {row["algorithm"] for row in rows} == {"s-sgd", "abs-sgd"}
    assert "nothing was measured" in texts(app)


@pytest.mark.torch
def test_a_folder_is_opened_by_its_path(tmp_path: Path) -> None:
    validation_folder.write(validation(), tmp_path / "held")
    app = page("validate")
    app.text_input(key="validate-path").set_value(str(tmp_path / "held"))
    app.button(key="validate-open").click()
    fine(app.run())
    assert shown(app.success[0]) == "The prediction for s-sgd held."


@pytest.mark.parametrize("path", ["", "no/such/folder", "~nobody-of-this-name/x", "x" * 4000, "app.py"])
def test_paths_that_lead_to_nothing(path: str) -> None:
    app = page("validate")
    app.text_input(key="validate-path").set_value(path)
    app.button(key="validate-open").click()
    fine(app.run())
    assert app.error and "Traceback" not in texts(app) and not app.dataframe


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"x" * 2_500_000, "is no zip archive"),
        (zipped(**{"../validation.json": b"{}"}), "leads out of the folder"),
        (zipped(readme=b"x"), "holds no validation.json"),
        (zipped(**{"validation.json": b"{"}), "validation.json: damaged"),
        (zipped(**{"validation.json": b"{}", "x.bin": bytes(3_000_000)}), "damaged"),
        (zipped(**{"result.json": bytes(210_000_000)}), "more than 200 MB"),
    ],
)
def test_hostile_archives_are_refused_in_words(data: bytes, why: str) -> None:
    app = upload(page("validate"), data, "<b>evil</b>.zip")
    assert why in texts(app) and "Traceback" not in texts(app)
    assert "hetsim-archive" not in texts(app) and "<b>" not in texts(app)  # neither folders of this machine nor markup
    assert OPENED not in app.session_state and app.error
    app.file_uploader[0].set_value(None)
    fine(app.run())
    assert not app.error


@pytest.mark.torch
def test_what_is_open_stays_when_another_is_refused(tmp_path: Path) -> None:
    app = upload(page("validate"), validation_archive(tmp_path))
    upload(app, b"nonsense", "x.zip")
    assert app.error and shown(app.success[0]) == "The prediction for s-sgd held."


@pytest.mark.torch
def test_two_sessions_at_once_see_their_own(tmp_path: Path) -> None:
    one, other = page("validate"), page("validate")
    upload(one, validation_archive(tmp_path))
    fine(other.run())
    assert one.success and not other.success and OPENED not in other.session_state
    upload(other, b"nonsense", "x.zip")
    fine(one.run())
    assert other.error and not one.error


def test_worker_names_with_markup_are_refused() -> None:
    from dataclasses import replace

    from hetsim import load_profile, simulate

    run = simulate(load_profile("homogeneous-4"), "s-sgd", updates=2).schedule
    names = ("<img src=x>", *run.header.workers[1:])
    with pytest.raises(UsageError, match="no profile can have named it so"):
        opening._check_names("x.zip", [replace(run, header=replace(run.header, workers=names))])


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), (None, False), ("0.0.0.0", False),
        ("192.168.1.5", False), ("127.0.0.1.example.org", False), ("", False),
    ],
)  # fmt: skip
def test_what_counts_as_local(address: str | None, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert opening.local_only(address) is local


def test_an_explorer_that_others_reach_opens_no_folders_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "local_only", lambda address: False)
    app = page("validate")
    assert app.text_input(key="validate-path").disabled and app.button(key="validate-open").disabled
    assert app.button(key="validate-start").disabled and not app.file_uploader[0].disabled
    assert "could otherwise read this machine's files" in texts(app)


@pytest.mark.parametrize(
    "text", ["*a* _b_ `c` [d](http://e) <f> $g$ ~h~ :red[i]", "# x", "- x", "1. x", "a\nb", "4:10"]
)
def test_text_of_unknown_origin_is_shown_as_it_is(text: str) -> None:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark").render(said(text))
    assert made.count("<") == 2 and made.startswith("<p>")  # one paragraph, nothing in it
    assert not re.search(r"(?<!\\):", said(text)) and said(":material/x:") == r"\:material/x\:"


# ---- run -----------------------------------------------------------------------------------------------------------------


class StandIn:
    """A run whose state is set by the test."""

    def __init__(self, order: Order) -> None:
        self.order, self.state, self.progress, self.words = order, "running", (0, 30, "starting"), ["it broke"]
        self.material: Any = None
        self.archive, self.began_s, self.cancelled = b"archive", 0.0, 0

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def cancel(self) -> None:
        self.cancelled += 1
        self.state = "ending"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    made: list[StandIn] = []

    def start(order: Order, alive: Any) -> StandIn:
        assert alive()
        made.append(StandIn(order))
        return made[-1]

    monkeypatch.setattr(validation_run, "start", start)
    monkeypatch.setattr(validation_run, "unavailable", lambda: None)
    return made


def begin(app: AppTest) -> AppTest:
    app.button(key="validate-start").click()
    return fine(app.run())


def test_what_is_ordered_is_what_was_chosen(started: list[StandIn]) -> None:
    app = page("validate")
    app.selectbox(key="validate-profile").set_value("emulated-4-slow-link")
    app.multiselect(key="validate-algorithms").set_value(["s-sgd", "asgd"])
    app.number_input(key="validate-updates").set_value(12)
    app.number_input(key="validate-runs").set_value(2)
    app.number_input(key="validate-late").set_value(80)
    begin(app)
    (run,) = started
    assert (run.order.algorithms, run.order.updates, run.order.runs) == (("s-sgd", "asgd"), 12, 2)
    assert run.order.pace_tolerance == 0.8 and "--pace-tolerance 0.8" in " ".join(run.order.words())
    assert "name: emulated-4-slow-link" in run.order.profile_yaml
    assert app.button(key="validate-cancel")


def test_the_view_of_the_first_page_can_be_run(started: list[StandIn]) -> None:
    app = page("validate")
    app.selectbox(key="validate-profile").set_value("the view of the first page")
    begin(app)
    assert "name: homogeneous-4" in started[0].order.profile_yaml


def test_progress_failure_and_cancelling(started: list[StandIn]) -> None:
    app = begin(page("validate"))
    run = started[0]
    assert "starting processes" in app.get("progress")[0].proto.text
    run.progress = (12, 30, "abs-sgd, seed 0")
    fine(app.run())
    assert "12 of 30 updates" in app.get("progress")[0].proto.text
    app.button(key="validate-cancel").click()
    fine(app.run())
    assert run.cancelled == 1 and "clearing up" in app.get("progress")[0].proto.text
    run.state = "cancelled"
    fine(app.run())
    assert "nothing is left of it" in texts(app)
    begin(app)
    started[1].state = "failed"
    fine(app.run())
    assert "it broke" in texts(app)


def test_orders_that_cannot_be_are_told(started: list[StandIn]) -> None:
    app = page("validate")
    app.multiselect(key="validate-algorithms").set_value([])
    begin(app)
    assert not started and "name an algorithm" in texts(app)


@pytest.mark.torch
def test_a_run_that_is_done_is_opened(started: list[StandIn]) -> None:
    app = begin(page("validate"))
    run = started[0]
    run.state, run.material = "done", validation_folder.material_of(validation())
    fine(app.run())
    assert any("held" in shown(element) for element in app.success)
    assert any(button.label == "Download the validation" for button in app.download_button)
    assert app.session_state[OPENED].name == "emulated-4-validation"


def test_without_torch_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_run, "find_spec", lambda name: None)
    app = page("validate")
    assert app.button(key="validate-start").disabled
    assert "pip install 'hetsim[train]'" in texts(app)
