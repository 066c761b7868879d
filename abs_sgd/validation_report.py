"""A validation as a folder and as one page: predicted and measured timelines one above the other, a table, losses, provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim import export, report, wording, writing

if TYPE_CHECKING:
    from abs_sgd.validate import Pair, Validation
    from hetsim.convergence.predictor import Curve

SIDES = ("predicted", "measured")


def write(validation: Validation, folder: str | Path, *, command: str | None = None) -> Path:
    """validation.json, report.html, predicted/ (of the first seed) and measured-1/ ...; these below LABEL/ where there are several
    algorithms. Whole or not at all. Raises UsageError."""
    document = {**validation.document, "command": command}
    labels = export.safe_labels(list(validation.pairs))
    with writing.new_folder(folder) as temporary:
        writing.write_json(temporary / "validation.json", document)
        writing.write_text(temporary / "profile.yaml", validation.profile_yaml)
        writing.write_text(temporary / "report.html", html(validation, command=command))
        for label, name in labels.items():
            place = temporary if len(labels) == 1 else temporary / name
            place.mkdir(exist_ok=True)
            pairs = validation.pairs[label]
            export.write_simulation(pairs[0].predicted, place / "predicted", label=label)
            for number, pair in enumerate(pairs, 1):
                export.write_simulation(pair.measured, place / f"measured-{number}", label=label)
    return Path(folder)


def html(validation: Validation, *, command: str | None = None) -> str:
    """The page; nothing in it is loaded from anywhere."""
    from plotly.offline import get_plotlyjs

    document = validation.document
    title = f"Did the prediction for {document['profile']} hold?"
    facts = _facts(document)
    body = [
        f"<header>\n<h1>{escape(title)}</h1>\n<p class='verdict'>{escape(document['verdict'])}</p>\n"
        f"<p class='facts'>{escape(facts)}</p>\n</header>",
        *(_algorithm(row, validation.pairs[row["name"]], document) for row in document["algorithms"]),
        report._section(
            "How this was run", "<ul>" + "".join(f"<li>{escape(s)}</li>" for s in document["said"]) + "</ul>"
        ),
        report._reproduce(
            report.Material(document={**document, "command": command}, profile_yaml=validation.profile_yaml)
        ),
    ]
    style = (files("hetsim") / "report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{report.UNFOLD}</script>\n</body>\n</html>\n"
    )


def _facts(document: Mapping[str, Any]) -> str:
    """What was run, in a line."""
    updates, seeds = document["updates"], document["seeds"]
    links = {True: "links shaped", False: "links not shaped", None: "run elsewhere"}[document["shaped"]]
    length = "runs of different lengths" if updates is None else f"{updates} updates"
    return f"{document['workload']} · {length} · seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} · {links}"


def _algorithm(row: dict[str, Any], pairs: Any, document: dict[str, Any]) -> str:
    pair: Pair = pairs[0]
    return report._section(
        row["name"],
        f"<p>{escape(row['verdict'])}</p>",
        _table(row),
        *_timelines(pair, called(row["runs"][0])),
        _loss(pairs, document),
    )


def called(run: Mapping[str, Any]) -> str:
    """What a run is called (documents of before runs had names: by its seed)."""
    return str(run.get("name") or f"seed {run['seed']}")


def _timelines(pair: Pair, name: str) -> list[str]:
    from hetsim import plots

    sides = ((side, getattr(pair, side).schedule) for side in SIDES)
    return [report._figure(plots.timeline(s), f"{side}, {name}, half way through") for side, s in sides]


def _loss(pairs: Sequence[Pair], document: dict[str, Any]) -> str:
    """Against seconds and samples: of several seeds the median, in a band from the lowest to the highest."""
    from hetsim import plots

    out: list[str] = []
    if not all(pair.curves for pair in pairs):
        return ""
    for axis in ("seconds", "samples"):
        curves = {side: [pair.curves[side] for pair in pairs] for side in SIDES}
        bands = {side: band(each, axis) for side, each in curves.items()}
        middle = {side: made[1] for side, made in bands.items()}
        figure = plots.loss(middle, target=document["target_loss"], against=axis, ours=["measured"])
        text = f"Loss against {axis}: both Schedules, executed in process on the same task"
        figure.update_xaxes(title_text=figure.layout.xaxis.title.text.replace("simulated time", "time"))
        if len(pairs) > 1:
            _add_bands(figure, bands, axis, "measured")
            text += f"; medians of {len(pairs)} seeds, bands from the lowest to the highest"
        out.append(report._figure(figure, text))
    return "\n".join(out)


def band(curves: Sequence[Curve], axis: str) -> tuple[Curve, Curve, Curve]:
    """(lowest, median, highest) loss at as many points of the axis as the first curve has, as far as the shortest goes."""
    import numpy as np

    if len(curves) == 1:
        return (curves[0],) * 3
    columns = [curve.time_s if axis == "seconds" else curve.samples.astype(float) for curve in curves]
    at = np.linspace(0.0, min(float(column[-1]) for column in columns), len(columns[0]))
    losses = np.array([np.interp(at, x, curve.loss) for x, curve in zip(columns, curves, strict=True)])
    updates, samples, time_s = (
        np.interp(at, columns[0], getattr(curves[0], name)) for name in ("updates", "samples", "time_s")
    )
    diverged = any(curve.diverged for curve in curves)
    low, middle, high = (
        dataclasses.replace(
            curves[0],
            updates=updates.astype(np.int64),
            samples=samples.astype(np.int64),
            time_s=time_s,
            loss=loss,
            diverged=diverged,
        )
        for loss in (losses.min(axis=0), np.median(losses, axis=0), losses.max(axis=0))
    )
    return low, middle, high


def _add_bands(figure: Any, bands: Mapping[str, tuple[Curve, Curve, Curve]], axis: str, ours: str) -> None:
    import numpy as np

    from hetsim import plots

    ends_s = [float(made[1].time_s[-1]) for made in bands.values()]
    divisor = plots._time_unit(ends_s)[1] if axis == "seconds" else 1.0
    look = plots.styles(list(bands), [ours])
    for side, (low, _, high) in bands.items():
        x = (low.time_s if axis == "seconds" else low.samples.astype(float)) / divisor
        figure.add_scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([low.loss, high.loss[::-1]]),
            fill="toself",
            fillcolor=look[side]["color"],
            opacity=0.25,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )


def lines(row: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """One algorithm side by side: (figure, predicted, measured, off), per seed."""
    out = []
    for run in row["runs"]:
        p, m = run["predicted"], run["measured"]
        seed = f", {called(run)}" if len(row["runs"]) > 1 else ""
        for name, key, show in (
            ("time per update", "update_period_s", wording.seconds),
            ("samples/s", "samples_per_s", wording.rate),
            ("samples per update", "mean_batch_samples", wording.count),
            ("time to target", "time_to_target_s", wording.seconds),
        ):
            out.append((name + seed, show(p[key]), show(m[key]), off(p[key], m[key])))
        for name, key in (("busy", "utilisation"), ("waiting", "waiting_share")):
            out.append((name + seed, wording.percent(p[key], 1), wording.percent(m[key], 1), ""))
        for cause in p["waiting"]:
            if max(p["waiting"][cause], m["waiting"][cause]) > 0.0005:
                sides = (wording.percent(side["waiting"][cause], 1) for side in (p, m))
                out.append((f"waiting for {cause}{seed}", *sides, ""))  # type: ignore[arg-type]
        for worker, share in p["sample_share"].items():
            seen = m["sample_share"][worker]
            out.append(
                (f"share of {worker}{seed}", wording.percent(share, 1), wording.percent(seen, 1), off(share, seen))
            )
        deviation = run["replay_deviation"]
        if late := sum(run.get("late_passes", {}).values()):
            out.append((f"passes too late{seed}", "", wording.count(late), ""))
        out.append((f"replayed parameters{seed}", "", "" if deviation is None else f"{deviation:.1e} off", ""))
    return out


def off(predicted: float | None, measured: float | None) -> str:
    """Measured over predicted, as a signed percentage."""
    if not predicted or measured is None:
        return ""
    return f"{100 * (measured / predicted - 1):+.1f} %"


def _table(row: dict[str, Any]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("", "predicted", "measured", "off"))
    body = "\n".join(
        f"<tr><th scope='row'>{escape(line[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in line[1:])
        + "</tr>"
        for line in lines(row)
    )
    return f"<div class='wide'><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody>\n</table></div>"
