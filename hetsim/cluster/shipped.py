"""The profiles that come with hetsim."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import hetsim.cluster as _package

DEFAULT_PROFILE = "mixed-gpu-4"


@cache
def shipped_paths() -> dict[str, Path]:
    """Name to file: the installed package's folder, or the checkout's `profiles/`."""
    package = Path(_package.__file__).parent.parent
    for folder in (package / "profiles", package.parent / "profiles"):
        found = {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: _natural(path.stem))}
        if found:
            return found
    return {}


def shipped_profiles() -> dict[str, str]:
    """Name to description."""
    from hetsim.cluster.loader import load_profile

    return {name: load_profile(name).description for name in shipped_paths()}


def _natural(name: str) -> list[tuple[int, str]]:
    """mixed-gpu-4 before mixed-gpu-16."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
