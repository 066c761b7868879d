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

from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster
from hetsim.convergence.noise_scale import NoiseEstimate
from hetsim.errors import UsageError
from hetsim.export import simulation_document
from hetsim.schedule import Schedule
from hetsim.schedule.store import load, save
from hetsim.simulate import Result

if TYPE_CHECKING:
    from torch import Tensor

    from abs_sgd.runtime.run import Pacing, RankResult
    from abs_sgd.update import UpdateRule


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


def write_run(
    folder: str | Path, result: RankResult, *, cluster: Cluster, algorithm: Algorithm, facts: Mapping[str, Any]
) -> None:
    """Write what rank 0 brought together; `facts` go into run.json as they are: what was trained, and how."""
    import torch

    from abs_sgd.checkpoint import whole_file

    folder, schedule = Path(folder), result.schedule
    assert schedule is not None
    save(schedule, folder / "schedule.parquet")
    with whole_file(folder / "parameters.pt") as temporary:
        torch.save(result.parameters_P, temporary)
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
    texts = {"result.json": json.dumps(simulation_document(measured), indent=2), "run.json": json.dumps(said)}
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
        "task_options": {name: str(value) for name, value in options.items()},
        "rule": asdict(rule),
        "pacing": asdict(pacing),
        "backend": backend,
    }


def read(folder: str | Path) -> LiveRun:
    """The run that a folder holds. Raises UsageError, ScheduleError."""
    import torch

    folder = Path(folder)
    try:
        said = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        parameters_P = torch.load(folder / "parameters.pt", weights_only=True)
    except FileNotFoundError as error:
        raise UsageError(f"{folder}: holds no finished run ({Path(error.filename).name} is missing)") from None
    return LiveRun(
        schedule=load(folder / "schedule.parquet"),
        parameters_P=parameters_P,
        checksums=tuple(said["checksums"]),
        updates=said["updates"],
        samples=said["samples"],
        noise=NoiseEstimate(**said["noise"]),
        resumed=tuple(said["resumed"]),
    )
