"""Sections of a report that say why, and what it takes: yardsticks, who contributes, cost, energy, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hetsim import page, reasons, wording
from hetsim.costs import cost_notes
from hetsim.reasons import Row


def why_html(rows: Sequence[Row]) -> str:
    """A row per algorithm, a line per column below; nothing for documents of before there were yardsticks."""
    heads = reasons.shown(rows)
    if not heads:
        return ""
    cells = [reasons.yardstick_cells(row) for row in rows]
    texts = [
        [row["name"], *(own[head] for head in heads), reasons.shares(row["sample_share"])]
        for row, own in zip(rows, cells, strict=True)
    ]
    return page.table(["algorithm", *heads, reasons.WHO], texts) + _notes(reasons.notes(heads))


def takes_html(rows: Sequence[Row], document: Mapping[str, Any]) -> str:
    """Cost and energy to the target where they are known, with their sources, and the memory of the worker that needs most."""
    columns = [("cost to target", wording.cost_cell), ("energy to target", wording.energy_cell), ("memory", _memory)]
    shown = [(head, cell) for head, cell in columns if any(cell(row) != wording.NONE for row in rows)]
    if not shown:
        return ""
    texts = [[row["name"], *(cell(row) for _, cell in shown)] for row in rows]
    estimate = "memory: of the worker that needs most; framework, kernels' work space and fragmentation come on top"
    return page.table(["algorithm", *(head for head, _ in shown)], texts) + _notes(
        [*cost_notes(document.get("tariffs") or {}), estimate]
    )


def _memory(row: Row) -> str:
    needs: Mapping[str, float] = row["memory_bytes"]
    most = max(needs, key=lambda name: needs[name], default=None)
    return wording.NONE if most is None else f"{wording.size(needs[most])} ({most})"


def _notes(lines: Sequence[str]) -> str:
    return "<ul class='note'>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
