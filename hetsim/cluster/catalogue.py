"""What is known of GPUs and workloads: memory, power, list price, measured step times. Every number names its source.

The numbers are in `data/`: gpus.csv, step_times.csv (measured tables), lines.csv (a floor and a line fitted to each
table, or a single published rate), workloads.json (sizes) and sources.json (who measured, under which conditions).

Speeds of one workload may come from different studies, with different software and hosts around the GPU, so compare GPUs
within one study, which `study` names. On resnet18-cifar10 that is Sia for T4, RTX2080Ti, QuadroRTX6000, V100 and A100, and
Gavel for K80, P100 and V100-Gavel: Sia's V100 takes six times as long for 32 samples, it seems held up by its host.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from hetsim.cluster.spec import Workload
from hetsim.errors import UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its maker describes it. `memory_bytes` counts a marketed GB as 1e9 bytes: what exceeds that is for the
    driver."""

    name: str
    memory_bytes: float
    power_w: float
    price_per_h: float | None
    power_source: str
    price_source: str

    @property
    def source(self) -> str:
        """Where power and price are from."""
        price = f"; price: {self.price_source}" if self.price_source else ""
        return f"power: {self.power_source}{price}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A pass over m samples takes max(floor_s, overhead_s + m / samples_per_s)."""

    floor_s: float
    overhead_s: float
    samples_per_s: float
    source: str


def gpu(name: str) -> Gpu:
    """The GPU of that name, in any case and with the usual prefixes (Tesla, NVIDIA GeForce ...). Raises UsageError."""
    return _gpus()[_canonical(name)]


def gpu_names() -> tuple[str, ...]:
    """Every GPU of the catalogue, by its canonical name."""
    return tuple(_gpus())


def step_times(gpu_name: str, workload_name: str) -> tuple[tuple[int, float], ...] | None:
    """Measured (samples, seconds) of whole steps on one GPU, by batch; None where nobody measured them."""
    return _tables().get((_known_workload(workload_name), _canonical(gpu_name)))


def line(gpu_name: str, workload_name: str) -> Line | None:
    """Floor and line of this GPU on this workload; None where there is no measurement."""
    return _lines().get((_known_workload(workload_name), _canonical(gpu_name)))


def study(gpu_name: str, workload_name: str) -> str | None:
    """Short name of the study that measured this GPU on this workload: sia, gavel, jabas, lambda."""
    return _studies().get((_known_workload(workload_name), _canonical(gpu_name)))


def remark(gpu_name: str, workload_name: str) -> str:
    """What is odd about the catalogue's speed of this GPU on this workload, in a sentence; empty where nothing is known."""
    return _sources()["remarks"].get(f"{workload_name}/{gpu_name}", "")


def workload(name: str) -> Workload:
    """Sizes of a shipped workload; the trainer finds its model and data by the same name. Raises UsageError."""
    return _workloads()[_known_workload(name)][0]


def workload_names() -> tuple[str, ...]:
    """Every shipped workload."""
    return tuple(_workloads())


def workload_source(name: str) -> str:
    """Where the workload's sizes come from, with the derivation."""
    return _workloads()[_known_workload(name)][1]


def _canonical(name: str) -> str:
    canonical = _aliases().get(_plain(name))
    if canonical is None:
        raise UsageError(f"unknown GPU {name!r} ({_nearest_gpu(name)})")
    return canonical


def _nearest_gpu(name: str) -> str:
    by_spelling = _aliases()
    hint = nearest(_plain(name), by_spelling)
    if _plain(name) and hint.startswith("did you mean "):
        return f"did you mean {by_spelling[hint.removeprefix('did you mean ').removesuffix('?')]}?"
    return "known: " + ", ".join(gpu_names())


def _plain(name: str) -> str:
    """Spelling without case, punctuation, maker and product line: "NVIDIA GeForce RTX 2080 Ti" becomes "rtx2080ti"."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce|tesla)?", "", letters)


def _known_workload(name: str) -> str:
    if name not in _workloads():
        raise UsageError(f"unknown workload {name!r} ({nearest(name, _workloads())})")
    return name


# --- the data files, read once ---


def _text(file: str) -> str:
    return (resources.files("hetsim.cluster") / "data" / file).read_text(encoding="utf-8")


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(file).splitlines()))


@functools.cache
def _sources() -> Mapping[str, Mapping[str, str]]:
    sources: dict[str, dict[str, str]] = json.loads(_text("sources.json"))
    return sources


@functools.cache
def _gpus() -> Mapping[str, Gpu]:
    sources = _sources()
    found = {}
    for row in _rows("gpus.csv"):
        found[row["name"]] = Gpu(
            name=row["name"],
            memory_bytes=float(row["memory_bytes"]),
            power_w=float(row["power_w"]),
            price_per_h=float(row["price_per_h"]) if row["price_per_h"] else None,
            power_source=sources["power"][row["power_source"]],
            price_source=sources["price"][row["price_source"]] if row["price_source"] else "",
        )
    return found


@functools.cache
def _aliases() -> Mapping[str, str]:
    spellings = {}
    for row in _rows("gpus.csv"):
        for spelling in (row["name"], *filter(None, row["aliases"].split("|"))):
            assert _plain(spelling) not in spellings, f"{spelling} names two GPUs"
            spellings[_plain(spelling)] = row["name"]
    return spellings


@functools.cache
def _tables() -> Mapping[tuple[str, str], tuple[tuple[int, float], ...]]:
    tables: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in _rows("step_times.csv"):
        tables.setdefault((row["workload"], row["gpu"]), []).append((int(row["samples"]), float(row["seconds"])))
    return {key: tuple(sorted(points)) for key, points in tables.items()}


@functools.cache
def _lines() -> Mapping[tuple[str, str], Line]:
    studies = _sources()["studies"]
    return {
        (row["workload"], row["gpu"]): Line(
            floor_s=float(row["floor_s"]),
            overhead_s=float(row["overhead_s"]),
            samples_per_s=float(row["samples_per_s"]),
            source=studies[row["source"]] + (f"; {row['note']}" if row["note"] else ""),
        )
        for row in _rows("lines.csv")
    }


@functools.cache
def _studies() -> Mapping[tuple[str, str], str]:
    return {(row["workload"], row["gpu"]): row["source"] for row in _rows("lines.csv")}


@functools.cache
def _workloads() -> Mapping[str, tuple[Workload, str]]:
    entries: list[dict[str, Any]] = json.loads(_text("workloads.json"))
    return {entry["name"]: (Workload(**_without_source(entry)), entry["source"]) for entry in entries}


def _without_source(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "source"}
