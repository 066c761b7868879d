"""Schedules on disk: one Parquet file, columns as in `hetsim.schedule.kinds`, the header and the recorded outcomes in its metadata."""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import ScheduleError, ScheduleFileError
from hetsim.schedule.check import check
from hetsim.schedule.log import DTYPE, MOST_ROWS
from hetsim.schedule.table import SCHEDULE_VERSION, Header, Schedule
from hetsim.writing import new_file

KEY = b"hetsim"
# What reading a damaged or hostile document may meet, from a missing key to brackets within brackets.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
MOST_OUTCOME_BYTES = 1 << 30  # refuse to unpack more: a damaged or hostile file
BYTES_A_ROW = 1000  # of all columns together; a Schedule's take 72 [our choice]

_HEADER = {
    "algorithm": str,
    "options": dict,
    "seed": int,
    "workers": list,
    "dataset_samples": int,
    "profile_yaml": str,
    "origin": str,
    "server": bool,
    "versions": dict,
}


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def _unpack(text: str, most: int) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text, validate=True), most)
    if unpacker.unconsumed_tail:
        raise ValueError(f"recorded outcomes are larger than {most:,} bytes")
    if not unpacker.eof:
        raise ValueError("recorded outcomes are cut short")
    return data


def _column(table: Any, name: str) -> Any:
    """A column as it was written: of its kind of number, without holes."""
    values = table[name]
    if values.null_count:
        raise ValueError(f"{name} has holes")
    array = values.to_numpy()
    if array.dtype.kind != DTYPE[name].kind:
        raise TypeError(f"{name} holds {array.dtype}, not {DTYPE[name]}")
    return array.astype(DTYPE[name])


def to_table(schedule: Schedule) -> Any:
    """A pyarrow Table with the schedule's columns and metadata."""
    import pyarrow as pa

    meta = {
        "header": asdict(schedule.header),
        "polls": [_pack(p) for p in schedule.polls],
        "outcomes": [_pack(o.tobytes()) for o in schedule.outcomes],
    }
    columns = {name: pa.array(np.ascontiguousarray(getattr(schedule, name))) for name in DTYPE.names or ()}
    return pa.table(columns).replace_schema_metadata({KEY: json.dumps(meta, sort_keys=True).encode()})


def save(schedule: Schedule, path: str | Path) -> None:
    """Write Parquet under a temporary name, then rename. Same schedule, same bytes (with the same pyarrow)."""
    import pyarrow.parquet as pq

    with new_file(Path(path)) as temporary:
        pq.write_table(to_table(schedule), temporary, compression="zstd", write_page_checksum=True)


def one_line(error: BaseException) -> str:
    """What it says; Arrow's messages end in line breaks."""
    return " ".join(str(error).split())


def check_size(path: str | Path, most: int) -> None:
    """Raises ValueError where a Parquet file has more rows than `most`: a small file can hold very many that are alike."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        meta = file.metadata
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    rows = max(meta.num_rows, sum(group.num_rows for group in groups))
    if rows > most:
        raise ValueError(f"it has {rows:,} rows; at most {most:,} are read")
    if sum(group.total_byte_size for group in groups) > most * BYTES_A_ROW:
        raise ValueError("its columns are larger than those of any such file")


def load(path: str | Path, most_rows: int = MOST_ROWS) -> Schedule:
    """Read and check. Raises ScheduleFileError for what is no schedule, a newer version, more than `most_rows`, or a broken invariant."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_size(path, most_rows)
        table = pq.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise ScheduleFileError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ScheduleFileError(f"{path}: not a Parquet file ({one_line(error)})") from None
    meta = (table.schema.metadata or {}).get(KEY)
    if meta is None:
        raise ScheduleFileError(f"{path}: a Parquet file, but not a schedule")
    most = MOST_OUTCOME_BYTES * most_rows // MOST_ROWS  # where fewer rows are allowed, so are fewer bytes
    try:
        fields = json.loads(meta)
        header = fields["header"]
        if type(header["schema_version"]) is not int:
            raise TypeError(f"schema_version is {header['schema_version']!r}")
        if header["schema_version"] > SCHEDULE_VERSION:
            raise ScheduleFileError(
                f"{path}: schedule version {header['schema_version']}, this hetsim reads up to {SCHEDULE_VERSION}: upgrade hetsim"
            )
        for key, kind in _HEADER.items():
            if not isinstance(header[key], kind) or isinstance(header[key], bool) != (kind is bool):
                raise TypeError(f"{key} is {header[key]!r}")
        if not all(isinstance(name, str) for name in header["workers"]) or header["origin"] not in (
            "predicted",
            "measured",
        ):
            raise ValueError("unknown origin or workers without names")
        header["workers"] = tuple(header["workers"])
        columns = {name: _column(table, name) for name in DTYPE.names or ()}
        schedule = Schedule(
            header=Header(**header),
            polls=tuple(_unpack(p, most) for p in fields["polls"]),
            outcomes=tuple(array("d", _unpack(o, most)) for o in fields["outcomes"]),
            **columns,
        )
    except (*DAMAGE, zlib.error, pa.ArrowException) as error:
        raise ScheduleFileError(f"{path}: damaged schedule ({type(error).__name__}: {one_line(error)})") from None
    try:
        check(schedule)
    except ScheduleError as error:
        raise ScheduleFileError(f"{path}: {error}") from None
    return schedule
