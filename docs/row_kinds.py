"""The table of row kinds and codes, from `hetsim.schedule.kinds`.

python docs/row_kinds.py
"""

from __future__ import annotations

from commands_table import rows_of

from hetsim.schedule import kinds

CODES = (kinds.WaitCause, kinds.PointRule, kinds.StepRule, kinds.MixRule, kinds.Payload, kinds.DiscardReason)


def table() -> str:
    """One row per kind with its number, then the codes."""
    head, *rows = rows_of(kinds.__doc__ or "")
    numbered = [[f"{kinds.Kind[row[0]].value} {row[0]}", *row[1:]] for row in rows]
    lines = [head, ["---"] * len(head), *numbered]
    codes = [f"- {e.__name__}: " + ", ".join(f"{m.value} {m.name.lower()}" for m in e) for e in CODES]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in lines), "", "Codes:", "", *codes])


if __name__ == "__main__":
    print(table())
