"""What goes to the screen: data to stdout, progress and messages to stderr.

Colour and bars only on a terminal (Rich honours NO_COLOR); a reader that closes the pipe ends the program quietly. HETSIM_PROGRESS=lines
asks for progress as lines instead, wherever they go: `progress 12/60 abs-sgd, seed 0`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PROGRESS = "HETSIM_PROGRESS"
PIPED = 100  # columns where nothing says how many: a usual table is whole [our choice]
LINE_EVERY_S = 0.2  # [our choice]
Advance = Callable[[int, int, str], None]  # (done, of, what is being done)


def out() -> Console:
    """Console of stdout, as wide as the terminal or COLUMNS says; PIPED where there is neither."""
    from rich.console import Console

    known = os.environ.get("COLUMNS", "").isdigit() or any(map(_is_terminal, (sys.stdin, sys.stdout, sys.stderr)))
    return Console(highlight=False, soft_wrap=False, width=None if known else PIPED)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def err() -> Console:
    """Console of stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def emit(text: str) -> None:
    """Write to stdout. A closed pipe (`hetsim compare | head -1`) is no error: the reader has what it wanted."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def emit_json(document: dict[str, Any]) -> None:
    """Exactly one JSON document; NaN and infinity, which JSON does not have, are an error here."""
    import json

    emit(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def emit_rich(*renderables: Any) -> None:
    """Render with Rich for stdout and write at once."""
    console = out()
    with console.capture() as captured:
        for item in renderables:
            console.print(item)
    emit("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say(text: str) -> None:
    """A plain message for the person, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _silent(done: int, of: int, what: str = "") -> None:
    """Progress that nobody sees."""


def _in_lines(title: str) -> Advance:
    """A line at a time on stderr: when another thing is begun, when it is done, and five times a second at most in between."""
    last_s, last = 0.0, ""

    def advance(done: int, of: int, what: str = "") -> None:
        nonlocal last_s, last
        now = time.monotonic()
        if what != last or done >= of or now - last_s >= LINE_EVERY_S:
            last_s, last = now, what
            say(f"progress {done}/{of} {what or title}")

    return advance


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """A bar with a rate and an estimate on stderr where that is a terminal; else nothing, or lines where they are asked for."""
    if os.environ.get(PROGRESS) == "lines":
        yield _in_lines(title)
        return
    console = err()
    if not console.is_terminal:
        yield _silent
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def advance(done: int, of: int, what: str = "") -> None:
            progress.update(task, completed=done, total=of, description=what or title)

        yield advance
