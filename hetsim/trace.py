"""A Schedule as a Chrome trace: drop trace.json.gz on https://ui.perfetto.dev.

One process per worker (and one for the server's), in it the threads compute, communication and waiting; flow arrows join the
collectives' ends over the workers; counters show batch and staleness per update. Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.schedule.kinds import Kind, Payload, WaitCause
from hetsim.schedule.table import Schedule
from hetsim.writing import new_file

TRACE_VERSION = 1
COMPUTE, COMMUNICATION, WAITING = 1, 2, 3
THREADS = {COMPUTE: "compute", COMMUNICATION: "communication", WAITING: "waiting"}
MOST_EVENTS = 1_000_000  # what the viewer opens in seconds; a longer run is cut and says so [our choice]
CAUSES = {c: f"wait: {c.name.lower()}" for c in WaitCause}
Event = dict[str, Any]


def trace_events(schedule: Schedule, most: int = MOST_EVENTS) -> dict[str, Any]:
    """The trace as a document: {"traceEvents": [...], "otherData": ...}."""
    events = _names(schedule)
    until_s = _end(schedule, most)
    body = [*_spans(schedule, until_s), *_counters(schedule, until_s)]
    body.sort(key=lambda e: (e["ts"], e["pid"], e.get("tid", 0), e["ph"]))
    cut = until_s < math.inf or len(body) > most
    if cut:
        body = _whole_flows([e for e in body[:most] if e["ts"] <= _us(until_s)])
    header = schedule.header
    return {
        "traceEvents": events + body,
        "displayTimeUnit": "ms",
        "otherData": {
            "schema_version": TRACE_VERSION,
            "algorithm": header.algorithm,
            "seed": header.seed,
            "origin": header.origin,
            "complete": not cut,
            "end_s": body[-1]["ts"] / 1e6 if cut else schedule.horizon_s,
        },
    }


def write_trace(schedule: Schedule, path: str | Path) -> None:
    """Write the trace gzipped, the same bytes every time, under a temporary name that is then renamed."""
    with new_file(Path(path)) as temporary:
        temporary.write_bytes(trace_bytes(schedule))


def trace_bytes(schedule: Schedule) -> bytes:
    """What `write_trace` writes."""
    text = json.dumps(trace_events(schedule), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def _end(schedule: Schedule, most: int) -> float:
    """Where to cut so that no more than about `most` events are made at all; infinite where all fit."""
    s = schedule
    size = int(s.source.max(initial=-1)) + 1
    members = np.bincount(s.source[s.rows(Kind.JOIN)], minlength=size)
    events = np.zeros(len(s), np.int64)
    events[s.rows(Kind.GRAD)] = 1
    waits, reduces = s.rows(Kind.WAIT), s.rows(Kind.REDUCE)
    events[waits] = (s.end_s[waits] > s.start_s[waits]) & (s.worker[waits] < s.n)
    events[reduces] = np.where(s.worker[reduces] < 0, members[s.source[reduces]], 1)
    if int(events.sum()) <= most:
        return math.inf
    order = np.argsort(s.start_s, kind="stable")
    last = int(np.searchsorted(np.cumsum(events[order]), most, side="right"))
    return float(s.start_s[order[last]])


def _rows(schedule: Schedule, kind: Kind, until_s: float) -> NDArray[Any]:
    rows = schedule.rows(kind)
    return rows if until_s == math.inf else rows[schedule.start_s[rows] <= until_s]


def _names(schedule: Schedule) -> list[Event]:
    """Names and order of processes and threads."""
    events: list[Event] = []
    for rank, name in enumerate(schedule.header.workers):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"{rank} {name}"}})
        events.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        for tid, thread in THREADS.items():
            events.append({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": thread}})
            events.append(
                {"ph": "M", "pid": rank, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
            )
    cluster = schedule.n
    events.append({"ph": "M", "pid": cluster, "name": "process_name", "args": {"name": "updates"}})
    events.append({"ph": "M", "pid": cluster, "name": "process_sort_index", "args": {"sort_index": cluster}})
    return events


def _span(rank: int, tid: int, name: str, start_s: float, end_s: float, **args: Any) -> Event:
    ts, end = _us(start_s), _us(end_s)
    return {"ph": "X", "pid": rank, "tid": tid, "name": name, "ts": ts, "dur": round(end - ts, 3), "args": args}


def _us(seconds: float) -> float:
    """Microseconds with whole nanoseconds, the viewer's resolution: what touches in the Schedule does not overlap here."""
    return round(float(seconds) * 1e6, 3)


