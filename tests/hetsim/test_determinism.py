"""Same seed, same bytes, in every process; names decide, positions do not."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster

from hetsim.algorithms import registry
from hetsim.cluster.spec import BandwidthChange, Cluster, Link, Slowdown
from hetsim.schedule import DiscardReason, Kind, Schedule
from hetsim.schedule.log import DTYPE
from hetsim.schedule.store import load, save
from hetsim.simulate import simulate

NAMES = sorted(registry())
COLUMNS = DTYPE.names or ()


def jittery(n: int = 4, **more: Any) -> Cluster:
    base: dict[str, Any] = {
        "gradient_bytes": 1e6,
        "bandwidths": [2e6] * n,
        "latency_s": 1e-3,
        "server": Link(bytes_per_s=3e6, latency_s=1e-3),
        "global_batch_samples": 8 * n,
        "micro_batch_samples": 2,
        "jitter_cv": 0.3,
    }
    return cluster([40.0] * n, **{**base, **more})


def same(a: Schedule, b: Schedule) -> bool:
    return (
        a.header == b.header
        and a.polls == b.polls
        and a.outcomes == b.outcomes
        and all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in COLUMNS)
        and all(getattr(a, c).dtype == getattr(b, c).dtype for c in COLUMNS)
    )


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bytes(name: str, tmp_path: Path) -> None:
    a, b = (simulate(jittery(), name, updates=30, seed=7).schedule for _ in range(2))
    assert same(a, b)
    save(a, tmp_path / "a")
    save(b, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    other = simulate(jittery(), name, updates=30, seed=8).schedule
    assert a.end_s.tolist() != other.end_s.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    a = simulate(jittery(), name, updates=30).schedule
    save(a, tmp_path / "a.parquet")
    assert same(a, load(tmp_path / "a.parquet"))
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]  # nothing temporary is left


DIGESTS = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_determinism import NAMES, jittery, COLUMNS
from hetsim.schedule.store import save
from hetsim.simulate import simulate
for name in NAMES:
    save(simulate(jittery(), name, updates=20, seed=3).schedule, Path({folder!r}) / name)
"""


def test_another_process_and_another_hash_seed(tmp_path: Path) -> None:
    digests = []
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", DIGESTS.format(tests=str(Path(__file__).parent), folder=str(folder))],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
        )
        digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()})
    assert digests[0] == digests[1]
    assert sorted(digests[0]) == NAMES


def eventful(c: Cluster) -> Cluster:
    """The same two events on every worker and link, so that many things happen at one instant."""
    slow = (Slowdown(at_s=0.5, until_s=1.5, factor=2.0), Slowdown(at_s=2.0, factor=1.5))
    links = tuple(
        dataclasses.replace(x, changes=(BandwidthChange(at_s=1.0, bytes_per_s=1e6),)) for x in c.network.links
    )
    return dataclasses.replace(
        c,
        workers=tuple(dataclasses.replace(w, slowdowns=slow) for w in c.workers),
        network=dataclasses.replace(c.network, links=links),
    )


CASES = {
    "identical": jittery(jitter_cv=0.0),
    "jitter": jittery(),
    "leftovers": jittery(global_batch_samples=34),
    "beside collectives": jittery(jitter_cv=0.0, overlap_slowdown=1.5),
    "events": eventful(jittery(jitter_cv=0.0)),
    "update times": jittery(jitter_cv=0.0, update_s=0.01),
    "unequal": dataclasses.replace(
        jittery(),
        workers=tuple(dataclasses.replace(w, samples_per_s=10.0 * (w.rank + 1)) for w in jittery().workers),
    ),
}


def by_name(s: Schedule) -> dict[str, list[tuple[Any, ...]]]:
    """Each worker's operations in order, without numbers that depend on ranks."""
    names = [*s.header.workers, "server", "all"]
    out: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    for i in range(len(s)):
        row = (
            Kind(int(s.kind[i])).name,
            *(getattr(s, c)[i].item() for c in ("start_s", "end_s", "samples", "first", "scale", "code")),
        )
        out[names[int(s.worker[i])]].append(row)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [(2, 0, 3, 1), (3, 2, 1, 0)])
def test_permuting_the_profile_permutes_the_result(case: str, name: str, order: tuple[int, ...]) -> None:
    c = CASES[case]
    moved = dataclasses.replace(
        c,
        workers=tuple(dataclasses.replace(c.workers[i], rank=rank) for rank, i in enumerate(order)),
        network=dataclasses.replace(c.network, links=tuple(c.network.links[i] for i in order)),
    )
    a = simulate(c, name, updates=16, seed=5).schedule
    b = simulate(moved, name, updates=16, seed=5).schedule
    before, after = by_name(a), by_name(b)
    for worker in before:
        assert before[worker] == after[worker], worker


@pytest.mark.parametrize("name", NAMES)
def test_another_worker_shifts_nobodys_luck(name: str) -> None:
    """Seconds of a worker's first samples, whoever else is there: free network, so that nothing else differs."""
    free: dict[str, Any] = {
        "gradient_bytes": 0.0,
        "bandwidths": None,
        "latency_s": 0.0,
        "server": Link(bytes_per_s=float("inf")),
    }
    lengths = []
    for n in (3, 4):
        s = simulate(
            jittery(n, **free),
            name,
            options={"dead_band": 0.9} if "dead_band" in registry()[name].Options.model_fields else {},
            updates=20,
        ).schedule
        grads = np.flatnonzero((s.kind == Kind.GRAD) & (s.worker == 1))
        per_sample = (s.end_s[grads] - s.start_s[grads]) / s.samples[grads]
        lengths.append(per_sample[:3].tolist())
        sizes = s.samples[grads][:3].tolist()
        assert len(set(sizes)) == 1
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-9)


def test_names_not_positions_carry_the_luck() -> None:
    """Two clusters that share worker b at different places."""
    lengths = []
    for names in (["a", "b", "c"], ["b", "x", "y"]):
        s = simulate(jittery(3, names=names), "s-sgd", updates=10).schedule
        mine = s.rows(Kind.GRAD)[s.worker[s.rows(Kind.GRAD)] == names.index("b")]
        lengths.append((s.end_s[mine] - s.start_s[mine]).tolist())
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_the_beginning_of_a_longer_one(name: str) -> None:
    """The end of the budget changes nothing before it (updates are counted as they complete)."""
    short, long = (simulate(jittery(), name, updates=k).schedule for k in (10, 20))
    ended = (short.kind == Kind.DISCARD) & (short.code == DiscardReason.RUN_ENDED)
    cut = min(np.flatnonzero(ended).tolist() or [len(short)])
    until = short.end_s[: cut // 2].max()
    n = int(np.searchsorted(short.end_s, until, "left"))
    assert n > 20
    for column in ("kind", "worker", "start_s", "end_s", "samples", "first", "state"):
        assert getattr(short, column)[:n].tolist() == getattr(long, column)[:n].tolist()
