"""Starts the explorer's server in this process, so that nothing is left behind however it ends."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hetsim.errors import UsageError
from hetsim.webapp.options import ADDRESS, arguments

PATIENCE_S = 60.0  # until the server answers [our choice]; a second or two as a rule


def serve(port: int, say: Callable[[str], None]) -> None:
    """Serve on a local port until interrupted; `say` gets the address once it answers. Raises UsageError where the port is taken."""
    check_port(port)
    from streamlit.web.cli import main as streamlit

    threading.Thread(target=_announce, args=(port, say), daemon=True).start()
    page = Path(__file__).with_name("start.py")
    command = ["run", str(page), f"--server.port={port}", *arguments()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(KeyboardInterrupt):
        streamlit(command, standalone_mode=False, prog_name="streamlit")
    sys.stdout.flush()


def check_port(port: int) -> None:
    """Raises UsageError where something answers on that port, or where it may not be used."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was left a moment ago is free
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(
                f"port {port} of {ADDRESS} cannot be used ({why}); choose another: hetsim app --port {other(port)}"
            ) from None


def other(port: int) -> int:
    """A port that may be free."""
    return port + 1 if port < 65535 else 8501


def _announce(port: int, say: Callable[[str], None]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=1.0):
            say(f"The explorer is at http://{ADDRESS}:{port} (Ctrl-C ends it)")
            return
        time.sleep(0.1)
