"""Traces are valid Chrome JSON: a validator written against the format, run over every algorithm."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetsim.algorithms import registry
from hetsim.cluster import load_profile
from hetsim.schedule import Kind, Schedule
from hetsim.simulate import simulate
from hetsim.trace import COMMUNICATION, COMPUTE, WAITING, trace_events, write_trace


def schedule_of(name: str, profile: str = "mixed-gpu-4", updates: int = 30) -> Schedule:
    return simulate(load_profile(profile), name, updates=updates).schedule


def problems(document: dict[str, Any]) -> list[str]:
    """What the Trace Event Format and a reader's patience forbid."""
    found: list[str] = []
    named: set[tuple[int, int | None]] = set()
    tracks: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    flows: dict[Any, list[str]] = defaultdict(list)
    last = -np.inf
    for e in document["traceEvents"]:
        if e["ph"] == "M":
            named.add((e["pid"], e.get("tid")))
            continue
        if not (np.isfinite(e["ts"]) and e["ts"] >= 0):
            found.append(f"bad time {e}")
        if e["ts"] < last:
            found.append(f"out of order {e}")
        last = e["ts"]
        if (e["pid"], None) not in named or (e["ph"] == "X" and (e["pid"], e["tid"]) not in named):
            found.append(f"no name for the track of {e}")
        if e["ph"] == "X":
            if e["dur"] < 0 or not e["name"]:
                found.append(f"bad span {e}")
            begin = round(e["ts"] * 1000)
            tracks[e["pid"], e["tid"]].append((begin, begin + round(e["dur"] * 1000), e["name"]))
        elif e["ph"] in "stf":
            flows[e["id"]].append(e["ph"])
            starts = {b for b, _, _ in tracks[e["pid"], e["tid"]]}
            if round(e["ts"] * 1000) not in starts:
                found.append(f"arrow in the air {e}")
        elif e["ph"] == "C":
            if not all(isinstance(v, int | float) for v in e["args"].values()):
                found.append(f"counter without a number {e}")
        else:
            found.append(f"unknown phase {e}")
    for track, spans in tracks.items():
        spans.sort()
        for (_, end, name), (begin, _, following) in pairwise(spans):
            if begin < end:
                found.append(f"{following} overlaps {name} on {track}")
    for number, phases in flows.items():
        if phases[0] != "s" or phases[-1] != "f" or phases.count("s") != 1 or phases.count("f") != 1:
            found.append(f"flow {number} is {phases}")
    return found


@pytest.mark.parametrize("name", list(registry()))
@pytest.mark.parametrize("profile", ["mixed-gpu-4", "changing-4"])
def test_every_algorithm_gives_a_valid_trace(name: str, profile: str) -> None:
    assert problems(trace_events(schedule_of(name, profile))) == []


def test_the_validator_finds_faults() -> None:
    document = trace_events(schedule_of("s-sgd", updates=5))
    spans = [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == COMPUTE]
    spans[0]["dur"] += 1e9
    assert any("overlaps" in p for p in problems(document))
    document = trace_events(schedule_of("s-sgd", updates=5))
    document["traceEvents"] = [e for e in document["traceEvents"] if e["ph"] != "f"]
    assert any("flow" in p for p in problems(document))


@pytest.mark.parametrize("name", ["s-sgd", "abs-sgd", "asgd", "local-sgd"])
def test_spans_add_up_to_the_schedule(name: str) -> None:
    s = schedule_of(name)
    events = trace_events(s)["traceEvents"]
    total = lambda tid: sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == tid) / 1e6  # noqa: E731
    for tid, kind in ((COMPUTE, Kind.GRAD), (WAITING, Kind.WAIT)):
        rows = s.rows(kind)
        rows = rows[s.worker[rows] < s.n]
        assert total(tid) == pytest.approx(float((s.end_s[rows] - s.start_s[rows]).sum()), abs=1e-9 * max(1, len(rows)))
    samples = sum(e["args"]["samples"] for e in events if e["ph"] == "X" and e["tid"] == COMPUTE)
    assert samples == int(s.samples[s.rows(Kind.GRAD)].sum())


def test_collectives_appear_on_every_member_with_one_arrow_through_them() -> None:
    s = schedule_of("abs-sgd")
    events = trace_events(s)["traceEvents"]
    reduces = len(s.rows(Kind.REDUCE))
    assert sum(e["ph"] == "X" and e["tid"] == COMMUNICATION for e in events) == reduces * s.n
    assert sum(e["ph"] == "s" for e in events) == reduces


def test_counters_show_batch_and_staleness_of_every_update() -> None:
    s = schedule_of("abs-sgd")
    events = trace_events(s)["traceEvents"]
    batches = [e["args"]["samples"] for e in events if e["ph"] == "C" and e["name"] == "batch"]
    stale = [e["args"]["updates"] for e in events if e["ph"] == "C" and e["name"] == "staleness"]
    assert batches == s.updates.samples.tolist()
    assert stale == [0] + [1] * (len(s.updates) - 1)


def test_the_file_is_the_same_every_time_and_opens_as_gzip(tmp_path: Path) -> None:
    s = schedule_of("lb-bsp")
    write_trace(s, tmp_path / "one.json.gz")
    write_trace(s, tmp_path / "two.json.gz")
    one = (tmp_path / "one.json.gz").read_bytes()
    assert one == (tmp_path / "two.json.gz").read_bytes()
    assert one[4:8] == b"\0\0\0\0"  # no time of writing in the header
    assert json.loads(gzip.decompress(one)) == trace_events(s)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.json.gz", "two.json.gz"]


def test_a_long_run_is_cut_whole_and_says_so() -> None:
    document = trace_events(schedule_of("s-sgd", updates=200), most=500)
    assert document["otherData"]["complete"] is False
    assert problems(document) == []
    assert trace_events(schedule_of("s-sgd", updates=5))["otherData"]["complete"] is True
