"""Result folders that are damaged or tampered with: a message, never a traceback, and no figure that is not there."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetsim import export
from hetsim.cluster import load_profile
from hetsim.compare import compare
from hetsim.documents import read_document
from hetsim.errors import HetsimError, UsageError
from hetsim.report import report_html

OTHERS = (None, 0, -1, 1.5, 1e308, "x", "", [], {}, [1], {"a": 1}, True, 10**30, [[]], "\ud800")
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    profile = load_profile("mixed-gpu-4", overrides=["training.target_loss=1.2", "training.seeds=2"])
    found = compare(profile, ["s-sgd", "abs-sgd"], jobs=1)
    return export.write_comparison(found, tmp_path_factory.mktemp("results") / "compared", command="hetsim compare")


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Path:
    shutil.copytree(comparison, tmp_path / "compared")
    return tmp_path / "compared"


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from places(inner, (*at, index))


def changed(document: Any, at: Path_, value: Any) -> Any:
    if not at:
        return value
    document = copy.deepcopy(document)
    inner = document
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return document


@pytest.mark.parametrize("name", ["comparison.json", "runs/abs-sgd/result.json"])
def test_a_document_is_read_as_it_was_written(comparison: Path, name: str) -> None:
    path = comparison / name
    assert read_document(path.parent) == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["comparison.json", "runs/abs-sgd/result.json"])
def test_whatever_is_put_where_the_answer_is_a_report_or_a_message(folder: Path, name: str) -> None:
    path = folder / name
    for table in folder.rglob("*.parquet"):
        table.unlink()  # figures take long, and are not what is tampered with here
    document = json.loads(path.read_text(encoding="utf-8"))
    draw, refused = random.Random(7), 0
    every = [(at, value) for at in places(document) for value in OTHERS]
    for at, value in draw.sample(every, 120):
        path.write_text(json.dumps(changed(document, at, value)), encoding="utf-8")
        try:
            report_html(export.read_material(path.parent))
        except HetsimError as error:
            assert error.exit_code == 2 and str(path) in str(error)
            refused += 1
    assert refused > 60


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("algorithms",), [], "algorithms: tuple should have at least 1 item"),
        (("algorithms",), "s-sgd", "algorithms: input should be a valid"),
        (("algorithms", 0, "samples_per_s"), "fast", "algorithms.0.samples_per_s: input should be a valid number"),
        (("algorithms", 0, "samples_per_s"), float("inf"), "Infinity is no number of JSON"),
        (("algorithms", 0, "waiting"), [1], "algorithms.0.waiting"),
        (("seeds",), 5, "seeds: input should be a valid"),
        (("target",), None, "target"),
        (("warnings",), ["text"], "warnings.0"),
        (("schema_version",), "1", "schema_version"),
        (("schema_version",), True, "schema_version"),
        (("schema_version",), 2, "version 2, this hetsim reads up to 1: upgrade hetsim"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, at: Path_, value: Any, said: str) -> None:
    path = folder / "comparison.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(changed(document, at, value)), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_document(folder)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[", "null", "[]", "7", '{"schema_version": 1}', "[" * 100_000, "\x00", "\ufeff{}"]
)
@pytest.mark.parametrize("name", ["comparison.json", "result.json"])
def test_what_is_no_document(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="damaged"):
        export.read_material(tmp_path)
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(UsageError, match="damaged"):
        export.read_material(tmp_path)


def test_a_later_version_s_keys_are_left_out_and_an_older_one_s_missing_ones_are_null(folder: Path) -> None:
    path = folder / "comparison.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["algorithms"][0]["cost"], document["command"]
    document["later"] = document["algorithms"][1]["later"] = 1
    path.write_text(json.dumps(document), encoding="utf-8")
    found = read_document(folder)
    assert found["command"] is None and found["algorithms"][0]["cost"] is None
    assert "later" not in found and "later" not in found["algorithms"][1]


def test_one_run_of_a_comparison_has_a_report_without_learning(comparison: Path) -> None:
    assert (comparison / "runs" / "abs-sgd" / "curve.parquet").is_file()
    html = report_html(export.read_material(comparison / "runs" / "abs-sgd"))
    assert "Timing only" in html and html.count('class="plotly-graph-div"') == 2


@pytest.mark.parametrize("values", [["a", "b"], [None, None], [[1], [2]]])
def test_a_curve_without_numbers_is_no_curve(folder: Path, values: list[Any]) -> None:
    path = folder / "runs" / "abs-sgd" / "curve.parquet"
    meta = pq.read_table(path).schema.metadata
    table = pa.table(dict.fromkeys(export.CURVE_COLUMNS, values))
    pq.write_table(table.replace_schema_metadata(meta), path)
    with pytest.raises(UsageError, match="no curve"):
        export.read_material(folder)


def test_a_profile_that_is_no_text_is_told(folder: Path) -> None:
    (folder / "profile.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        export.read_material(folder)
