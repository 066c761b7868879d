"""The study's page shows what the kept pieces say: its tables are those that the scripts print."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "study"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("page")
    finally:
        sys.path.remove(str(FOLDER))


def test_its_tables_are_those_of_the_kept_pieces(page: ModuleType) -> None:
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    assert page.filled(text) == text


def test_a_stale_number_would_be_seen(page: ModuleType) -> None:
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    stale = text.replace("| 4 | unequal | `", "| 4 | unequal | `no-", 1)
    assert stale != text and page.filled(stale) == text
    with pytest.raises(ValueError, match="0 places for the table 'ablation'"):
        page.filled(text.replace("<!-- ablation -->", ""))
