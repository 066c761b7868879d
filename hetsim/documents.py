"""What result.json and comparison.json hold, checked as they are read: a report is made of nothing else.

Keys that are not known are left out; those of a later version that are missing here read as null.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hetsim.comparison import COMPARISON_VERSION, Row
from hetsim.convergence.predictor import Target
from hetsim.convergence.stability import Caution
from hetsim.errors import UsageError
from hetsim.export import RESULT_VERSION

VERSIONS = {"comparison.json": COMPARISON_VERSION, "result.json": RESULT_VERSION}  # the newest that can be read


class _Document(BaseModel):
    """What both have."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    schema_version: int = Field(ge=1)
    profile: str
    seed: int
    speeds: dict[str, str]
    warnings: tuple[Caution, ...]
    versions: dict[str, str]


class _Run(_Document):
    """One run; the fields of a `Row` beside these."""

    updates: int
    horizon_s: float


class _Comparison(_Document):
    """Several algorithms."""

    seeds: tuple[int, ...]
    predictor: str
    target: Target
    best_baseline: str | None
    winner: str | None
    coverage: float | None
    assumptions: tuple[str, ...]
    algorithms: tuple[Row, ...] = Field(min_length=1)
    verdict: str
    command: str | None = None


def read_document(folder: Path) -> dict[str, Any]:
    """comparison.json or result.json of a folder. Raises UsageError: neither is there, damaged, of a newer version."""
    for mark in VERSIONS:
        path = folder / mark
        if path.is_file():
            return _read(path)
    raise UsageError(
        f"{folder}: holds neither comparison.json nor result.json (written by hetsim compare -o and simulate -o)"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text, parse_constant=_no_number)["schema_version"]
        newest = VERSIONS[path.name]
        if type(version) is int and version > newest:
            raise UsageError(f"{path}: version {version}, this hetsim reads up to {newest}: upgrade hetsim")
        if path.name == "comparison.json":
            return _Comparison.model_validate_json(text).model_dump(mode="json")
        row = TypeAdapter(Row).validate_json(text, strict=True)
        return {
            **TypeAdapter(Row).dump_python(row, mode="json"),
            **_Run.model_validate_json(text).model_dump(mode="json"),
        }
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"][:1].lower() + first["msg"][1:])))
        raise UsageError(f"{path}: damaged ({what})") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: damaged ({type(error).__name__}: {error})") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
