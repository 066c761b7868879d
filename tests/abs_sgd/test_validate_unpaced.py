"""Validation of ranks as the machine runs them, with shares of its cores; replays that rounding moves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from abs_sgd import agreement, cpu_shares, workloads
from abs_sgd.agreement import Figures, Run, Tolerances
from abs_sgd.replay.inprocess import rounding_alone
from abs_sgd.update import UpdateRule
from hetsim import load_profile, simulate
from hetsim.cli import main
from hetsim.compute.model import pass_model

pytestmark = pytest.mark.torch

SAME = Figures(
    update_period_s=1.0, samples_per_s=8.0, mean_batch_samples=8.0, utilisation=1.0, waiting_share=0.0,
    waiting={"peers": 0.0}, sample_share={"a": 0.5, "b": 0.5},
)  # fmt: skip


@pytest.mark.slow
def test_as_the_machine_is_with_shares_of_its_cores(tmp_path: Path) -> None:
    if not (found := cpu_shares.probe()).ok:
        pytest.skip(found.reason)
    folder = tmp_path / "held"
    words = ["--unpaced", "--cpu-shares", "0.6,0.3", "-a", "s-sgd", "--updates", "5", "-o", str(folder)]
    loose = ["--period-tolerance", "99", "--share-tolerance", "99", "--time-tolerance", "99"]
    training = ["--set", "training.global_batch_samples=64", "--set", "training.learning_rate=0.01"]
    assert main(["validate", *words, *loose, *training]) == 0
    document = json.loads((folder / "validation.json").read_text())
    (run,) = document["algorithms"][0]["runs"]
    assert document["tolerances"]["pace"] is None and any("0.6, 0.3" in text for text in document["said"])
    assert run["replay_deviation"] <= 1e-5 and run["measured"]["update_period_s"] > 0
    profile = load_profile(folder / "profile.yaml")
    fast_s, slow_s = (pass_model(worker).seconds(16) for worker in profile.cluster().workers)  # a line or a table
    assert slow_s > 1.2 * fast_s  # half the share
    assert profile.network.all_reduce_busy_table


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["emulated-4", "--cpu-shares", "0.5,0.5"], "with --unpaced only"),
        (["--unpaced"], "name the processes' shares"),
        (["--unpaced", "--cpu-shares", "0.5,x"], "numbers with commas"),
        (["--unpaced", "--cpu-shares", "0.5,2"], "a rank computes on one core"),
        (["emulated-4", "--unpaced", "--shaped"], "nothing is shaped"),
        (["emulated-4", "--unpaced", "--cpu-shares", "0.5"], "1 CPU shares for 4"),
    ],
)
def test_what_an_unpaced_validation_refuses(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("started a process"))
    assert main(["validate", *words, "-a", "s-sgd"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_rounding_alone_moves_little_where_training_is_stable_and_much_where_it_is_not() -> None:
    task = workloads.get("digits-mlp")
    schedule = simulate(load_profile("emulated-4"), "s-sgd", updates=30).schedule
    calm, wild = (
        rounding_alone(schedule, task, UpdateRule(learning_rate=rate, momentum=0.9)) for rate in (0.001, 10.0)
    )
    assert calm is not None and 0 < calm < 1e-6
    assert wild is None or wild > 5 * calm


def test_a_replay_is_held_against_what_rounding_alone_does() -> None:
    near, far = (
        Run(seed=0, predicted=SAME, measured=SAME, replay_deviation=1e-3, rounding_deviation=rounding)
        for rounding in (2e-4, 1e-6)
    )
    verdicts = [
        {c.name: c.within for c in agreement.checks([run], Tolerances(), 60)}["replay, seed 0"] for run in (near, far)
    ]
    assert verdicts == [True, False]
