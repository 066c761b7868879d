"""Results as documents and folders.

    simulation_document   one run as JSON
    write_simulation      result.json, profile.yaml, schedule.parquet, trace.json.gz
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
    from hetsim.simulate import Result

RESULT_VERSION = 1
MARKS = ("result.json", "comparison.json")  # what makes a folder a result folder


def limits(result: Result) -> str:
    """What limits the run, in words."""
    from hetsim.metrics import limited_by

    return limited_by(result.timing, result.cluster, server=result.algorithm.has_server)


def warnings_of(result: Result) -> list[dict[str, str]]:
    """What to keep in mind when reading the figures."""
    return []


def simulation_document(result: Result, label: str | None = None) -> dict[str, Any]:
    """One run as JSON: the fields of a comparison's algorithm, those of learning null, and what reproduces it."""
    t, header = result.timing, result.schedule.header
    return {
        "schema_version": RESULT_VERSION,
        "profile": result.cluster.name,
        "seed": result.seed,
        "name": label or header.algorithm,
        "role": result.algorithm.role,
        "algorithm": header.algorithm,
        "options": header.options,
        "updates": t.updates,
        "horizon_s": result.schedule.horizon_s,
        "samples_per_s": t.samples_per_s,
        "update_period_s": t.update_period_s,
        "mean_batch_samples": t.mean_batch_samples,
        "utilisation": t.utilisation,
        "waiting_share": t.waiting_share,
        "waiting": t.waiting,
        "staleness_mean": t.staleness_mean,
        "staleness_max": t.staleness_max,
        "learning_rate": None,
        "momentum": None,
        "samples_to_target": None,
        "time_to_target_s": None,
        "speedup_over_best_baseline": None,
        "limited_by": limits(result),
        "memory_bytes": None,
        "cost": None,
        "workers": [
            {
                "name": w.name,
                "gpu": w.gpu,
                "speed_source": w.speed_source,
                "sample_share": float(t.sample_share[w.rank]),
                "busy_share": float(t.busy_share[w.rank]),
                "waiting_share": float(t.waiting_share_by_worker[w.rank]),
            }
            for w in result.cluster.workers
        ],
        "warnings": warnings_of(result),
        "versions": header.versions,
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
