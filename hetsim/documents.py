"""What result.json, comparison.json and validation.json hold, checked as they are read: a report is made of nothing else.

Keys that are not known are left out; those of a later version that are missing here read as null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from hetsim.comparison import COMPARISON_VERSION, Row, Tariff
from hetsim.convergence.predictor import Target
from hetsim.convergence.stability import Caution
from hetsim.errors import UsageError
from hetsim.export import RESULT_VERSION
from hetsim.reading import parse_json, read_text

VALIDATION, VALIDATION_VERSION = "validation.json", 1
VERSIONS = {  # the newest that can be read
    "comparison.json": COMPARISON_VERSION,
    "result.json": RESULT_VERSION,
    VALIDATION: VALIDATION_VERSION,
}
MOST_BYTES = 64_000_000  # of one document; of a comparison of 10,000 workers some 10 MB [our choice]


class _Strict(BaseModel):
    """Numbers are numbers."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Document(_Strict):
    """What both have."""

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
    tariffs: dict[str, Tariff] = {}
    method: str = "full"
    verdict: str
    command: str | None = None


class _Figures(_Strict):
    """One side of one run."""

    update_period_s: float = Field(ge=0)
    samples_per_s: float
    mean_batch_samples: float
    utilisation: float
    waiting_share: float
    waiting: dict[str, float]
    sample_share: dict[str, float]
    time_to_target_s: float | None
    final_loss: float | None


class _Validated(_Strict):
    """One run of a validation."""

    name: str | None = None
    seed: int
    updates: int | None = None
    folder: str | None = None
    predicted: _Figures
    measured: _Figures
    replay_deviation: float | None
    rounding_deviation: float | None = None
    late_passes: dict[str, int] = {}
    period_error: float | None
    share_error: float | None
    time_error: float | None

    @model_validator(mode="after")
    def _both_sides_are_of_one_cluster(self) -> Self:
        for name in ("waiting", "sample_share"):
            if getattr(self.predicted, name).keys() != getattr(self.measured, name).keys():
                raise ValueError(f"{name}: predicted and measured are not of the same")
        return self


class _Check(_Strict):
    """One comparison."""

    name: str
    error: float | None
    tolerance: float
    within: bool | None
    why: str | None


class _Validations(_Strict):
    """One algorithm of a validation."""

    name: str
    algorithm: str
    options: dict[str, Any]
    within: bool
    verdict: str
    errors: dict[str, float | None]
    checks: tuple[_Check, ...]
    runs: tuple[_Validated, ...] = Field(min_length=1)


class _Tolerances(_Strict):
    """Up to where a prediction is said to have held."""

    period: float
    period_median: float
    share: float
    time: float
    pace: float | None


class _Validation(_Strict):
    """Predicted against measured."""

    schema_version: int = Field(ge=1)
    profile: str
    workload: str
    seeds: tuple[int, ...]
    updates: int | None
    target_loss: float | None
    shaped: bool | None
    said: tuple[str, ...]
    tolerances: _Tolerances
    within: bool
    verdict: str
    algorithms: tuple[_Validations, ...] = Field(min_length=1)
    machine: dict[str, Any] | None
    command: str | None = None
    versions: dict[str, str]

    @model_validator(mode="after")
    def _names_are_of_one_each(self) -> Self:
        if len({row.name for row in self.algorithms}) < len(self.algorithms):
            raise ValueError("algorithms: a name comes twice")
        return self


def read_document(folder: Path) -> dict[str, Any]:
    """comparison.json or result.json of a folder. Raises UsageError: neither is there, damaged, of a newer version."""
    for mark in ("comparison.json", "result.json"):
        path = folder / mark
        if path.is_file():
            return _read(path)
    raise UsageError(
        f"{folder}: holds no comparison.json, result.json or validation.json (written by hetsim compare -o, simulate -o and validate -o)"
    )


def read_validation(folder: Path) -> dict[str, Any]:
    """validation.json of a folder. Raises UsageError: damaged, of a newer version."""
    return _read(folder / VALIDATION)


def read_file(path: Path) -> tuple[str, dict[str, Any]]:
    """What such a file holds under whatever name (`--json`, kept), with the name that it has in a folder. Raises UsageError."""
    try:
        found = parse_json(read_text(path, MOST_BYTES), path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not isinstance(found, dict) or not ({"algorithms", "updates"} & found.keys()):
        raise UsageError(f"{path}: no result of hetsim compare, simulate or validate")
    several = VALIDATION if "tolerances" in found else "comparison.json"
    name = several if "algorithms" in found else "result.json"
    return name, _read(path, name)


def _read(path: Path, name: str | None = None) -> dict[str, Any]:
    name = name or path.name
    try:
        text = read_text(path, MOST_BYTES)
        version = parse_json(text, path)["schema_version"]
        newest = VERSIONS[name]
        if type(version) is int and version > newest:
            raise UsageError(f"{path}: version {version}, this hetsim reads up to {newest}: upgrade hetsim")
        return _checked(name, text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"][:1].lower() + first["msg"][1:])))
        raise UsageError(f"{path}: damaged ({what})") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: damaged ({type(error).__name__}: {error})") from None


def _checked(name: str, text: str) -> dict[str, Any]:
    if name == VALIDATION:
        return _Validation.model_validate_json(text).model_dump(mode="json")
    if name == "comparison.json":
        return _Comparison.model_validate_json(text).model_dump(mode="json")
    row = TypeAdapter(Row).validate_json(text, strict=True)
    return {
        **TypeAdapter(Row).dump_python(row, mode="json"),
        **_Run.model_validate_json(text).model_dump(mode="json"),
    }
