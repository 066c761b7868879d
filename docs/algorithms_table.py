"""The tables of algorithms, from the registry.

python docs/algorithms_table.py             README's: one line each
python docs/algorithms_table.py --options   docs/algorithms.md: with options
"""

from __future__ import annotations

import inspect
import json
import sys

from hetsim.algorithms import Algorithm, registry


def table() -> str:
    """One row per algorithm: name, what it is, source, role."""
    rows = ["| name | what it is | source | role |", "|---|---|---|---|"]
    for name, cls in registry().items():
        rows.append(f"| `{name}` | {cls.summary()} | {cls.source} | {cls.role} |")
    return "\n".join(rows)


def section(name: str, cls: type[Algorithm]) -> str:
    """One algorithm: its docstring, source and options. Indented sketches stay code in Markdown."""
    lines = [f"## `{name}`", "", inspect.cleandoc(cls.__doc__ or ""), ""]
    lines += [f"- Source: {cls.source}", f"- Role: {cls.role}"]
    lines.append(f"- Parameter server: {'yes' if cls.has_server else 'no'}")
    lines.append(f"- Compared by default: {'yes' if cls.by_default else 'no'}")
    lines.append(f"- Runs live: {'yes' if cls.live is True else f'no, {cls.live}; its Schedule can be replayed'}")
    if cls.Options.model_fields:
        lines += ["", "| option | default | what it does |", "|---|---|---|"]
        for key, field in cls.Options.model_fields.items():
            default = field.default if isinstance(field.default, str) else json.dumps(field.default)
            lines.append(f"| `{key}` | `{default}` | {field.description or ''} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print one of the two."""
    if "--options" in arguments:
        print("\n\n".join(section(name, cls) for name, cls in registry().items()))
    else:
        print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
