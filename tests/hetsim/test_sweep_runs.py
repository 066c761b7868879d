"""Sweeps: the same bytes however they are computed; interrupted, killed and gone on with; refused where they must be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_clusters import SMALL

from hetsim import compare, load_profile, sweep
from hetsim.errors import ProfileError, UsageError
from hetsim.sweeps import Sweep, load_spec, run
from hetsim.sweeps import running as running_module

OVER = {"network.bandwidth_gbit_per_s": [0.5, 5], "workers.slow.samples_per_s": [100, 200, 400]}
LABELS = ["s-sgd", "abs-sgd"]


def small_sweep(folder: Path | None = None, **more: Any) -> Sweep:
    given: dict[str, Any] = {"over": OVER, "algorithms": LABELS, "jobs": 1, **more}
    return sweep(load_profile(SMALL), folder=folder, **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a sweep done in one go in one process."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    assert small_sweep(folder).computed == 6
    return folder


def test_a_folder_holds_everything_and_nothing_else(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} == {
        "spec.yaml",
        "profile.yaml",
        "sweep.json",
        "sweep.parquet",
        "report.html",
    }
    state = json.loads((whole / "sweep.json").read_text(encoding="utf-8"))
    assert state["complete"] and state["cells"] == 6 and state["algorithms"] == LABELS
    assert {"hetsim", "numpy", "simpy", "scipy"} <= state["versions"].keys()


def test_full_cells_are_comparisons(tmp_path: Path) -> None:
    found = small_sweep(method="full", over={"workers.slow.samples_per_s": [100, 400]}, seeds=2)
    for cell, speed in enumerate((100, 400)):
        profile = load_profile(SMALL, overrides=[f"workers.slow.samples_per_s={speed}"])
        expected = compare(profile, LABELS, seeds=2, jobs=1)
        for row in (r for r in found.rows() if r["cell"] == cell):
            same = expected[row["algorithm"]]
            assert same.time_to_target_s is not None and same.speedup_over_best_baseline is not None
            assert row["workers.slow.samples_per_s"] == speed
            assert row["seconds"] == same.time_to_target_s.median and row["reached"] == 2
            assert row["speedup"] == same.speedup_over_best_baseline.value
            assert row["samples_per_s"] == same.samples_per_s and row["limited_by"] == same.limited_by
            assert row["method"] == "full" and row["learning_rate"] == same.learning_rate


def test_two_processes_give_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    small_sweep(tmp_path / "two", jobs=2)
    assert (tmp_path / "two" / "sweep.parquet").read_bytes() == (whole / "sweep.parquet").read_bytes()


def test_the_order_of_cells_changes_no_figure(whole: Path) -> None:
    turned = small_sweep(over={field: values[::-1] for field, values in reversed(OVER.items())})
    straight = small_sweep(whole)

    def by_point(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
        return {tuple(row[f] for f in (*OVER, "algorithm")): {**row, "cell": None} for row in rows}

    assert by_point(turned.rows()) == by_point(straight.rows())


def test_a_complete_sweep_is_read_not_computed(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "run_cell", None)
    again = small_sweep(whole)
    assert again.computed == 0 and again.table.num_rows == 12


def test_its_own_specification_reproduces_it(whole: Path, tmp_path: Path) -> None:
    run(load_spec(whole / "spec.yaml"), jobs=1, folder=tmp_path / "again")
    for name in ("sweep.parquet", "spec.yaml", "profile.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (whole / name).read_bytes()


def test_an_interrupted_sweep_goes_on_with_what_is_missing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = running_module.run_cell, []

    def interrupted(*arguments: Any) -> list[dict[str, Any]]:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(running_module, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_sweep(tmp_path / "s")
    assert len(list((tmp_path / "s" / "cells").iterdir())) >= 1 and not (tmp_path / "s" / "sweep.parquet").exists()
    assert small_sweep(tmp_path / "s").computed == 3
    assert (tmp_path / "s" / "sweep.parquet").read_bytes() == (whole / "sweep.parquet").read_bytes()
    assert not (tmp_path / "s" / "cells").exists()


def test_a_damaged_shard_is_computed_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = running_module.run_cell
    monkeypatch.setattr(running_module, "SHARD_S", 0.0)  # a shard for every cell
    calls: list[Any] = []

    def stopped(*arguments: Any) -> list[dict[str, Any]]:
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(running_module, "run_cell", stopped)
    with pytest.raises(KeyboardInterrupt):
        small_sweep(tmp_path / "s")
    shards = sorted((tmp_path / "s" / "cells").iterdir())
    assert len(shards) == 4
    shards[0].write_bytes(shards[0].read_bytes()[:100])
    shards[1].write_bytes(b"")
    assert small_sweep(tmp_path / "s").computed == 4
    assert (tmp_path / "s" / "sweep.parquet").read_bytes() == (whole / "sweep.parquet").read_bytes()


KILLED = """
import sys, time
from pathlib import Path
import hetsim.sweeps.running as running
from hetsim import load_profile, sweep

