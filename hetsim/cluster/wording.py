"""What is wrong with a profile, in plain words: pydantic's findings translated, each with the path where it stands."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hetsim.cluster.document import Key, Mark, Node, Path
from hetsim.cluster.profile import SCHEMA_VERSION, Profile
from hetsim.errors import Problem, nearest

_MISSING = "required key is missing"
_UNKNOWN = "unknown key"


@dataclass(frozen=True)
class Finding:
    """A problem before its place in the text is looked up. `on_key`: point at the key rather than at the value."""

    path: Path
    message: str
    hint: str = ""
    on_key: bool = False

    def problem(self) -> Problem:
        return Problem(show_path(self.path), self.message, self.hint)


def show_path(path: Path) -> str:
    """`("workers", 1, "gpu")` as `workers[1].gpu`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def place(finding: Finding, root: Node, main_file: str) -> Problem:
    """The finding with the line and column of the deepest part of its path that is in the text."""
    node, on_key = root, finding.on_key
    for depth, part in enumerate(finding.path):
        child = _child(node, part)
        if child is None:
            on_key = on_key and depth == len(finding.path)
            break
        node = child
    mark: Mark = node.key_mark if on_key and node.key_mark is not None else node.mark
    problem = finding.problem()
    return Problem(
        problem.path,
        problem.message,
        problem.hint,
        mark.line or None,
        mark.column or None,
        None if mark.file == main_file else mark.file,
    )


def newer_version(version: int) -> tuple[str, str]:
    """What to say of a profile written for a later hetsim: message and hint."""
    return f"{version} is newer than this hetsim reads ({SCHEMA_VERSION})", "a newer hetsim reads it"


def findings(errors: Sequence[Any], tree: Any, model: type[BaseModel] = Profile) -> list[Finding]:
    """pydantic's errors about `tree`, which is no valid `model`, in plain words."""
    found = dict.fromkeys(finding for error in errors if (finding := _finding(error, tree, model)) is not None)
    # A misspelt required key is one problem, not an unknown key and a missing one.
    misspelt = {(*f.path[:-1], f.hint[len("did you mean ") : -1]) for f in found if f.message == _UNKNOWN}
    return [f for f in found if f.message != _MISSING or f.path not in misspelt]


def _child(node: Node, part: Key) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(part)
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def _path(loc: Sequence[Key], tree: Any, keep_last: bool) -> tuple[Path, Any]:
    """The path of an error without the names of union branches that pydantic puts in between, and the value there."""
    path: list[Key] = []
    for index, part in enumerate(loc):
        inside_list = isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        if inside_list or (isinstance(tree, dict) and part in tree):
            tree = tree[part]
        elif not (keep_last and index == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path), tree


def _finding(error: Any, tree: Any, model: type[BaseModel]) -> Finding | None:
    kind, loc, context = error["type"], error["loc"], error.get("ctx") or {}
    path, value = _path(loc, tree, keep_last=kind in ("missing", "extra_forbidden"))
    if loc and loc[-1] == "[key]":
        what = (
            "must be a whole number greater than 0"
            if "step_times_s" in path
            else "must be a name (letters, digits, - and _)"
        )
        return Finding(path, f"this key {what}", "put it in quotes" if isinstance(path[-1], int) else "", on_key=True)
    if kind == "missing":
        return Finding(path, _MISSING, _missing_hint(path))
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1], model)
        return Finding(path, _UNKNOWN, nearest(str(path[-1]), known) if known else "", on_key=True)
    if kind == "too_short" and isinstance(value, list | dict) and value:
        return None  # the items that are wrong have their own findings
    if path == ("schema_version",) and kind == "less_than_equal":
        return Finding(path, *newer_version(value))
    message, hint = _words(kind, context, value, str(error.get("msg", "")))
    return Finding(path, message, hint)


def _missing_hint(path: Path) -> str:
    if path == ("schema_version",):
        return f"write schema_version: {SCHEMA_VERSION}"
    return "a list of GPUs, such as - {name: a, gpu: V100}" if path == ("workers",) else ""


def _words(kind: str, context: dict[str, Any], value: Any, fallback: str) -> tuple[str, str]:
    shown = _show(value)
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {shown}", _type_hint(kind, value)
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {_number(context[key])}, not {shown}", ""
    if kind == "literal_error":
        known = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"must be one of {', '.join(known)}, not {shown}", nearest(str(value), known) if isinstance(
            value, str
        ) else ""
    if kind == "string_pattern_mismatch":
        return f"{shown} is no name", "start with a letter, go on with letters, digits, - and _"
    if kind == "too_short":
        return "must not be empty", ""
    if kind in ("too_long", "string_too_long"):
        return f"is longer than {context['max_length']}", ""
    return fallback.removeprefix("Value error, ").replace("Input", "this"), ""


_WANTED = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "tuple_type": "a list",
    "list_type": "a list",
    "union_tag_not_found": "a name or a mapping",
}

_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _type_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if kind in ("float_type", "int_type") and isinstance(value, str) and value[:1].isdigit():
        return "the unit stands in the key: write the number alone, without quotes"
    return ""


def _show(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _fields_at(path: Path, root: type[BaseModel]) -> list[str]:
    """The keys a profile (or another document) may have at `path`; empty where any key may stand."""
    annotation: Any = root
    for part in path:
        model = _model_in(annotation)
        if model is not None and isinstance(part, str):
            info = model.model_fields.get(part)
            annotation = info.annotation if info is not None else None
        else:
            annotation = _item_of(annotation)
    model = _model_in(annotation)
    return [info.alias or name for name, info in model.model_fields.items()] if model is not None else []


def _branches(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _branches(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [leaf for branch in typing.get_args(annotation) for leaf in _branches(branch)]
    return [annotation]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for branch in _branches(annotation):
        if isinstance(branch, type) and issubclass(branch, BaseModel):
            return branch
    return None


def _item_of(annotation: Any) -> Any:
    for branch in _branches(annotation):
        if typing.get_origin(branch) in (tuple, dict):
            args = typing.get_args(branch)
            return args[0] if typing.get_origin(branch) is tuple else args[1]
    return None
