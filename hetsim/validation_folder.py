"""A validation as a folder, written and read again.

    validation.json, profile.yaml, report.html
    predicted/          the first run as predicted: result.json, profile.yaml, schedule.parquet, trace.json.gz
    measured-1/ …       every run as it was, and its loss curves (curve.parquet) beside the predicted ones (curve-predicted.parquet)

With several algorithms the last two are below LABEL/. Reading needs nothing of what made it: `hetsim report` takes the folder anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hetsim import export, writing
from hetsim.documents import VALIDATION, read_validation
from hetsim.schedule.log import MOST_ROWS
from hetsim.validation_page import SIDES, ValidationMaterial, validation_html

if TYPE_CHECKING:
    from hetsim.convergence.predictor import Curve
    from hetsim.simulate import Result

PREDICTED = "predicted"
CURVES = {"predicted": "curve-predicted.parquet", "measured": "curve.parquet"}
MOST_POINTS = 100_000  # of a curve that is read; a validation writes some hundred [our choice]


class Pair(Protocol):
    """One run: what was predicted, what was measured, the loss curve of each (none where they were not executed)."""

    @property
    def predicted(self) -> Result: ...

    @property
    def measured(self) -> Result: ...

    @property
    def curves(self) -> Mapping[str, Curve]: ...


class Validated(Protocol):
    """The document, per label a pair for every run, and the profile."""

    @property
    def document(self) -> dict[str, Any]: ...

    @property
    def pairs(self) -> Mapping[str, Sequence[Pair]]: ...

    @property
    def profile_yaml(self) -> str: ...


def material_of(validation: Validated, *, command: str | None = None) -> ValidationMaterial:
    """What its page is made of."""
    return ValidationMaterial(
        document={**validation.document, "command": command},
        schedules={
            label: {side: getattr(pairs[0], side).schedule for side in SIDES}
            for label, pairs in validation.pairs.items()
        },
        curves={
            label: [pair.curves for pair in pairs]
            for label, pairs in validation.pairs.items()
            if all(pair.curves for pair in pairs)
        },
        profile_yaml=validation.profile_yaml,
    )


def write(validation: Validated, folder: str | Path, *, command: str | None = None) -> Path:
    """Write the folder, whole or not at all. Raises UsageError where it exists or cannot be written."""
    material = material_of(validation, command=command)
    with writing.new_folder(folder) as temporary:
        writing.write_json(temporary / VALIDATION, material.document)
        writing.write_text(temporary / "profile.yaml", material.profile_yaml)
        writing.write_text(temporary / "report.html", validation_html(material))
        for label, place in _places(temporary, list(validation.pairs)).items():
            place.mkdir(exist_ok=True)
            pairs = validation.pairs[label]
            export.write_simulation(pairs[0].predicted, place / PREDICTED, label=label)
            for number, pair in enumerate(pairs, 1):
                run = export.write_simulation(pair.measured, _measured(place, number), label=label)
                for side, curve in pair.curves.items():
                    export.save_curve(curve, run / CURVES[side])
    return Path(folder)


def read(folder: str | Path, *, most_rows: int = MOST_ROWS) -> ValidationMaterial:
    """What a folder holds, no Schedule longer than `most_rows`; figures whose files are missing are left out. Raises UsageError,
    ScheduleFileError: damaged."""
    from hetsim.cluster.loader import read_text
    from hetsim.schedule.store import load

    folder = Path(folder)
    document = read_validation(folder)
    rows = document["algorithms"]
    places = _places(folder, [row["name"] for row in rows])
    schedules, curves = {}, {}
    for row in rows:
        place = places[row["name"]]
        runs = {"predicted": place / PREDICTED, "measured": _measured(place, 1)}
        found = {side: run / "schedule.parquet" for side, run in runs.items()}
        schedules[row["name"]] = {side: load(path, most_rows) for side, path in found.items() if path.is_file()}
        curves[row["name"]] = _curves([_measured(place, number) for number in range(1, len(row["runs"]) + 1)])
    profile = folder / "profile.yaml"
    return ValidationMaterial(
        document=document,
        schedules=schedules,
        curves=curves,
        profile_yaml=read_text(profile) if profile.is_file() else "",
    )


def _curves(runs: Sequence[Path]) -> list[dict[str, Curve]]:
    """Of every run, both sides; none where any is missing."""
    paths = [{side: run / name for side, name in CURVES.items()} for run in runs]
    if not all(path.is_file() for both in paths for path in both.values()):
        return []
    return [{side: export.load_curve(path, most=MOST_POINTS) for side, path in both.items()} for both in paths]


def _places(folder: Path, labels: list[str]) -> dict[str, Path]:
    """Where the runs of each algorithm are."""
    return {label: folder / name if len(labels) > 1 else folder for label, name in export.safe_labels(labels).items()}


def _measured(place: Path, number: int) -> Path:
    return place / f"measured-{number}"
