"""Files and folders that are there whole or not at all.

    check_folder, check_file   refuse early what could not be written later
    new_folder, new_file       a temporary name beside the place, renamed at the end
    write_text, write_json     UTF-8 with Unix line ends

A temporary name carries the machine's name, the process's number and a random part: what a killed process has left behind is
removed by the next one that writes to the same place, what another one is still writing is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hetsim.errors import HetsimError, UsageError

MARKS = ("result.json", "comparison.json", "sweep.json")  # what makes a folder a result folder
# Numbers of processes mean something on one machine only.
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:32] or "host"
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # a folder cannot take the place of what is there
_in_use: set[Path] = set()  # this process's own temporary names: one that had its number before may have left others


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Indented JSON with one newline at its end."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """UTF-8 with Unix line ends."""
    path.write_text(text, encoding="utf-8", newline="\n")


def check_folder(folder: str | Path | None, force: bool) -> Path | None:
    """The place of a result folder, if one is wanted, refused now rather than after the work.

    Raises UsageError: exists and holds something (`force` replaces result folders only), cannot be replaced, no folder above it,
    not writable, a name that is not UTF-8 (Arrow opens no other).
    """
    if folder is None:
        return None
    path = Path(folder)
    with told(path):
        real = _real(path)
        _clear(real)
        _check_free(path, real, force)
        if not real.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {real.parent}")
        if not _is_utf8(real):
            raise UsageError(f"{path}: its name or that of a folder above it is not UTF-8; choose another")
        with _temporary(real) as probe:
            probe.mkdir()
    return path


def _check_free(path: Path, real: Path, force: bool) -> None:
    """Nothing is there, or an empty folder, or a result to replace; what is seen is what was there at one moment."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if not path.exists():  # what should be the folder above it is a file
            return
        raise UsageError(f"{path}: is a file; -o names a folder to create") from None
    if names and not force:
        raise UsageError(f"{path}: exists; choose another folder or add --force to replace it")
    if names and not any(mark in names for mark in MARKS):
        raise UsageError(f"{path}: holds no result of hetsim, so --force does not replace it")
    if real in (here := Path.cwd(), *here.parents):
        raise UsageError(f"{path}: is where you are; name a folder in it")
    if os.path.ismount(real):
        raise UsageError(f"{path}: is a file system of its own; name a folder in it")


def check_file(file: str | Path | None, force: bool) -> Path | None:
    """The place of a file to write, if one is wanted.

    Raises UsageError: exists (unless `force`), a folder, a device or anything else but a file, no folder above it.
    """
    if file is None:
        return None
    path = Path(file)
    with told(path):
        real = _real(path)
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; -o names a file")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: is no file that could be replaced")
        if path.exists() and not force:
            raise UsageError(f"{path}: exists; choose another name or add --force to replace it")
        if not real.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {real.parent}")
    return path


def write_file(path: Path, text: str) -> None:
    """Write one text file whole or not at all. Raises UsageError where it cannot be written."""
    with told(path), new_file(path) as temporary:
        write_text(temporary, text)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary name for a file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    real = _real(path)
    _clear(real)
    with _temporary(real) as temporary:
        yield temporary
        os.replace(temporary, real)


@contextlib.contextmanager
def new_folder(folder: str | Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well, and vanishes when it does not."""
    path = check_folder(folder, force)
    assert path is not None
    real = _real(path)
    with told(path), _temporary(real) as temporary:
        temporary.mkdir()
        yield temporary
        if force:
            _replace(temporary, real)
        else:
            _put(temporary, real, path)


def _put(new: Path, real: Path, shown: Path) -> None:
    """Rename to where nothing is, or an empty folder. Raises UsageError where another process has been faster."""
    try:
        with contextlib.suppress(FileNotFoundError):
            real.rmdir()
        os.replace(new, real)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        raise UsageError(f"{shown}: exists; something else has just written it") from None


def _replace(new: Path, real: Path) -> None:
    """Rename, with what was there out of the way until it is done."""
    while True:  # once more where another process has put its own folder there in between
        with _temporary(real, "old") as old:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(real, old)
                os.replace(new, real)
                return
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
            finally:
                if old.exists() and not real.exists():
                    with contextlib.suppress(OSError):  # another process has been faster
                        os.replace(old, real)


@contextlib.contextmanager
def _temporary(real: Path, kind: str = "tmp") -> Iterator[Path]:
    """A name beside `real` that nothing else uses; whatever has it at the end is removed."""
    temporary = real.parent / f".{real.name}.{_HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}"
    _in_use.add(temporary)
    try:
        yield temporary
    finally:
        _remove(temporary)
        _in_use.discard(temporary)


def _clear(real: Path) -> None:
    """Remove what dead processes of this machine have left beside `real`; put back what one had moved out of its way."""
    pattern = re.compile(rf"\.{re.escape(real.name)}\.{re.escape(_HOST)}\.(\d+)\.[0-9a-f]{{8}}\.(tmp|old)")
    with contextlib.suppress(OSError):
        for name in os.listdir(real.parent):
            match = pattern.fullmatch(name)
            left = real.parent / name
            if match is None or left in _in_use or _lives(int(match[1])):
                continue
            if match[2] == "old" and not real.exists():
                os.replace(left, real)
            _remove(left)


def _lives(process: int) -> bool:
    """Whether such a process exists, other than this one; where that cannot be asked without harm, yes."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # os.kill ends a process on Windows, whatever the signal
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _real(path: Path) -> Path:
    """Where links lead to: what they name is replaced, not they themselves."""
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r}: no file can have this name")
    return Path(os.path.realpath(path))


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the file system says into a message."""
    try:
        yield
    except OSError as error:
        kind = HetsimError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(f"{path}: cannot be written: {error.strerror or error}") from None
