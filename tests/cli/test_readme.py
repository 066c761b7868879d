"""Documents tell the truth: every command and script in them runs, and prints what stands there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_group

from hetsim.algorithms import registry
from hetsim.cli import app

ROOT = Path(__file__).parents[2]
CLOSE = 0.02  # last digits may differ between processors and versions of numpy
HINT = "differs from what the document shows; after a change that is meant: python docs/refresh.py"
NEEDS_TORCH = {"train-in-virtual-time.md"}
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


def load_refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


refresh = load_refresh()


def document(path: Path) -> object:
    marks = [pytest.mark.torch] if path.name in NEEDS_TORCH else []
    return pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks)


def example(path: Path) -> object:
    """Those that train run under torchrun, on two ranks."""
    marks = [pytest.mark.torch, pytest.mark.live] if path.name.startswith("train_") else []
    return pytest.param(path, id=path.name, marks=marks)


EXAMPLES = [example(path) for path in sorted((ROOT / "examples").glob("*.py"))]
DOCUMENTS = [document(path) for path in refresh.documents()]


def words(line: str) -> tuple[str, list[float]]:
    """The line without its numbers and padding, and its numbers."""
    numbers = [float(n.replace(",", "")) for n in NUMBER.findall(line)]
    return " ".join(re.sub("─+", "─", NUMBER.sub("#", line)).split()), numbers


def same(shown: str, now: str) -> bool:
    """Equal but for padding and the last digits of numbers."""
    (text, numbers), (text_now, numbers_now) = words(shown), words(now)
    return text == text_now and numbers == pytest.approx(numbers_now, rel=CLOSE, abs=1e-9)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_document_shows_what_its_commands_print(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for shown, now in zip_longest(text.splitlines(), refresh.refreshed(text).splitlines(), fillvalue=""):
        assert same(shown, now), f"{path.name}: {HINT}\n  shown: {shown}\n  now:   {now}"


def test_figures_of_trust_in_the_readme_stand_on_the_page_with_the_tables() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## How far to trust it\n")[1].split("\n## ")[0]
    figures = set(re.findall(r"\d[\d.]*(?= ?%| to [\d.]+ %)", section))
    pages = ("how-far-to-trust.md", "predictors-judged.md")
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages)
    known = set(re.findall(r"\d+(?:\.\d+)?", page))
    assert len(figures) > 6 and not figures - known


def test_comparison_of_lines_sees_words_and_digits() -> None:
    assert same("a   1,000 s", "a 1,001 s")
    assert not same("a 1,000 s", "a 1,100 s")
    assert not same("a 1,000 s", "b 1,000 s")
    assert not same("a 1 s", "a 1 2 s")


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(refresh.Failed, match="unknown algorithm"):
        refresh.refreshed("```console\n$ hetsim simulate mixed-gpu-4 -a nothing\n```\n")


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    trains = path.name.startswith("train_")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if trains else []
    command = [sys.executable, *torchrun, str(path), *(["--epochs", "1"] if trains else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240 if trains else 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_documents_name_every_command_and_algorithm() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in refresh.documents())
    commands = get_group(app).commands
    assert not [name for name in commands if f"hetsim {name}" not in text]
    table = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert [line.strip("#` ") for line in table.splitlines() if line.startswith("## ")] == list(registry())
