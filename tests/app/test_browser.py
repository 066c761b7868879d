"""The explorer as a person meets it, in a real browser: it is used, and it is looked at, in light and dark, wide and narrow."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from explorer_in_browser import ROOT, Visit, chromium, served, why_not

from hetsim import archives, export
from hetsim.webapp import HERE, PAGES

pytestmark = [pytest.mark.browser, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]
SMALL = {
    "profile": "homogeneous-4",
    "set": "training.max_samples=50000",
    "algorithms": "s-sgd;abs-sgd",
    "tuned": "no",
}
LINK = "/?" + urlencode(SMALL)
MINE = """
schema_version: 1
name: my-two-cards
workload: resnet18-cifar10
workers: [{name: quick, gpu: A100}, {name: slow, gpu: T4}]
network: {bandwidth_gbit_per_s: 10.0}
training: {global_batch_samples: 256, micro_batch_samples: 16, max_samples: 50000}
"""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with served() as address:
        yield address.rstrip("/")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def visit(browser: Any, base: str, width: int = 1440, scheme: str = "light") -> Visit:
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=scheme, accept_downloads=True, reduced_motion="reduce"
    )
    return Visit(context.new_page(), base)


def figure(tab: Visit, label: str) -> str:
    """The value of one of the large figures."""
    metric = tab.page.get_by_test_id("stMetric").filter(has_text=label)
    return str(metric.get_by_test_id("stMetricValue").inner_text())


def there() -> list[str]:
    """The pages by name, the first one first."""
    return [name for name, *_ in PAGES if (HERE / f"{name}.py").is_file()]


def turn_to(tab: Visit, name: str) -> None:
    tab.page.get_by_test_id("stSidebarNav").get_by_text(name, exact=True).click()
    tab.page.wait_for_url(f"**/{name.lower()}*")
    tab.settle()


def test_it_is_used(browser: Any, base: str, tmp_path: Path) -> None:
    tab = visit(browser, base)
    tab.go(LINK)
    page = tab.page
    assert "homogeneous-4" in page.locator("h1").first.inner_text()
    before = figure(tab, "Samples/s")

    # a slider, by the keyboard
    page.get_by_role("slider", name="Bandwidth, Gbit/s").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("text => !document.body.innerText.includes(text)", arg=before)
    tab.settle()
    after = figure(tab, "Samples/s")
    assert after != before

    # the link to what is shown now, in another session
    link = next(text for text in page.get_by_test_id("stCode").all_inner_texts() if text.strip().startswith("http"))
    other = visit(browser, base)
    other.go(link.strip().removeprefix(base))
    assert figure(other, "Samples/s") == after
    assert other.wrong == []

    # the result, and that it is one
    with page.expect_download() as coming:
        page.get_by_role("button", name="Result folder (ZIP)").click()
    coming.value.save_as(tmp_path / "result.zip")
    with archives.unpacked((tmp_path / "result.zip").read_bytes()) as folder:
        names = [row["name"] for row in export.read_material(folder).document["algorithms"]]
    assert names == ["s-sgd", "abs-sgd"]

    # pages
    turn_to(tab, "Timeline")
    with page.expect_download() as coming:
        page.get_by_role("button", name="Download the trace for Perfetto").click()
    assert coming.value.suggested_filename.endswith(".trace.json.gz")
    turn_to(tab, "Validate")
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(str(tmp_path / "result.zip"))
    page.get_by_text("nothing was measured").wait_for()
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../validation.json", "{}")
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(str(tmp_path / "evil.zip"))
    page.get_by_text("leads out of the folder").wait_for()
    tab.settle()
    assert tab.wrong == []


def test_a_profile_is_uploaded(browser: Any, base: str, tmp_path: Path) -> None:
    tab = visit(browser, base)
    tab.go(LINK)
    page = tab.page
    (tmp_path / "mine.yaml").write_text(MINE, encoding="utf-8")
    page.get_by_test_id("stSidebar").get_by_test_id("stFileUploaderDropzoneInput").set_input_files(
        str(tmp_path / "mine.yaml")
    )
    page.locator("h1", has_text="my-two-cards").wait_for()
    tab.settle()
    (tmp_path / "wrong.yaml").write_text(MINE.replace("gpu: T4", "gpu: T44"), encoding="utf-8")
    page.get_by_test_id("stSidebar").get_by_test_id("stFileUploaderDropzoneInput").set_input_files(
        str(tmp_path / "wrong.yaml")
    )
    page.get_by_text("T44").first.wait_for()
    tab.settle()
    assert ":5:" in page.get_by_test_id("stMain").inner_text()  # the line it is in
    assert tab.wrong == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1440, "light"),
        (390, "dark"),
        pytest.param(1440, "dark", marks=pytest.mark.slow),
        pytest.param(390, "light", marks=pytest.mark.slow),
    ],
)
def test_it_is_looked_at(browser: Any, base: str, width: int, scheme: str) -> None:
    tab = visit(browser, base, width, scheme)
    faults: dict[str, list[str]] = {}
    for name in ("", *there()[1:]):
        tab.go(f"/{name}?tuned=no")
        tab.whole(width)
        tab.keep(f"{name or 'explore'}-{width}-{scheme}")
        if found := tab.faults():
            faults[name or "explore"] = found
        tab.size(width, 1000)
    paper = tab.page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert (sum(json.loads(f"[{paper[paper.index('(') + 1 : -1]}]")[:3]) < 384) == (scheme == "dark")
    assert faults == {} and tab.wrong == []


# What can be operated and is seen, numbered from top to bottom; what of it has the focus. Left out is what repeats the control that it is
# part of, whose keys do the same (arrows open a list and step a number, backspace removes a tag), and of
# several choices all but the chosen.
OPERATED = """() => {
  const PARTS = '.react-aria-ComboBox, [data-testid=stNumberInput], [data-testid=stMultiSelect]';
  const kinds = 'a[href], button, input, textarea, summary, [role=slider], [role=combobox], [role=radio], [role=tab]';
  const all = [...document.querySelectorAll(kinds)].filter(e => !e.disabled && e.getAttribute('aria-disabled') !== 'true'
    && !(e.tabIndex < 0 && e.closest(PARTS)) && !(e.role === 'radio' && e.ariaChecked !== 'true')
    && !e.closest('[data-testid=stHeader]') && e.checkVisibility({checkVisibilityCSS: true, checkOpacity: true})
    && e.getBoundingClientRect().width > 1 && !e.closest('[aria-hidden=true]'));
  all.forEach((e, i) => e.dataset.operated = i);
  return all.map(e => e.getAttribute('aria-label') || e.innerText?.trim() || e.type || e.tagName);
}"""
FOCUSED = """() => {
  const e = document.activeElement.closest('[data-operated]');
  return e ? Number(e.dataset.operated) : null;
}"""


@pytest.mark.parametrize("name", [name for name, *_ in PAGES])
def test_everything_is_reached_by_the_keyboard(browser: Any, base: str, name: str) -> None:
    tab = visit(browser, base)
    tab.go(f"/{name}?" + urlencode(SMALL))
    tab.page.wait_for_function(f"({OPERATED})().length > 8")
    there = tab.page.evaluate(OPERATED)
    order: list[int] = []
    for _ in range(2 * len(there) + 60):
        tab.page.keyboard.press("Tab")
        found = tab.page.evaluate(FOCUSED)
        if found is not None:
            order.append(found)
    missed = [text for number, text in enumerate(there) if number not in order]
    assert missed == []


def press(tab: Visit, name: str) -> None:
    """A click as slow as a person's: what was typed before is taken in while the button is down."""
    tab.page.get_by_role("button", name=name, exact=True).click(delay=600)


