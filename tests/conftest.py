"""Markers that need something of the machine skip with the reason when it is not there.

CIFAR-10 is read in its standard binary layout: HETSIM_TEST_DATA names the folder that holds `cifar-10-batches-bin`.
Without it the tests marked `data` are skipped. `slow` and `gpu` are left out unless asked for (`pytest -m slow`).

No example of a property has to be computed within a time: a busy machine says nothing about the product.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("hetsim", deadline=None)
settings.load_profile("hetsim")


def cifar10_folder() -> Path | None:
    """The folder with data_batch_1.bin ..., or None."""
    folder = Path(os.environ.get("HETSIM_TEST_DATA", ""), "cifar-10-batches-bin")
    return folder if "HETSIM_TEST_DATA" in os.environ and (folder / "test_batch.bin").is_file() else None


def no_torch() -> str | None:
    return None if find_spec("torch") else "torch is not installed (extra train)"


@cache
def no_namespaces() -> str | None:
    from abs_sgd.namespaces import probe

    return probe().reason or None


def no_browser() -> str | None:
    return None if shutil.which("chromium") else "chromium is not installed"


def no_data() -> str | None:
    return None if cifar10_folder() else "HETSIM_TEST_DATA names no folder with cifar-10-batches-bin"


def no_gpu() -> str | None:
    if missing := no_torch():
        return missing
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA device"


MISSING: dict[str, Callable[[], str | None]] = {
    "torch": no_torch,
    "live": no_torch,
    "netns": no_namespaces,
    "browser": no_browser,
    "data": no_data,
    "gpu": no_gpu,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in MISSING.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """CIFAR-10's folder in the standard binary layout; for tests marked `data`."""
    folder = cifar10_folder()
    if folder is None:
        pytest.skip(str(no_data()))
    return folder
