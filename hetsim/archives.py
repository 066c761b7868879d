"""A result folder that comes as a zip archive from anybody: unpacked into a temporary folder, or refused in a sentence.

    with unpacked(data, "held.zip") as folder:
        material = validation_folder.read(folder)

Nothing is unpacked but the few files that a result is read from, each to a name made here; what else an archive holds (pages, traces,
pickles, archives) stays packed. An archive that could only be made to harm, or by mistake, is refused as a whole: names that lead out of
the folder or come twice, links, devices, encryption, sizes that lie, more than is sensible.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from hetsim.errors import HetsimError, UsageError

MOST_PACKED_BYTES = 20_000_000  # a validation of three algorithms and five runs packs into one [our choice]
MOST_BYTES = 200_000_000
MOST_FILES = 2_000  # 100 algorithms with some files each [our choice]
MOST_DEPTH = 8  # a result has three, in a folder or two of the sender's
MOST_NAME = 150  # a label's is at most 120
MOST_ROWS = 2_000_000  # of a Schedule in it: some 200 MB in memory; a validation has some thousands [our choice]
MOST_LISTING = MOST_FILES * 500  # bytes of the list of contents: 46 and two names for each file [our choice]
CHUNK = 1 << 20
MARKS = ("validation.json", "comparison.json", "result.json")
READ = frozenset((*MARKS, "profile.yaml", "schedule.parquet", "curve.parquet", "curve-predicted.parquet"))
END = struct.Struct("<4s4H2LH")  # "end of central directory record", APPNOTE.TXT 4.3.16
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Files that systems add by themselves.
CLUTTER = re.compile(r"(^|/)(__MACOSX|\.DS_Store|Thumbs\.db|desktop\.ini)(/|$)", re.IGNORECASE)


@contextmanager
def unpacked(data: bytes, name: str = "archive") -> Iterator[Path]:
    """The folder of the result in a zip archive, gone when the block ends; `name` is what messages call it.

    Errors about files in it name the archive rather than the temporary folder. Raises UsageError for what is not unpacked.
    """
    _check_envelope(data, name)
    with tempfile.TemporaryDirectory(prefix="hetsim-archive-") as made:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                chosen = _chosen(archive.infolist(), name)
                root = _root([path for _, path in chosen], name)
                _write(archive, chosen, Path(made), name)
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{name}: damaged archive ({' '.join(str(error).split()) or type(error).__name__})"
            ) from None
        try:
            yield Path(made, *root.parts)
        except HetsimError as error:
            raise UsageError(_renamed(str(error), Path(made), name)) from None


def _renamed(text: str, folder: Path, name: str) -> str:
    """A message without the temporary folder."""
    return text.replace(str(folder), name)


def _check_envelope(data: bytes, name: str) -> None:
    """Before anything is parsed: its size, and that the list of contents is no longer than that of a result."""
    if len(data) > MOST_PACKED_BYTES:
        raise UsageError(f"{name}: is larger than {MOST_PACKED_BYTES // 1_000_000} MB")
    if not data:
        raise UsageError(f"{name}: is empty")
    if data[:2] != b"PK" or len(data) < END.size:
        raise UsageError(f"{name}: is no zip archive; pack the result's folder into one")
    mark, *_, listing, _, _ = END.unpack(data[-END.size :])
    if mark != b"PK\x05\x06":
        raise UsageError(f"{name}: damaged archive (cut short, or with a comment at its end)")
    if listing > MOST_LISTING:
        raise UsageError(f"{name}: holds more than {MOST_FILES:,} files")


# ---- what is unpacked, and to where --------------------------------------------------------------------------------------


def _chosen(entries: Sequence[zipfile.ZipInfo], name: str) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The files that a result is read from, each with its path. Raises UsageError where any entry at all is not as it should be."""
    if len(entries) > MOST_FILES:
        raise UsageError(f"{name}: holds more than {MOST_FILES:,} files")
    chosen = []
    seen: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        path = _path(entry, name)
        if CLUTTER.search(entry.filename):
            continue
        low = str(path).lower()
        above = {str(parent).lower() for parent in path.parents}
        if entry.is_dir():
            folders |= {low, *above}
            continue
        if low in seen:
            raise UsageError(f"{name}: holds {path} twice (upper and lower case count as the same)")
        seen.add(low)
        folders |= above
        if path.name in READ:
            chosen.append((entry, path))
    if both := seen & folders:
        raise UsageError(f"{name}: {min(both)} is both a file and a folder")
    if sum(entry.file_size for entry, _ in chosen) > MOST_BYTES:
        raise UsageError(f"{name}: unpacks to more than {MOST_BYTES // 1_000_000} MB")
    return chosen


def _path(entry: zipfile.ZipInfo, name: str) -> PurePosixPath:
    """Where an entry says it belongs. Raises UsageError for a name that leads elsewhere, and for what is no plain file."""
    said = entry.orig_filename  # as it stands in the archive: `filename` ends at the first NUL
    shown = repr(said[:80])
    parts = said.rstrip("/").split("/")
    if said.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", said):
        raise UsageError(f"{name}: {shown} is an absolute path")
    if ".." in parts:
        raise UsageError(f"{name}: {shown} leads out of the folder")
    if any(part in ("", ".") or part != part.rstrip(". ") for part in parts) or re.search(r"[\\:\x00-\x1f\x7f]", said):
        raise UsageError(f"{name}: {shown} is no name that every system can have")
    if len(parts) > MOST_DEPTH or max(map(len, parts)) > MOST_NAME:
        raise UsageError(f"{name}: {shown} is longer or deeper than any name of a result")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise UsageError(f"{name}: {shown} is a link; pack the files themselves")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UsageError(f"{name}: {shown} is no file")
    if entry.flag_bits & 1:
        raise UsageError(f"{name}: is encrypted; pack it without a password")
    if entry.compress_type not in METHODS:
        raise UsageError(f"{name}: {shown} is packed in a way that is not read; use plain zip (deflate)")
    return PurePosixPath(said)


def _root(paths: Sequence[PurePosixPath], name: str) -> PurePosixPath:
    """The folder of the result: the one nearest to the top that holds a result's document."""
    marked = [path.parent for path in paths if path.name in MARKS]
    if not marked:
        raise UsageError(
            f"{name}: holds no {', '.join(MARKS[:2])} or {MARKS[2]}; pack a folder written by hetsim validate -o, compare -o or simulate -o"
        )
    least = min(len(folder.parts) for folder in marked)
    top = sorted({folder for folder in marked if len(folder.parts) == least})
    if len(top) > 1:
        raise UsageError(f"{name}: holds {len(top)} results ({', '.join(map(str, top[:3]))}); pack one of them")
    return top[0]


def _write(
    archive: zipfile.ZipFile, chosen: Sequence[tuple[zipfile.ZipInfo, PurePosixPath]], folder: Path, name: str
) -> None:
    """Unpack, counting what comes out: an entry may be larger than it says."""
    left = MOST_BYTES
    for entry, path in chosen:
        place = folder.joinpath(*path.parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, place.open("xb") as target:
            while block := source.read(CHUNK):
                left -= len(block)
                if left < 0:
                    raise UsageError(f"{name}: unpacks to more than {MOST_BYTES // 1_000_000} MB")
                target.write(block)
