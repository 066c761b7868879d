"""What the ranks of a replay are told, as files in one folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from abs_sgd import workloads
from abs_sgd.checkpoint import save_tensors, whole_file
from abs_sgd.workloads.task import Task
from abs_sgd.workloads.user import user_task
from hetsim.schedule import Schedule
from hetsim.schedule.log import DTYPE

TEACHER = "teacher"


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a rank needs besides the Schedule. `pace`: seconds here per second of the Schedule; None: as fast as it goes.

    `resume`: the update whose checkpoint the run goes on from, 0 for none. `taught`: every state is compared with the one in the folder of
    the teacher, and replaced by it.
    """

    workload: str
    rule: dict[str, Any]
    task_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    thinning: int = 1
    exact: bool = True
    pace: float | None = None
    snapshots: tuple[int, ...] = ()  # states to be kept for evaluation
    backend: str = "gloo"
    devices: tuple[str, ...] = ()  # by rank
    checkpoint_every: int = 0
    resume: int = 0
    taught: bool = False

    @property
    def ranks(self) -> int:
        """Workers, and the server where there is one."""
        return len(self.devices)

    def same_run(self, schedule: Schedule) -> dict[str, Any]:
        """What a checkpoint of another run differs in, as plain values; how fast, where and how often saved do not matter."""
        named = {
            "schedule": digest(schedule),
            "workload": self.workload,
            "rule": self.rule,
            "task_options": self.task_options,
            "seed": self.seed,
            "thinning": self.thinning,
            "exact": self.exact,
            "evaluations": self.snapshots,
        }
        return dict(json.loads(json.dumps(named)))

    def save(self, folder: Path) -> None:
        """Write job.json."""
        write(folder / "job.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Job:
        """The job of a folder."""
        said = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        return cls(**{**said, "snapshots": tuple(said["snapshots"]), "devices": tuple(said["devices"])})


def task_of(workload: str, options: Mapping[str, Any], device: str = "cpu") -> Task:
    """The task of a name, `module:function module:function` for a user's own model and data."""
    built = workloads.options_of(options, device)
    model, _, dataset = workload.partition(" ")
    if dataset:
        return user_task(model, dataset, **built)
    return workloads.get(workload, **built)


def digest(schedule: Schedule) -> str:
    """A fingerprint of the log and of who takes part in it."""
    known = hashlib.sha256(json.dumps([schedule.header.workers, schedule.header.server]).encode())
    for name in DTYPE.names or ():
        known.update(np.ascontiguousarray(getattr(schedule, name)).tobytes())
    return known.hexdigest()


def write(path: Path, value: Mapping[str, Any]) -> None:
    """JSON or tensors (by the file's name), whole or not at all."""
    if path.suffix == ".pt":
        save_tensors(path, dict(value))
        return
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value), encoding="utf-8")
