"""SweepSpec: everything the figures of a sweep depend on, and its form as a YAML file.

profile: mixed-gpu-4                     # a shipped name, a file beside the specification, or a profile inline
set: {training.max_samples: 2000000}     # overrides for all cells
over:                                    # a grid: every combination
  network.bandwidth_gbit_per_s: {from: 1, to: 100, count: 5, scale: log}
  training.global_batch_samples: [256, 512, 1024]
latin:                                   # a Latin hypercube, at every point of the grid
  samples: 50
  seed: 0
  fields: {workers.d.samples_per_s: {from: 100, to: 800}}
algorithms: [s-sgd, abs-sgd]             # labels; without it all
predictor: nqm
method: auto
seeds: 1
seed: 0
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetsim.cluster import Profile, load_profile
from hetsim.cluster.document import Node, parse_document
from hetsim.cluster.loader import read_text
from hetsim.cluster.wording import Finding, findings, place
from hetsim.convergence.registry import predictor_names
from hetsim.errors import ProfileError, UsageError, nearest
from hetsim.labels import contenders
from hetsim.sweeps.design import MOST_CELLS, Axis, Latin, Span, cell_count, fields_of

SPEC_VERSION = 1
MARKS = ("over", "latin")  # what tells a specification from a profile
METHODS = ("auto", "full")
Method = Literal["auto", "full"]


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """A sweep, complete in itself. `labels` are normalised. Raises UsageError for what cannot be swept."""

    profile: Profile
    axes: tuple[Axis, ...] = ()
    latin: Latin | None = None
    labels: tuple[str, ...]
    predictor: str = "nqm"
    method: Method = "auto"
    seeds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        fields_of(self.axes, self.latin)
        cell_count(self.axes, self.latin)
        if self.seeds < 1:
            raise UsageError(f"{self.seeds} seeds: at least one is needed")
        if self.predictor not in predictor_names():
            raise UsageError(f"unknown predictor {self.predictor!r} ({nearest(self.predictor, predictor_names())})")
        if self.method not in METHODS:
            raise UsageError(f"unknown method {self.method!r} (known: {', '.join(METHODS)})")

    @property
    def fields(self) -> tuple[str, ...]:
        """The swept fields."""
        return fields_of(self.axes, self.latin)

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return cell_count(self.axes, self.latin)

    def document(self, profile: Any) -> dict[str, Any]:
        """As a specification file writes it, with `profile` in the profile's place."""
        out: dict[str, Any] = {"schema_version": SPEC_VERSION, "profile": profile}
        if self.axes:
            out["over"] = {axis.field: list(axis.values) for axis in self.axes}
        if self.latin is not None:
            fields = {name: span.document() for name, span in self.latin.fields}
            out["latin"] = {"samples": self.latin.samples, "seed": self.latin.seed, "fields": fields}
        return {
            **out,
            "algorithms": list(self.labels),
            "predictor": self.predictor,
            "method": self.method,
            "seeds": self.seeds,
            "seed": self.seed,
        }

    def fingerprint(self) -> str:
        """SHA-256 of everything the figures depend on, in hexadecimal."""
        content = json.dumps(self.document(self.profile.digest()), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def make_spec(
    profile: Profile,
    *,
    axes: Sequence[Axis] = (),
    latin: Latin | None = None,
    algorithms: Sequence[str] | None = None,
    predictor: str = "nqm",
    method: Method = "auto",
    seeds: int = 1,
    seed: int = 0,
) -> SweepSpec:
    """A specification with its labels checked and normalised."""
    return SweepSpec(
        profile=profile,
        axes=tuple(axes),
        latin=latin,
        labels=tuple(c.label for c in contenders(algorithms)),
        predictor=predictor,
        method=method,
        seeds=seeds,
        seed=seed,
    )


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class _Range(_Part):
    low: float = Field(alias="from")
    high: float = Field(alias="to")
    count: int | None = None
    scale: Literal["linear", "log"] = "linear"
    whole: bool = False

    def span(self) -> Span:
        return Span(low=self.low, high=self.high, log=self.scale == "log", whole=self.whole)


class _LatinPart(_Part):
    samples: int = Field(ge=1, le=MOST_CELLS)
    seed: int = Field(default=0, ge=0)
    fields: dict[str, _Range]


class _File(_Part):
    schema_version: int = Field(default=SPEC_VERSION, ge=1, le=SPEC_VERSION)
    profile: str | dict[str, Any] = ""
    set: dict[str, Any] = {}
    over: dict[str, Any] = {}
    latin: _LatinPart | None = None
    algorithms: list[str] | None = None
    predictor: str = "nqm"
    method: Method = "auto"
    seeds: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)


