"""A plan on the terminal: what to do, every worker's part, why, what to copy, and what else was tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hetsim import wording
from hetsim.cli import worth
from hetsim.cli.tables import MOST_WORKERS, grid, paragraph
from hetsim.comparison import plain

if TYPE_CHECKING:
    from hetsim.plan import Alternative, Plan, Share

MOST_ALTERNATIVES = 12


def before(p: Plan) -> list[Any]:
    """What to do, and why."""
    head = Text.assemble((p.profile, "bold"), ": train with ", (p.label, "bold"))
    changes = [f"{path}={value}" for path, value in p.overrides.items()]
    head.append(f" and {', '.join(changes)}" if changes else "")
    out: list[Any] = [head, figures(p), "", shares(p.workers, p.split)]
    if p.split == "open":
        out.append(
            Text(
                "Batches are means over updates: the worker leaves when the last synchronization is done.", style="dim"
            )
        )
    return [*out, "", Text("why", style="bold"), *(paragraph(*reason.split(": ", 1)) for reason in p.reasons), ""]


def after(p: Plan) -> list[Any]:
    """What else was tried, what each worker is worth, and how far to trust it."""
    out: list[Any] = ["", alternatives(p.alternatives), ""] if p.alternatives else [""]
    out += [paragraph(f"left out, too large: {name}", why) for name, why in p.excluded.items()]
    out += [*worth.marginal(p.marginal), ""] if p.marginal else []
    out += [paragraph("warning", caution.text) for caution in p.warnings]
    seeds = f"{len(p.seeds)} seed{'s' if len(p.seeds) != 1 else ''}"
    assumed = f" {p.assumptions[0]}" if p.assumptions else ""
    return [*out, paragraph("trust", f"predicted by {p.predictor}, not measured; {seeds}.{assumed}")]


def figures(p: Plan) -> Text:
    """`374 s to the target (…), 8,890 samples/s, 57.4 ms and 510 samples an update; $0.42, 0.11 kWh`."""
    row = {"time_to_target_s": plain(p.time_to_target_s), "cost": plain(p.cost)}
    unit, cell = wording.time_column([row])
    parts = [
        f"{cell(row)} {unit} to the target ({p.target.metric})",
        f"{wording.rate(p.samples_per_s)} samples/s",
        f"{wording.seconds(p.update_period_s)} and {wording.count(p.mean_batch_samples)} samples an update",
    ]
    costs = [text for text in (wording.cost_cell(row), wording.energy_cell(row)) if text != wording.NONE]
    return Text("; ".join([*parts, *costs]))


def shares(workers: Sequence[Share], split: str) -> Any:
    """A row per worker."""
    batch = "batch, mean" if split == "open" else "batch"
    table = grid("rank", "worker", "GPU", batch, "passes", "computes", "memory", right=frozenset({0, 3, 4, 5, 6}))
    for share in workers[:MOST_WORKERS]:
        many = f"{share.passes:.1f}" if split == "open" else f"{share.passes:.0f}"
        has = "" if share.memory.has is None else f" of {wording.size(share.memory.has)}"
        table.add_row(
            str(share.rank),
            share.worker,
            share.gpu or wording.NONE,
            wording.count(share.batch_samples),
            f"{many} × {share.pass_samples:,}",
            wording.seconds(share.seconds),
            wording.size(share.memory.needs) + has,
        )
    if len(workers) > MOST_WORKERS:
        table.add_row("", f"and {len(workers) - MOST_WORKERS:,} more: --json", "", "", "", "", "")
    return table


def alternatives(found: Sequence[Alternative]) -> Any:
    """What else was tried, the fastest first."""
    table = grid("also tried", "to target", "× as long", "limited by", right=frozenset({1, 2}))
    table.columns[0].no_wrap = True
    for one in found[:MOST_ALTERNATIVES]:
        name = one.name.replace(":", ":\n", 1).replace(",", ",\n").replace(" (", "\n(")
        ratio = "" if one.slower.value is None else f"{one.slower.value:.2f}"
        if one.slower.low is not None and one.slower.high is not None:
            ratio += f" ({one.slower.low:.2f} – {one.slower.high:.2f})"
        time = "not reached" if one.seconds is None else wording.seconds(one.seconds)
        table.add_row(Text(name), time, ratio, Text(re.split("[:;]", one.limited_by)[0]))
    if len(found) > MOST_ALTERNATIVES:
        table.add_row(f"and {len(found) - MOST_ALTERNATIVES} more: --json", "", "", "")
    return table
