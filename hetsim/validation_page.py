"""Did the predictions hold: a validation as one page. Verdict, summary, timelines one above the other, losses, every figure, provenance.

Made of what a validation's folder holds (`hetsim.validation_folder`), by the command that writes the folder and by `hetsim report` alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hetsim import page
from hetsim import validation_tables as tables
from hetsim.convergence.predictor import Curve
from hetsim.schedule.table import Schedule

SIDES = ("predicted", "measured")


@dataclass(frozen=True, kw_only=True)
class ValidationMaterial:
    """What the page is made of: the document; per label, by side the Schedule of the first run, and by run the curve of each side.

    A side or a run that is missing leaves its figure out.
    """

    document: Mapping[str, Any]
    schedules: Mapping[str, Mapping[str, Schedule]] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Mapping[str, Curve]]] = field(default_factory=dict)
    profile_yaml: str = ""


def validation_html(material: ValidationMaterial) -> str:
    """The page."""
    document = material.document
    title = f"Did the prediction for {document['profile']} hold?"
    said = "".join(f"<li>{escape(text)}</li>" for text in document["said"])
    return page.whole(
        title,
        (
            _head(title, document),
            _summary(document),
            *(_algorithm(row, material) for row in document["algorithms"]),
            page.section("How this was run", f"<ul>{said}</ul>" if said else ""),
            page.reproduce(document, material.profile_yaml),
        ),
    )


def _head(title: str, document: Mapping[str, Any]) -> str:
    state = "held" if document["within"] else "missed"
    return (
        f"<header>\n<h1>{escape(title)}</h1>\n<p class='verdict {state}'>{escape(tables.headline(document))}</p>\n"
        f"<p class='facts'>{escape(tables.facts(document))}</p>\n</header>"
    )


def _summary(document: Mapping[str, Any]) -> str:
    """One row per algorithm; what is off by more than allowed is marked."""
    columns = tables.summary(document)
    heads = ["<th>algorithm</th>", "<th>verdict</th>"]
    for column in columns:
        below = ", ".join(filter(None, (column.which, f"up to {column.allowed}")))
        heads.append(f"<th>{escape(column.name)}<br><small>{escape(below)}</small></th>")
    body = []
    for place, row in enumerate(document["algorithms"]):
        state, word = ("held", "✓ held") if row["within"] else ("missed", "✗ did not hold")
        cells = [f"<th scope='row'>{_breakable(row['name'])}</th>", f"<td class='{state}'>{word}</td>"]
        for column in columns:
            cell = column.cells[place]
            cells.append(
                f"<td class='missed'>✗ {escape(cell.text)}</td>" if cell.off else f"<td>{escape(cell.text)}</td>"
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    note = "How far the measured figures are off the predicted ones, and up to where a prediction is said to have held."
    return page.section(
        "Summary",
        f"<div class='wide'><table class='summary'>\n<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>"
        + "\n".join(body)
        + f"</tbody>\n</table></div>\n<p class='note'>{escape(note)}</p>",
    )


def _breakable(label: str) -> str:
    """Broken before an option rather than within a word."""
    return escape(label).replace(":", ":<wbr>").replace(",", ",<wbr>")


def _algorithm(row: dict[str, Any], material: ValidationMaterial) -> str:
    reasons = "".join(f"<li>{escape(text)}</li>" for text in (*tables.missed(row), *tables.uncompared(row)))
    label = row["name"]
    return page.section(
        label,
        f"<p>{'Held.' if row['within'] else 'Did not hold.'}</p>" + (f"<ul>{reasons}</ul>" if reasons else ""),
        _timelines(material.schedules.get(label, {}), row),
        _loss(material.curves.get(label, ()), material.document["target_loss"]),
        *_figures(row),
    )


def _timelines(schedules: Mapping[str, Schedule], row: Mapping[str, Any]) -> str:
    from hetsim import timeline

    if not schedules:
        return ""
    caption = f"Who does what, {tables.called(row['runs'][0])}, half way through: bars are labelled with their samples"
    if row["options"].get("overlap"):
        caption += "; a measured all-reduce is drawn from the last pass's end on, also where it left during the pass"
    return page.figure(timeline.stacked({side: schedules[side] for side in SIDES if side in schedules}), caption)


def _loss(curves: Sequence[Mapping[str, Curve]], target: float | None) -> str:
    """Against seconds and samples: of several runs the median, in a band from the lowest to the highest."""
    from hetsim.validation_figures import losses

    if not curves:
        return ""
    end = f"; medians of {len(curves)} runs, bands from the lowest to the highest" if len(curves) > 1 else ""
    both = [
        page.figure(
            losses(curves, axis, target), f"Loss against {axis}: both executed in process on the same task{end}"
        )
        for axis in ("seconds", "samples")
    ]
    return "<div class='pair'>\n" + "\n".join(both) + "\n</div>"


def _figures(row: dict[str, Any]) -> list[str]:
    """Every figure; of several runs in a table of its own for each, the first one open."""
    heads = ("", "predicted", "measured", "off")
    made = [(tables.called(run), page.table(heads, tables.of_run(run))) for run in row["runs"]]
    if len(made) == 1:
        return [made[0][1]]
    return [
        f"<details{'' if place else ' open'}>\n<summary>Every figure of {escape(name)}</summary>\n{table}\n</details>"
        for place, (name, table) in enumerate(made)
    ]
