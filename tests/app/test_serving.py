"""`hetsim app`: its options, its address, a port that is taken, an end without remains."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hetsim.errors import UsageError
from hetsim.webapp import PAGES, options, serving

ROOT = Path(__file__).parents[2]


def test_the_configuration_file_says_what_the_command_passes() -> None:
    written = (ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8")
    assert written == options.config_toml()
    flat: dict[str, Any] = {}

    def flatten(tree: dict[str, Any], above: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                flatten(value, f"{above}{key}.")
            else:
                flat[above + key] = value

    flatten(tomllib.loads(written), "")
    assert flat == options.OPTIONS
    assert flat["server.address"] == "127.0.0.1" and flat["browser.gatherUsageStats"] is False


def test_streamlit_knows_every_option() -> None:
    from streamlit import config

    assert set(options.OPTIONS) <= set(config.get_config_options())


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [options.LIGHT, options.DARK])
def test_text_and_links_can_be_read_on_every_background(theme: dict[str, str]) -> None:
    for background in ("backgroundColor", "secondaryBackgroundColor"):
        for text in ("textColor", "linkColor", "primaryColor"):
            one, other = sorted((luminance(theme[background]), luminance(theme[text])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (background, text)


def test_every_page_that_is_there_is_a_script_and_listed() -> None:
    there = [name for name, _, _ in PAGES if (ROOT / "hetsim" / "webapp" / f"{name}.py").is_file()]
    assert there[0] == "explore"
    for name in there:
        text = (ROOT / "hetsim" / "webapp" / f"{name}.py").read_text(encoding="utf-8")
        assert text.rstrip().endswith('if __name__ == "__main__":\n    page()')


def test_a_port_that_is_taken_and_one_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .*hetsim app --port {port + 1}"):
            serving.check_port(port)
    serving.check_port(port)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_it_serves_says_where_and_ends_on_interruption(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hetsim", "app", "--port", str(port)]
    environment = {**os.environ, "BROWSER": "true", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"The explorer is at http://127.0.0.1:{port} (Ctrl-C ends it)\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=10) as answer:
            assert answer.read() == b"ok"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0 and process.stdout.read() == ""
        serving.check_port(port)
    finally:
        process.kill()
        process.wait()