def test_the_first_click_after_typing_counts(browser: Any, base: str) -> None:
    tab = visit(browser, base, 390)
    tab.go(LINK)
    page = tab.page
    page.get_by_text("Edit the profile (YAML)").click()
    page.get_by_role("textbox", name="Profile").fill(MINE)
    press(tab, "Apply")
    page.locator("h1", has_text="my-two-cards").wait_for()
    tab.settle()
    tab.go("/map?" + urlencode(SMALL))
    page.get_by_role("spinbutton", name="Values").last.fill("2")
    press(tab, "Compute the map")
    page.get_by_role("button", name="Cancel").or_(page.get_by_text("One cell", exact=True)).first.wait_for()
    assert tab.wrong == []


def test_a_cell_of_the_map_opens_in_explore(browser: Any, base: str) -> None:
    tab = visit(browser, base)
    tab.go("/map?" + urlencode(SMALL))
    page = tab.page
    for values in page.get_by_role("spinbutton", name="Values").all():
        values.fill("2")
        values.press("Enter")
        tab.settle()
    page.get_by_role("button", name="Compute the map").click()
    page.get_by_text("One cell", exact=True).wait_for()
    tab.settle()
    chosen = page.get_by_role("combobox", name="bandwidth, Gbit/s")
    plot = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    for share, value in ((0.25, "1"), (0.75, "100")):
        page.mouse.click(plot["x"] + share * plot["width"], plot["y"] + 0.25 * plot["height"])
        page.wait_for_function(
            "([e, wanted]) => (e.value || e.innerText).trim() === wanted", arg=[chosen.element_handle(), value]
        )
        tab.settle()
    page.get_by_role("button", name="Open in Explore").click()
    page.locator("h1", has_text="homogeneous-4").wait_for()
    tab.settle()
    shown = "\n".join(page.get_by_test_id("stCode").all_inner_texts())
    assert "network.latency_us=10000" in shown and "network.bandwidth_gbit_per_s=100.0" in shown
    assert tab.wrong == []


