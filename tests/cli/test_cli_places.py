"""Where a command may write and what it may read: places, pipes, devices, damaged folders, text that is not UTF-8."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hetsim.cli import main
from hetsim.cluster import load_profile

SIMULATE = ["simulate", "mixed-gpu-4", "-a", "s-sgd", "--updates", "5"]
posix = pytest.mark.skipif(os.name != "posix", reason="pipes, devices and byte names of POSIX")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == "" and "Traceback" not in captured.err
    return captured.err.strip()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    assert main([*SIMULATE, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def run(simulated: Path, tmp_path: Path) -> Path:
    shutil.copytree(simulated, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("place", ["", ".", "..", "/", "../run", "a\0b"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_result_folder_never_takes_the_place_of_where_one_stands(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch, place: str, force: list[str]
) -> None:
    monkeypatch.chdir(run)
    before = sorted(run.parent.rglob("*"))
    assert refused(capsys, *SIMULATE, "-o", place, *force).startswith("error: ")
    assert sorted(run.parent.rglob("*")) == before


@posix
def test_a_folder_s_name_is_utf_8(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "not UTF-8" in refused(capsys, *SIMULATE, "-o", tmp_path / os.fsdecode(b"\xff"))


@pytest.mark.parametrize("place", ["", ".", "/", "a\0b"])
@pytest.mark.parametrize("command", ["init", "import", "report"])
def test_places_where_no_file_can_be_put(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    monkeypatch.chdir(run)
    (run.parent / "steps.csv").write_text("worker,samples,seconds\na,16,0.5\na,32,0.9\n", encoding="utf-8")
    rest = {"init": ["--gpus", "T4:2"], "import": ["../steps.csv"], "report": [str(run)]}[command]
    code = main([command, *rest, "-o", place, "--force"])
    captured = capsys.readouterr()
    assert code == 2 and captured.out == "" and "error: " in captured.err


@posix
def test_a_device_and_a_pipe_stay_what_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no file that could be replaced" in refused(
        capsys, "init", "--gpus", "T4:2", "-o", tmp_path / "pipe", "--force"
    )
    assert (tmp_path / "pipe").is_fifo()


@posix
@pytest.mark.parametrize("command", ["replay", "report"])
def test_a_pipe_in_a_result_folder_is_not_waited_for(run: Path, command: str) -> None:
    (run / "profile.yaml").unlink()
    os.mkfifo(run / "profile.yaml")
    arguments = [sys.executable, "-m", "hetsim", command, str(run)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "no profile.yaml" in done.stderr) == ((2, True) if command == "replay" else (0, False))


def test_standard_input_that_is_not_utf_8(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"schema_version: 1\nname: \xff\n")))
    assert refused(capsys, "simulate", "-", "-a", "s-sgd").startswith("<stdin>:2:7: is not UTF-8 text")


def test_standard_input_that_is_too_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#" * 1_000_001)))
    assert refused(capsys, "simulate", "-", "-a", "s-sgd").startswith("<stdin>: is larger than 1,000 kB")


@pytest.mark.parametrize("text", ["[]", '{"schema_version": 1, "name": 5}', "[" * 100_000])
def test_a_report_of_a_damaged_result(capsys: pytest.CaptureFixture[str], run: Path, text: str) -> None:
    (run / "result.json").write_text(text, encoding="utf-8")
    assert "result.json: damaged (" in refused(capsys, "report", run)


def test_a_report_of_a_result_whose_figures_are_text(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    document = json.loads((run / "result.json").read_text(encoding="utf-8"))
    (run / "result.json").write_text(json.dumps({**document, "samples_per_s": "fast"}), encoding="utf-8")
    assert "result.json: damaged (samples_per_s: " in refused(capsys, "report", run)


@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_damaged_schedule_is_bad_input(capsys: pytest.CaptureFixture[str], run: Path, command: str) -> None:
    table = pq.read_table(run / "schedule.parquet")
    pq.write_table(table.slice(0, 0), run / "schedule.parquet")
    assert "schedule.parquet: a schedule without a single operation" in refused(capsys, command, run)
    (run / "schedule.parquet").write_bytes(b"PAR1")
    assert "schedule.parquet: not a Parquet file" in refused(capsys, command, run)


@pytest.mark.parametrize("name", ["on", "123", "null"])
def test_init_writes_what_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    assert main(["init", "--gpus", "T4:2", "--name", name, "-o", str(tmp_path / "p.yaml")]) == 0
    assert load_profile(tmp_path / "p.yaml").name == name


def test_init_writes_nothing_that_does_not_load(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for flag, value in (("--name", "a: b"), ("--bandwidth", "0.0000001kbit"), ("--slow", "a:0.0000001kbit")):
        said = refused(capsys, "init", "--gpus", "T4:2", flag, value, "-o", tmp_path / "p.yaml")
        assert said.startswith(f"error: {flag}: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", ["a,1e300,1", "a,16,1e300", "a,16,1e-300", "a,16,1e-12"])
def test_import_of_extremes(capsys: pytest.CaptureFixture[str], tmp_path: Path, row: str) -> None:
    (tmp_path / "steps.csv").write_text(f"worker,samples,seconds\n{row}\n", encoding="utf-8")
    assert "steps.csv" in refused(capsys, "import", tmp_path / "steps.csv")
