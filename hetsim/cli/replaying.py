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

BACKENDS = ("inprocess", "gloo")
LATER = ("nccl",)  # named in the design, not built yet


@dataclass(frozen=True)
class Replay:
    """A schedule, its cluster, and what trains it."""

    schedule: Schedule
    cluster: Cluster
    trainer: Predictor
    target: Target
    backend: str = "inprocess"
    pace: float | None = None

    def train(self, seed: int) -> Curve:
        """At the profile's learning rate and momentum: in virtual time, or with a process per worker and its seconds."""
        from hetsim.convergence import Setting

        training = self.cluster.training
        setting = Setting(learning_rate=training.learning_rate, momentum=training.momentum)
        if self.backend == "gloo":
            from abs_sgd.predictor import VirtualTraining
            from abs_sgd.replay.distributed import replay_on

            assert isinstance(self.trainer, VirtualTraining)
            return replay_on(self.schedule, self.cluster, self.trainer, setting, seed=seed, pace=self.pace).curve
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
            "backend": self.backend,
            "learning_rate": training.learning_rate,
            "momentum": training.momentum,
            "target": plain(self.target),
            "samples_to_target": met[0] if met else None,
            "time_to_target_s": met[1] if met else None,
            "diverged": curve.diverged,
            "curve": {name: plain(getattr(curve, name).tolist()) for name in ("updates", "samples", "time_s", "loss")},
            "assumptions": list(curve.assumptions),
        }


def prepare(
    folder: Path,
    backend: str,
    workload: str,
    data: Path | None,
    overrides: list[str] | None,
    pace: float | None = None,
) -> Replay:
    """Read the folder and find the trainer. Raises UsageError, ProfileError, ScheduleError, MissingExtraError."""
    if backend in LATER:
        raise UsageError(
            f"backend {backend} is not in this version; gloo runs the same schedule with a process per worker on CPUs, "
            "inprocess in virtual time"
        )
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r} ({nearest(backend, BACKENDS)})")
    if pace is not None and backend != "gloo":
        raise UsageError(f"--pace is for real processes (--backend gloo); {backend} has no clock to keep")
    if pace is not None and not 0.0 < pace < float("inf"):
        raise UsageError(f"--pace must be a positive number of seconds per second of the schedule, not {pace:g}")
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
    return Replay(schedule, cluster, trainer, trainer.target(cluster), backend, pace)


def _trainer(workload: str, data: Path | None) -> Predictor:
    try:
        from abs_sgd.predictor import VirtualTraining
    except ImportError as error:
        raise MissingExtraError("training in virtual time", "train") from error
    return VirtualTraining(workload=workload, data=data)
