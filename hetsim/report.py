"""One HTML file to send on: verdict, table, figures, assumptions, provenance, and the command that reproduces it.

Self-contained: plotly.js is inside once and nothing is loaded from anywhere. All text from profiles and results is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from hetsim import page, wording
from hetsim.convergence.predictor import Curve
from hetsim.labels import LITERAL_READING
from hetsim.report_why import takes_html, why_html
from hetsim.schedule.table import Schedule

Rows = Sequence[Mapping[str, Any]]
MOST_TIMELINES = 12
OPEN_TIMELINES = 2  # the others unfold


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a report is made of: the JSON document of a comparison or of one run, and per label its curve and its Schedule."""

    document: Mapping[str, Any]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    profile_yaml: str = ""

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The algorithms, fastest first."""
        rows = list(self.document.get("algorithms") or [self.document])
        return sorted(rows, key=order)


def order(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Fastest to the target first, then by samples/s."""
    time = row.get("time_to_target_s") or {}
    median = time.get("median")
    return (median is None, median if median is not None else -float(row["samples_per_s"] or 0.0))


def folder_html(folder: Path) -> str:
    """The page of a folder that compare, simulate or validate wrote. Raises UsageError, ScheduleFileError: none, or damaged."""
    from hetsim import documents, export, validation_folder
    from hetsim.validation_page import validation_html

    if (folder / documents.VALIDATION).is_file():
        return validation_html(validation_folder.read(folder))
    return report_html(export.read_material(folder))


def report_html(material: Material) -> str:
    """The page."""
    document = material.document
    return page.whole(
        f"hetsim: {document['profile']}",
        (
            _head(material),
            page.section("The algorithms", _table(material.rows, document), _limits(material.rows)),
            page.section("Why", why_html(material.rows)),
            page.section("What it takes", takes_html(material.rows, document)),
            _loss(material),
            _bars(material),
            _timelines(material),
            _trust(material),
            page.reproduce(document, material.profile_yaml),
        ),
    )


def _head(material: Material) -> str:
    document = material.document
    facts = []
    if "algorithms" in document:
        target = document["target"]
        interval = document.get("coverage")
        seeds = len(document["seeds"])
        facts = [
            f"Predictor {document['predictor']}",
            f"target: {target['metric']} {target['value']:.4g}",
            f"{seeds} seed{'s' if seeds != 1 else ''}"
            + (f", {100 * interval:.3g} % intervals in brackets" if interval else ""),
        ]
        question = f"Which algorithm trains fastest on {document['profile']}?"
        verdict = str(document.get("verdict") or "")
    else:
        question = f"{document['name']} on {document['profile']}"
        verdict = f"{wording.rate(document['samples_per_s'])} samples/s. Limited by {document['limited_by']}."
        facts = [f"Timing only, seed {document['seed']}", f"{document['updates']:,} updates"]
    return (
        f"<header>\n<h1>{escape(question)}</h1>\n<p class='verdict'>{escape(verdict)}</p>\n"
        f"<p class='facts'>{escape(' · '.join(facts))}</p>\n</header>"
    )


def _table(rows: Rows, document: Mapping[str, Any]) -> str:
    """Every figure of every algorithm; units in the headers."""
    learning = "algorithms" in document
    heads = ["algorithm"]
    unit, time = wording.time_column(rows)
    heads += [f"time to target, {unit}", "× best baseline", "samples to target", "lr, momentum"] if learning else []
    heads += ["samples/s", "time per update", "samples per update", "busy", "waiting", "staleness, updates"]
    best = document.get("winner")
    out = [
        "<div class='wide'><table>",
        "<thead><tr>" + "".join(f"<th>{escape(h)}</th>" for h in heads) + "</tr></thead>",
        "<tbody>",
    ]
    for row in rows:
        mark = " class='best'" if learning and row["name"] == best else ""
        out.append(f"<tr{mark}>" + "".join(_cells(row, document, time)) + "</tr>")
    out.append("</tbody></table></div>")
    if any(row["name"] == LITERAL_READING for row in rows):
        note = f"{LITERAL_READING} is the literal reading of ABS-SGD's abstract; the other compute points are ours."
        out.append(f"<p class='note'>{escape(note)}</p>")
    return "\n".join(out)


