"""Files of unknown origin: refused in one line that names them, without the time or the memory they ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetsim.errors import UsageError
from hetsim.reading import MOST_BYTES, read_json, read_text


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_json(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ('{"a":' * 100_000, "RecursionError"),
        ("9" * 5_000, "ValueError"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b' is there twice"),
        ("\udcff", "UnicodeDecodeError"),
    ],
)
def test_what_is_no_json_is_damaged(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    found = refused(path)
    assert ": damaged (" in found and said in found


def test_a_value_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"a": [1, 2.5, null], "b": {"a": "µ"}}', encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, None], "b": {"a": "µ"}}


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.touch()
    os.truncate(path, 1 << 40)
    assert refused(path) == f"{path}: is larger than 16 MB"


def test_the_largest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b" " * MOST_BYTES)
    assert len(read_text(path)) == MOST_BYTES
    path.write_bytes(b" " * (MOST_BYTES + 1))
    assert "is larger than" in refused(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith(": is no file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it would never come back
        assert refused(tmp_path / "pipe").endswith(": is no file")


def test_what_is_not_there_is_the_callers_to_say(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "run.json")
