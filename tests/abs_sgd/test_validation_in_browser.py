"""The page as a browser shows it: nothing wider than the screen, no errors, timelines above each other on one axis, legible in the dark."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from made_validations import made

from hetsim import validation_folder
from hetsim.validation_page import validation_html

pytestmark = [pytest.mark.torch, pytest.mark.browser]
LONG = "abs-sgd:compute_point=current,trigger=min_samples,min_samples=64"
DARK, LIGHT = 0, 1  # Chromium's own numbers

# A page of its own measures the report in a frame: a headless window cannot be as narrow as a phone.
MEASURE = """
<!DOCTYPE html><meta charset="utf-8"><iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>
<pre id="found"></pre><script>
onload = () => setTimeout(() => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document;
  const box = e => {{ const r = e.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; }};
  const figure = page.querySelector(".plotly-graph-div");
  const tick = figure.querySelector(".ytick text, .y2tick text");
  document.getElementById("found").textContent = JSON.stringify({{
    errors: view.errors, width: page.documentElement.scrollWidth, screen: page.documentElement.clientWidth,
    figures: [...page.querySelectorAll(".plotly-graph-div")].map(f => f.querySelectorAll(".main-svg").length),
    sides: [...figure.querySelectorAll(".nsewdrag")].map(box),
    ink: [...figure.querySelectorAll(".ytick text, .y2tick text, .xtick text, .x2tick text, .legendtext, .annotation-text")]
      .map(e => view.getComputedStyle(e).fill),
    paper: view.getComputedStyle(page.body).backgroundColor,
    ground: view.getComputedStyle(figure.querySelector(".main-svg")).backgroundColor,
  }});
}}, 300);
</script>
"""


@pytest.fixture(scope="module")
def page() -> str:
    validation = made(1.2, seeds=(0, 1))
    document: dict[str, Any] = json.loads(json.dumps(validation.document).replace('"s-sgd"', json.dumps(LONG)))
    material = validation_folder.material_of(validation)
    schedules, curves = ({LONG: of["s-sgd"]} for of in (material.schedules, material.curves))
    made_of = validation_folder.ValidationMaterial(document=document, schedules=schedules, curves=curves)  # type: ignore[arg-type]
    html = validation_html(made_of)
    return html.replace("<head>", "<head><script>errors = []; onerror = text => errors.push(text)</script>", 1)


def shown(page: str, width: int, scheme: int, folder: Path) -> dict[str, Any]:
    place = folder / "measure.html"
    place.write_text(MEASURE.format(width=width, page=escape(page)), encoding="utf-8")
    command = [str(shutil.which("chromium")), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", place.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    _, _, rest = done.stdout.rpartition('<pre id="found">')
    found: dict[str, Any] = json.loads(unescape(rest.partition("</pre>")[0]))
    return found


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.2."""

    def light(color: str) -> float:
        parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("width", "scheme"), [(390, DARK), (1280, LIGHT)])
def test_the_page_on_a_screen(page: str, width: int, scheme: int, tmp_path: Path) -> None:
    found = shown(page, width, scheme, tmp_path)
    assert found["errors"] == []
    assert width - 20 <= found["screen"] <= width  # less a scrollbar
    assert found["width"] == found["screen"]  # nothing sticks out
    assert found["figures"] and all(found["figures"])  # each is drawn
    above, below = found["sides"]
    assert above[:2] == below[:2] and above[3] <= below[2]
    assert above[0] >= 0 and above[1] <= width and above[1] - above[0] > 0.6 * width
    assert found["ground"] == "rgba(0, 0, 0, 0)"
    dark = contrast(found["paper"], "rgb(0,0,0)") < contrast(found["paper"], "rgb(255,255,255)")
    assert dark == (scheme == DARK)
    assert len(found["ink"]) >= 10
    assert min(contrast(ink, found["paper"]) for ink in found["ink"]) >= 4.5  # WCAG's AA
