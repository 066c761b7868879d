"""Writes a Profile as YAML that a person can edit."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from hetsim.cluster.profile import SCHEMA_LINE, Profile


def write_yaml(profile: Profile) -> str:
    """Canonical text. Training and network in full, so that a later change of a default changes no old profile."""
    tree: dict[str, Any] = profile.model_dump(mode="python", exclude_none=True, exclude={"extends"})
    tree["network"] = {key: value for key, value in tree["network"].items() if value not in ({}, ())}
    for entry, worker in zip(tree["workers"], profile.workers, strict=True):
        for key in set(entry) - set(worker.model_dump(exclude_defaults=True)):
            del entry[key]
    out = io.StringIO()
    yaml = YAML(pure=True)
    yaml.width = 120
    yaml.allow_unicode = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(_styled({key: value for key, value in tree.items() if value not in ({}, [], (), "")}, 0), out)
    return f"{SCHEMA_LINE}\n{out.getvalue()}"


def _styled(value: Any, depth: int) -> Any:
    """Rows (a worker, a link, an event) on one line each, the rest as blocks."""
    if isinstance(value, dict):
        mapping = CommentedMap((_styled(key, depth), _styled(item, depth + 1)) for key, item in value.items())
        if depth >= 2:
            mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        items = CommentedSeq(_styled(item, depth + 1) for item in value)
        if depth >= 2:
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and not value.isprintable():
        return DoubleQuotedScalarString(value)  # escapes the line breaks of Unicode, which plain text would lose
    return value
