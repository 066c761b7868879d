"""A comparison on the terminal: the table by width, then who wins, what limits each, and how far to trust it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hetsim import reasons, wording
from hetsim.cli.tables import grid, paragraph
from hetsim.comparison import plain
from hetsim.costs import cost_notes
from hetsim.labels import LITERAL_READING

if TYPE_CHECKING:
    from hetsim.comparison import Comparison

Row = Mapping[str, Any]
Column = tuple[int, str, Callable[[Row], str]]  # least width of the terminal that shows it, header, cell
MOST_WARNINGS = 8
USUAL = 100  # columns of a terminal whose table is whole: what it lacks on a narrower one is said below it
COSTED = 160  # columns of a terminal that shows costs
WIDE = 120  # columns of a terminal that also shows the yardsticks; narrower ones have them in --json and in the report


def comparison(c: Comparison, width: int) -> list[Any]:
    """Everything `hetsim compare` prints."""
    rows = c.rows()
    head = Text.assemble((c.profile, "bold"), f": {contenders(rows)}, target ")
    head.append(f"{c.target.value:.3g}: {c.target.metric}")
    out: list[Any] = [head, "", table(rows, c.winner, width)]
    notes = ["▶ the winner"] if c.winner else []
    if any(row["name"] == LITERAL_READING for row in rows):
        notes.append(f"{LITERAL_READING}: the literal reading of ABS-SGD's abstract")
    out += [Text("; ".join(notes), style="dim")] if notes else []
    out += [Text(note, style="dim")] if (note := hidden(rows, width)) else []
    out += ["", Text(c.sentence(), style="bold"), "", limits(rows), ""]
    out += [*why(rows), ""] if width >= WIDE else []
    out += [paragraph("warning", text) for text in warnings([w.code for w in c.warnings], [w.text for w in c.warnings])]
    if width >= COSTED:
        out += [paragraph(*note.split(": ", 1)) for note in cost_notes(plain(c.tariffs))]
    out += [paragraph("quick", " ".join(said))] if (said := own_assumptions(c)) else []
    out.append(paragraph("trust", trust(c)))
    return out


def own_assumptions(c: Comparison) -> list[str]:
    """What a comparison assumes beside its predictor: how a quick one was made."""
    predicted = {sentence for curve in c.curves.values() for sentence in curve.assumptions}
    return [sentence for sentence in c.assumptions if sentence not in predicted]


def contenders(rows: Sequence[Row]) -> str:
    """`8 algorithms in 10 variants`: what was compared; variants are one algorithm's rows with different options."""
    count = len({row["algorithm"] for row in rows})
    text = f"{count} algorithm{'s' if count != 1 else ''}"
    return text if count == len(rows) else f"{text} in {len(rows)} variants"


def columns(rows: Sequence[Row]) -> list[Column]:
    """All columns as they stand; where room is short that of the greatest least width goes first. One unit of time for all rows."""
    unit, time = wording.time_column(rows)
    return [
        (0, f"to target\n{unit}", time),
        (60, "× best\nbaseline", wording.speedup_cell),
        (0, "\nsamples/s", lambda r: wording.rate(r["samples_per_s"])),
        (90, "busy\n%", lambda r: f"{100 * r['utilisation']:.0f}"),
        (72, "batch\nsamples", lambda r: wording.count(r["mean_batch_samples"])),
        (USUAL, "update\nms", lambda r: wording.rate(1e3 * r["update_period_s"])),
        (116, "\nlr, momentum", wording.rate_cell),
        (132, "staleness\nupdates", lambda r: wording.staleness(r["staleness_mean"], r["staleness_max"])),
        (148, "to target\nsamples", lambda r: wording.count(r["samples_to_target"])),
        (COSTED, "cost to\ntarget", wording.cost_cell),
        (172, "energy to\ntarget", wording.energy_cell),
    ]


