"""The folder that a live run leaves: what happened, and where it ended.

    schedule.parquet   the measured Schedule
    parameters.pt      the parameters every replica ended with
    profile.yaml       the cluster, where the run was of a profile
    result.json        its figures, as hetsim simulate writes them
    run.json           what was trained (`facts_of`), checksums, counts, gradient noise, what was gone on from, how clocks were brought
                       together
    checkpoints/       `abs_sgd.checkpoint`, where they were asked for

run.json is written last: a folder that has one holds a finished run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster
from hetsim.convergence.noise_scale import NoiseEstimate
from hetsim.errors import UsageError
from hetsim.export import simulation_document
from hetsim.reading import read_json
from hetsim.schedule import Schedule
from hetsim.schedule.store import load, save
from hetsim.simulate import Result

if TYPE_CHECKING:
    from torch import Tensor

    from abs_sgd.runtime.run import Pacing, RankResult
    from abs_sgd.update import UpdateRule


PARAMETERS, FACTS = "parameters.pt", "run.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveRun:
    """What a live run found: the measured Schedule, the parameters every replica ended with, and the gradient noise seen on the way.

    `resumed`: the updates whose checkpoints it went on from, in order; the Schedule is of the whole run.
    """

    schedule: Schedule
    parameters_P: Tensor
    checksums: tuple[str, ...]
    updates: int
    samples: int
    noise: NoiseEstimate
    resumed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What run.json says of a finished run: its length, what was trained, and how."""

    updates: int
    samples: int
    resumed: tuple[int, ...]
    workload: str
    task_options: Mapping[str, str]
    rule: UpdateRule
    pacing: Pacing
    backend: str

    @property
    def device(self) -> str:
        """Of the first rank: "cpu", "cuda:0"."""
        return self.task_options.get("device", "cuda" if self.backend == "nccl" else "cpu")


def write_run(
    folder: str | Path, result: RankResult, *, cluster: Cluster, algorithm: Algorithm, facts: Mapping[str, Any]
) -> None:
    """Write what rank 0 brought together; `facts` go into run.json as they are: what was trained, and how."""
    from abs_sgd.checkpoint import save_tensors, whole_file

    folder, schedule = Path(folder), result.schedule
    assert schedule is not None
    save(schedule, folder / "schedule.parquet")
    save_tensors(folder / PARAMETERS, result.parameters_P)
    said = {
        "checksums": result.checksums,
        "updates": result.progress.updates,
        "samples": result.progress.samples,
        "noise": asdict(result.noise),
        "resumed": result.resumed,
        "clock": result.clock,
        **facts,
    }
    measured = Result(schedule, cluster, algorithm, schedule.header.seed)
    texts = {"result.json": json.dumps(simulation_document(measured), indent=2), FACTS: json.dumps(said)}
    if schedule.header.profile_yaml:
        texts = {"profile.yaml": schedule.header.profile_yaml, **texts}
    for name, text in texts.items():
        with whole_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def facts_of(
    workload: str, options: Mapping[str, Any], rule: UpdateRule, pacing: Pacing, backend: str
) -> dict[str, Any]:
    """What run.json says of a run that its Schedule and profile do not."""
    return {
        "workload": workload,
        "task_options": {name: str(value).removeprefix("torch.") for name, value in options.items()},  # dtypes by name
        "rule": asdict(rule),
        "pacing": asdict(pacing),
        "backend": backend,
    }


def read(folder: str | Path) -> LiveRun:
    """The run that a folder holds. Raises UsageError, ScheduleError."""
    folder = Path(folder)
    said = _said(folder)
    parameters_P = read_parameters(folder)
    if parameters_P is None:
        raise UsageError(f"{folder}: holds no finished run ({PARAMETERS} is missing)")
    return LiveRun(
        schedule=load(folder / "schedule.parquet"),
        parameters_P=parameters_P,
        checksums=tuple(said["checksums"]),
        updates=said["updates"],
        samples=said["samples"],
        noise=NoiseEstimate(**said["noise"]),
        resumed=tuple(said["resumed"]),
    )


def read_facts(folder: str | Path) -> Facts:
    """What a finished run says of itself. Raises UsageError for what is none, is unfinished or damaged."""
    from abs_sgd.runtime.run import Pacing
    from abs_sgd.update import UpdateRule

    folder = Path(folder)
    said = _said(folder)
    try:
        return Facts(
            updates=_checked(int, said["updates"]),
            samples=_checked(int, said["samples"]),
            resumed=_checked(tuple[int, ...], said["resumed"]),
            workload=_checked(str, said["workload"]),
            task_options=_checked(dict[str, str], said["task_options"]),
            rule=_checked(UpdateRule, said["rule"]),
            pacing=_checked(Pacing, said["pacing"]),
            backend=_checked(str, said["backend"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder / FACTS}: damaged ({_first_line(error)})") from None


def read_parameters(folder: str | Path) -> Tensor | None:
    """Where a run ended; None where the folder does not hold it. Raises UsageError for a file that is no vector of parameters."""
    import torch

    from abs_sgd.checkpoint import unreadable

    path = Path(folder) / PARAMETERS
    if not path.is_file():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for a file that is not its own, or holds more than data
        raise UsageError(f"{path}: holds no parameters ({unreadable(error)})") from None
    if not isinstance(found, torch.Tensor) or found.dim() != 1 or not found.is_floating_point():
        raise UsageError(f"{path}: holds no parameters")
    return found


def _said(folder: Path) -> dict[str, Any]:
    """run.json. Raises UsageError that says what the folder is instead."""
    from abs_sgd.checkpoint import CHECKPOINTS, last_checkpoint

    try:
        said = read_json(folder / FACTS)
    except OSError as error:
        why = (
            f"{FACTS} is missing"
            if folder.is_dir()
            else "it is a file"
            if folder.exists()
            else "there is no such folder"
        )
        if (folder / CHECKPOINTS).is_dir():
            why = f"it was interrupted, {last_checkpoint(folder / CHECKPOINTS)}: resume it"
        elif (folder / FACTS).exists():
            why = str(error.strerror)
        raise UsageError(f"{folder}: holds no finished run ({why})") from None
    if not isinstance(said, dict):
        raise UsageError(f"{folder / FACTS}: damaged (no mapping)")
    return said


def _checked(kind: Any, value: Any) -> Any:
    """The value as that kind. Raises ValueError."""
    return TypeAdapter(kind).validate_python(value)


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