def is_spec(path: str | Path) -> bool:
    """Whether a file holds a specification rather than a profile, by its keys; False where it cannot be read."""
    try:
        root = parse_document(read_text(Path(path)), str(path))
    except ProfileError:
        return False
    return isinstance(root.value, dict) and any(mark in root.value for mark in MARKS)


def load_spec(path: str | Path, *, overrides: Sequence[str] = ()) -> SweepSpec:
    """The specification in a YAML file. Raises ProfileError (file:line:column) for what is wrong in it, UsageError for what is too much."""
    path = Path(path)
    root = parse_document(read_text(path), str(path))
    tree = root.plain()
    try:
        read = _File.model_validate(tree)
    except ValidationError as error:
        raise _told(findings(error.errors(include_url=False), tree, _File), root, path) from None
    axes = []
    for field, values in read.over.items():
        try:
            axes.append(_axis(field, values))
        except (UsageError, ValidationError) as error:
            raise _told(_why(("over", field), error, values), root, path) from None
    latin = None
    if read.latin is not None:
        spans = {}
        for field, entry in read.latin.fields.items():
            try:
                spans[field] = entry.span()
            except UsageError as error:
                raise _told([Finding(("latin", "fields", field), str(error))], root, path) from None
        latin = Latin(fields=tuple(spans.items()), samples=read.latin.samples, seed=read.latin.seed)
    stated = [f"{field}={json.dumps(value)}" for field, value in read.set.items()]
    return make_spec(
        _profile(read.profile, path, [*stated, *overrides]),
        axes=axes,
        latin=latin,
        algorithms=read.algorithms,
        predictor=read.predictor,
        method=read.method,
        seeds=read.seeds,
        seed=read.seed,
    )


def _why(at: tuple[str, ...], error: UsageError | ValidationError, values: Any) -> list[Finding]:
    if isinstance(error, UsageError):
        return [Finding(at, str(error).removeprefix(f"{at[-1]}: "))]
    inside = findings(error.errors(include_url=False), values, _Range)
    return [Finding((*at, *finding.path), finding.message, finding.hint, finding.on_key) for finding in inside]


def _told(found: Sequence[Finding], root: Node, path: Path) -> ProfileError:
    return ProfileError(str(path), [place(finding, root, str(path)) for finding in found])


def _axis(field: str, values: Any) -> Axis:
    """A list of values, a range as a mapping, or one value."""
    if isinstance(values, Mapping):
        entry = _Range.model_validate(values)
        if entry.count is None:
            raise UsageError("how many values? a grid's range needs a count")
        return Axis(field=field, values=entry.span().even(entry.count))
    return Axis(field=field, values=tuple(values) if isinstance(values, list) else (values,))


def _profile(source: str | dict[str, Any], path: Path, overrides: Sequence[str]) -> Profile:
    """A profile inline, in a file beside the specification, or shipped; nothing is the default."""
    if isinstance(source, dict):
        return load_profile(json.dumps(source) + "\n", overrides=overrides, name=f"{path}: profile")
    if not source:
        return load_profile(None, overrides=overrides)
    beside = path.parent / source
    return load_profile(beside if beside.is_file() else source, overrides=overrides)


def spec_text(spec: SweepSpec, profile: str) -> str:
    """The specification as YAML, `profile` naming the file that holds the profile."""
    from ruamel.yaml import YAML

    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    yaml.dump(spec.document(profile), out)
    return out.getvalue()
