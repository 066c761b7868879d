"""`--set path.to.key=value`: any field of a profile from the command line."""

from __future__ import annotations

import json
from typing import Any

from hetsim.cluster.document import Key, Mark, Node, Path, parse_document
from hetsim.errors import Problem, ProfileError, nearest


def apply_override(root: Node, text: str) -> None:
    """Sets one field of the tree; workers by position (`workers.2.gpu`) or by name (`workers.c.gpu`).

    Raises ProfileError, which names the flag.
    """
    flag = _shortened(f"--set {text}")
    dotted, equals, value_text = text.partition("=")
    if not equals:
        raise ProfileError(flag, [Problem("", "must read path.to.key=value")])
    set_field(root, dotted, parse_document(value_text, flag), flag)


def apply_value(root: Node, dotted: str, value: Any, flag: str) -> None:
    """The same for a plain value."""
    flag = _shortened(f"{flag} {dotted}={json.dumps(value)}")
    scalar = value is None or isinstance(value, str | int | float)
    set_field(root, dotted, Node(value, Mark(flag)) if scalar else parse_document(json.dumps(value), flag), flag)


def _shortened(flag: str) -> str:
    return flag if len(flag) <= 106 else f"{flag[:103]}..."


def set_field(root: Node, dotted: str, value: Node, flag: str) -> None:
    """Put `value` where the path leads; `flag` stands for its place in messages."""
    parts = [part.strip() for part in dotted.split(".")]
    if not all(parts):
        raise ProfileError(flag, [Problem("", "must read path.to.key=value")])
    _mark_all(value, Mark(flag))
    node = root
    done: list[Key] = []
    for part in parts[:-1]:
        node, key = _descend(node, part, done, flag)
        done.append(key)
    key = _key(node, parts[-1], done, flag)
    if isinstance(node.value, list):
        assert isinstance(key, int)
        node.value[key] = value
    else:
        assert isinstance(node.value, dict)
        node.value[key] = value
    forget_sources(root, (*done, key))


def forget_sources(root: Node, path: Path) -> None:
    """Drops what `sources` says of a value that has just been replaced, under both of a worker's addresses."""
    sources = root.value.get("sources") if isinstance(root.value, dict) else None
    if sources is None or not isinstance(sources.value, dict):
        return
    prefixes = {".".join(str(part) for part in path)}
    name = _worker_name(root, path)
    if name is not None:
        prefixes.add(".".join(str(part) for part in (path[0], name, *path[2:])))
    stale = [key for key in sources.value if any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)]
    for key in stale:
        del sources.value[key]


def _worker_name(root: Node, path: Path) -> object:
    if len(path) < 2 or path[0] != "workers" or not isinstance(root.value, dict):
        return None
    worker = root.value["workers"].plain()[path[1]]
    return worker.get("name") if isinstance(worker, dict) else None


def _mark_all(node: Node, mark: Mark) -> None:
    node.mark = node.key_mark = mark
    if isinstance(node.value, dict | list):
        for child in node.value.values() if isinstance(node.value, dict) else node.value:
            _mark_all(child, mark)


def _descend(node: Node, part: str, done: list[Key], flag: str) -> tuple[Node, Key]:
    key = _key(node, part, done, flag)
    if isinstance(node.value, list):
        assert isinstance(key, int)
        return node.value[key], key
    assert isinstance(node.value, dict)
    child = node.value.get(key)
    if child is None or child.value is None:
        child = node.value[key] = Node({}, Mark(flag), Mark(flag))
    return child, key


def _key(node: Node, part: str, done: list[Key], flag: str) -> Key:
    where = ".".join(str(key) for key in done)
    if isinstance(node.value, list):
        return _index(node.value, part, where, flag)
    if isinstance(node.value, dict):
        return int(part) if done and done[-1] == "step_times_s" and part.isdecimal() else part
    raise ProfileError(flag, [Problem(where, f"is {node.value!r}, it has no {part!r} inside")])


def _index(items: list[Node], part: str, where: str, flag: str) -> int:
    names = [
        str(item.value["name"].value) if isinstance(item.value, dict) and "name" in item.value else "" for item in items
    ]
    if part in names:
        return names.index(part)
    if part.isdecimal() and len(part) < 9 and int(part) < len(items):
        return int(part)
    hint = nearest(part, [name for name in names if name]) if any(names) and not part.isdecimal() else ""
    raise ProfileError(flag, [Problem(where, f"has no item {part!r}, it has {len(items)} (0 is the first)", hint)])