def test_every_page_has_an_address_and_the_first_one_two(browser: Any, base: str) -> None:
    titles = {"explore": "Which algorithm trains fastest on homogeneous-4?"}
    for name, title, _ in PAGES:
        tab = visit(browser, base)
        tab.go(f"/{name}?" + urlencode(SMALL))
        tab.page.locator("h1", has_text=titles.get(name, title)).wait_for()
        assert tab.wrong == []
        assert set(tab.probes) <= {f"/{name}/_stcore/health", f"/{name}/_stcore/host-config"}
        path = urlsplit(tab.page.url).path
        assert path == ("/" if name == "explore" else f"/{name}")
        current = tab.page.get_by_test_id("stSidebarNav").locator("[aria-current=page]")
        assert current.inner_text().strip().endswith(title)
        tab.page.context.close()
    tab = visit(browser, base)
    tab.go(LINK)
    assert tab.wrong == [] and tab.probes == [], "the app's own address asks for nothing that is not there"


BAD = """
<div data-testid="stMain" style="width: 300px">
  <p style="width: 2000px">sticks out of the page</p>
  <p style="overflow: hidden; width: 40px; white-space: nowrap">is cut off in its box</p>
  <div style="overflow-x: auto"><p style="width: 2000px">can be scrolled to</p></div>
  <p style="visibility: hidden; width: 2000px">is not seen</p>
  <p style="color: #999">is pale</p><p style="color: #999; font-size: 30px">is pale and large: 2.8</p>
  <p style="color: #888; font-size: 30px">is large enough</p>
  <div class="js-plotly-plot" style="width: 200px"><svg width="200" height="60">
    <text class="legendtext" x="10" y="20">one label</text><text class="legendtext" x="20" y="22">another label</text>
    <text class="xtitle" x="150" y="50">leaves the figure</text>
  </svg></div>
</div>
"""


def test_what_is_looked_for_is_found(browser: Any) -> None:
    tab = visit(browser, "about:", 390)
    tab.page.set_content(BAD)
    found = "\n".join(tab.faults())
    assert "wide on a screen of 390" in found and "off the screen: sticks out of the page" in found
    assert "cut off: is cut off in its box" in found and "cut off in a figure: leaves the figure" in found
    assert "on top of each other in a figure: one label and another label" in found
    assert "hard to read (2.8 : 1): is pale\n" in found + "\n" and "is pale and large" in found
    assert "is large enough" not in found
    assert "can be scrolled to" not in found and "is not seen" not in found


@pytest.mark.slow
def test_the_readmes_pictures_are_made_by_their_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "docs" / "pictures.py"), "--quick", "-o", str(tmp_path)], check=True)
    for name in ("explorer.png", "timeline.png"):
        for place in (tmp_path, ROOT / "docs" / "images"):
            data = (place / name).read_bytes()
            assert data.startswith(b"\x89PNG") and 10_000 < len(data) < 300_000
        assert f"(docs/images/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")


def validating() -> list[str]:
    """Processes of validations that an explorer has started, by their command."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "hetsim.cli.leashed validate" in command:
                found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(900)
def test_a_validation_is_run_here_cancelled_and_left(browser: Any, base: str) -> None:
    """Mechanics, not figures: passes may be as late as the page allows."""
    tab = visit(browser, base)
    tab.page.set_default_timeout(240_000)
    tab.go("/validate?" + urlencode(SMALL))
    page = tab.page
    run = page.get_by_role("button", name="Run", exact=True)
    page.get_by_role("spinbutton", name="Passes late by, %").fill("1000")
    run.click()
    page.get_by_text("of 30 updates").wait_for()
    page.get_by_text("Done; what came of it is below.").wait_for()
    assert page.get_by_text("The prediction for abs-sgd").count() == 1
    page.get_by_text("Predicted and measured, worker by worker").click()
    page.get_by_text("Opened: emulated-4-validation").click()
    page.get_by_text("Measured:").wait_for()
    turn_to(tab, "Validate")

    page.get_by_role("spinbutton", name="Updates").fill("200")
    run.click()
    page.get_by_text("of 200 updates").wait_for()
    assert validating()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled; nothing is left of it.").wait_for()
    assert not validating()

    run.click()
    page.get_by_text("of 200 updates").wait_for()
    assert validating()
    assert tab.wrong == []
    page.context.close()  # as if the window were closed
    end = time.monotonic() + 60
    while validating() and time.monotonic() < end:
        time.sleep(0.5)
    assert not validating()
