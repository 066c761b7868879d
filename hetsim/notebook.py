"""Tables for notebooks: `Result.table()`, `Comparison.table()` and what they show by themselves.

A table is a Rich table: it prints in a terminal and shows as HTML in a notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from hetsim import wording

if TYPE_CHECKING:
    from rich.table import Table

    from hetsim.comparison import Comparison
    from hetsim.simulate import Result

Cells = tuple[list[str], list[list[str]]]  # headers, rows


def result_table(result: Result) -> Table:
    """The figures of one run, over the second half of its updates."""
    return _rich(*_result_cells(result), title=_result_title(result))


def result_html(result: Result) -> str:
    """The same as an HTML table."""
    return _html(*_result_cells(result), title=_result_title(result))


def comparison_table(comparison: Comparison) -> Table:
    """The algorithms, fastest first."""
    return _rich(*_comparison_cells(comparison), title=comparison.profile, caption=comparison.sentence())


def comparison_html(comparison: Comparison) -> str:
    """The same as an HTML table with the verdict below."""
    return _html(*_comparison_cells(comparison), title=comparison.profile, caption=comparison.sentence())


def _result_title(result: Result) -> str:
    return f"{result.schedule.header.algorithm} on {result.cluster.name}, seed {result.seed}"


def _result_cells(result: Result) -> Cells:
    from hetsim.metrics import limited_by

    t = result.timing
    values = [
        ["samples/s", wording.rate(t.samples_per_s)],
        ["time per update", wording.seconds(t.update_period_s)],
        ["samples per update", wording.count(t.mean_batch_samples)],
        ["busy", wording.percent(t.utilisation, 1)],
        ["waiting", wording.percent(t.waiting_share, 1)],
        ["staleness, updates", wording.staleness(t.staleness_mean, t.staleness_max)],
        ["updates", wording.count(t.updates)],
        ["limited by", limited_by(t, result.cluster, server=result.algorithm.has_server)],
    ]
    return ["", "value"], values


def _comparison_cells(comparison: Comparison) -> Cells:
    rows = comparison.rows()
    unit, time = wording.time_column(rows)
    heads = [
        "algorithm",
        f"time to target, {unit}",
        "× best baseline",
        "samples/s",
        "busy",
        "samples per update",
        "lr, momentum",
    ]
    cells = [
        [
            row["name"] + (" ▶" if row["name"] == comparison.winner else ""),
            time(row),
            wording.speedup_cell(row),
            wording.rate(row["samples_per_s"]),
            wording.percent(row["utilisation"]),
            wording.count(row["mean_batch_samples"]),
            wording.rate_cell(row),
        ]
        for row in rows
    ]
    return heads, cells


def _rich(heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str, caption: str = "") -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), caption=Text(caption) if caption else None, box=box.SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i and len(heads) > 2 else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str, caption: str = "") -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = f"<p>{escape(caption)}</p>" if caption else ""
    return (
        f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
    )
