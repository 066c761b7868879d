"""The table of commands, from the docstring of `hetsim.commands`.

python docs/commands_table.py
"""

from __future__ import annotations

import hetsim.commands


def rows_of(docstring: str) -> list[list[str]]:
    """The cells of the table in a docstring, heading first."""
    lines = [line for line in docstring.splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def table() -> str:
    """The table without the padding, commands as code."""
    head, *rows = rows_of(hetsim.commands.__doc__ or "")
    coded = [[" / ".join(f"`{part}`" for part in row[0].split(" / ")), *row[1:]] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *coded])


if __name__ == "__main__":
    print(table())