def _cells(row: Mapping[str, Any], document: Mapping[str, Any], time: Callable[[Mapping[str, Any]], str]) -> list[str]:
    learning = "algorithms" in document
    tags = ["ours"] if row["role"] == "ours" else []
    if learning:
        tags += ["fastest"] if row["name"] == document.get("winner") else []
        tags += ["best baseline"] if row["name"] == document.get("best_baseline") else []
        tags += ["literal reading"] if row["name"] == LITERAL_READING else []
    name = escape(row["name"]).replace(":", ":<wbr>").replace("_point", "_<wbr>point") + "".join(
        f" <span class='tag'>{escape(tag)}</span>" for tag in tags
    )
    cells = [f"<th scope='row'>{name}</th>"]
    numbers = []
    if learning:
        numbers += [
            time(row),
            wording.speedup_cell(row),
            wording.count(row["samples_to_target"]),
            wording.rate_cell(row),
        ]
    numbers += [
        wording.rate(row["samples_per_s"]),
        wording.seconds(row["update_period_s"]),
        wording.count(row["mean_batch_samples"]),
        wording.percent(row["utilisation"]),
        wording.percent(row["waiting_share"]),
        wording.staleness(row["staleness_mean"], row["staleness_max"]),
    ]
    return [*cells, *(f"<td>{escape(text)}</td>" for text in numbers)]


def _limits(rows: Rows) -> str:
    """What limits each; those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(row["limited_by"], []).append(row["name"])
    lines = (
        f"<li><strong>{escape(', '.join(names))}</strong>: {escape(reason)}</li>" for reason, names in by_reason.items()
    )
    return "<h3>What limits them</h3>\n<ul>" + "\n".join(lines) + "</ul>"


def _loss(material: Material) -> str:
    from hetsim import plots

    target = material.document.get("target")
    if target is None or not material.curves:  # one run of a comparison has a curve, and its document no target
        return ""
    ours = [row["name"] for row in material.rows if row["role"] == "ours"]
    common: dict[str, Any] = {"target": target["value"], "ours": ours}
    end = f"The figures end at {plots.TIMES_FASTEST} times the fastest"
    note = f"Target: {target['metric']}. {end}; thick lines are ours, thin ones baselines."
    return page.section(
        "Loss",
        f"<p class='note'>{escape(note)}</p>",
        page.figure(
            plots.loss(material.curves, against="seconds", **common), "Against simulated time: what counts in the end"
        ),
        page.figure(
            plots.loss(material.curves, against="samples", **common), "Against samples: what delay and batch size cost"
        ),
    )


def _bars(material: Material) -> str:
    from hetsim import plots

    if "algorithms" not in material.document:
        return ""
    rows = material.rows
    return page.section(
        "Speed",
        page.figure(
            plots.time_to_target(rows),
            "Time to the target, with intervals over seeds; blue is ours, hatched grey the baselines",
        ),
        page.figure(
            plots.throughput(rows), "Throughput: samples per second are not progress, compare with the figure above"
        ),
    )


def _timelines(material: Material) -> str:
    from hetsim import plots

    parts = []
    chosen = _first(material)
    for place, label in enumerate(chosen[:MOST_TIMELINES]):
        schedule = material.schedules[label]
        both = [
            page.figure(plots.timeline(schedule, "start"), "At the start"),
            page.figure(plots.timeline(schedule, "steady"), "In the steady state, half way through"),
        ]
        state = " open" if place < OPEN_TIMELINES else ""
        parts.append(f"<details{state}>\n<summary>{escape(label)}</summary>\n" + "\n".join(both) + "\n</details>")
    note = "Bars are labelled with their samples. Workers compute (blue), communicate (orange, hatched) or wait (grey, dotted)."
    return page.section("Who does what, when", f"<p class='note'>{escape(note)}</p>" if parts else "", *parts)


def _first(material: Material) -> list[str]:
    """Labels with a schedule: the winner and the best baseline first."""
    document = material.document
    wanted = [document.get("winner"), document.get("best_baseline"), *(row["name"] for row in material.rows)]
    return [label for label in dict.fromkeys(wanted) if label in material.schedules]


def _trust(material: Material) -> str:
    """Warnings, assumptions, and where the speeds are from."""
    document = material.document
    warnings = [
        f"<li><strong>{escape(w['code'])}</strong>: {escape(w['text'])}</li>" for w in document.get("warnings") or []
    ]
    assumptions = [f"<li>{escape(text)}</li>" for text in document.get("assumptions") or []]
    speeds: dict[str, list[str]] = {}
    for worker, source in (document.get("speeds") or {}).items():
        speeds.setdefault(source, []).append(worker)
    provenance = [f"<li>{escape(source)}: {escape(_listed(workers))}</li>" for source, workers in speeds.items()]
    return page.section(
        "How far to trust this",
        "<h3>Warnings</h3>\n<ul>" + "".join(warnings) + "</ul>" if warnings else "",
        "<h3>Assumptions</h3>\n<ul>" + "".join(assumptions) + "</ul>" if assumptions else "",
        "<h3>Where the workers' speeds are from</h3>\n<ul>" + "".join(provenance) + "</ul>" if provenance else "",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:16]) + (f" and {len(names) - 16:,} more" if len(names) > 16 else "")
