"""The explorer served and looked at in a headless Chromium: what went wrong, what is cut off, what lies on top of what."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

from hetsim.webapp import PAGES

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 60_000
ARGUMENTS = ["--no-sandbox", "--disable-background-networking"]
# Opened by the address of a page, streamlit's browser side asks where its server is: at that address first, at the app's when there is
# nothing. No option changes that (a base path would only be tried before), so that exactly these are no fault.
PROBES = ("_stcore/health", "_stcore/host-config")


def why_not() -> str | None:
    """Why no browser can be used; None where one can."""
    if shutil.which("chromium") is None:
        return "no chromium on this machine"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of `hetsim app`, which has said it; at the end it is interrupted, and gone."""
    command = [sys.executable, "-m", "hetsim", "app", "--port", str(free_port())]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as words:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield address_of(process, words)
            process.send_signal(signal.SIGINT)
            process.wait(15)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def address_of(process: subprocess.Popen[bytes], words: TextIO) -> str:
    """What it says once it answers."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < end:
        words.seek(0)
        said = words.read()
        if found := re.search(r"The explorer is at (http://127\.0\.0\.1:\d+)", said):
            return found[1]
        assert process.poll() is None, said
        time.sleep(0.1)
    raise AssertionError("it does not answer")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    why = why_not()
    if why is not None:
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """One tab, and what went wrong in it."""

    page: Any
    base: str
    wrong: list[str] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        at = message.location.get("url", "")
        if message.type == "error" and not self._is_probe(at):
            self.wrong.append(f"console: {message.text} ({at})")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, self.base.replace("http", "ws"), "data:", "blob:")):
            self.wrong.append(f"asked for something elsewhere: {request.url}")

    def _response(self, response: Any) -> None:
        if response.status == 404 and self._is_probe(response.url):
            self.probes.append(response.url.removeprefix(self.base))
        elif response.status >= 400:
            self.wrong.append(f"{response.status} for {response.url}")

    def _is_probe(self, address: str) -> bool:
        """Whether it is one of streamlit's questions below the address of a page that was opened by it."""
        return address in [f"{self.base}/{name}/{probe}" for name, *_ in PAGES for probe in PROBES]

    def go(self, address: str) -> None:
        """To an address of the explorer, until it is complete."""
        self.page.goto(self.base + address)
        self.settle()

    def settle(self) -> None:
        """Until nothing is computed any more, and figures are drawn."""
        self.page.get_by_test_id("stMain").locator("h1").first.wait_for()
        self.page.wait_for_function(SETTLED)
        self.page.wait_for_timeout(250)
        self.page.wait_for_function(SETTLED)

    def size(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_timeout(300)  # figures follow

    def whole(self, width: int) -> None:
        """As high as the page is, so that all of it is laid out and on one picture."""
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.size(width, min(max(height, 800), 6000))

    def faults(self) -> list[str]:
        """What is wider than the screen, cut off, on top of something else, or hard to read."""
        found: list[str] = self.page.evaluate(FAULTS)
        pale: list[str] = self.page.evaluate(PALE)
        return found + pale

    def keep(self, name: str) -> None:
        """A picture to look at, where HETSIM_TEST_PICTURES names a folder."""
        folder = os.environ.get("HETSIM_TEST_PICTURES")
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))


SETTLED = """() => !document.querySelector(
  '[data-testid=stStatusWidget], [data-testid=stSpinner], [data-testid=stSkeleton], [data-stale=true]')
  && [...document.querySelectorAll('.stPlotlyChart')].every(chart => chart.querySelector('.main-svg'))"""

FAULTS = """() => {
  const out = [], wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) out.push(`the page is ${wide} wide on a screen of ${innerWidth}`);
  const shown = e => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) && e.getClientRects().length;
  const text = e => [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent.trim()).join(' ').trim();
  const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const PARTS = '[data-testid=stDataFrame], [data-testid=stIconMaterial], pre';  // scroll, or are no words
  const WORDS = '.xtick text, .ytick text, .x2tick text, .y2tick text, .legendtext, .xtitle, .ytitle, .annotation-text';
  for (const e of document.querySelectorAll('[data-testid=stMain] *, [data-testid=stSidebar] *')) {
    const said = text(e);
    if (!said || !shown(e) || e instanceof SVGElement || e.closest(PARTS)) continue;
    const style = getComputedStyle(e), box = e.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;  // for screen readers
    if (box.right > innerWidth + 1 && box.left < innerWidth && !scrolls(e.parentElement)) out.push(`off the screen: ${said}`);
    if (style.overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1) out.push(`cut off: ${said}`);
  }
  for (const plot of document.querySelectorAll('.js-plotly-plot')) {
    const frame = plot.getBoundingClientRect();
    const words = [...plot.querySelectorAll(WORDS)]
      .filter(e => shown(e) && e.textContent.trim()).map(e => [e.textContent.trim(), e.getBoundingClientRect()]);
    for (const [said, box] of words)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        out.push(`cut off in a figure: ${said}`);
    words.forEach(([one, a], i) => words.slice(i + 1).forEach(([other, b]) => {
      const over = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      if (Math.min(...over) > 2) out.push(`on top of each other in a figure: ${one} and ${other}`);
    }));
  }
  return out;
}"""

# Contrast of text by WCAG 2.2: 4.5 : 1, of large text 3 : 1. Left out: what is disabled, colours of program text, and the numbers above
# sliders, which are not on what they are inside of.
PALE = """() => {
  const out = [], LEFT_OUT = '[data-testid=stIconMaterial], [disabled], [aria-disabled=true], pre, [data-testid=stSliderThumbValue], svg';
  const parts = text => { const n = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith('color(') ? [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const chain = e => e ? [e, ...chain(e.parentElement)] : [];
  for (const e of document.querySelectorAll('[data-testid=stMain] *, [data-testid=stSidebar] *')) {
    const said = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent.trim()).join(' ').trim();
    if (!said || e.closest(LEFT_OUT) || !e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    const style = getComputedStyle(e), around = chain(e).map(x => getComputedStyle(x));
    const paper = around.map(s => parts(s.backgroundColor)).reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    const ink = parts(style.color);
    ink[3] *= around.reduce((product, s) => product * s.opacity, 1);
    const [low, high] = [light(over(ink, paper)), light(paper)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) out.push(`hard to read (${ratio.toFixed(1)} : 1): ${said.slice(0, 60)}`);
  }
  return out;
}"""