def _spans(schedule: Schedule, until_s: float) -> list[Event]:
    """Compute, waiting, and what was on the wire, of what begins until then."""
    s, n = schedule, schedule.n
    events: list[Event] = []
    for row in _rows(s, Kind.GRAD, until_s):
        rank = int(s.worker[row])
        samples, first = int(s.samples[row]), int(s.first[row])
        name = f"{samples} samples"
        events.append(
            _span(
                rank, COMPUTE, name, s.start_s[row], s.end_s[row], first=first, samples=samples, state=int(s.state[row])
            )
        )
    for row in _rows(s, Kind.WAIT, until_s):
        rank = int(s.worker[row])
        if rank < n and s.end_s[row] > s.start_s[row]:
            events.append(_span(rank, WAITING, CAUSES[WaitCause(int(s.code[row]))], s.start_s[row], s.end_s[row]))
    events += _transfers(schedule, until_s)
    return events


def _transfers(schedule: Schedule, until_s: float) -> list[Event]:
    """Collectives as one span per member with an arrow through them; pushes and pulls as spans of their worker."""
    s, n = schedule, schedule.n
    members: dict[int, list[int]] = defaultdict(list)
    reduces, joins = _rows(s, Kind.REDUCE, until_s), s.rows(Kind.JOIN)
    for row in joins[np.isin(s.source[joins], s.source[reduces])]:
        members[int(s.source[row])].append(int(s.worker[row]))
    events: list[Event] = []
    free = np.zeros(n)  # a track shows one transfer at a time: a later one begins where the last one ended
    for row in reduces:
        transfer, worker = int(s.source[row]), int(s.worker[row])
        ranks = [worker] if 0 <= worker < n else [r for r in sorted(set(members[transfer])) if r < n]
        kind = "all-reduce" if worker < 0 else "push" if s.code[row] == Payload.GRADIENT else "pull"
        what = Payload(int(s.code[row])).name.lower()
        shown: list[Event] = []
        for rank in ranks:
            start, end = max(float(s.start_s[row]), free[rank]), float(s.end_s[row])
            if end <= start and worker >= 0:
                continue
            free[rank] = max(free[rank], end)
            shown.append(
                _span(
                    rank,
                    COMMUNICATION,
                    f"{kind} {transfer}",
                    start,
                    max(start, end),
                    carries=what,
                    samples=int(s.samples[row]),
                )
            )
        events += shown
        events += _arrows(sorted(shown, key=lambda span: float(span["ts"])), transfer)
    return events


def _arrows(spans: list[Event], transfer: int) -> list[Event]:
    """One flow over the spans of a collective: start, steps, end."""
    if len(spans) < 2:
        return []
    last = len(spans) - 1
    out = []
    for i, span in enumerate(spans):
        phase = "s" if i == 0 else "f" if i == last else "t"
        flow = {
            "ph": phase,
            "id": transfer,
            "cat": "collective",
            "name": "collective",
            "pid": span["pid"],
            "tid": span["tid"],
        }
        out.append(flow | {"ts": span["ts"]} | ({"bp": "e"} if phase == "f" else {}))
    return out


def _counters(schedule: Schedule, until_s: float) -> list[Event]:
    """Batch and staleness of every update at its completion."""
    u, pid = schedule.updates, schedule.n
    if not len(u):
        return []
    owner = u.owner
    most = np.zeros(len(u), np.int64)
    np.maximum.at(most, owner, u.staleness)
    out: list[Event] = []
    for k in np.flatnonzero(u.time_s <= until_s):
        ts = _us(u.time_s[k])
        out.append({"ph": "C", "pid": pid, "name": "batch", "ts": ts, "args": {"samples": int(u.samples[k])}})
        out.append({"ph": "C", "pid": pid, "name": "staleness", "ts": ts, "args": {"updates": int(most[k])}})
    return out


def _whole_flows(body: list[Event]) -> list[Event]:
    """Drop arrows that the cut left without their end."""
    ended = {e["id"] for e in body if e["ph"] == "f"}
    return [e for e in body if e["ph"] not in "stf" or e["id"] in ended]
