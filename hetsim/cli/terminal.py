"""What goes to the screen: data to stdout, progress and messages to stderr.

Colour and bars only on a terminal (Rich honours NO_COLOR); a reader that closes the pipe ends the program quietly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[int, int, str], None]  # (done, of, what is being done)


def out() -> Console:
    """Console of stdout: 80 columns where it is no terminal and COLUMNS says nothing."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


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


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """A bar with a rate and an estimate on stderr where that is a terminal; else nothing."""
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
