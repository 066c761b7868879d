"""Bad input: one clean message on stderr, nothing on stdout, the right exit code, never a traceback."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from hetsim.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.strip()


def test_a_bad_profile_is_told_with_file_line_and_column(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "schema_version: 1\nname: x\nworkload: resnet18-cifar10\nworkers:\n  - {name: a, samples_per_sec: 5}\n  - {name: a, gpu: V10}\n"
    Path("bad.yaml").write_text(text, encoding="utf-8")
    for command in (
        ["compare", "bad.yaml"],
        ["simulate", "bad.yaml", "-a", "s-sgd"],
        ["explain", "bad.yaml", "-a", "s-sgd"],
    ):
        lines = refused(capsys, *command).splitlines()
        assert lines[0].startswith(
            "bad.yaml:5:15: workers[0].samples_per_sec: unknown key (did you mean samples_per_s?)"
        )
        assert any("did you mean V100" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "mixed-gpu-5", "-a", "s-sgd"], "did you mean mixed-gpu-"),
        (["simulate", "mixed-gpu-4", "-a", "sb-sgd"], "unknown algorithm 'sb-sgd' (did you mean"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd:overlop=true"], "did you mean overlap?"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd:overlap"], "is not option=value"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd:overlap=maybe"], "overlap"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd", "-a", "asgd"], "takes one algorithm"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd", "--updates", "0"], "--updates"),
        (["simulate", "mixed-gpu-4"], "missing option"),
        (["simulate"], "missing argument"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd", "--nonsense"], "no such option: --nonsense"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd", "--set", "network.bandwith=1"], "network.bandwith: unknown key"),
        (["simulate", "mixed-gpu-4", "-a", "s-sgd", "--set", "novalue"], "must read path.to.key=value"),
        (["compare", "mixed-gpu-4", "-a", "s-sgd", "-a", "s-sgd"], "given twice"),
        (["compare", "mixed-gpu-4", "--predictor", "nqn"], "did you mean nqm?"),
        (["compare", "mixed-gpu-4", "extra"], "extra"),
        (["copmare"], "Did you mean 'compare'?"),
        (["explain", "mixed-gpu-4", "-a", "abs"], "unknown algorithm 'abs'"),
        (["init", "--gpus", "H1000:2"], "H1000"),
        (["init", "--gpus", "A100:2", "--slow", "z:1gbit"], "z"),
        (["import", "nowhere.csv"], "nowhere.csv: no such file"),
        (["replay", "nowhere"], "no schedule.parquet"),
        (["replay", "nowhere", "--backend", "gloo"], "no schedule.parquet"),
        (["replay", "nowhere", "--pace", "1"], "--pace is for real processes"),
        (["replay", "nowhere", "--backend", "gloo", "--pace", "0"], "--pace must be a positive number"),
        (["replay", "nowhere", "--backend", "nccl"], "no schedule.parquet"),
        (["replay", "nowhere", "--checkpoint-every", "5"], "--checkpoint-every is for real processes"),
        (["replay", "nowhere", "--resume"], "--resume is for real processes"),
        (["replay", "nowhere", "--backend", "gloo", "--checkpoint-every", "0"], "--checkpoint-every"),
        (["replay", "nowhere", "--backend", "inproces"], "did you mean inprocess?"),
        (["report", "nowhere"], "holds no comparison.json, result.json or validation.json"),
    ],
)  # fmt: skip
def test_bad_requests(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments)


def test_output_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the work was started")

    monkeypatch.setattr(import_module("hetsim.simulate"), "simulate", never)
    monkeypatch.setattr(import_module("hetsim.compare"), "compare", never)
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "mine.txt").write_text("keep me", encoding="utf-8")
    file.write_text("", encoding="utf-8")
    for command in (["simulate", "mixed-gpu-4", "-a", "s-sgd"], ["compare", "mixed-gpu-4"]):
        assert "exists" in refused(capsys, *command, "-o", full)
        assert "no result of hetsim" in refused(capsys, *command, "-o", full, "--force")
        assert "is a file" in refused(capsys, *command, "-o", file)
        assert "there is no folder" in refused(capsys, *command, "-o", tmp_path / "no" / "where")
        if Path("/proc/self").exists():  # a folder in which not even root can create one
            assert "cannot be written" in refused(capsys, *command, "-o", "/proc/hetsim-out")
    assert (full / "mine.txt").read_text(encoding="utf-8") == "keep me"
    assert "exists" in refused(capsys, "init", "--gpus", "T4:2", "-o", file)


def test_a_damaged_folder_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{", encoding="utf-8")
    assert "damaged" in refused(capsys, "report", tmp_path)
    (tmp_path / "result.json").write_text('{"schema_version": 99, "name": "x"}', encoding="utf-8")
    assert "version 99" in refused(capsys, "report", tmp_path)


def test_missing_torch_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "abs_sgd.predictor", None)
    assert "pip install 'hetsim[train]'" in refused(capsys, "compare", "mixed-gpu-4", "--predictor", "virtual")


def test_a_run_that_fails_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsim.errors import DeadlockError

    def stuck(*_: object, **__: object) -> None:
        raise DeadlockError(1.5, ["  rank 0 (a): waits"])

    monkeypatch.setattr(import_module("hetsim.simulate"), "simulate", stuck)
    assert main(["simulate", "mixed-gpu-4", "-a", "s-sgd"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: deadlock at 1.5 s")


def test_the_explorer_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "streamlit" else real(name, *a))
    assert "pip install 'hetsim[app]'" in refused(capsys, "app")


def test_the_explorer_refuses_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    pytest.importorskip("streamlit", reason="streamlit is not installed (extra app)")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(capsys, "app", "--port", str(port))
    assert f"port {port} of 127.0.0.1 cannot be used" in message and "--port" in message
