"""Recorded steps (CSV with the columns samples,seconds) read into the profile, so that it is complete in itself."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from hetsim.cluster.document import Node
from hetsim.cluster.profile import LEAST, MAX_SAMPLES, MAX_TIME_S, MAX_TRACE_ROWS
from hetsim.cluster.wording import Finding
from hetsim.errors import Problem, ProfileError

LIMITS = {"samples": (1.0, MAX_SAMPLES), "seconds": (LEAST, MAX_TIME_S)}  # what a profile can hold


def inline_traces(root: Node, trusted: bool) -> list[Finding]:
    """Puts the rows of every trace file in the place of its name; returns what went wrong."""
    workers = root.value.get("workers") if isinstance(root.value, dict) else None
    found: list[Finding] = []
    for index, worker in enumerate(workers.value if workers is not None and isinstance(workers.value, list) else []):
        trace = worker.value.get("trace") if isinstance(worker.value, dict) else None
        if trace is None or not isinstance(trace.value, str):
            continue
        name, trace.value = trace.value, [_pair(1, 1.0, trace)]
        path = ("workers", index, "trace")
        if not trusted:
            found.append(Finding(path, "an untrusted profile may not name a file", "give [samples, seconds] pairs"))
            continue
        try:
            folder = Path(trace.mark.file).parent if trace.mark.line else Path()  # line 0: given by --set
            rows = read_trace(folder / name)
        except ProfileError as error:
            found += [Finding(path, p.render(error.file)) for p in error.problems]
            continue
        trace.value = [_pair(samples, seconds, trace) for samples, seconds in rows]
    return found


def _pair(samples: int, seconds: float, at: Node) -> Node:
    return Node([Node(samples, at.mark), Node(seconds, at.mark)], at.mark)


def read_trace(path: Path) -> list[tuple[int, float]]:
    """(samples, seconds) of every step. Raises ProfileError with the line of each bad row."""
    from hetsim.cluster.loader import read_text

    rows = parse_table(read_text(path), str(path), ("samples", "seconds"), MAX_TRACE_ROWS)
    return [(int(row["samples"]), float(row["seconds"])) for row in rows]


def parse_table(text: str, file: str, columns: tuple[str, ...], max_rows: int) -> list[dict[str, Any]]:
    """The rows of CSV text, `samples` as int and `seconds` as float, both positive. Raises ProfileError."""
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    wanted = ",".join(columns)
    problems: list[Problem] = []
    rows: list[dict[str, Any]] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not "".join(cells).strip() or cells[0].startswith("#"):
                continue
            if header is None:
                header = [cell.strip().lower() for cell in cells]
                missing = [column for column in columns if column not in header]
                if missing:
                    raise ProfileError(file, [Problem("", f"the first line must name the columns {wanted}", "", 1, 1)])
                continue
            row = _row(dict(zip(header, (cell.strip() for cell in cells), strict=False)), columns)
            if isinstance(row, str):
                problems.append(Problem("", row, "", reader.line_num, 1))
            else:
                rows.append(row)
    except csv.Error as error:
        raise ProfileError(file, [Problem("", f"is not CSV: {error}", "", reader.line_num, 1)]) from None
    if not rows and not problems:
        problems.append(Problem("", f"has no rows; it needs the columns {wanted}"))
    if len(rows) > max_rows:
        problems.append(Problem("", f"has more than {max_rows:,} rows"))
    if problems:
        raise ProfileError(file, problems[:20])
    return rows


def _row(cells: dict[str, str], columns: tuple[str, ...]) -> dict[str, Any] | str:
    """One row, or what is wrong with it."""
    row: dict[str, Any] = {}
    for column in columns:
        text = cells.get(column, "")
        if not text:
            return f"{column} is missing"
        row[column] = text
        if column in ("samples", "seconds"):
            try:
                value = float(text)
            except ValueError:
                return f"{column} must be a number, not {text[:40]!r}"
            if not 0 < value < math.inf:
                return f"{column} must be a finite number greater than 0, not {text[:40]}"
            least, most = LIMITS[column]
            if not least <= value <= most:
                return f"{column} must be between {least:g} and {most:g}, not {text[:40]}"
            row[column] = value
    if not row["samples"].is_integer():
        return f"samples must be a whole number, not {cells['samples']}"
    row["samples"] = int(row["samples"])
    return row
