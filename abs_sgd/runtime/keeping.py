"""Checkpoints of a live run, taken while gradients travel, and going on from them.

Every rank takes its share right after **its** update k, so nobody has to agree on a moment and nothing is drained: at that point of the
program all ranks have launched the same collectives. A share holds what the program was answered (`abs_sgd.runtime.answers`), the states
it still needs, the accumulator, what the rank put into collectives that are not applied yet (launched again from it), its samples, and
what it recorded. Whoever goes on has the rows of before in its log, so the two parts of the run are one Schedule; its clock goes on from
the latest rank's checkpoint, and what was claimed and lost in between is handed out again.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from abs_sgd.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    discard_unfinished,
    newest,
    read_share,
)
from abs_sgd.runtime.record import RankLog
from abs_sgd.runtime.samples import Range, holes_below
from abs_sgd.update import UpdateRule
from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster
from hetsim.errors import UsageError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.log import DTYPE


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Checkpoints after every so many updates (0: none) into `folder`; `resume`: the one to go on from. `run`: what a checkpoint of
    another run differs in, as plain JSON values; `job`: torchrun's name of the job that saves."""

    folder: str
    every: int
    run: dict[str, Any] = field(default_factory=dict)
    resume: int = 0
    job: str = ""

    def start(self, rank: int, world: int) -> Kept | None:
        """What this rank goes on from, None for a run from the beginning. Raises UsageError."""
        if not self.resume:
            return None
        found = newest(self.folder)
        if found is None or found.update != self.resume:
            raise UsageError(f"{self.folder}: the checkpoint of update {self.resume} is gone")
        check_same(found, self.run, world)
        return Kept(read_share(found, rank), found.share(rank))


def check_same(found: Checkpoint, run: Mapping[str, Any], world: int) -> None:
    """Raise UsageError for a checkpoint of another run."""
    before = found.meta.get("run", {})
    other = [
        f"{name} {before.get(name)!r}, now {run.get(name)!r}"
        for name in sorted({*before, *run})
        if before.get(name) != run.get(name)
    ]
    if found.world != world:
        other.append(f"{found.world} ranks, now {world}")
    if other:
        raise UsageError(f"the checkpoint of {found} is of another run: it had {'; '.join(other)}")


@dataclass(frozen=True)
class Kept:
    """One rank's share of a checkpoint."""

    held: dict[str, Any]
    path: Path

    @property
    def time_s(self) -> float:
        """The run's clock when it was taken."""
        return float(self.held["time_s"])

    @property
    def ranges(self) -> list[Range]:
        """Samples claimed and not used."""
        return [(first, count) for first, count in self.held["ranges"]]

    def log(self, rank: int) -> RankLog:
        """What the rank had recorded."""
        held = self.held
        rows = np.frombuffer(held["rows"].numpy().tobytes(), DTYPE).tolist()
        seen = {int(number): at for number, at in held["seen"].tolist()}
        outcomes = array("d", held["outcomes"].tolist())
        return RankLog(rank, rows, bytearray(held["polls"].numpy().tobytes()), outcomes, seen)

    def account(self, rank: int) -> bytes:
        """How far the data are claimed, the clock, and the ranges used and held: what the others need of this share."""
        used = [(row[9], row[8]) for row in self.log(rank).rows if row[0] == Kind.GRAD]
        table = np.array([*used, *self.ranges], np.int64).reshape(-1, 2)
        head = np.array([self.held["reach"], self.time_s], np.float64)
        return head.tobytes() + table.tobytes()


def together(accounts: list[bytes]) -> tuple[float, list[Range], int]:
    """The clock to go on from, the samples that were claimed and lost, and how far the data are claimed, from every rank's account."""
    heads = [np.frombuffer(account[:16], np.float64) for account in accounts]
    used: list[Range] = []
    for account in accounts:
        used += [(int(f), int(c)) for f, c in np.frombuffer(account[16:], np.int64).reshape(-1, 2).tolist()]
    reach = max(int(max(head[0] for head in heads)), *(first + count for first, count in used), 0)
    return float(max(head[1] for head in heads)), holes_below(reach, used), reach


def keeping_of(
    folder: str | Path,
    every: int,
    resume: bool,
    cluster: Cluster,
    algorithm: Algorithm,
    workload: str,
    task_options: Mapping[str, Any],
    rule: UpdateRule,
    seed: int,
) -> Keeping | None:
    """How a run in `folder` is saved, and where it goes on; None where it does neither. One process asks, before any rank writes.

    Raises UsageError where checkpoints of an earlier run are in the way or are of another run, and for algorithms that cannot be saved.
    """
    if every < 0:
        raise UsageError("checkpoint_every: updates between two checkpoints, at least 1 (0: none)")
    if not every and not resume:
        return None
    if algorithm.has_server:
        raise UsageError(f"{algorithm.name}: runs with a parameter server cannot be saved and gone on from yet")
    where = Path(folder, CHECKPOINTS)
    named = {
        "algorithm": algorithm.name,
        "options": algorithm.options.model_dump(mode="json"),
        "workers": [w.name for w in cluster.workers],
        "batches": [cluster.training.global_batch_samples, cluster.training.micro_batch_samples],
        "workload": workload,
        "task_options": {name: str(value) for name, value in task_options.items()},
        "rule": asdict(rule),
        "seed": seed,
    }
    run = dict(json.loads(json.dumps(named)))
    found = newest(where)
    if found is not None and not resume:
        raise UsageError(
            f"{where} holds checkpoints of an earlier run, the newest of update {found.update}: resume it, or take another folder"
        )
    if found is not None:
        check_same(found, run, cluster.n)
    discard_unfinished(where)
    return Keeping(folder=str(where), every=every, run=run, resume=found.update if found else 0)
