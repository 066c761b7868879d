"""A result that somebody brings: from an archive of unknown origin, or from a folder on this machine. Without streamlit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetsim import archives, documents, export, validation_folder
from hetsim.errors import UsageError
from hetsim.report import Material
from hetsim.schedule.table import Schedule
from hetsim.validation_page import ValidationMaterial

OPENED = "opened"  # its key in a session
LOCAL = ("localhost", "127.0.0.1", "::1")
MOST_PATH = 4_096  # characters; of Linux [our choice]
NAME = re.compile(r"[\w .()+@=-]{1,200}")  # of a worker: what a profile allows, and no markup


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """What was opened: a validation or a result of compare or simulate, and where it came from."""

    name: str
    validation: ValidationMaterial | None = None
    result: Material | None = None

    @property
    def pairs(self) -> Mapping[str, Mapping[str, Schedule]]:
        """Schedules by algorithm and side, of a validation; none for a result."""
        return self.validation.schedules if self.validation is not None else {}


def from_archive(data: bytes, name: str) -> Opened:
    """From an uploaded archive. Raises UsageError for what is not opened."""
    shown = re.sub(r"[^\w .()+@=-]", "_", name)[:100] or "archive"
    with archives.unpacked(data, shown) as folder:
        return _read(folder, shown, archives.MOST_ROWS)


def from_folder(path: str) -> Opened:
    """From a folder on this machine, by its path. Raises UsageError: nothing there, or no result."""
    path = path.strip().strip('"')
    if not path or len(path) > MOST_PATH or "\0" in path:
        raise UsageError("name the folder of a result by its path")
    try:
        folder = Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: there is no such folder") from None
    try:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")
        return _read(folder, folder.name, archives.MOST_ROWS)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror or error}") from None


def _read(folder: Path, name: str, most_rows: int) -> Opened:
    if (folder / documents.VALIDATION).is_file():
        validation = validation_folder.read(folder, most_rows=most_rows)
        _check_names(name, (schedule for sides in validation.schedules.values() for schedule in sides.values()))
        return Opened(name=name, validation=validation)
    result = export.read_material(folder, most_rows=most_rows)
    _check_names(name, result.schedules.values())
    return Opened(name=name, result=result)


def _check_names(name: str, schedules: Iterable[Schedule]) -> None:
    """Names of workers are drawn by what understands markup."""
    for schedule in schedules:
        for worker in schedule.header.workers:
            if not NAME.fullmatch(worker):
                raise UsageError(f"{name}: a worker called {worker[:40]!r}: no profile can have named it so")


def local_only(address: str | None) -> bool:
    """Whether an app that listens there is reached from its own machine alone, so that who uses it may read its files and run on it."""
    return address is not None and (address.lower() in LOCAL or re.fullmatch(r"127(\.\d{1,3}){3}", address) is not None)
