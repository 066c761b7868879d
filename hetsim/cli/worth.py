"""Tables of what each worker needs and is worth: memory, and the cluster without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from hetsim import wording
from hetsim.cli.tables import MOST_WORKERS, grid, paragraph

if TYPE_CHECKING:
    from hetsim.marginal import Marginal
    from hetsim.memory import MemoryUse


def memory(found: Sequence[MemoryUse]) -> list[Any]:
    """Needs and has, and what it is needed for; workers that need the same share a row."""
    groups: dict[tuple[Any, ...], list[MemoryUse]] = {}
    for use in found:
        groups.setdefault((use.needs, use.has, use.pass_samples), []).append(use)
    table = grid("memory", "needs", "has", "largest pass", "needed for", right=frozenset({1, 2, 3}))
    for alike in list(groups.values())[:MOST_WORKERS]:
        use = alike[0]
        parts = ", ".join(f"{what} {wording.size(size)}" for what, size in use.parts.items())
        has = wording.size(use.has) + ("" if use.fits else ": too little")
        table.add_row(_names(alike), wording.size(use.needs), has, wording.count(use.pass_samples), Text(parts))
    note = "An estimate from below: the framework, kernels' work space and fragmentation come on top."
    if not any("activations" in use.parts for use in found):
        note = (
            "Without activations, whose size per sample the profile does not say (workload.activation_bytes_per_sample). "
            + note
        )
    return [table, Text(note, style="dim")]


def _names(alike: Sequence[MemoryUse]) -> str:
    return alike[0].worker if len(alike) == 1 else f"{alike[0].worker} and {len(alike) - 1} alike"


def marginal(found: Sequence[Marginal]) -> list[Any]:
    """The cluster without some of its workers."""
    from hetsim.marginal import HOW, change, named

    if not found:
        return []
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for one in found:
        cells = [
            change(one.seconds_ratio, "slower", "faster"),
            "" if one.cost_ratio is None else change(one.cost_ratio, "dearer", "cheaper"),
            "" if one.energy_ratio is None else change(one.energy_ratio, "more energy", "less energy"),
        ]
        table.add_row(Text(f"without {named(one.without)}"), *cells)
    return [
        paragraph("what each worker is worth", "the same training without it, to the same target"),
        table,
        Text(f"Time {HOW}.", style="dim"),
    ]
