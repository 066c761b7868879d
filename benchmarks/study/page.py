"""Puts the study's tables into its page, between marks.

    python benchmarks/study/page.py docs/study.md

A table called NAME stands between `<!-- NAME -->` and `<!-- /NAME -->`: `headline`, `ablation` and `details`, from the pieces that
found.jsonl keeps. tests/hetsim/test_study_page.py holds that nothing would change, so the page shows what the kept pieces say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import results
from design import KINDS, SIZES

from hetsim import writing

FOUND = Path(__file__).parent / "found.jsonl"


def tables() -> Mapping[str, str]:
    """All tables by name, from the kept pieces."""
    found = results.read(FOUND)
    details = [
        results.details(found, kind, size) for size in SIZES for kind in KINDS if results.cluster(found, kind, size)
    ]
    return {
        "headline": results.headline(found),
        "ablation": results.ablation(found),
        "details": "\n\n".join(details),
    }


def filled(text: str) -> str:
    """The page with every table in its place. Raises ValueError where a place is missing."""
    for name, table in tables().items():
        text, places = re.subn(
            rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)",
            lambda marks, table=table: f"{marks[1]}\n{table}\n{marks[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        if places != 1:
            raise ValueError(f"{places} places for the table {name!r}")
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    writing.write_file(page, filled(page.read_text(encoding="utf-8")))
