"""Result folders: complete, reproducible, and there whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hetsim import export, writing
from hetsim.cluster import load_profile
from hetsim.convergence import Curve
from hetsim.errors import HetsimError, UsageError
from hetsim.schedule.store import load
from hetsim.simulate import Result, simulate


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=20, seed=7)


def test_a_run_folder_holds_what_reproduces_it(result: Result, tmp_path: Path) -> None:
    folder = export.write_simulation(result, tmp_path / "run")
    assert sorted(p.name for p in folder.iterdir()) == [
        "profile.yaml",
        "result.json",
        "schedule.parquet",
        "trace.json.gz",
    ]
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert document == json.loads(json.dumps(export.simulation_document(result)))
    again = simulate(
        load_profile(folder / "profile.yaml"), document["algorithm"], options=document["options"], seed=7, updates=20
    )
    assert np.array_equal(again.schedule.end_s, load(folder / "schedule.parquet").end_s)
    other = export.write_simulation(again, tmp_path / "again")
    for name in ("result.json", "trace.json.gz", "profile.yaml"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


def test_an_existing_folder_is_replaced_only_by_force_and_only_if_it_is_a_result(
    result: Result, tmp_path: Path
) -> None:
    folder = export.write_simulation(result, tmp_path / "run")
    with pytest.raises(UsageError, match="exists"):
        export.write_simulation(result, folder)
    (folder / "result.json").write_text("old", encoding="utf-8")
    export.write_simulation(result, folder, force=True)
    assert (folder / "result.json").read_text(encoding="utf-8") != "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    mine = tmp_path / "mine"
    mine.mkdir()
    export.write_simulation(result, mine)  # an empty one is there to be filled
    (mine / "result.json").unlink()
    with pytest.raises(UsageError, match="no result of hetsim"):
        export.write_simulation(result, mine, force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("boom"), SystemExit(143)])
def test_a_failure_in_the_middle_leaves_nothing(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("hetsim.trace.write_trace", fails)
    with pytest.raises(type(error)):
        export.write_simulation(result, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "result.json").write_text("old", encoding="utf-8")
    with pytest.raises(type(error)):
        export.write_simulation(result, kept, force=True)
    assert (kept / "result.json").read_text(encoding="utf-8") == "old"


def test_a_kill_in_the_middle_leaves_no_result(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom hetsim.writing import new_folder, write_text\n"
        "with new_folder(sys.argv[1]) as folder:\n"
        "    write_text(folder / 'result.json', '{}')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    assert done.returncode != 0
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_a_failed_run_and_no_bad_request(tmp_path: Path) -> None:
    import errno

    with pytest.raises(HetsimError, match="No space") as caught, writing.new_folder(tmp_path / "run"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "label", ["s-sgd", "abs-sgd:compute_point=current", 'a/b\\c:d*?"<>|e', "..", "", "x" * 500, "ä ö"]
)
def test_labels_make_safe_file_names(label: str) -> None:
    name = export.safe_label(label)
    assert name and len(name) <= 120 and name not in (".", "..")
    assert not set(name) & set('/\\:*?"<>| ') and name.isascii()


def test_labels_that_collide_get_folders_of_their_own() -> None:
    labels = ["a:b", "a,b", "A:B", "a:c"]
    names = export.safe_labels(labels)
    assert list(names) == labels
    assert len({n.lower() for n in names.values()}) == len(labels)


def test_curves_come_back_as_they_were(tmp_path: Path) -> None:
    curve = Curve(
        updates=np.array([0, 1, 2]),
        samples=np.array([0, 8, 17]),
        time_s=np.array([0.0, 0.1, 0.3]),
        loss=np.array([2.3, 1.1, np.inf]),
        diverged=True,
        assumptions=("one", "two"),
    )
    export.save_curve(curve, tmp_path / "curve.parquet")
    back = export.load_curve(tmp_path / "curve.parquet")
    for name in export.CURVE_COLUMNS:
        assert np.array_equal(getattr(back, name), getattr(curve, name))
    assert (back.diverged, back.assumptions) == (True, ("one", "two"))
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="no curve"):
        export.load_curve(tmp_path / "bad")
