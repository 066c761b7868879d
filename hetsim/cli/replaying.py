"""What `hetsim replay` needs: a schedule on disk, the cluster it is of, and the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.errors import MissingExtraError, UsageError, nearest

if TYPE_CHECKING:
    from hetsim.cluster.spec import Cluster
    from hetsim.convergence import Curve, Predictor, Target
    from hetsim.schedule import Schedule

BACKENDS = ("inprocess",)
LATER = ("gloo", "nccl")  # named in the design, not built yet


@dataclass(frozen=True)
class Replay:
    """A schedule, its cluster, and what trains it."""

    schedule: Schedule
    cluster: Cluster
    trainer: Predictor
    target: Target

    def train(self, seed: int) -> Curve:
        """At the profile's learning rate and momentum."""
        from hetsim.convergence import Setting

        training = self.cluster.training
        setting = Setting(learning_rate=training.learning_rate, momentum=training.momentum)
        return self.trainer.curves(self.schedule, self.cluster, [setting], seed=seed)[0]

    def document(self, curve: Curve, seed: int) -> dict[str, Any]:
        """The curve as JSON."""
        from hetsim.comparison import plain

        met = curve.crossing(self.target.value)
        training = self.cluster.training
        return {
            "schema_version": 1,
            "profile": self.cluster.name,
            "algorithm": self.schedule.header.algorithm,
            "options": self.schedule.header.options,
            "seed": seed,
            "backend": "inprocess",
            "learning_rate": training.learning_rate,
            "momentum": training.momentum,
            "target": plain(self.target),
            "samples_to_target": met[0] if met else None,
            "time_to_target_s": met[1] if met else None,
            "diverged": curve.diverged,
            "curve": {name: plain(getattr(curve, name).tolist()) for name in ("updates", "samples", "time_s", "loss")},
            "assumptions": list(curve.assumptions),
        }


def prepare(folder: Path, backend: str, workload: str, data: Path | None, overrides: list[str] | None) -> Replay:
    """Read the folder and find the trainer. Raises UsageError, ProfileError, ScheduleError, MissingExtraError."""
    if backend in LATER:
        raise UsageError(
            f"backend {backend} is not in this version; inprocess trains the same schedule in virtual time"
        )
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r} ({nearest(backend, BACKENDS)})")
    schedule_file, profile_file = folder / "schedule.parquet", folder / "profile.yaml"
    if not schedule_file.is_file():
        runs = sorted(path.parent.name for path in folder.glob("runs/*/schedule.parquet"))
        hint = (
            f"it holds {len(runs)} runs, name one: {folder / 'runs' / runs[0]}"
            if runs
            else "hetsim simulate -o DIR writes one"
        )
        raise UsageError(f"{folder}: no schedule.parquet in it ({hint})")
    from hetsim.cluster import load_profile
    from hetsim.schedule.store import load

    cluster = load_profile(profile_file, overrides=overrides or ()).cluster()
    schedule = load(schedule_file)
    if tuple(w.name for w in cluster.workers) != schedule.header.workers:
        raise UsageError(f"{folder}: profile.yaml and schedule.parquet name different workers")
    trainer = _trainer(workload, data)
    return Replay(schedule, cluster, trainer, trainer.target(cluster))


def _trainer(workload: str, data: Path | None) -> Predictor:
    try:
        from abs_sgd.predictor import VirtualTraining
    except ImportError as error:
        raise MissingExtraError("training in virtual time", "train") from error
    return VirtualTraining(workload=workload, data=data)
