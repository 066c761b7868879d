"""Loads a profile: find it, read it, extend it, override it, check it; every problem at once, each with its place."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hetsim.cluster.checks import check
from hetsim.cluster.document import MAX_PROBLEMS, MAX_TEXT_BYTES, Node, parse_document
from hetsim.cluster.overrides import apply_override, apply_value, forget_sources
from hetsim.cluster.profile import SCHEMA_VERSION, Profile
from hetsim.cluster.shipped import DEFAULT_PROFILE, shipped_paths
from hetsim.cluster.traces import inline_traces
from hetsim.cluster.wording import Finding, findings, newer_version, place
from hetsim.errors import Problem, ProfileError, nearest

MAX_EXTENDS = 10


def load_profile(
    source: str | Path | None = None, *, trusted: bool = True, overrides: Sequence[str] = (), name: str = "<profile>"
) -> Profile:
    """The profile in `source`: a shipped profile's name, a path, or YAML text (a string with a newline in it).

    None is the embedded default. `overrides` are `path.to.key=value`. `name` stands for the file in messages about
    text. Untrusted (uploads, editors, links, archives): no files, no `package.module:function`, `extends` only shipped
    profiles, and a string is never taken for a path. Raises ProfileError with all problems.
    """
    text, file, folder = _read(source, trusted, name)
    root = _extended(text, file, folder, trusted, (_identity(Path(file)),))
    for override in overrides:
        apply_override(root, override)
    return _validated(root, file, trusted)


def profile_tree(profile: Profile) -> Node:
    """A profile as a tree that `rebuilt` can vary."""
    return parse_document(profile.to_yaml(), profile.name)


def rebuilt(tree: Node, values: Mapping[str, Any], *, overrides: Sequence[str] = (), name: str, flag: str) -> Profile:
    """The profile of `profile_tree` with other values by path, checked like one from a file; the tree stays as it is.

    `overrides`: as `load_profile` takes them, before the values.
    `name` and `flag` stand for the file and for `--set` in messages. Raises ProfileError.
    """
    root = tree.copy()
    for override in overrides:
        apply_override(root, override)
    for field, value in values.items():
        apply_value(root, field, value, flag)
    return _validated(root, name, trusted=True)


def _read(source: str | Path | None, trusted: bool, name: str) -> tuple[str, str, Path | None]:
    """Text, what to call it in messages, and the folder it lies in."""
    shipped = shipped_paths()
    if source is None:
        source = DEFAULT_PROFILE
    if isinstance(source, str) and source in shipped:
        return _read_file(shipped[source])
    if isinstance(source, str) and ("\n" in source or not trusted):
        return source, name, Path() if trusted else None
    path = Path(source)
    if isinstance(source, str) and not path.suffix and not _exists(path):
        message = f"no such file, and no shipped profile {source!r}"
        raise ProfileError(source, [Problem("", message, nearest(source, shipped))])
    return _read_file(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> tuple[str, str, Path]:
    return read_text(path), _shown(path), path.parent


def _shown(path: Path) -> str:
    """As short as it can be said from here; still opens the file."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def _identity(path: Path) -> str:
    return os.path.realpath(path) if "\0" not in str(path) else str(path)


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """A small UTF-8 file. Raises ProfileError: missing, a folder, unreadable, too large, not UTF-8."""
    file = str(path)
    try:
        if path.is_dir():
            raise ProfileError(file, [Problem("", "is a folder", "name the file in it")])
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise ProfileError(file, [Problem("", "no such file")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ProfileError(file, [Problem("", f"cannot be read: {reason}")]) from None
    return decoded(data, file, max_bytes)


def decoded(data: bytes, file: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Bytes as UTF-8 text. Raises ProfileError: too large, not UTF-8."""
    if len(data) > max_bytes:
        hint = "a profile is a few kB" if max_bytes == MAX_TEXT_BYTES else ""
        raise ProfileError(file, [Problem("", f"is larger than {max_bytes // 1000:,} kB", hint)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ProfileError(file, [Problem("", "is not UTF-8 text", "save it as UTF-8", line, column)]) from None


def _extended(text: str, file: str, folder: Path | None, trusted: bool, chain: tuple[str, ...]) -> Node:
    """The tree of `text` on top of what it extends. Raises ProfileError on cycles and on what may not be read."""
    root = parse_document(text, file)
    if not isinstance(root.value, dict):
        what = "is empty" if root.value is None else "must be a mapping (key: value) at the top"
        raise ProfileError(file, [Problem("", what, "hetsim init writes a profile to start from", *_at(root))])
    parent = root.value.pop("extends", None)
    if parent is None or parent.value is None:
        return root
    place_of = _at(parent)

    def refuse(message: str, hint: str = "") -> ProfileError:
        return ProfileError(file, [Problem("extends", message, hint, *place_of)])

    if not isinstance(parent.value, str):
        raise refuse("must be the name of one profile")
    parent_path = _parent_path(parent.value, folder, trusted)
    if parent_path is None:
        raise refuse("an untrusted profile may extend only a shipped one", "one of " + ", ".join(shipped_paths()))
    identity = _identity(parent_path)
    if identity in chain:
        raise refuse(f"{parent.value} extends itself, directly or by others")
    if len(chain) >= MAX_EXTENDS:
        raise refuse(f"more than {MAX_EXTENDS} profiles on top of each other")
    if not _exists(parent_path):
        raise refuse(f"there is no file {parent.value!r} here, and no shipped profile of that name")
    below = _extended(*_read_file(parent_path), trusted, (*chain, identity))
    if "workers" in root.value:
        forget_sources(below, ("workers",))
    return _merged(below, root)


def _at(node: Node) -> tuple[int | None, int | None]:
    return node.mark.line or None, node.mark.column or None


def _parent_path(name: str, folder: Path | None, trusted: bool) -> Path | None:
    shipped = shipped_paths()
    if trusted and folder is not None and _exists(folder / name):
        return folder / name
    if name.removesuffix(".yaml") in shipped:
        return shipped[name.removesuffix(".yaml")]
    return folder / name if trusted and folder is not None else None


def _merged(below: Node, above: Node) -> Node:
    """`above` over `below`: mappings merge, everything else replaces."""
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    value = dict(below.value)
    for key, child in above.value.items():
        value[key] = _merged(value[key], child) if key in value else child
    return Node(value, above.mark, above.key_mark)


def _validated(root: Node, file: str, trusted: bool) -> Profile:
    assert isinstance(root.value, dict)
    version = root.value.get("schema_version")
    if version is not None and type(version.value) is int and version.value > SCHEMA_VERSION:
        # Whatever else is unknown in a newer file is not its fault.
        found = [Finding(("schema_version",), *newer_version(version.value))]
    else:
        found = [] if trusted else _untrusted_findings(root.plain())
        found += inline_traces(root, trusted)
        profile, more = _build(root.plain())
        if profile is not None and not found:
            return profile
        found += more
    problems = [place(finding, root, file) for finding in found]
    problems.sort(key=lambda p: (p.file or "", p.line or 0, p.column or 0))
    problems = list(dict.fromkeys(problems))
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [Problem("", f"and {len(problems) - MAX_PROBLEMS:,} more problems")]
    raise ProfileError(file, problems)


def _build(plain: Any) -> tuple[Profile | None, list[Finding]]:
    """The profile, or what is wrong: with single values and, as far as the rest allows, with how the parts fit."""
    try:
        profile = Profile.model_validate(plain)
    except ValidationError as error:
        found = findings(error.errors(include_url=False), plain)
    else:
        found = check(profile)
        return (profile, []) if not found else (None, found)
    rest = copy.deepcopy(plain)
    if all(_remove(rest, finding.path) for finding in found):
        try:
            also = check(Profile.model_validate(rest))
        except ValidationError:
            also = []
        found += [f for f in also[:MAX_PROBLEMS] if not any(_related(f.path, g.path) for g in found)]
    return None, found


def _remove(tree: Any, path: Sequence[Any]) -> bool:
    """Takes a wrong value out, so that the rest can be checked; not out of a list, whose other positions would move."""
    for part in path[:-1]:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return True
    if not path or not isinstance(tree, dict):
        return False
    tree.pop(path[-1], None)
    return True


def _related(one: Sequence[Any], other: Sequence[Any]) -> bool:
    shorter = min(len(one), len(other))
    return tuple(one[:shorter]) == tuple(other[:shorter])


def _untrusted_findings(plain: dict[str, Any]) -> list[Finding]:
    workload = plain.get("workload")
    if not isinstance(workload, dict):
        return []
    return [
        Finding(
            ("workload", key),
            "an untrusted profile may name only what hetsim has built in",
            "no module:function, no path",
        )
        for key in ("model", "dataset")
        if isinstance(workload.get(key), str) and not re.fullmatch(r"[A-Za-z0-9_-]+", workload[key])
    ]
