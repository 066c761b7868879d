"""Files that are damaged, foreign, newer or tampered with raise ScheduleError, whatever is wrong with them."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade_clusters import cluster

from hetsim.errors import ScheduleError
from hetsim.schedule import store
from hetsim.schedule.store import load, save, to_table
from hetsim.simulate import simulate

SCHEDULE = simulate(
    cluster([1.0, 0.5], gradient_bytes=4.0, bandwidths=[2.0, 4.0], global_batch_samples=4, micro_batch_samples=1),
    "abs-sgd",
    updates=20,
).schedule


def refused(path: Path, match: str = ".") -> None:
    with pytest.raises(ScheduleError, match=match) as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and caught.value.exit_code == 2  # bad input, no failed run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schedule.parquet"
    save(SCHEDULE, path)
    return path


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with other metadata."""
    table = to_table(SCHEDULE)
    meta = json.loads(table.schema.metadata[store.KEY])
    meta = change(meta) or meta
    pq.write_table(table.replace_schema_metadata({store.KEY: json.dumps(meta).encode()}), path)
    return path


def test_intact(file: Path) -> None:
    assert load(file).header == SCHEDULE.header


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated(file: Path, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    refused(file, "not a Parquet file")


def test_flipped_bytes_are_noticed(file: Path) -> None:
    """One byte changed anywhere: either the same schedule comes back or a ScheduleError."""
    data = file.read_bytes()
    rng = np.random.default_rng(0)
    different = 0
    for at in rng.integers(0, len(data), 150).tolist():
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :])
        try:
            loaded = load(file)
        except ScheduleError:
            different += 1
            continue
        for column in ("kind", "start_s", "end_s", "state", "samples", "scale"):
            assert getattr(loaded, column).tobytes() == getattr(SCHEDULE, column).tobytes()
    assert different > 75


def test_missing_foreign_or_a_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "no such file")
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    refused(tmp_path / "text", "not a Parquet file")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "other.parquet")
    refused(tmp_path / "other.parquet", "not a schedule")
    folder = tmp_path / "folder"
    folder.mkdir()
    refused(folder)


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda meta: meta["header"].__delitem__(key)


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda meta: meta["header"].__setitem__(key, value)


@pytest.mark.parametrize(
    "change",
    [
        drop("workers"),
        drop("schema_version"),
        drop("algorithm"),
        put("unknown", 1),
        put("workers", None),
        put("workers", 3),
        put("workers", []),
        put("workers", "ab"),
        put("workers", ["a", 3]),
        put("dataset_samples", 0),
        put("dataset_samples", -3),
        put("dataset_samples", "many"),
        put("dataset_samples", None),
        put("dataset_samples", 2.5),
        put("schema_version", "1"),
        put("schema_version", None),
        put("origin", "dreamt"),
        put("schema_version", True),
        put("dataset_samples", True),
        put("dataset_samples", 2**60),
        lambda meta: [1],
        lambda meta: {"header": meta["header"]},
        lambda meta: meta.update(header=[1]),
        lambda meta: meta.update(polls=3),
        lambda meta: meta.update(polls=["%%%"]),
        lambda meta: meta.update(polls=[base64.b64encode(zlib.compress(b"1234")[:-2]).decode()]),
        lambda meta: meta.update(outcomes=[base64.b64encode(b"not zlib").decode()]),
        lambda meta: meta.update(outcomes=[base64.b64encode(zlib.compress(b"12345")).decode()]),
        lambda meta: meta.update(outcomes=[base64.b64encode(zlib.compress(b"12345678" * 9)[:-9]).decode()]),
    ],
)
def test_wrong_metadata(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    refused(rewritten(tmp_path / "x", change))


def test_metadata_that_is_no_json(tmp_path: Path) -> None:
    for text in (b"", b"{", b"\xff\xfe", b"3", b"null", b"[" * 100_000, b'{"header":' * 100_000):
        pq.write_table(to_table(SCHEDULE).replace_schema_metadata({store.KEY: text}), tmp_path / "x")
        refused(tmp_path / "x", "damaged schedule")


def test_newer_version_says_to_upgrade(tmp_path: Path) -> None:
    refused(
        rewritten(tmp_path / "x", put("schema_version", 2)), "schedule version 2, this hetsim reads up to 1: upgrade"
    )


def test_an_outcome_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_OUTCOME_BYTES", 1000)
    bomb = base64.b64encode(zlib.compress(bytes(10**6))).decode()
    refused(rewritten(tmp_path / "x", lambda meta: meta.update(polls=[bomb, bomb, bomb])), "larger than")


@pytest.mark.parametrize("column", ["kind", "worker", "start_s", "slot", "samples", "scale"])
@pytest.mark.parametrize("what", ["gone", "text", "null", "lists", "halved"])
def test_wrong_columns(tmp_path: Path, column: str, what: str) -> None:
    table = to_table(SCHEDULE)
    at = table.column_names.index(column)
    n = len(table)
    replacement = {
        "text": pa.array(["x"] * n),
        "null": pa.array([None] * n, type=table.schema.field(column).type),
        "lists": pa.array([[1]] * n),
        "halved": pa.array(np.full(n, 0.5)),
    }
    table = table.remove_column(at) if what == "gone" else table.set_column(at, column, replacement[what])
    pq.write_table(table, tmp_path / "x")
    if what == "halved" and column in ("scale", "start_s"):
        return  # a number that can stand there
    refused(tmp_path / "x")


def test_without_a_single_row(tmp_path: Path) -> None:
    pq.write_table(to_table(SCHEDULE).slice(0, 0), tmp_path / "x")
    refused(tmp_path / "x", "without a single operation")


def test_tampered_numbers(tmp_path: Path) -> None:
    for column, value in (
        ("state", 2**31 - 1),
        ("slot", -7),
        ("worker", 100),
        ("samples", -1),
        ("first", 2**62),
        ("samples", 2**62),
    ):
        values = getattr(SCHEDULE, column).copy()
        values[0] = value
        save(dataclasses.replace(SCHEDULE, **{column: values}), tmp_path / "x")
        refused(tmp_path / "x")


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(table: Any, where: Path, **_: Any) -> None:
        Path(where).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="disk full"):
        save(SCHEDULE, file)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]
