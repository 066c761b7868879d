"""A validation's folder and page: whole, legible, the same when read again, and nothing but a message where the folder is damaged."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_validations import made
from test_documents import OTHERS, changed, places
from test_report import Page

from abs_sgd.agreement import Tolerances
from abs_sgd.validate import Validation
from hetsim import timeline, validation_folder
from hetsim import validation_tables as tables
from hetsim.cli import main
from hetsim.convergence.predictor import Curve
from hetsim.errors import HetsimError
from hetsim.export import CURVE_COLUMNS
from hetsim.report import folder_html
from hetsim.validation_figures import band
from hetsim.validation_page import validation_html

pytestmark = pytest.mark.torch
LABELS = ("s-sgd", "abs-sgd")
RUN = {"result.json", "profile.yaml", "schedule.parquet", "trace.json.gz"}
CURVES = {"curve.parquet", "curve-predicted.parquet"}


@pytest.fixture(scope="module")
def missed() -> Validation:
    """Two algorithms on two seeds, 20 % slower than predicted."""
    return made(1.2, LABELS, seeds=(0, 1))


@pytest.fixture(scope="module")
def held() -> Validation:
    """One algorithm on one seed, 4 % slower than predicted."""
    return made(1.04)


@pytest.fixture(scope="module")
def written(missed: Validation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return validation_folder.write(missed, tmp_path_factory.mktemp("written") / "out", command="hetsim validate <x>")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "out"))


def page_of(validation: Validation) -> str:
    return validation_html(validation_folder.material_of(validation, command="hetsim validate profile.yaml"))


def unnamed(html: str) -> str:
    """Figures have a new random name each time."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "name", html)


# ---- the folder --------------------------------------------------------------------------------------------------------------


def test_one_algorithm_lies_in_the_folder_itself(held: Validation, tmp_path: Path) -> None:
    folder = validation_folder.write(held, tmp_path / "out")
    assert {p.name for p in folder.iterdir()} == {
        "validation.json", "profile.yaml", "report.html", "predicted", "measured-1",
    }  # fmt: skip
    assert {p.name for p in (folder / "predicted").iterdir()} == RUN
    assert {p.name for p in (folder / "measured-1").iterdir()} == RUN | CURVES


def test_several_have_folders_of_their_own(written: Path) -> None:
    for label in LABELS:
        assert {p.name for p in (written / label).iterdir()} == {"predicted", "measured-1", "measured-2"}
        assert {p.name for p in (written / label / "measured-2").iterdir()} == RUN | CURVES


