"""Reports are one file that loads nothing, with every text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from hetsim.cluster import load_profile
from hetsim.compare import compare
from hetsim.comparison import Comparison
from hetsim.export import simulation_document
from hetsim.report import Material, report_html
from hetsim.simulate import simulate


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    profile = load_profile("homogeneous-4", overrides=["training.target_loss=1.2", "training.seeds=2"])
    return compare(profile, ["s-sgd", "abs-sgd", "abs-sgd:compute_point=current"], jobs=1)


def material(c: Comparison, **document: Any) -> Material:
    return Material(
        document={**c.to_json(), "command": "hetsim compare profile.yaml", **document},
        curves=dict(c.curves),
        schedules={label: run.schedule for label, run in c.runs.items()},
        profile_yaml="name: x\n",
    )


def test_the_page_is_self_contained(comparison: Comparison) -> None:
    html = report_html(material(comparison))
    assert len(re.findall(r"plotly\.js v\d", html)) == 1
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "base", "object", "embed"), tag
        assert not {"src", "href", "srcset", "action"} & set(attributes), (tag, attributes)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_it_says_who_wins_how_sure_that_is_and_how_to_get_it_again(comparison: Comparison) -> None:
    page = Page(report_html(material(comparison)))
    for text in (
        comparison.sentence(),
        "Predictor nqm",
        "2 seeds",
        comparison.target.metric,
        "hetsim compare profile.yaml",
        "Assumptions",
        "Warnings",
        "catalogue",
        "literal reading",
        "name: x",
    ):
        assert " ".join(text.split()) in page.text, text
    for caution in comparison.warnings:
        assert caution.text in page.text
    for sentence in comparison.assumptions:
        assert sentence in page.text
    figures = [a for t, a in page.tags if t == "div" and "plotly-graph-div" in (a.get("class") or "")]
    assert len(figures) == 4 + 2 * 3  # two of loss, two of speed, two timelines per algorithm


def test_hostile_text_is_escaped_everywhere(comparison: Comparison) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    rows = [{**row, "name": row["name"] + evil, "limited_by": evil} for row in comparison.to_json()["algorithms"]]
    hostile = Material(
        document={
            **comparison.to_json(),
            "algorithms": rows,
            "profile": evil,
            "verdict": evil,
            "command": evil,
            "target": {"metric": evil, "value": 1.2},
            "warnings": [{"code": evil, "text": evil}],
            "assumptions": [evil],
            "speeds": {evil: evil},
            "versions": {evil: evil},
        },
        curves={label + evil: curve for label, curve in comparison.curves.items()},
        schedules={label + evil: run.schedule for label, run in comparison.runs.items()},
        profile_yaml=evil,
    )
    html = report_html(hostile)
    page = Page(html)
    assert "alert(1)</script>" not in html
    assert not [t for t, _ in page.tags if t == "img"]
    plain = Page(report_html(material(comparison)))
    assert sum(t == "script" for t, _ in page.tags) == sum(t == "script" for t, _ in plain.tags)


def test_a_single_run_has_a_report_without_learning() -> None:
    result = simulate(load_profile("mixed-gpu-4"), "asgd", updates=30)
    document = simulation_document(result)
    page = Page(report_html(Material(document=document, schedules={"asgd": result.schedule})))
    assert "asgd on mixed-gpu-4" in page.text and "Timing only" in page.text
    assert "time to target" not in page.text


def test_what_was_not_reached_is_said() -> None:
    profile = load_profile("homogeneous-4", overrides=["training.max_samples=20000", "training.seeds=1"])
    found = compare(profile, ["s-sgd"], jobs=1)
    page = Page(report_html(material(found)))
    assert "not reached" in page.text
