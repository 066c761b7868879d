"""One clock for ranks on several machines, which share none: how far each machine's is from rank 0's.

    rank 0       T            offset = T - (t0 + t1)/2, off by half the round trip t1 - t0 at most
    other    t0     t1        measured by the first rank of each other machine, the shortest of some round trips

The ranks of one machine share its monotonic clock exactly. Between machines order is not exact: a rank may seem to use a sum before the
last rank has joined it, and clocks drift (tens of microseconds per second at worst). `causal` moves such rows to the earliest moment at
which they can have happened, and says by how much.
"""

from __future__ import annotations

import math
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from abs_sgd.runtime.record import END, KIND, SOURCE, START, RankLog, Row
from hetsim.schedule.kinds import Kind

ROUNDS = 20  # round trips per machine; the shortest counts [our choice]
USES = (Kind.WAIT, Kind.STEP, Kind.MIX)  # rows of a rank that has seen a transfer complete


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """`offset_s`: rank 0's clock minus the own one; `round_trip_s`: twice what it may be wrong by, 0 on rank 0's machine."""

    offset_s: float = 0.0
    round_trip_s: float = 0.0


def machine() -> str:
    """The same text for all processes that share a monotonic clock: Linux names each boot, whatever namespaces there are."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}/{uuid.getnode()}"


def clock_offsets(machines: Sequence[str], rank: int, clock: Callable[[], float] = time.monotonic) -> list[ClockOffset]:
    """Every rank's, measured over the process group; nothing is sent where all are on one machine. `machines`: by rank."""
    leaders = [r for r, name in enumerate(machines) if machines.index(name) == r and r]
    measured = torch.zeros(len(machines), 2, dtype=torch.float64)
    for leader in leaders:
        if rank == 0:
            _serve(leader, clock)
        elif rank == leader:
            measured[leader] = torch.tensor(_ask(clock), dtype=torch.float64)
    if leaders:
        dist.all_reduce(measured)
    rows = measured.tolist()
    return [ClockOffset(offset_s=o, round_trip_s=t) for o, t in (rows[machines.index(name)] for name in machines)]


def _serve(leader: int, clock: Callable[[], float]) -> None:
    word = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(word, leader)
        word[0] = clock()
        dist.send(word, leader)


def _ask(clock: Callable[[], float]) -> tuple[float, float]:
    word, best = torch.zeros(1, dtype=torch.float64), (0.0, float("inf"))
    for _ in range(ROUNDS):
        before = clock()
        dist.send(word, 0)
        dist.recv(word, 0)
        after = clock()
        if after - before < best[1]:
            best = float(word) - (before + after) / 2, after - before
    return best


def causal(logs: Sequence[RankLog]) -> tuple[list[RankLog], int, float]:
    """The same rows in times that can have been: nobody uses a transfer before the last rank has joined it. And how many rows were moved
    and by how much at most."""
    joined: dict[int, list[float]] = {}
    rows: list[list[Row]] = [[] for _ in logs]
    at, floor_s, moved, most_s = [0] * len(logs), [float("-inf")] * len(logs), 0, 0.0
    busy = True
    while busy:
        busy = False
        for place, log in enumerate(logs):
            while at[place] < len(log.rows):
                row, before_s = log.rows[at[place]], floor_s[place]
                if row[KIND] in USES and row[SOURCE] >= 0:
                    ends = joined.get(row[SOURCE], [])
                    if len(ends) < len(logs):
                        break  # not before the others have come so far
                    floor_s[place] = max(floor_s[place], _after(ends))
                waits = row[KIND] == Kind.WAIT  # which begins before what it waits for
                start_s, end_s = max(row[START], before_s if waits else floor_s[place]), max(row[END], floor_s[place])
                off_s = max(end_s - row[END], start_s - row[START])
                moved, most_s = moved + (off_s > 0), max(most_s, off_s)
                rows[place].append((*row[:START], start_s, end_s, *row[END + 1 :]))
                if row[KIND] == Kind.JOIN:
                    joined.setdefault(row[SOURCE], []).append(end_s)
                at[place], busy = at[place] + 1, True
    out = []
    for log, changed in zip(logs, rows, strict=True):
        seen_s = {
            number: max(seen, _after(joined[number])) if len(joined.get(number, [])) == len(logs) else seen
            for number, seen in log.seen_s.items()
        }
        left = log.rows[len(changed) :]  # of transfers that somebody never joined
        out.append(RankLog(log.rank, [*changed, *left], log.polls, log.outcomes, seen_s))
    return out, moved, most_s


def _after(ends: Sequence[float]) -> float:
    return math.nextafter(max(ends), math.inf)
