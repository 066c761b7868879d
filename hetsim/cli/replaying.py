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

BACKENDS = ("inprocess", "gloo", "nccl")
FILES = "replay"  # what a replay with checkpoints keeps, in the run's folder


@dataclass(frozen=True, kw_only=True)
class How:
    """How a schedule is to be executed, as asked for on the command line."""

    backend: str = "inprocess"
    device: str = "cpu"
    pace: float | None = None
    checkpoint_every: int | None = None
    resume: bool = False

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        if self.backend not in BACKENDS:
            raise UsageError(f"unknown backend {self.backend!r} ({nearest(self.backend, BACKENDS)})")
        if self.backend == "inprocess":
            asked = {"--pace": self.pace, "--checkpoint-every": self.checkpoint_every, "--resume": self.resume or None}
            for option, value in asked.items():
                if value is not None:
                    raise UsageError(f"{option} is for real processes (--backend gloo or nccl), not for inprocess")
        if self.pace is not None and not 0.0 < self.pace < float("inf"):
            raise UsageError(
                f"--pace must be a positive number of seconds per second of the schedule, not {self.pace:g}"
            )

    @property
    def keeps_files(self) -> bool:
        """Whether there are checkpoints to write or to go on from."""
        return self.checkpoint_every is not None or self.resume


@dataclass(frozen=True)
class Trained:
    """The curve, and the update whose checkpoint the run went on from (None: none was asked for; 0: there was none)."""

    curve: Curve
    resumed_from: int | None = None


@dataclass(frozen=True)
class Replay:
    """A schedule, its cluster, and what trains it."""

    folder: Path
    schedule: Schedule
    cluster: Cluster
    trainer: Predictor
    target: Target
    how: How

    def train(self, seed: int) -> Trained:
        """At the profile's learning rate and momentum: in virtual time, or with a process per worker and its seconds."""
        from hetsim.convergence import Setting

        training = self.cluster.training
        setting = Setting.of(training)
        how = self.how
        if how.backend == "inprocess":
            return Trained(self.trainer.curves(self.schedule, self.cluster, [setting], seed=seed)[0])
        from abs_sgd.predictor import VirtualTraining
        from abs_sgd.replay.distributed import replay_on

        assert isinstance(self.trainer, VirtualTraining)
        found = replay_on(
            self.schedule,
            self.cluster,
            self.trainer,
            setting,
            folder=self.folder / FILES if how.keeps_files else None,
            seed=seed,
            backend=how.backend,
            device=how.device,
            pace=how.pace,
            checkpoint_every=how.checkpoint_every or 0,
            resume=how.resume,
        )
        return Trained(found.curve, found.resumed_from if how.resume else None)

    def document(self, trained: Trained, seed: int) -> dict[str, Any]:
        """The curve as JSON."""
        from hetsim.comparison import plain

        curve = trained.curve
        met = curve.crossing(self.target.value)
        training = self.cluster.training
        return {
            "schema_version": 1,
            "profile": self.cluster.name,
            "algorithm": self.schedule.header.algorithm,
            "options": self.schedule.header.options,
            "seed": seed,
            "backend": self.how.backend,
            "device": self.how.device,
            "resumed_from": trained.resumed_from,
            "learning_rate": training.learning_rate,
            "momentum": training.momentum,
            "target": plain(self.target),
            "samples_to_target": met[0] if met else None,
            "time_to_target_s": met[1] if met else None,
            "diverged": curve.diverged,
            "curve": {name: plain(getattr(curve, name).tolist()) for name in ("updates", "samples", "time_s", "loss")},
            "assumptions": list(curve.assumptions),
        }


def prepare(folder: Path, workload: str, data: Path | None, overrides: list[str] | None, how: How) -> Replay:
    """Read the folder and find the trainer. Raises UsageError, ProfileError, ScheduleError, MissingExtraError."""
    how.check()
    schedule_file, profile_file = folder / "schedule.parquet", folder / "profile.yaml"
    if not schedule_file.is_file():
        runs = sorted(path.parent.name for path in folder.glob("runs/*/schedule.parquet"))
        hint = (
            f"it holds {len(runs)} runs, name one: {folder / 'runs' / runs[0]}"
            if runs
            else "hetsim simulate -o DIR writes one"
        )
        raise UsageError(f"{folder}: no schedule.parquet in it ({hint})")
    if not profile_file.is_file():
        raise UsageError(f"{folder}: no profile.yaml in it, which says what the schedule is of")
    from hetsim.cluster import load_profile
    from hetsim.schedule.store import load

    cluster = load_profile(profile_file, overrides=overrides or ()).cluster()
    schedule = load(schedule_file)
    if tuple(w.name for w in cluster.workers) != schedule.header.workers:
        raise UsageError(f"{folder}: profile.yaml and schedule.parquet name different workers")
    trainer = _trainer(workload, data, how)
    return Replay(folder, schedule, cluster, trainer, trainer.target(cluster), how)


def _trainer(workload: str, data: Path | None, how: How) -> Predictor:
    try:
        from abs_sgd.devices import device_of
        from abs_sgd.predictor import VirtualTraining
    except ImportError as error:
        raise MissingExtraError("training in virtual time", "train") from error
    if how.backend != "inprocess":
        return VirtualTraining(workload=workload, data=data)  # ranks find their devices themselves
    return VirtualTraining(workload=workload, data=data, device=str(device_of(0, 1, "gloo", how.device)))
