"""Files that somebody else may have written: small, regular, UTF-8, and JSON that says one thing.

What is read to be believed (result folders, seals of checkpoints) goes through here, so that a pipe, a device or a sparse file of
terabytes is refused in one line instead of taking the time or the memory of the machine.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from hetsim.errors import UsageError

MOST_BYTES = 16_000_000  # a comparison of a hundred algorithms takes under one [our choice]


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The value of a JSON file. Raises UsageError: no regular file, too large, not UTF-8, no JSON, NaN, a key twice; OSError where it
    cannot be opened."""
    return parse_json(read_text(path, most_bytes), path)


def parse_json(text: str, path: Path) -> Any:
    """The value of a JSON text; `path` is what messages name. Raises UsageError."""
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: damaged ({type(error).__name__}: {error})") from None


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a small file. Raises UsageError: no regular file, too large, not UTF-8; OSError where it cannot be opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise UsageError(f"{path}: is no file")
    with path.open("rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UsageError(f"{path}: is larger than {most_bytes // 1_000_000:,} MB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: damaged ({type(error).__name__}: {error})") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping whose keys all differ: of two values for one key nobody knows which counts."""
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return out
