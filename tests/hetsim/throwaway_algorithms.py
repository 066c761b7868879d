"""Algorithms that live for one test: defined, run, and taken out of the registry again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hetsim.algorithms import base


@contextmanager
def temporary_registry() -> Iterator[None]:
    """Whatever is registered inside is forgotten afterwards."""
    before = dict(base._REGISTRY)
    try:
        yield
    finally:
        base._REGISTRY.clear()
        base._REGISTRY.update(before)
