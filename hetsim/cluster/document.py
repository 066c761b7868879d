"""YAML text as a tree that remembers where everything stands.

Built from ruamel.yaml's events (YAML 1.2, pure Python), not from its constructor: no tag can create an object, a
duplicate key is a problem with a position, and depth, size and alias expansion are limited while reading, so that a
hostile text costs no more than a long one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode

from hetsim.errors import Problem, ProfileError

# Our choice: ten times what a profile with every key spelled out for 1,000 workers needs.
MAX_TEXT_BYTES = 1_000_000
MAX_NODES = 200_000
MAX_DEPTH = 32
MAX_PROBLEMS = 50  # the first so many are shown

Key = str | int
Path = tuple[Key, ...]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text, 1-based; line 0 means the whole of it."""

    file: str
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Node:
    """A value and where it stands; `key_mark` is where its key stands when it is in a mapping."""

    value: dict[Key, Node] | list[Node] | Scalar
    mark: Mark
    key_mark: Mark | None = None
    size: int = 1
    height: int = 1

    def copy(self) -> Node:
        """The same tree, to be changed on its own."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.copy() for key, child in value.items()}
        elif isinstance(value, list):
            value = [child.copy() for child in value]
        return Node(value, self.mark, self.key_mark, self.size, self.height)

    def plain(self) -> Any:
        """The same tree as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def parse_document(text: str, file: str) -> Node:
    """The one document in `text`. Raises ProfileError: not YAML, too large, too deep, duplicate keys, tags."""
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise ProfileError(
            file, [Problem("", f"is larger than {MAX_TEXT_BYTES // 1000:,} kB", "a profile is a few kB")]
        )
    builder = _Builder(file)
    try:
        root = builder.build(text)
    except MarkedYAMLError as error:
        raise ProfileError(file, [_syntax_problem(error)]) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(file, [Problem("", f"is not valid YAML: {_first_line(error)}")]) from None
    if builder.problems:
        raise ProfileError(file, builder.problems)
    return root


class _TooMuch(Exception):
    """A limit was passed; carries the Problem."""


@dataclass
class _Builder:
    file: str
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)
    nodes: int = 0

    def build(self, text: str) -> Node:
        yaml = YAML(typ="safe", pure=True)
        events: Iterator[Any] = iter(yaml.parse(text))
        self.resolve = yaml.resolver.resolve
        try:
            root = self._first_document(events)
        except _TooMuch as stop:
            raise ProfileError(self.file, [*self.problems, stop.args[0]]) from None
        return root

    def _first_document(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent" and root is not None:
                raise _TooMuch(self._problem(event, "a second document starts here", "one profile per file"))
            if kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentStartEvent", "DocumentEndEvent"):
                root = self._node(event, events, 1)
        return root if root is not None else Node(None, Mark(self.file, 1, 1))

    def _problem(self, event: Any, message: str, hint: str = "") -> Problem:
        return Problem("", message, hint, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        kind = type(event).__name__
        if len(self.problems) >= MAX_PROBLEMS:
            raise _TooMuch(self._problem(event, "more problems from here on", "mend these first"))
        if kind == "AliasEvent":
            return self._alias(event, depth)
        if depth > MAX_DEPTH:
            raise _TooMuch(self._problem(event, f"nested deeper than {MAX_DEPTH} levels"))
        self._count(event, 1)
        mark = Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)
        tag = getattr(event, "tag", None)
        if tag is not None and (kind != "ScalarEvent" or not event.implicit[1]):
            self.problems.append(self._problem(event, "tags are not allowed in a profile", f"remove {str(tag)[:60]}"))
        if kind == "MappingStartEvent":
            node = Node({}, mark)
            self._fill_mapping(node, events, depth)
        elif kind == "SequenceStartEvent":
            node = Node([], mark)
            self._fill_list(node, events, depth)
        else:
            node = Node(self._scalar(event), mark)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> Node:
        node = self.anchors.get(event.anchor)
        if node is None:
            raise _TooMuch(self._problem(event, f"*{event.anchor} refers to no finished anchor before it"))
        if depth + node.height > MAX_DEPTH:
            raise _TooMuch(self._problem(event, f"nested deeper than {MAX_DEPTH} levels by aliases"))
        self._count(event, node.size)
        return replace(node)

    def _count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _TooMuch(self._problem(event, f"more than {MAX_NODES:,} values, aliases included"))

    def _fill_mapping(self, node: Node, events: Iterator[Any], depth: int) -> None:
        assert isinstance(node.value, dict)
        for event in events:
            if type(event).__name__ == "MappingEndEvent":
                return
            key_node = self._node(event, events, depth + 1)
            child = self._node(next(events), events, depth + 1)
            child.key_mark = Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)
            key = key_node.value
            if isinstance(key, bool) or not isinstance(key, str | int):
                self.problems.append(self._problem(event, "a key must be text", "put it in quotes"))
            elif key in node.value:
                first = node.value[key].key_mark
                where = f"first on line {first.line}" if first else ""
                self.problems.append(self._problem(event, f"duplicate key {key!r}", where))
            else:
                node.value[key] = child
                node.size += child.size
                node.height = max(node.height, child.height + 1)

    def _fill_list(self, node: Node, events: Iterator[Any], depth: int) -> None:
        assert isinstance(node.value, list)
        for event in events:
            if type(event).__name__ == "SequenceEndEvent":
                return
            child = self._node(event, events, depth + 1)
            node.value.append(child)
            node.size += child.size
            node.height = max(node.height, child.height + 1)

    def _scalar(self, event: Any) -> Scalar:
        text: str = event.value
        if not event.implicit[0]:
            return text
        tag = str(self.resolve(ScalarNode, text, (True, False))).rpartition(":")[2]
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        try:
            if tag == "int":
                return _integer(text.replace("_", ""))
            if tag == "float":
                return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            self.problems.append(self._problem(event, "is not a number that can be read", "or quote it, if it is text"))
        return text  # text, and dates: a date in `sources` is text to us


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lower()
    for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * int(digits)


def _syntax_problem(error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = _first_line(error.problem or error.context or error)
    hint = "indent with spaces, not tabs" if "\\t" in what else ""
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    return Problem("", f"is not valid YAML: {what}", hint, line, column)


def _first_line(what: object) -> str:
    lines = str(what).strip().splitlines()
    return lines[0].strip() if lines else "unreadable"