if __name__ == "__main__":
    running.SHARD_S = 0.0
    real = running.run_cell
    def slow(*arguments):
        if len(list((Path(sys.argv[1]) / "cells").glob("*.parquet"))) == 3:
            print("three", flush=True)
            time.sleep(60)
        return real(*arguments)
    running.run_cell = slow
    sweep(load_profile(sys.stdin.read()), over={over!r}, algorithms={labels!r}, jobs=1, folder=sys.argv[1])
"""


def test_killed_in_the_middle_then_gone_on_with(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    code = KILLED.format(over=OVER, labels=LABELS)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(SMALL)
        process.stdin.close()
        assert process.stdout.readline() == "three\n"
        (folder / "cells" / f".x.parquet.host.{process.pid}.00000000.tmp").write_bytes(b"half")
        process.kill()
    assert process.returncode == -signal.SIGKILL if os.name == "posix" else True
    assert small_sweep(folder).computed == 3
    assert (folder / "sweep.parquet").read_bytes() == (whole / "sweep.parquet").read_bytes()
    assert {p.name for p in folder.iterdir()} == {p.name for p in whole.iterdir()}


def test_another_specification_is_refused_with_what_differs(whole: Path) -> None:
    for more, says in (
        ({"seed": 1}, "it differs in seed"),
        ({"algorithms": ["s-sgd"]}, "it differs in algorithms"),
        ({"over": {"workers.slow.samples_per_s": [100]}}, "it differs in over"),
        ({"method": "full"}, "it differs in method"),
    ):
        with pytest.raises(UsageError, match=says) as refused:
            small_sweep(whole, **more)
        assert "--force" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="its profile differs"):
        sweep(load_profile(SMALL.replace("800", "801")), over=OVER, algorithms=LABELS, jobs=1, folder=whole)


def test_other_versions_and_other_folders_are_refused(whole: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for file in whole.iterdir():
        (old / file.name).write_bytes(file.read_bytes())
    state = json.loads((old / "sweep.json").read_text(encoding="utf-8"))
    state["versions"]["numpy"] = "1.0"
    (old / "sweep.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(UsageError, match=r"was begun with numpy 1\.0"):
        small_sweep(old)
    (old / "sweep.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="is damaged"):
        small_sweep(old)
    assert small_sweep(old, force=True, over={"workers.slow.samples_per_s": [100]}).computed == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine", encoding="utf-8")
    for force in (False, True):
        with pytest.raises(UsageError, match=r"exists|holds no result"):
            small_sweep(tmp_path / "other", force=force)
    assert (tmp_path / "other" / "file").read_text(encoding="utf-8") == "mine"


def test_a_wrong_field_or_value_is_told_in_one_line_before_anything_runs(tmp_path: Path) -> None:
    for over, says in (
        ({"network.bandwith_gbit_per_s": [1]}, "did you mean bandwidth_gbit_per_s"),
        ({"workers.quick.samples_per_s": [1]}, "has no item 'quick'"),
        ({"training.momentum": [0.5, 1.5]}, "must be less than 1"),
        ({"training.max_samples": [1.5]}, "must be a whole number"),
        ({"network.bandwidth_gbit_per_s": [1, float("nan")]}, "network.bandwidth_gbit_per_s"),
        ({"algorithms.abs-sgd.trigger": ["never"]}, "trigger"),
    ):
        with pytest.raises((ProfileError, UsageError), match=says) as refused:
            small_sweep(tmp_path / "s", over=over)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_cells_of_equal_numbers_are_computed_once() -> None:
    found = small_sweep(over={"name": ["one", "other"], "description": ["x"]})
    first, second = found.rows()[:2], found.rows()[2:]
    assert found.computed == 1
    assert [{**row, "cell": 0, "name": ""} for row in first] == [{**row, "cell": 0, "name": ""} for row in second]


def test_progress_is_told_before_the_first_cell_and_after_each() -> None:
    told: list[tuple[str, int, int]] = []
    begun = time.monotonic()
    small_sweep(over={"workers.slow.samples_per_s": [100, 200]}, progress=lambda *a: told.append(a))
    assert [(done, of) for _, done, of in told] == [(0, 2), (1, 2), (2, 2)] and time.monotonic() > begun
