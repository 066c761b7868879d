"""What the jobs of the tests do; a process of its own imports it."""

from __future__ import annotations

import os
import time
from typing import Any

from hetsim.errors import UsageError


def add(one: int, other: int, report: Any) -> int:
    report(1, 2, "adding", one)
    report(2, 2, "added")
    return one + other


def sleep(report: Any) -> None:
    report(0, 0, "asleep", os.getpid())
    time.sleep(600)


def refuse(report: Any) -> None:
    raise UsageError("that cannot be")


def divide(report: Any) -> float:
    return 1 / 0


def shout(report: Any) -> str:
    print("one", flush=True)
    os.write(1, b"two\n")
    return "heard"
