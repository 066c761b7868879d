"""Results as documents and folders.

    simulation_document   one run as JSON
    write_simulation      result.json, profile.yaml, schedule.parquet, trace.json.gz
    write_comparison      comparison.json, profile.yaml, report.html, runs/LABEL/
    read_material         either folder, for a report

How folders come to be there whole or not at all is in `hetsim.writing`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.schedule.log import MOST_ROWS
from hetsim.writing import new_folder, write_json, write_text

if TYPE_CHECKING:
    from hetsim.comparison import Comparison
    from hetsim.convergence.predictor import Curve
    from hetsim.report import Material
    from hetsim.simulate import Result

RESULT_VERSION = 1
CURVE_COLUMNS = ("updates", "samples", "time_s", "loss")


def warnings_of(result: Result, label: str | None = None) -> list[dict[str, str]]:
    """What to keep in mind when reading one run's figures."""
    from hetsim.cautions import cautions_of_cluster, cautions_of_run
    from hetsim.comparison import plain
    from hetsim.rows import timing_row

    name = label or result.algorithm.name
    return [
        plain(caution)
        for caution in (*cautions_of_cluster({name: result}), *cautions_of_run(timing_row(result, label=name), result))
    ]


def simulation_document(result: Result, label: str | None = None) -> dict[str, Any]:
    """One run as JSON: the fields of a comparison's algorithm, those of learning null, and what reproduces it."""
    from hetsim.comparison import plain
    from hetsim.rows import timing_row

    header = result.schedule.header
    return {
        "schema_version": RESULT_VERSION,
        "profile": result.cluster.name,
        "seed": result.seed,
        **plain(timing_row(result, label=label)),
        "updates": result.timing.updates,
        "horizon_s": result.schedule.horizon_s,
        "speeds": {w.name: w.speed_source for w in result.cluster.workers},
        "warnings": warnings_of(result, label),
        "versions": dict(header.versions),
    }


def write_simulation(result: Result, folder: str | Path, *, label: str | None = None, force: bool = False) -> Path:
    """Write one run as a folder. Raises UsageError where it exists (unless `force`) or cannot be written."""
    with new_folder(folder, force) as temporary:
        _write_run(result, temporary, label)
    return Path(folder)


def _write_run(result: Result, folder: Path, label: str | None) -> None:
    from hetsim.schedule.store import save
    from hetsim.trace import write_trace

    write_json(folder / "result.json", simulation_document(result, label))
    write_text(folder / "profile.yaml", result.schedule.header.profile_yaml)
    save(result.schedule, folder / "schedule.parquet")
    write_trace(result.schedule, folder / "trace.json.gz")


def write_comparison(
    comparison: Comparison, folder: str | Path, *, command: str | None = None, force: bool = False
) -> Path:
    """Write comparison.json, profile.yaml, report.html and runs/LABEL/ (a run's folder plus curve.parquet).

    `command` is what reproduces it from inside the folder. Raises UsageError where it exists (unless `force`) or cannot be written.
    """
    from hetsim.report import Material, report_html

    document = {**comparison.to_json(), "command": command}
    yaml = next((r.schedule.header.profile_yaml for r in comparison.runs.values()), "")
    with new_folder(folder, force) as temporary:
        write_json(temporary / "comparison.json", document)
        write_text(temporary / "profile.yaml", yaml)
        for label, name in safe_labels(list(comparison.runs)).items():
            run = temporary / "runs" / name
            run.mkdir(parents=True)
            _write_run(comparison.runs[label], run, label)
            if label in comparison.curves:
                save_curve(comparison.curves[label], run / "curve.parquet")
        schedules = {label: run.schedule for label, run in comparison.runs.items()}
        material = Material(document=document, curves=dict(comparison.curves), schedules=schedules, profile_yaml=yaml)
        write_text(temporary / "report.html", report_html(material))
    return Path(folder)


def save_curve(curve: Curve, path: Path) -> None:
    """A curve as Parquet: its columns, and in the metadata whether it diverged and what was assumed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array(getattr(curve, name)) for name in CURVE_COLUMNS}
    meta = {"schema_version": RESULT_VERSION, "diverged": curve.diverged, "assumptions": list(curve.assumptions)}
    pq.write_table(
        pa.table(columns).replace_schema_metadata({b"hetsim": json.dumps(meta).encode()}), path, compression="zstd"
    )


def load_curve(path: Path, *, most: int = MOST_ROWS) -> Curve:
    """Read what `save_curve` wrote. Raises UsageError for anything else, and for more than `most` points."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hetsim.convergence.predictor import Curve
    from hetsim.schedule.store import DAMAGE, check_size, one_line

    try:
        check_size(path, most)
        table = pq.read_table(path, columns=list(CURVE_COLUMNS))
        meta = json.loads((table.schema.metadata or {})[b"hetsim"])
        columns = {name: table[name].to_numpy() for name in CURVE_COLUMNS}
        if any(column.dtype.kind not in "iuf" for column in columns.values()):
            raise TypeError("a column that holds no numbers")
        if not len(table):
            raise ValueError("it has no points")
        if any(
            not np.isfinite(columns[name]).all() or (np.diff(columns[name]) < 0).any() for name in CURVE_COLUMNS[:3]
        ):
            raise ValueError("it goes back, or to no number")
        return Curve(**columns, diverged=bool(meta["diverged"]), assumptions=tuple(map(str, meta["assumptions"])))
    except (OSError, pa.ArrowException, *DAMAGE) as error:
        raise UsageError(f"{path}: no curve ({one_line(error)})") from None


def read_material(folder: str | Path, *, most_rows: int = MOST_ROWS) -> Material:
    """What a report is made of, from a result folder of simulate or compare; no table longer than `most_rows`. Raises UsageError where
    it is none."""
    from hetsim.cluster.loader import read_text
    from hetsim.documents import read_document
    from hetsim.report import Material
    from hetsim.schedule.store import load

    folder = Path(folder)
    document = read_document(folder)
    if "algorithms" not in document:
        runs = {document["name"]: folder}
    else:
        labels = safe_labels([row["name"] for row in document["algorithms"]])
        runs = {label: folder / "runs" / name for label, name in labels.items()}
    curves = {
        label: load_curve(run / "curve.parquet", most=most_rows)
        for label, run in runs.items()
        if (run / "curve.parquet").is_file()
    }
    schedules = {
        label: load(run / "schedule.parquet", most_rows)
        for label, run in runs.items()
        if (run / "schedule.parquet").is_file()
    }
    profile = folder / "profile.yaml"
    yaml = read_text(profile) if profile.is_file() else ""
    return Material(document=document, curves=curves, schedules=schedules, profile_yaml=yaml)


def safe_labels(labels: list[str]) -> dict[str, str]:
    """Label to folder name, each its own also where file names do not tell upper from lower case."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        name, number = safe_label(label), 1
        while name.lower() in taken:
            number += 1
            name = f"{safe_label(label)}-{number}"
        taken.add(name.lower())
        out[label] = name
    return out


def safe_label(label: str) -> str:
    """A label as a file name on every system: `abs-sgd:compute_point=current` -> `abs-sgd+compute_point=current`."""
    text = re.sub(r"[^A-Za-z0-9._=+-]", "_", label.replace(":", "+").replace(",", "+"))
    return text.strip(".")[:120] or "run"
