"""A diff on the terminal: which fields differ, which figures moved, where Schedules part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from hetsim import wording
from hetsim.cli.tables import grid, paragraph

if TYPE_CHECKING:
    from hetsim.diff import Diff
    from hetsim.diff_figures import Moved
    from hetsim.diff_schedules import Difference, Parted

MOST_CHANGES = 40
MOST_FIGURES = 9  # of one algorithm
FIRST = ("time to target", "throughput", "time per update")
SMALL = 0.01  # relative: what moved less is counted, not listed [our choice]


def diff(d: Diff) -> list[Any]:
    """Everything `hetsim diff` prints."""
    out: list[Any] = [Text.assemble("A: ", (clean(d.a), "bold"), "\nB: ", (clean(d.b), "bold")), ""]
    if d.same:
        return [*out, Text("no difference")]
    if d.changed:
        out += [changed(d), ""]
    if d.moved:
        out += moved([one for one in d.moved if not isinstance(one.a, str)])
        for one in d.moved:
            if isinstance(one.a, str):
                out.append(paragraph(clean(f"{one.figure}, {one.name}"), clean(f"A: {one.a}; B: {one.b}")))
    elif d.what != "schedules" and not (d.only_a or d.only_b):
        out += [Text("no figure moved"), ""]
    for side, labels in (("A", d.only_a), ("B", d.only_b)):
        if labels:
            out.append(paragraph(f"only in {side}", clean(", ".join(labels))))
    out += apart(d.parted) if d.parted is not None else []
    return out


def changed(d: Diff) -> Table:
    """Field, A, B."""
    table = grid("what differs", "A", "B")
    for change in d.changed[:MOST_CHANGES]:
        table.add_row(*(Text(clean(text)) for text in (change.path, value(change.a), value(change.b))))
    if len(d.changed) > MOST_CHANGES:
        table.add_row(f"and {len(d.changed) - MOST_CHANGES} more: --json", "", "")
    return table


def value(found: Any) -> str:
    """A value of a profile or document in one line."""
    if found is None:
        return wording.NONE
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def moved(figures: Sequence[Moved]) -> list[Any]:
    """Algorithm by algorithm: the time first, then what moved by more than a per cent."""
    out: list[Any] = []
    for name in dict.fromkeys(one.name for one in figures):
        own = [one for one in figures if one.name == name]
        shown = sorted((one for one in own if one.figure in FIRST or not _small(one)), key=_place)[:MOST_FIGURES]
        table = grid("figure", "A", "B", "B over A", "luck?", right=frozenset({1, 2, 3}))
        table.columns[0].no_wrap = True
        for one in shown:
            texts = (one.figure, quantity(one.a, one), quantity(one.b, one), ratio(one), luck(one))
            table.add_row(*(Text(clean(text)) for text in texts))
        if len(own) > len(shown):
            table.add_row(f"{len(own) - len(shown)} more: --json")
        out += [Text(clean(name), style="bold"), table, ""]
    return out


def _small(one: Moved) -> bool:
    return one.ratio is not None and abs(one.ratio - 1) < SMALL


def _place(one: Moved) -> int:
    return FIRST.index(one.figure) if one.figure in FIRST else len(FIRST)


def quantity(found: float | str | None, one: Moved) -> str:
    """With its unit; words as they are."""
    if found is None:
        return "not reached" if "target" in one.figure else wording.NONE
    if isinstance(found, str):
        return found
    say = {"s": wording.seconds, "share": lambda v: wording.percent(v, 1), "bytes": wording.size}.get(one.unit)
    if say is not None:
        return str(say(found))
    text = wording.count(found) if one.unit == "samples" else wording.rate(found)
    return f"${text}" if one.unit == "USD" else f"{text} {one.unit}".strip()


def ratio(one: Moved) -> str:
    """`1.31 (1.27 – 1.33)`."""
    if one.ratio is None:
        return ""
    around = "" if one.low is None or one.high is None else f" ({one.low:.3g} – {one.high:.3g})"
    return f"{one.ratio:.3g}{around}"


def luck(one: Moved) -> str:
    """Whether the intervals leave it to luck; nothing where there is none to tell by."""
    return "" if one.beyond is None else "beyond" if one.beyond else "within"


def apart(p: Parted) -> list[Any]:
    """Where two Schedules part."""
    if p.same:
        return [paragraph("rows", f"all {p.rows_a:,} are the same")]
    out = [paragraph("rows", f"A has {p.rows_a:,}, B has {p.rows_b:,}")]
    assert p.first is not None
    out += _row("first row that differs", p.first)
    if p.first_operation is None:
        out.append(paragraph("otherwise", "both do the same in the same order, only at other times"))
    elif p.first_operation.row != p.first.row:
        out += _row("first row that does something else", p.first_operation)
    return out


def _row(title: str, d: Difference) -> list[Any]:
    columns = f" ({', '.join(d.columns)})" if d.columns else ""
    sides = [paragraph(f"  {side}", clean(text or "has ended")) for side, text in (("A", d.a), ("B", d.b))]
    return [paragraph(title, f"{d.row:,}{columns}"), *sides]


def clean(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
