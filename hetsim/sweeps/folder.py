"""The folder of a sweep: what is being computed, what has been, and the whole at the end.

    spec.yaml       the specification: hetsim sweep spec.yaml gives the same
    profile.yaml    the profile that it names
    sweep.json      fingerprint, versions, and the command that gives the same; `complete` once everything is there
    cells/          shards: Parquet files with the cells done so far, gone at the end
    sweep.parquet   one row for every cell and algorithm
    report.html     who wins, where ABS-SGD pays, a map of it

Every file is written under a temporary name and renamed, so that a sweep killed at any moment goes on from its last shard.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim import writing
from hetsim.errors import UsageError
from hetsim.simulate import versions
from hetsim.sweeps.spec import SweepSpec, spec_text
from hetsim.sweeps.table import TABLE_VERSION, read_shard, shard_table

if TYPE_CHECKING:
    import pyarrow as pa

STATE, SPEC, PROFILE, CELLS, TABLE, REPORT = (
    "sweep.json",
    "spec.yaml",
    "profile.yaml",
    "cells",
    "sweep.parquet",
    "report.html",
)


def all_versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    import scipy

    return {**versions(), "scipy": scipy.__version__}


class Folder:
    """A sweep's folder, begun anew or gone on with."""

    def __init__(self, path: Path, spec: SweepSpec) -> None:
        self.path, self.spec = path, spec
        self.fingerprint = spec.fingerprint()

    @classmethod
    def open(cls, path: str | Path, spec: SweepSpec, *, force: bool = False) -> Folder:
        """Begin a sweep, or go on with the one that is there. `force` begins anew.

        Raises UsageError where something else is there: no sweep, one of another specification, or of other versions.
        """
        folder = cls(Path(path), spec)
        with writing.told(folder.path):
            state = None if force else folder._state()
            if state is not None:
                folder._same(state)
            else:
                folder._begin(force)
        return folder

    @classmethod
    def look(cls, path: str | Path, spec: SweepSpec) -> Folder:
        """The folder of this sweep as it is, refused like by `open`; nothing is written."""
        folder = cls(Path(path), spec)
        state = folder._state()
        if state is not None:
            folder._same(state)
        return folder

    def _state(self) -> dict[str, Any] | None:
        """What sweep.json says; None where there is no folder or an empty one, or one without it (which `_begin` refuses)."""
        file = self.path / STATE
        if not file.is_file():
            return None
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(state, dict) or not isinstance(state["versions"], dict):
                raise TypeError
            return {**state, "fingerprint": str(state["fingerprint"])}
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{file}: is damaged; choose another folder or add --force to begin anew") from None

    def _same(self, state: Mapping[str, Any]) -> None:
        ways_out = "choose another folder or add --force to begin anew"
        if state["fingerprint"] != self.fingerprint:
            raise UsageError(f"{self.path}: holds another sweep ({self._difference()}); {ways_out}")
        before, now = state["versions"], all_versions()
        changed = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            raise UsageError(
                f"{self.path}: was begun with {'; '.join(changed)}, so the cells would not fit together; {ways_out}"
            )

    def _difference(self) -> str:
        """What differs between its specification and ours, in a few words."""
        from hetsim.errors import ProfileError
        from hetsim.sweeps.spec import load_spec

        try:
            there = load_spec(self.path / SPEC)
        except (UsageError, ProfileError):
            return "its specification cannot be read"
        if there.profile.digest() != self.spec.profile.digest():
            return "its profile differs"
        ours, theirs = self.spec.document(""), there.document("")
        return "it differs in " + ", ".join(k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k))

    def _begin(self, force: bool) -> None:
        with writing.new_folder(self.path, force) as temporary:
            text = self.spec.profile.to_yaml()
            writing.write_text(temporary / PROFILE, text)
            writing.write_text(temporary / SPEC, spec_text(self.spec, PROFILE))
            (temporary / CELLS).mkdir()
            writing.write_json(temporary / STATE, self._document(complete=False))

    def _document(self, complete: bool) -> dict[str, Any]:
        return {
            "schema_version": TABLE_VERSION,
            "fingerprint": self.fingerprint,
            "cells": self.spec.cells,
            "algorithms": list(self.spec.labels),
            "command": f"hetsim sweep {SPEC}",
            "versions": all_versions(),
            "complete": complete,
        }

    def done(self) -> dict[str, list[dict[str, Any]]]:
        """Figures by key of all cells that are there. A damaged shard is worth nothing and goes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: dict[str, list[dict[str, Any]]] = {}
        with writing.told(self.path):
            for file in sorted((self.path / CELLS).glob("*.parquet")):
                try:
                    shard = read_shard(pq.read_table(file))
                except (OSError, ValueError, pa.ArrowException):
                    file.unlink(missing_ok=True)
                    continue
                found |= {key: rows for key, rows in shard.items() if len(rows) == len(self.spec.labels)}
        return found

    def add(self, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Keep the figures of some cells, as a shard named after their keys."""
        name = hashlib.sha256("".join(sorted(found)).encode()).hexdigest()[:32]
        with writing.told(self.path):
            (self.path / CELLS).mkdir(exist_ok=True)
            _write(shard_table(found), self.path / CELLS / f"{name}.parquet")

    def table(self) -> pa.Table | None:
        """The whole table, where the sweep is complete."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        state = self._state()
        if state is None or not state.get("complete"):
            return None
        try:
            return pq.read_table(self.path / TABLE)
        except (OSError, pa.ArrowException):
            return None

    def finish(self, table: pa.Table) -> None:
        """Write the whole table and its page, then say so, then let the shards go."""
        from hetsim.sweeps.page import report_html

        with writing.told(self.path):
            _write(table, self.path / TABLE)
            with writing.new_file(self.path / REPORT) as temporary:
                document = self._document(complete=True)
                writing.write_text(
                    temporary, report_html(table, self.spec.fields, document, self.spec.profile.to_yaml())
                )
            with writing.new_file(self.path / STATE) as temporary:
                writing.write_json(temporary, self._document(complete=True))
            shutil.rmtree(self.path / CELLS, ignore_errors=True)


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    with writing.new_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
