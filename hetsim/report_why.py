"""Sections of a report that say why: yardsticks, who contributes, and what each column means."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hetsim import reasons
from hetsim.reasons import Row


def why_html(rows: Sequence[Row]) -> str:
    """A row per algorithm, a line per column below; nothing for documents of before there were yardsticks."""
    heads = reasons.shown(rows)
    if not heads:
        return ""
    top = "".join(f"<th>{escape(head)}</th>" for head in ("algorithm", *heads, reasons.WHO))
    body = []
    for row in rows:
        cells = reasons.yardstick_cells(row)
        texts = (*(cells[head] for head in heads), reasons.shares(row["sample_share"]))
        name = escape(row["name"]).replace(":", ":<wbr>")
        body.append(
            f"<tr><th scope='row'>{name}</th>" + "".join(f"<td>{escape(text)}</td>" for text in texts) + "</tr>"
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in reasons.notes(heads))
    table = f"<div class='wide'><table>\n<thead><tr>{top}</tr></thead>\n<tbody>{''.join(body)}</tbody>\n</table></div>"
    return f"{table}\n<ul class='note'>{notes}</ul>"
