"""The frame of a report: one HTML file that loads nothing; plotly.js is inside once. All text that comes in is escaped.

whole       the page from its parts
section     a heading and what is under it
figure      a plotly figure with its caption
table       headers and rows of plain text
reproduce   the command, the profile, the versions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

# A figure in a folded section has no width until it is shown.
UNFOLD = (
    'document.querySelectorAll("details").forEach(d => d.addEventListener("toggle", () => '
    'd.querySelectorAll(".plotly-graph-div").forEach(p => Plotly.Plots.resize(p))));'
)


def whole(title: str, parts: Iterable[str]) -> str:
    """The page."""
    from plotly.offline import get_plotlyjs

    style = (files("hetsim") / "report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n<script>{UNFOLD}</script>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what is under it; nothing where nothing is."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


def figure(made: Any, caption: str) -> str:
    """One figure; plotly.js is in the page already."""
    import plotly.io as pio

    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    html = pio.to_html(made, include_plotlyjs=False, full_html=False, config=config, div_id=None)
    return f"<figure>\n<figcaption>{escape(caption)}</figcaption>\n{html}\n</figure>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Headers above rows, whose first cell names the row; what is wider than the screen scrolls by itself."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "\n".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table>\n<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody>\n</table></div>"


def reproduce(document: Mapping[str, Any], profile_yaml: str) -> str:
    """The command that gives it again, the profile, the versions."""
    parts = []
    if document.get("command"):
        parts.append(f"<p>In the folder of this report:</p>\n<pre>{escape(str(document['command']))}</pre>")
    if profile_yaml:
        parts.append(
            f"<details>\n<summary>The profile, with its sources</summary>\n<pre>{escape(profile_yaml)}</pre>\n</details>"
        )
    versions = ", ".join(f"{name} {version}" for name, version in (document.get("versions") or {}).items())
    parts.append(f"<p class='note'>{escape(versions)}</p>" if versions else "")
    return section("Reproduce it", *parts)
