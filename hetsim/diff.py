"""diff: what two profiles, results or Schedules differ in, and by how much.

    profiles     which fields, and what they do to every algorithm (both are compared)
    results      which figures of compare, simulate or validate moved, and whether beyond their intervals
    schedules    the first row in which they part

Everything is read as a report reads it: checked, bounded, nothing is run but the comparison of profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hetsim.cluster import Profile, load_profile
from hetsim.comparison import plain
from hetsim.diff_figures import Moved, moved_rows, moved_validations
from hetsim.diff_schedules import Parted, parted
from hetsim.documents import VALIDATION, read_document, read_file, read_validation
from hetsim.errors import UsageError
from hetsim.schedule.store import load
from hetsim.schedule.table import Schedule

DIFF_VERSION = 1
What = Literal["profiles", "results", "validations", "schedules"]
NOT_COMPARED = ("sources", "schema_version")  # of a profile: where numbers are from changes no result
FACTS = ("profile", "predictor", "target", "seed", "seeds", "best_baseline", "winner", "workload", "updates", "within")
Done = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A field that differs: None where a side does not have it."""

    path: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two, as it was read."""

    name: str
    what: What
    profile: Profile | None = None
    document: Mapping[str, Any] | None = None
    schedule: Schedule | None = None


@dataclass(frozen=True, kw_only=True)
class Diff:
    """B against A. `moved`: figures by algorithm; `only_a`, `only_b`: algorithms of one side alone; `parted`: of two Schedules."""

    a: str
    b: str
    what: What
    same: bool
    changed: tuple[Changed, ...]
    moved: tuple[Moved, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    parted: Parted | None

    def to_json(self) -> dict[str, Any]:
        """Plain values with `schema_version`."""
        return {"schema_version": DIFF_VERSION, **plain(self)}


def read_side(source: str, overrides: Sequence[str] = ()) -> Side:
    """A profile's name or file, a folder of compare, simulate or validate, a JSON document of theirs, or a Schedule (.parquet).

    `overrides` are for profiles. Raises UsageError and its kin for everything else.
    """
    path = Path(source)
    if path.is_dir():
        if (path / VALIDATION).is_file():
            return Side(name=source, what="validations", document=read_validation(path))
        schedule = path / "schedule.parquet"
        return Side(
            name=source,
            what="results",
            document=read_document(path),
            schedule=load(schedule) if schedule.is_file() else None,
        )
    if path.suffix == ".parquet":
        return Side(name=source, what="schedules", schedule=load(path))
    if path.suffix == ".json":
        name, document = read_file(path)
        return Side(name=source, what="validations" if name == VALIDATION else "results", document=document)
    return Side(name=source, what="profiles", profile=load_profile(source, overrides=overrides))


def diff(
    a: Side,
    b: Side,
    *,
    algorithms: Sequence[str] | None = None,
    predictor: str = "nqm",
    seed: int = 0,
    jobs: int | None = None,
    progress: Done | None = None,
) -> Diff:
    """What B has that A has not, and the other way round. `algorithms` and what follows is for profiles, both of which are compared."""
    if a.what != b.what:
        raise UsageError(f"{a.name} is one of {a.what} and {b.name} one of {b.what}; both must be of a kind")
    changed = tuple(_changed(a, b))
    left, right = a.document, b.document
    if a.profile is not None and b.profile is not None and changed:
        left, right = _compared(a.profile, b.profile, algorithms, predictor, seed, jobs, progress)
    moved: tuple[Moved, ...] = ()
    only: tuple[list[str], list[str]] = ([], [])
    if left is not None and right is not None:
        figures = moved_validations if a.what == "validations" else moved_rows
        moved = tuple(figures(left, right))
        mine, theirs = _labels(left), _labels(right)
        only = [x for x in mine if x not in theirs], [x for x in theirs if x not in mine]
    both = None if a.schedule is None or b.schedule is None else parted(a.schedule, b.schedule)
    same = not (changed or moved or only[0] or only[1] or (both is not None and not both.same))
    return Diff(
        a=a.name,
        b=b.name,
        what=a.what,
        same=same,
        changed=changed,
        moved=moved,
        only_a=tuple(only[0]),
        only_b=tuple(only[1]),
        parted=both,
    )


def _compared(
    a: Profile,
    b: Profile,
    algorithms: Sequence[str] | None,
    predictor: str,
    seed: int,
    jobs: int | None,
    progress: Done | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both comparisons on the same seeds: as many as the fewer of the two profiles."""
    from hetsim.compare import compare

    seeds = min(a.training.seeds, b.training.seeds)

    def run(profile: Profile) -> dict[str, Any]:
        found = compare(profile, algorithms, predictor=predictor, seeds=seeds, seed=seed, jobs=jobs, progress=progress)
        return found.to_json()

    return run(a), run(b)


def _labels(document: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in document.get("algorithms") or [document]]


def _changed(a: Side, b: Side) -> list[Changed]:
    if a.profile is not None and b.profile is not None:
        return changes(_fields(a.profile), _fields(b.profile))
    if a.document is not None and b.document is not None:
        return changes(_facts(a.document), _facts(b.document))
    assert a.schedule is not None and b.schedule is not None
    return changes(_header(a.schedule), _header(b.schedule))


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in FACTS if document.get(key) is not None}


def _header(schedule: Schedule) -> dict[str, Any]:
    header: dict[str, Any] = plain(schedule.header)
    return {key: value for key, value in header.items() if key != "profile_yaml"}


def _fields(profile: Profile) -> dict[str, Any]:
    """A profile's values, workers by name; defaults are as good as stated."""
    found: dict[str, Any] = profile.model_dump(mode="json", exclude_none=True, exclude=set(NOT_COMPARED))
    found["workers"] = {worker["name"]: {k: v for k, v in worker.items() if k != "name"} for worker in found["workers"]}
    return found


def changes(a: Any, b: Any, path: str = "") -> list[Changed]:
    """Leaves that differ, by dotted path, in the order of A, then those of B alone."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = dict.fromkeys([*a, *b])
        found = (changes(a.get(key), b.get(key), f"{path}.{key}" if path else str(key)) for key in keys)
        return [change for part in found for change in part]
    if isinstance(a, list) and isinstance(b, list) and any(isinstance(x, Mapping) for x in (*a, *b)):
        return changes(_numbered(a), _numbered(b), path)
    return [] if a == b and isinstance(a, bool) == isinstance(b, bool) else [Changed(path=path, a=a, b=b)]


def _numbered(items: Sequence[Any]) -> dict[str, Any]:
    return {str(i): item for i, item in enumerate(items)}
