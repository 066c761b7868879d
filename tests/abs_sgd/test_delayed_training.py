"""The cells of the study of what a delay costs: kept by content, ended when they should be, compared on one seed."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from abs_sgd import workloads

pytestmark = pytest.mark.torch
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        import cost_of_delay_training
    finally:
        sys.path.remove(str(FOLDER))
    return cost_of_delay_training


def bench_in(folder: Path, study: ModuleType, **changes: Any) -> Any:
    made = study.Bench(
        task=workloads.get("digits-mlp"), folder=folder, target=1.0, max_samples=2_000, every=64, window=2, stop=True,
        margin=math.inf, far_from=0,
    )  # fmt: skip
    return replace(made, **changes)


def test_a_study_is_trained_once_and_compared_with_the_synchronous_method(tmp_path: Path, study: ModuleType) -> None:
    methods = (study.none(rates=(0.05, 0.1), batch=64), study.local(4, rates=(0.05, 0.1), batch=64))
    small = study.Study(bench=bench_in(tmp_path, study), sections={"small": methods}, seeds=2, tuning_seeds=1)
    assert small.best(methods[0]) is None
    assert study.row(small, methods[1]) is None
    small.run()
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    assert len(files) == 6  # two rates of two methods, and the better ones again
    small.run()
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")} == files
    assert study.ratios(small, methods[0]) == [1.0, 1.0]
    over = study.ratios(small, methods[1])
    assert len(over) == 2
    assert 0.5 < min(over) <= max(over) < 2.0
    (table,) = study.tables(small)
    assert table.row_count == 2


def test_cells_are_told_apart_by_what_they_train(tmp_path: Path, study: ModuleType) -> None:
    bench = bench_in(tmp_path, study)
    base = study.Cell(method=study.local(4, rates=(0.1,), batch=64), rate=0.1, seed=0)
    others = [
        replace(base, rate=0.2),
        replace(base, seed=1),
        replace(base, method=study.local(8, rates=(0.1,), batch=64)),
        replace(base, method=study.blend(4, rates=(0.1,), batch=64)),
        replace(base, method=replace(base.method, optimizer="adamw")),
        replace(base, method=replace(base.method, nesterov=True)),
        replace(base, method=replace(base.method, momentum=0.5)),
    ]
    assert len({bench.place(cell) for cell in (base, *others)}) == 1 + len(others)
    assert bench.place(replace(base, method=replace(base.method, name="another word"))) == bench.place(base)


def test_samples_to_a_loss_are_read_off_the_smoothed_curve(tmp_path: Path, study: ModuleType) -> None:
    bench = bench_in(tmp_path, study)
    run = study.Trained(samples=(0, 10, 20, 30), loss=(4.0, 2.0, 3.0, 1.0), ended="", cpu_s=0.0)
    # means of two: 3, 2.5 and 2 at 5, 15 and 25 samples
    assert bench.samples_to(run, 2.25) == pytest.approx(20.0)
    assert bench.samples_to(run, 1.9) == math.inf
    assert bench.samples_to(run, 9.0) == pytest.approx(5.0)
    assert bench.last_loss(run) == pytest.approx(2.0)
    assert bench.last_loss(replace(run, ended="behind")) == math.inf


def test_a_cell_far_behind_its_reference_ends(tmp_path: Path, study: ModuleType) -> None:
    bench = bench_in(tmp_path, study, stop=False, margin=0.3, far_from=500)
    method = study.none(rates=(0.1, 1e-4), batch=64)
    good = bench.train(study.Cell(method=method, rate=0.1, seed=0))
    assert good.ended == ""
    poor = bench.train(study.Cell(method=method, rate=1e-4, seed=0), good)
    assert poor.ended == "behind"
    assert 500 <= poor.samples[-1] < good.samples[-1]


@pytest.mark.parametrize("shares", ["constant", "jittering"])
def test_mean_batches_are_the_batch_and_shares_change_as_named(study: ModuleType, shares: str) -> None:
    from delayed_training import schedule_of, share_noise  # importable once the study is

    method = study.local(4, rates=(0.1,), batch=128, shares=shares)
    schedule = schedule_of(method, 0, 25_600)
    assert float(schedule.updates.samples.mean()) == pytest.approx(128, rel=0.1)
    low, high = {"constant": (0.0, 0.02), "jittering": (0.1, 0.5)}[shares]
    assert low <= share_noise(schedule, 128) <= high
