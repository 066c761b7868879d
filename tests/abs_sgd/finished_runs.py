"""Folders of finished runs whose truth is known: a prediction, slower by a factor, with the parameters that its Schedule gives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abs_sgd.predictor import rule_of
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.run_folder import facts_of
from abs_sgd.runtime.run import Pacing
from abs_sgd.update import State
from abs_sgd.workloads import get
from hetsim import load_profile, simulate
from hetsim.convergence.predictor import Setting
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.store import save
from hetsim.simulate import Result

TWO = """
schema_version: 1
name: two
workload: {name: digits-mlp, gradient_bytes: 100000, dataset_samples: 1437}
workers: [{name: a, samples_per_s: 800.0}, {name: b, samples_per_s: 400.0}]
network: {bandwidth_gbit_per_s: 0.2}
training: {global_batch_samples: 32, micro_batch_samples: 8, learning_rate: 0.1, target_loss: 2.2}
"""


def stretched(result: Result, factor: float) -> Result:
    """As if measured, everything slower by a factor."""
    s = result.schedule
    slower = dataclasses.replace(
        s, start_s=s.start_s * factor, end_s=s.end_s * factor, header=dataclasses.replace(s.header, origin="measured")
    )
    return Result(slower, result.cluster, result.algorithm, result.seed)


def finished(
    folder: Path,
    algorithm: str = "s-sgd",
    *,
    factor: float = 1.0,
    seed: int = 0,
    updates: int = 20,
    options: dict[str, Any] | None = None,
    pad: bool = True,
    text: str = TWO,
    **changed: Any,
) -> Path:
    """A run's folder; `changed` replaces what run.json says."""
    profile = load_profile(text)
    training = profile.cluster().training
    rule = rule_of(training, Setting.of(training))
    made = simulate(profile, algorithm, options=options, seed=seed, updates=updates)
    schedule = stretched(made, factor).schedule
    end = _end(schedule, rule)
    folder.mkdir()
    save(schedule, folder / "schedule.parquet")
    torch.save(end.parameters_P, folder / "parameters.pt")
    (folder / "profile.yaml").write_text(schedule.header.profile_yaml, encoding="utf-8")
    said = {
        "updates": end.progress.updates,
        "samples": end.progress.samples,
        "resumed": [],
        **facts_of("digits-mlp", {}, rule, Pacing(pad=pad), "gloo"),
        **changed,
    }
    (folder / "run.json").write_text(json.dumps(said), encoding="utf-8")
    return folder


def _end(schedule: Schedule, rule: Any) -> State:
    """Where the first replica, or the server, ended."""
    seen: dict[int, State] = {}
    InProcess(schedule, get("digits-mlp"), seed=schedule.header.seed).train(rule, observe=seen.__setitem__)
    own = schedule.worker == (schedule.n if schedule.header.server else 0)
    return seen[int(schedule.state[np.flatnonzero(own & np.isin(schedule.kind, (Kind.STEP, Kind.MIX)))[-1]])]


def change(folder: Path, **changed: Any) -> Path:
    """Make run.json say something else."""
    said = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**said, **changed}), encoding="utf-8")
    return folder
