"""Run what the documents show and put its output beside it.

    python docs/refresh.py              all documents
    python docs/refresh.py README.md    some

Four kinds of blocks are run, all others are left alone:

    ```console          lines that start with "$ " are commands, the rest is what they print; all console and python blocks of a
                        document share one empty folder, so that later ones find what earlier ones wrote
    ```python           a script; what it prints goes into the ```text block right below it
    ```yaml             one that opens with "# NAME.yaml" is a file of that folder
    <!-- output: python X -->   run from the top of the repository; what it prints, Markdown, stands up to <!-- /output -->

The tests run the same code and compare (tests/cli/test_readme.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100  # width of the outputs
TIMEOUT_S = 240
BLOCK = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^```python\n(?P<python>.*?)^```$(?:\n\n```text\n(?P<text>.*?)^```$)?"
    r"|^```yaml\n(?P<yaml># (?P<file>[\w-]+\.yaml)\n.*?)^```$"
    r"|^<!-- output: (?P<command>[^\n]+) -->\n(?P<output>.*?)^<!-- /output -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Failed(Exception):
    """A command of a document that ended with an error."""

    command: str
    output: str

    def __str__(self) -> str:
        return f"{self.command}\n{self.output}"


def documents() -> list[Path]:
    """README.md and everything in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def refreshed(text: str) -> str:
    """The document with the outputs of its blocks as they are now. Raises Failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return BLOCK.sub(lambda block: _refresh(block, folder), text)


def _refresh(block: re.Match[str], folder: Path) -> str:
    if block["console"] is not None:
        commands = [line.removeprefix("$ ") for line in block["console"].splitlines() if line.startswith("$ ")]
        shown = [f"$ {command}\n{run(['bash', '-c', command], folder)}" for command in commands]
        return "```console\n" + "\n".join(shown) + "```"
    if block["yaml"] is not None:
        (folder / block["file"]).write_text(block["yaml"], encoding="utf-8")
        return block[0]
    if block["python"] is not None:
        script = folder / "block.py"
        script.write_text(block["python"], encoding="utf-8")
        printed = run([sys.executable, script.name], folder)
        script.unlink()
        return f"```python\n{block['python']}```" + (f"\n\n```text\n{printed}```" if printed else "")
    return f"<!-- output: {block['command']} -->\n{run(['bash', '-c', block['command']], ROOT)}<!-- /output -->"


def run(command: list[str], folder: Path) -> str:
    """What the command prints, errors included, without trailing blanks and the blank lines around it."""
    own = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **own, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise Failed(" ".join(command), done.stdout)
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def main(names: list[str]) -> None:
    """Rewrite the documents where their outputs have changed."""
    for path in [Path(name).resolve() for name in names] or documents():
        old = path.read_text(encoding="utf-8")
        try:
            new = refreshed(old)
        except Failed as failed:
            sys.exit(f"{path.relative_to(ROOT)}: {failed}")
        if new != old:
            path.write_text(new, encoding="utf-8")
        print(f"{'changed' if new != old else 'as it was'}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
