"""Take the README's pictures of the explorer, with a headless Chromium.

    python docs/pictures.py                 explorer.png and timeline.png below docs/images
    python docs/pictures.py --quick         without waiting until every algorithm is tuned
    python docs/pictures.py -o FOLDER

Needs `pip install 'hetsim[app]' playwright` and a Chromium on the path. Waits until the picture is the one that `hetsim compare` prints,
a minute or two on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, EXPLORER_HIGH, TIMELINE_HIGH = 1440, 1250, 1020  # the answer and the losses; the bars and their table
COLORS = 128  # of a picture: text and figures look the same, at a third of the size [our choice]
MOST_BYTES = 300_000
PATIENCE_S = 900
TUNED = "Tuned and compared over all seeds"
SETTLED = """() => !document.querySelector('[data-testid=stStatusWidget], [data-testid=stSpinner], [data-testid=stSkeleton]')
  && [...document.querySelectorAll('.stPlotlyChart')].every(chart => chart.querySelector('.main-svg'))"""


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of an explorer that goes when the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "hetsim", "app", "--port", str(port)], cwd=ROOT, stdout=words, stderr=words
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit("hetsim app ended at once; run it by hand to see why")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
            return
        time.sleep(0.1)
    raise SystemExit("hetsim app does not answer")


def size(height: int) -> dict[str, int]:
    """A screen."""
    return {"width": WIDTH, "height": height}


def settle(page: Any) -> None:
    """Until nothing is computed and figures are drawn."""
    page.get_by_test_id("stMain").locator("h1").first.wait_for()
    page.wait_for_function(SETTLED)
    page.wait_for_timeout(1000)
    page.wait_for_function(SETTLED)


def save(png: bytes, path: Path) -> None:
    """With a palette, as small as it gets; under another name until it is complete."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    temporary = path.with_suffix(".tmp")
    picture.save(temporary, format="PNG", optimize=True)
    size = temporary.stat().st_size
    temporary.replace(path)
    print(f"{path}: {size / 1000:.0f} kB" + (", larger than wanted" if size > MOST_BYTES else ""))


def take(folder: Path, quick: bool) -> None:
    """Both pictures."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, NAMES)), None)
    if browser_path is None:
        raise SystemExit(f"no browser on the path ({', '.join(NAMES)})")
    folder.mkdir(parents=True, exist_ok=True)
    with served() as address, sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=browser_path, args=options)
        page = browser.new_context(
            viewport=size(EXPLORER_HIGH), color_scheme="light", reduced_motion="reduce"
        ).new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(f"{address}/?tuned=no" if quick else address)
        settle(page)
        if not quick:
            page.get_by_text(TUNED).wait_for()
            settle(page)
        save(page.screenshot(), folder / "explorer.png")
        page.set_viewport_size(size(TIMELINE_HIGH))
        page.get_by_test_id("stSidebarNav").get_by_text("Timeline", exact=True).click()
        settle(page)
        page.get_by_role("combobox", name="Algorithm").click()
        page.get_by_role("option", name="s-sgd", exact=True).click()
        page.get_by_text("waits most").wait_for()
        settle(page)
        save(page.screenshot(), folder / "timeline.png")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The README's pictures of the explorer.")
    parser.add_argument("-o", "--output", type=Path, default=IMAGES, metavar="FOLDER", help="default: docs/images")
    parser.add_argument("--quick", action="store_true", help="without waiting until every algorithm is tuned")
    given = parser.parse_args()
    take(given.output, given.quick)