def test_what_is_there_stays(held: Validation, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept", encoding="utf-8")
    with pytest.raises(HetsimError, match="exists"):
        validation_folder.write(held, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_folder_read_again_gives_the_page_that_was_written(written: Path, missed: Validation) -> None:
    again = folder_html(written)
    assert unnamed(again) == unnamed((written / "report.html").read_text(encoding="utf-8"))
    document = validation_folder.read(written).document
    assert document == {**json.loads(json.dumps(missed.document)), "command": "hetsim validate <x>"}


def test_the_command_needs_no_torch(written: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom hetsim.cli import main\n"
        "code = main(sys.argv[1:])\nassert not any(name.split('.')[0] == 'abs_sgd' for name in sys.modules)\nsys.exit(code)"
    )
    output = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(written), "-o", str(output)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, f"wrote {output}\n")
    assert "Did the prediction for two hold?" in output.read_text(encoding="utf-8")


def test_what_is_missing_is_left_out(folder: Path) -> None:
    def figures() -> int:
        return folder_html(folder).count('class="plotly-graph-div"')

    assert figures() == 2 * 3  # by algorithm a timeline and two of losses
    (folder / "s-sgd" / "measured-2" / "curve-predicted.parquet").unlink()
    assert figures() == 1 + 3
    (folder / "s-sgd" / "predicted" / "schedule.parquet").unlink()
    assert figures() == 1 + 3
    (folder / "s-sgd" / "measured-1" / "schedule.parquet").unlink()
    assert figures() == 3


# ---- a folder that came from somewhere ---------------------------------------------------------------------------------------


def test_whatever_is_put_into_the_document_the_answer_is_a_page_or_a_message(folder: Path) -> None:
    for table in folder.rglob("*.parquet"):
        table.unlink()  # figures take long, and are not what is tampered with here
    path = folder / "validation.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    every = [(at, value) for at in places(document) for value in OTHERS]
    refused = 0
    for at, value in random.Random(7).sample(every, 250):
        path.write_text(json.dumps(changed(document, at, value)), encoding="utf-8")
        try:
            folder_html(folder)
        except HetsimError as error:
            assert error.exit_code == 2 and str(error).startswith(f"{path}: ") and "\n" not in str(error)
            refused += 1
    assert 125 < refused < 250


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("schema_version",), 2, "version 2, this hetsim reads up to 1: upgrade hetsim"),
        (("algorithms",), [], "algorithms: tuple should have at least 1 item"),
        (("algorithms", 0, "runs"), [], "algorithms.0.runs: tuple should have at least 1 item"),
        (("algorithms", 1, "name"), "s-sgd", "algorithms: a name comes twice"),
        (("algorithms", 0, "runs", 1, "measured", "sample_share"), {"a": 1.0}, "sample_share: predicted and measured"),
        (("tolerances", "period"), "5 %", "tolerances.period: input should be a valid number"),
    ],
)
def test_what_is_wrong_is_named(
    folder: Path, at: tuple[str | int, ...], value: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "validation.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text(encoding="utf-8")), at, value)), encoding="utf-8")
    assert main(["report", str(folder), "--force"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {path}: ") and said in err and err.count("\n") == 1


def test_a_document_of_many_megabytes_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetsim.documents.MOST_BYTES", (folder / "validation.json").stat().st_size)
    folder_html(folder)
    with (folder / "validation.json").open("a", encoding="utf-8") as stream:
        stream.write(" ")
    with pytest.raises(HetsimError, match="is larger than"):
        folder_html(folder)


@pytest.mark.parametrize("table", ["curve.parquet", "schedule.parquet"])
def test_a_small_file_of_very_many_rows_is_not_read(
    folder: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "s-sgd" / "measured-1" / table
    small = pq.read_table(path)
    rows = 20_000_000
    alike = {
        name: pa.DictionaryArray.from_arrays(np.zeros(rows, np.int8), small[name].slice(0, 1).to_numpy())
        for name in small.column_names[:1]
    }
    pq.write_table(pa.table(alike).replace_schema_metadata(small.schema.metadata), path, compression="zstd")
    assert path.stat().st_size < 100_000
    assert main(["report", str(folder), "--force"]) == 2
    err = capsys.readouterr().err
    assert f"{path}: " in err and "20,000,000 rows" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "columns",
    [
        {name: [] for name in CURVE_COLUMNS},
        {**{name: [0, 1] for name in CURVE_COLUMNS}, "time_s": [0.0, float("nan")]},
        {**{name: [0, 1] for name in CURVE_COLUMNS}, "samples": [5, 4]},
        {name: [0, 1] for name in CURVE_COLUMNS[:3]},
    ],
)
def test_a_curve_that_is_none_is_told(folder: Path, columns: dict[str, Any]) -> None:
    path = folder / "abs-sgd" / "measured-2" / "curve.parquet"
    meta = pq.read_table(path).schema.metadata
    pq.write_table(
        pa.table({name: pa.array(each, pa.float64()) for name, each in columns.items()}).replace_schema_metadata(meta),
        path,
    )
    with pytest.raises(HetsimError, match="no curve"):
        folder_html(folder)


@pytest.mark.parametrize("table", ["curve.parquet", "schedule.parquet"])
def test_a_damaged_table_is_told_in_one_line(folder: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "s-sgd" / "measured-1" / table
    data = bytearray(path.read_bytes())
    data[-60:-8] = b"\xff" * 52  # the end of the footer, whose length is in the last eight bytes
    path.write_bytes(data)
    assert main(["report", str(folder), "--force"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {path}: ") and err.count("\n") == 1


def test_hostile_text_is_escaped_everywhere(folder: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    plain = Page(folder_html(folder))
    path = folder / "validation.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for row in document["algorithms"]:
        for check in row["checks"]:
            check.update(name=check["name"] + evil, within=False)
        for run in row["runs"]:
            run["name"] = evil
            for side in ("predicted", "measured"):
                run[side]["sample_share"] = {evil: 1.0}
                run[side]["waiting"] = {evil: 1.0}
    document.update(profile=evil, workload=evil, said=[evil], verdict=evil, command=evil, versions={evil: evil})
    path.write_text(json.dumps(document), encoding="utf-8")
    (folder / "profile.yaml").write_text(f"# {evil}\n", encoding="utf-8")
    html = folder_html(folder)
    page = Page(html)
    assert "alert(1)</script>" not in html and not [tag for tag, _ in page.tags if tag == "img"]
    assert sum(tag == "script" for tag, _ in page.tags) == sum(tag == "script" for tag, _ in plain.tags)


# ---- the page ----------------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_escaped(held: Validation) -> None:
    html = page_of(held)
    page = Page(html)
    for text in (
        "The prediction for s-sgd held.",
        "4.0 %",
        "hetsim validate profile.yaml",
        "<said & done>",
        "links not shaped",
    ):
        assert text in page.text, text
    assert "<said" not in html
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "base", "object", "embed"), tag
        assert not {"src", "href", "srcset", "action"} & set(attributes), (tag, attributes)


def test_the_verdict_comes_first_then_one_row_for_each_algorithm(missed: Validation) -> None:
    text = Page(page_of(missed)).text
    order = ["0 of 2 predictions held; did not hold: s-sgd, abs-sgd.", "Summary", "✗ did not hold", "✗ +20.0 %",
             "period, median: 20 % off, tolerance 2 %", "Every figure of seed 0", "Every figure of seed 1"]  # fmt: skip
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)


def test_the_summary_says_the_median_the_worst_and_what_is_off() -> None:
    document = made(1.04, seeds=(0, 1)).document
    summary = tables.summary(document)
    assert [(c.name, c.which, c.allowed) for c in summary] == [
        ("time per update", "median", "2 %"),
        ("time per update", "worst", "5 %"),
        ("share of samples", "worst", "5 %"),
        ("time to target", "median", "10 %"),
        ("replayed parameters", "worst", "1e-05"),
    ]
    cells = [c.cells[0] for c in summary]
    assert [cell.text for cell in cells] == ["+4.0 %", "+4.0 %", "0.0 %", "4.0 %", "0.0e+00"]
    assert [cell.off for cell in cells] == [
        True,
        False,
        False,
        False,
        False,
    ]  # of several runs the median has to be nearer
    assert tables.verdict(document["algorithms"][0]) == "did not hold; period, median: 4 % off, tolerance 2 %"


def test_of_one_run_there_is_no_other_median(held: Validation) -> None:
    summary = tables.summary(held.document)
    assert [(c.name, c.which) for c in summary][:2] == [("time per update", ""), ("share of samples", "worst")]
    assert tables.headline(held.document) == "The prediction for s-sgd held."


def test_the_summary_and_the_verdict_never_part() -> None:
    """A cell is marked exactly where a check that it shows has failed."""
    for factor in (0.9, 1.0, 1.03, 1.06, 1.2):
        for seeds in ((0,), (0, 1)):
            document = made(factor, seeds=seeds, tolerances=Tolerances(time=0.055)).document
            row = document["algorithms"][0]
            marked = any(column.cells[0].off for column in tables.summary(document))
            assert marked == bool(tables.missed(row)) == (not row["within"])


def test_what_was_not_compared_is_left_out_of_the_table_and_said() -> None:
    document = made(1.0, losses=False, seeds=(0, 1)).document
    row = document["algorithms"][0]
    assert not [line for line in tables.lines(row) if line[0].startswith(("replayed", "time to target"))]
    assert tables.uncompared(row) == [
        "replay, seed 0; replay, seed 1; time to target, median not compared: timing only"
    ]
    assert [column.cells[0].text for column in tables.summary(document)][-2:] == ["–", "–"]
    assert not [line for line in tables.lines(row) if not any(line[1:])]


def test_both_timelines_begin_with_the_same_update_and_last_as_long(missed: Validation) -> None:
    pair = missed.pairs["s-sgd"][0]
    figure = timeline.stacked({"predicted": pair.predicted.schedule, "measured": pair.measured.schedule})
    assert figure.layout.xaxis.matches == "x2" and figure.layout.xaxis.range == figure.layout.xaxis2.range
    above, below = figure.layout.annotations
    assert "predicted" in above.text and "measured" in below.text and above.y > below.y
    ours = {trace.yaxis: trace for trace in figure.data if trace.name == "compute"}
    upper, lower = (np.asarray(ours[axis].x) for axis in ("y", "y2"))
    inside = min(len(upper), len(lower)) - 2  # those at the edges are cut
    assert lower.max() == pytest.approx(1.2 * upper.max())
    assert np.isin(np.round(lower[:inside], 6), np.round(1.2 * upper, 6)).mean() > 0.5


def test_bands_of_seeds_hold_every_curve_and_end_with_the_shortest() -> None:
    def curve(end_s: float, level: float) -> Curve:
        n = 11
        count = np.arange(n)
        return Curve(updates=count, samples=8 * count, time_s=np.linspace(0.0, end_s, n), loss=level - 0.1 * count)

    curves = [curve(10.0, 3.0), curve(12.0, 2.0), curve(8.0, 2.5)]
    low, middle, high = band(curves, "seconds")
    assert low.time_s[-1] == pytest.approx(8.0) and (low.loss <= middle.loss).all() and (middle.loss <= high.loss).all()
    assert (low.loss[0], middle.loss[0], high.loss[0]) == (2.0, 2.5, 3.0)
    assert low.loss[-1] == pytest.approx(2.0 - 0.1 * 8.0 / 1.2)  # of the second, eight of its twelve seconds on
    low, middle, high = band(curves, "samples")
    assert np.allclose(high.loss - low.loss, 1.0) and middle.samples[-1] == 80
    assert band(curves[:1], "seconds") == (curves[0],) * 3
