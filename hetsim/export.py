"""Results as documents and folders.

    simulation_document   one run as JSON
    write_simulation      result.json, profile.yaml, schedule.parquet, trace.json.gz
    write_comparison      comparison.json, profile.yaml, report.html, runs/LABEL/
    read_material         either folder, for a report
    check_folder          refuse early what could not be written later

A folder is written under a temporary name beside its place and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.errors import HetsimError, UsageError

if TYPE_CHECKING:
    from hetsim.comparison import Comparison
    from hetsim.convergence.predictor import Curve
    from hetsim.report import Material
    from hetsim.simulate import Result

RESULT_VERSION = 1
CURVE_COLUMNS = ("updates", "samples", "time_s", "loss")
MARKS = ("result.json", "comparison.json")  # what makes a folder a result folder


def warnings_of(result: Result, label: str | None = None) -> list[dict[str, str]]:
    """What to keep in mind when reading one run's figures."""
    from hetsim.cautions import cautions_of_cluster, cautions_of_run
    from hetsim.comparison import plain

    name = label or result.algorithm.name
    return [plain(caution) for caution in (*cautions_of_cluster({name: result}), *cautions_of_run(name, result))]


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


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Indented JSON with one newline at its end."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """UTF-8 with Unix line ends."""
    path.write_text(text, encoding="utf-8", newline="\n")


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


def load_curve(path: Path) -> Curve:
    """Read what `save_curve` wrote. Raises UsageError for anything else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hetsim.convergence.predictor import Curve

    try:
        table = pq.read_table(path)
        meta = json.loads((table.schema.metadata or {})[b"hetsim"])
        columns = {name: table[name].to_numpy() for name in CURVE_COLUMNS}
        return Curve(**columns, diverged=bool(meta["diverged"]), assumptions=tuple(map(str, meta["assumptions"])))
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: no curve ({error})") from None


def read_material(folder: str | Path) -> Material:
    """What a report is made of, from a result folder of simulate or compare. Raises UsageError where it is none."""
    from hetsim.report import Material
    from hetsim.schedule.store import load

    folder = Path(folder)
    document = read_document(folder)
    if "algorithms" not in document:
        runs = {str(document["name"]): folder}
    else:
        labels = safe_labels([str(row["name"]) for row in document["algorithms"]])
        runs = {label: folder / "runs" / name for label, name in labels.items()}
    curves = {
        label: load_curve(run / "curve.parquet") for label, run in runs.items() if (run / "curve.parquet").is_file()
    }
    schedules = {
        label: load(run / "schedule.parquet") for label, run in runs.items() if (run / "schedule.parquet").is_file()
    }
    profile = folder / "profile.yaml"
    yaml = profile.read_text(encoding="utf-8") if profile.is_file() else ""
    return Material(document=document, curves=curves, schedules=schedules, profile_yaml=yaml)


def read_document(folder: Path) -> dict[str, Any]:
    """comparison.json or result.json of a folder, checked for its version."""
    for mark in MARKS[::-1]:
        path = folder / mark
        if not path.is_file():
            continue
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version = document["schema_version"]
            name = document.get("name") or document["algorithms"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: damaged ({type(error).__name__}: {error})") from None
        if not isinstance(version, int) or version > RESULT_VERSION or not name:
            raise UsageError(f"{path}: version {version}, this hetsim reads up to {RESULT_VERSION}: upgrade hetsim")
        return dict(document)
    raise UsageError(
        f"{folder}: holds neither comparison.json nor result.json (written by hetsim compare -o and simulate -o)"
    )


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


def check_folder(folder: str | Path | None, force: bool) -> Path | None:
    """The place of a result folder, if one is wanted, refused now rather than after the work.

    Raises UsageError: exists and holds something (`force` replaces result folders only), no folder above it, not writable.
    """
    if folder is None:
        return None
    path = Path(folder)
    with told(path):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: is a file; -o names a folder to create")
        if path.is_dir() and any(path.iterdir()):
            if not force:
                raise UsageError(f"{path}: exists; choose another folder or add --force to replace it")
            if not any((path / mark).is_file() for mark in MARKS):
                raise UsageError(f"{path}: holds no result of hetsim, so --force does not replace it")
        above = path.absolute().parent
        if not above.is_dir():
            raise UsageError(f"{path}: there is no folder {above}")
        probe = _temporary(path)
        probe.mkdir()
        probe.rmdir()
    return path


def check_file(file: str | Path | None, force: bool) -> Path | None:
    """The place of a file to write, if one is wanted. Raises UsageError: exists (unless `force`), a folder, no folder above it."""
    if file is None:
        return None
    path = Path(file)
    with told(path):
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; -o names a file")
        if path.exists() and not force:
            raise UsageError(f"{path}: exists; choose another name or add --force to replace it")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}")
    return path


def write_file(path: Path, text: str) -> None:
    """Write one text file whole or not at all."""
    temporary = _temporary(path)
    with told(path):
        try:
            write_text(temporary, text)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: str | Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well, and vanishes when it does not."""
    path = check_folder(folder, force)
    assert path is not None
    temporary = _temporary(path)
    try:
        with told(path):
            temporary.mkdir()
            yield temporary
            _replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(new: Path, path: Path) -> None:
    if not path.is_dir():
        os.replace(new, path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _temporary(path: Path) -> Path:
    absolute = path.absolute()
    return absolute.with_name(f".{absolute.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the file system says into a message."""
    try:
        yield
    except OSError as error:
        kind = HetsimError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(f"{path}: cannot be written: {error.strerror or error}") from None