def table(rows: Sequence[Row], winner: str | None, width: int) -> Table:
    """The algorithms, fastest first; the winner is marked and bold."""
    names, label = _names(rows, width)
    shown = fitting(rows, width)
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    out.add_column("", width=1)
    out.add_column("\nalgorithm", overflow="fold", min_width=min(label, width // 2))
    for _, header, _ in shown:
        out.add_column(header, justify="right", no_wrap=True)
    for row, name in zip(rows, names, strict=True):
        best = row["name"] == winner
        cells = [Text(cell(row)) for _, _, cell in shown]
        out.add_row("▶" if best else "", Text(name), *cells, style="bold green" if best else "")
    return out


def fitting(rows: Sequence[Row], width: int) -> list[Column]:
    """The columns that have room beside whole names: a whole name says more than one column more."""
    shown = [column for column in columns(rows) if column[0] <= width]
    while len(shown) > 1 and _needs(shown, rows, width) > width:
        shown.remove(max(reversed(shown), key=lambda column: column[0]))
    return shown


def hidden(rows: Sequence[Row], width: int) -> str:
    """`busy, batch, update hidden: 100 columns or --json show them`: what a usual table has and this one has not; else nothing."""
    usual = [column for column in columns(rows) if column[0] <= USUAL]
    shown = {header for _, header, _ in fitting(rows, width)}
    names = [header.strip().split("\n")[0] for _, header, _ in usual if header not in shown]
    if not names:
        return ""
    return f"{', '.join(names)} hidden: {max(USUAL, _needs(usual, rows, USUAL))} columns or --json show them"


def _needs(shown: Sequence[Column], rows: Sequence[Row], width: int) -> int:
    """Columns of the terminal that names and cells take."""
    return _names(rows, width)[1] + sum(_width(column, rows) + 2 for column in shown) + 4


def _names(rows: Sequence[Row], width: int) -> tuple[list[str], int]:
    """The names as they are written, in two lines on all but wide terminals; and the longest line."""
    names = [row["name"] if width >= 148 else row["name"].replace(":", ":\n", 1) for row in rows]
    return names, max(len(part) for name in names for part in name.split("\n"))


def _width(column: Column, rows: Sequence[Row]) -> int:
    _, header, cell = column
    return max(len(line) for text in (header, *(cell(row) for row in rows)) for line in text.split("\n"))


def limits(rows: Sequence[Row]) -> Group:
    """What limits each algorithm; those with the same reason together below it."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(row["limited_by"], []).append(row["name"])
    out: list[Any] = [Text("limited by", style="bold")]
    for reason, names in by_reason.items():
        out.append(Padding(Text(reason), (0, 0, 0, 2)))
        out.append(Padding(Text(", ".join(names), style="dim"), (0, 0, 0, 6)))
    return Group(*out)


def why(rows: Sequence[Row]) -> list[Any]:
    """The yardsticks of every row and who contributes, with what they mean."""
    heads = reasons.shown(rows)
    out = grid("why", *heads, reasons.WHO, right=frozenset(range(1, len(heads) + 1)))
    for row in rows:
        cells = reasons.yardstick_cells(row)
        out.add_row(Text(row["name"]), *(cells[head] for head in heads), Text(reasons.shares(row["sample_share"])))
    return [out, *(Text(note, style="dim") for note in reasons.notes(heads))]


def warnings(codes: Sequence[str], texts: Sequence[str]) -> list[str]:
    """One line per kind of warning: the first of its kind, and how many more there are."""
    count = Counter(codes)
    first: dict[str, str] = {}
    for code, text in zip(codes, texts, strict=True):
        first.setdefault(code, text)
    lines = []
    for code, text in list(first.items())[:MOST_WARNINGS]:
        more = count[code] - 1
        lines.append(text + (f" ({more} more like this: --json)" if more else ""))
    return lines


def trust(c: Comparison) -> str:
    """Predictor, seeds, where the speeds are from."""
    speeds: dict[str, list[str]] = {}
    for worker, source in c.speeds.items():
        speeds.setdefault(source, []).append(worker)
    from_where = "; ".join(
        f"{source} ({', '.join(names[:6])}{', …' if len(names) > 6 else ''})" for source, names in speeds.items()
    )
    interval = f", {100 * c.coverage:.3g} % intervals" if c.coverage else ", no interval"
    seeds = f"{len(c.seeds)} seed{'s' if len(c.seeds) != 1 else ''}{interval}"
    assumed = f" {c.assumptions[0]}" if c.assumptions else ""
    return f"predicted by {c.predictor}, not measured; {seeds}; speeds: {from_where}.{assumed}"
