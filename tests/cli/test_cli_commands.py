"""Every command's happy path: what it prints, what it writes, and that --json prints one document and nothing else."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hetsim.cli import main
from hetsim.cluster import catalogue

QUICK = ["--set", "training.target_loss=1.2", "--set", "training.seeds=2", "--jobs", "1"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    assert err == ""
    found = json.loads(out)
    assert found["schema_version"] == 1
    return dict(found)


def test_simulate_prints_figures_workers_and_what_limits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", "mixed-gpu-4", "-a", "s-sgd", "--updates", "20")
    assert code == 0
    for text in (
        "s-sgd on mixed-gpu-4",
        "20 updates",
        "samples/s",
        "busy %",
        "RTX2080Ti",
        "limited by:",
        "catalogue's",
    ):
        assert text in out


def test_simulate_json_is_a_row_of_a_comparison_with_null_for_what_was_not_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hetsim import load_profile
    from hetsim.simulate import simulate

    row = document(capsys, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "40", "--seed", "3")
    timing = simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=40, seed=3).timing
    assert row["samples_per_s"] == timing.samples_per_s
    assert row["update_period_s"] == timing.update_period_s
    assert (row["name"], row["role"], row["seed"], row["updates"]) == ("abs-sgd", "ours", 3, 40)
    assert set(row["memory_bytes"]) == {"a", "b", "c", "d"}
    for key in (
        "learning_rate",
        "momentum",
        "samples_to_target",
        "time_to_target_s",
        "speedup_over_best_baseline",
        "cost",
    ):
        assert row[key] is None


def test_simulate_is_reproducible_and_the_seed_counts(capsys: pytest.CaptureFixture[str]) -> None:
    one = run(capsys, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "30", "--json")
    assert one == run(capsys, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "30", "--json")
    assert one != run(capsys, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "30", "--seed", "1", "--json")


def test_options_of_an_algorithm_and_overrides_of_the_profile_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    row = document(
        capsys, "simulate", "homogeneous-4", "-a", "abs-sgd:trigger=min_samples,min_samples=200", "--updates", "9",
        "--set", "network.bandwidth_gbit_per_s=1", "--set", "workers.a.gpu=V100",
    )  # fmt: skip
    assert row["name"] == "abs-sgd:trigger=min_samples,min_samples=200"
    assert row["options"]["min_samples"] == 200
    off = document(
        capsys, "simulate", "mixed-gpu-4", "-a", "s-sgd", "--set", "algorithms.s-sgd.overlap=false", "--updates", "9"
    )
    assert off["options"] == {"overlap": False}


def test_a_profile_may_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    from hetsim import load_profile

    text = load_profile("mixed-gpu-4-slow").to_yaml()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert document(capsys, "simulate", "-", "-a", "s-sgd", "--updates", "5")["profile"] == "mixed-gpu-4-slow"


def test_compare_without_arguments_takes_the_default_profile_and_every_algorithm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hetsim.cluster import Profile

    module = import_module("hetsim.compare")
    real = module.compare

    asked: dict[str, Any] = {}

    def stand_in(profile: Profile, labels: Any, **more: Any) -> Any:
        asked.update(more, profile=profile.name, labels=labels)
        return real(profile, ["s-sgd"], predictor="noise-scale", seeds=1, jobs=1)

    monkeypatch.setattr(module, "compare", stand_in)
    code, out, _ = run(capsys, "compare")
    assert code == 0 and "mixed-gpu-4" in out
    assert (asked["profile"], asked["labels"], asked["predictor"], asked["seed"]) == ("mixed-gpu-4", None, "nqm", 0)


def test_compare_prints_table_verdict_limits_warnings_and_trust(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["-a", "s-sgd", "-a", "abs-sgd", "-a", "abs-sgd:compute_point=current"]
    code, out, err = run(capsys, "compare", "homogeneous-4", *labels, *QUICK)
    assert code == 0 and err == ""
    for text in (
        "to target",
        "× best",
        "samples/s",
        "limited by",
        "warning:",
        "trust: predicted by nqm",
        "2 seeds",
        "literal reading",
        "homogeneous-4: 2 algorithms in 3 variants, target",
    ):
        assert text in out


def test_compare_json_has_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "compare", "homogeneous-4", "-a", "s-sgd", "-a", "abs-sgd", *QUICK)
    assert {"profile", "seed", "predictor", "target", "best_baseline", "warnings", "algorithms", "verdict"} <= set(
        found
    )
    assert found["best_baseline"] == "s-sgd"
    assert set(found["target"]) == {"metric", "value"}
    first = found["algorithms"][0]
    assert {"median", "low", "high", "reached", "seeds"} <= set(first["time_to_target_s"])
    assert set(first["speedup_over_best_baseline"]) == {"value", "low", "high"}
    assert all(set(w) == {"code", "text"} for w in found["warnings"])


def test_a_quick_comparison_says_what_it_is_and_its_folder_is_like_any_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    labels = ["-a", "s-sgd", "-a", "abs-sgd"]
    code, out, err = run(capsys, "compare", "homogeneous-4", *labels, "--quick", "-o", tmp_path / "out")
    assert code == 0 and "report.html" in err
    for text in ("quick: One seed", "Periods are known within", "1 seed, no interval", "trust: predicted by nqm"):
        assert text in " ".join(out.split()), text
    found = document(capsys, "compare", "homogeneous-4", *labels, "--quick")
    assert found["method"] == "quick" and all(row["period_error"] < 0.02 for row in found["algorithms"])
    assert "--quick" in (tmp_path / "out" / "report.html").read_text()
    code, out, err = run(capsys, "report", tmp_path / "out", "--force")
    assert code == 0, err


def test_quick_and_jobs_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compare", "homogeneous-4", "--quick", "--jobs", "2")
    assert code != 0 and "leave out --jobs" in err


def test_a_quick_comparison_at_the_profiles_own_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["compare", "homogeneous-4", "-a", "s-sgd", "--quick", "--fixed", "--set", "training.learning_rate=0.03"]
    found = document(capsys, *words)
    assert found["method"] == "quick" and found["algorithms"][0]["learning_rate"] == 0.03
    code, _, err = run(capsys, *words, "-o", tmp_path / "out")
    assert code == 0, err
    stated = json.loads((tmp_path / "out" / "comparison.json").read_text())["command"]
    assert stated == "hetsim compare profile.yaml -a s-sgd --quick --fixed"
    code, _, err = run(capsys, "compare", "homogeneous-4", "--fixed")
    assert code != 0 and "--fixed is for --quick" in err


@pytest.mark.torch
def test_what_trains_is_not_quick(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", "homogeneous-4", "--quick", "--predictor", "virtual")
    told = " ".join(err.split())
    assert code == 2 and not out
    assert "predictor virtual trains" in told and "training.seeds=1" in told and "noise-scale" in told


def test_compare_folder_then_report_and_replay_read_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    labels = ["-a", "s-sgd", "-a", "abs-sgd:compute_point=current"]
    code, _, err = run(capsys, "compare", "homogeneous-4", *labels, *QUICK, "-o", folder)
    assert code == 0 and "report.html" in err
    assert sorted(p.name for p in folder.iterdir()) == ["comparison.json", "profile.yaml", "report.html", "runs"]
    runs = sorted(p.name for p in (folder / "runs").iterdir())
    assert runs == ["abs-sgd+compute_point=current", "s-sgd"]
    for name in runs:
        inside = sorted(p.name for p in (folder / "runs" / name).iterdir())
        assert inside == ["curve.parquet", "profile.yaml", "result.json", "schedule.parquet", "trace.json.gz"]
    again = tmp_path / "again.html"
    assert run(capsys, "report", folder, "-o", again)[0] == 0
    assert again.read_bytes()[:15] == b"<!DOCTYPE html>"
    code, _, err = run(capsys, "replay", folder)
    assert code == 2 and "holds 2 runs" in err


def test_the_command_in_a_folder_reproduces_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex

    folder = tmp_path / "out"
    labels = ["-a", "s-sgd", "-a", "abs-sgd:max_local_batch=64"]
    assert run(capsys, "compare", "mixed-gpu-4", *labels, *QUICK, "--seed", "5", "-o", folder)[0] == 0
    written = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    monkeypatch.chdir(folder)
    command = shlex.split(written.pop("command"))
    assert command[0] == "hetsim"
    assert document(capsys, *command[1:], "--jobs", "1") == written


def test_explain_shows_closed_form_and_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "mixed-gpu-4", "-a", "abs-sgd")
    assert code == 0
    for text in ("2(n-1)", "9.4 Gbit/s", "bounds", "closed form", "simulated, no luck", "jitter"):
        assert text in out
    found = document(capsys, "explain", "mixed-gpu-4", "-a", "one-step-delay")
    assert found["closed"]["samples_per_s"] == pytest.approx(found["steady"]["samples_per_s"], rel=0.02)


def test_init_writes_a_profile_that_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "init", "--gpus", "A100:2,V100:2", "--slow", "d:1gbit")
    assert code == 0 and err == "" and out.startswith("# yaml-language-server")
    mine = tmp_path / "mine.yaml"
    assert run(capsys, "init", "--gpus", "T4:3", "-o", mine)[0] == 0
    assert run(capsys, "simulate", mine, "-a", "asgd", "--updates", "12")[0] == 0


def test_init_lists_the_gpus_with_what_they_were_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "init", "--gpus", "?")
    assert code == 0 and err == ""
    measured = {line.split()[0]: line for line in out.splitlines() if "-cifar10" in line or "-imagenet" in line}
    assert set(measured) == set(catalogue.gpu_names())
    assert "resnet18-cifar10, resnet50-imagenet" in measured["A100"]
    assert "resnet18-cifar10" in measured["T4"] and "resnet50-imagenet" not in measured["T4"]
    assert "40 GB" in measured["A100"] and max(map(len, out.splitlines())) <= 100


def test_import_prints_the_profile_to_stdout_and_the_fit_to_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steps = tmp_path / "steps.csv"
    rows = [f"{w},{m},{0.004 + m / v}" for w, v in (("fast", 800), ("slow", 200)) for m in (16, 32, 64)]
    steps.write_text("worker,samples,seconds\n" + "\n".join(rows) + "\n", encoding="utf-8")
    code, out, err = run(capsys, "import", steps)
    assert code == 0 and "residual" in err and "fast" in err
    profile = tmp_path / "p.yaml"
    profile.write_text(out, encoding="utf-8")
    assert document(capsys, "simulate", profile, "-a", "abs-sgd", "--updates", "9")["speeds"] == {
        "fast": "calibrated",
        "slow": "calibrated",
    }


def test_lists_name_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    from hetsim.algorithms import registry
    from hetsim.cluster import shipped_profiles

    assert [p["name"] for p in document(capsys, "profiles")["profiles"]] == list(shipped_profiles())
    listed = document(capsys, "algorithms")["algorithms"]
    assert [a["name"] for a in listed] == list(registry())
    assert all(a["summary"] and a["source"] for a in listed)
    out = run(capsys, "algorithms")[1]
    assert all(name in out for name in registry())
    assert "mixed-gpu-4-slow" in run(capsys, "profiles")[1]
    assert json.loads(run(capsys, "schema")[1])["title"] == "hetsim cluster profile"


@pytest.mark.torch
def test_replay_trains_a_schedule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(capsys, "simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "12", "-o", folder)[0] == 0
    found = document(capsys, "replay", folder, "--set", "training.learning_rate=0.01")
    assert found["learning_rate"] == 0.01
    assert found["curve"]["updates"][0] == 0 and len(found["curve"]["loss"]) > 1
    assert found["curve"]["loss"][-1] < found["curve"]["loss"][0]


@pytest.mark.torch
@pytest.mark.live
def test_replay_with_a_process_per_worker_gives_the_same_losses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, two = tmp_path / "run", tmp_path / "two.yaml"
    assert run(capsys, "init", "--gpus", "A100:1,V100:1", "-o", two)[0] == 0
    assert run(capsys, "simulate", two, "-a", "one-step-delay", "--updates", "6", "-o", folder)[0] == 0
    virtual = document(capsys, "replay", folder)
    live = document(capsys, "replay", folder, "--backend", "gloo", "--checkpoint-every", "2")
    assert (live["backend"], live["device"], live["resumed_from"]) == ("gloo", "cpu", None)
    assert live["curve"]["updates"] == list(range(7))
    for name in ("updates", "samples"):
        assert set(virtual["curve"][name]) <= set(live["curve"][name])
    assert live["curve"]["loss"][-1] == pytest.approx(virtual["curve"]["loss"][-1], rel=1e-5)
    (folder / "replay" / "checkpoints" / "update-000000006.json").unlink()  # as if it had broken before
    again = document(capsys, "replay", folder, "--backend", "gloo", "--checkpoint-every", "2", "--resume")
    assert again["resumed_from"] == 4 and again["curve"]["loss"] == live["curve"]["loss"]
    for arguments, said in (
        (["--checkpoint-every", "2"], "holds a checkpoint of update 6: resume, or remove it to start again"),
        (["--resume", "--seed", "3"], "of another run: other seed"),
    ):
        code, _, err = run(capsys, "replay", folder, "--backend", "gloo", *arguments)
        assert code == 2 and said in " ".join(err.split())


@pytest.mark.torch
def test_replay_refuses_a_device_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    folder = tmp_path / "run"
    assert run(capsys, "simulate", "mixed-gpu-4", "-a", "s-sgd", "--updates", "2", "-o", folder)[0] == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, said in (
        (["--device", "cuda"], "--device cuda: "),
        (["--backend", "gloo", "--device", "cuda"], "--device cuda: "),
        (["--backend", "nccl"], "nccl moves tensors between GPUs only"),
        (["--device", "gpu"], "unknown device 'gpu'"),
    ):
        code, _, err = run(capsys, "replay", folder, *arguments)
        assert code == 2 and said in " ".join(err.split())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    code, _, err = run(capsys, "replay", folder, "--backend", "nccl", "--device", "cuda")
    assert code == 2 and "4 ranks and 1 GPU on this machine: nccl refuses two ranks on one GPU" in " ".join(err.split())


def test_version_and_every_help_open_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    from hetsim import __version__

    assert run(capsys, "--version")[1].strip() == f"hetsim {__version__}"
    for command in (
        [],
        ["compare"],
        ["simulate"],
        ["explain"],
        ["replay"],
        ["init"],
        ["import"],
        ["report"],
        ["sweep"],
        ["plan"],
        ["fit"],
    ):
        code, out, _ = run(capsys, *command, "--help")
        assert code == 0
        assert out.index("Examples:") < out.index("─ Options")
    top = run(capsys, "--help")[1]
    for command in ("sweep", "plan", "fit", "validate", "calibrate", "doctor"):
        assert command in top
