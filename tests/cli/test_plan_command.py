"""hetsim plan: what it prints can be copied and run, --json is one document, wrong input is told with its exit code."""

from __future__ import annotations

import ast
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from hetsim.cli import main, plans
from hetsim.comparison import Speedup
from hetsim.plan import Alternative

PROFILE = """\
schema_version: 1
name: pair
workload: {name: mine, gradient_bytes: 4.0e+6, dataset_samples: 64000, activation_bytes_per_sample: 1.0e+6}
workers:
  - {name: fast, samples_per_s: 800, overhead_s: 0.01, price_per_h: 2.0, power_w: 300, memory_bytes: 1.6e+10}
  - {name: slow, samples_per_s: 200, overhead_s: 0.01, price_per_h: 1.0, power_w: 100, memory_bytes: 1.6e+10}
network: {bandwidth_gbit_per_s: 5.0, latency_us: 50}
training: {global_batch_samples: 64, micro_batch_samples: 8, max_samples: 400000, seeds: 2}
"""
QUICK = ["--predictor", "noise-scale", "--jobs", "1", "-a", "s-sgd", "-a", "lb-bsp"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "my pair.yaml"
    path.write_text(PROFILE, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_prints_what_to_do_why_and_what_to_copy(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    code, out, err = run(capsys, "plan", profile, *QUICK)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for text in (
        "pair: train with lb-bsp",
        "to the target (",
        "instead of s-sgd: it takes",
        "batches: the whole samples by which the last worker finishes earliest",
        "memory: fullest on fast,",
        "also tried",
        "without slow",
        "trust: predicted by noise-scale, not measured; 2 seeds.",
    ):
        assert text in words, text
    block = out[out.index("to copy:\n") :].splitlines()[1:]
    values: dict[str, list[float]] = {}
    for line in block[:3]:
        name, _, value = line.partition(" = ")
        values[name] = ast.literal_eval(value.partition("  #")[0])
    assert set(values) == {"batch", "accumulate", "loss_weight"}
    assert sum(values["batch"]) == 64 and values["batch"][0] > values["batch"][1]
    assert sum(values["loss_weight"]) == pytest.approx(2, abs=1e-3)
    command = shlex.split(block[3])
    assert command[:2] == ["hetsim", "simulate"]
    code, again, err = run(capsys, *command[1:], "--updates", "30")
    assert (code, err) == (0, "") and "lb-bsp on pair" in again


def test_names_of_what_else_was_tried_are_whole() -> None:
    points = ("local-prediction", "look-ahead")
    tried = [
        Alternative(
            name=f"one-step-delay-balanced:compute_point={point} (global_batch_samples=1024)",
            seconds=251.0,
            slower=Speedup(value=1.03, low=1.02, high=1.04),
            limited_by="network (all links, 9.4 Gbit/s): 2 % of all worker time is spent waiting for it",
            seeds=5,
        )
        for point in points
    ]
    shown = io.StringIO()
    Console(width=80, file=shown).print(plans.alternatives(tried))
    text = " ".join(shown.getvalue().split())
    assert "…" not in text and all(f"compute_point={point}" in text for point in points)
    assert all(text.split().count(word) == len(points) for word in ("network", "(all", "links,", "9.4", "Gbit/s)"))


def test_json(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    code, out, err = run(capsys, "plan", profile, *QUICK, "--json", "--batches", "64,128")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == 1 and found["global_batch_samples"] in (64, 128)
    assert found["cost"]["usd_to_target"] > 0 and found["tariffs"]["fast"]["price_source"] == "stated"
    assert len(found["alternatives"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--batches", "64,x"), 2, "--batches 64,x: whole numbers of samples"),
        (("--batches", "1"), 2, "smaller than the 2 workers"),
        (("-a", "s-sdg"), 2, "did you mean s-sgd?"),
        (("--set", "training.max_samples=200"), 1, "none of 2 candidates reaches the target within 200 samples"),
        (("--predictor", "none"), 2, "none"),
    ],
)
def test_wrong_input(
    capsys: pytest.CaptureFixture[str], profile: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    found, out, err = run(capsys, "plan", profile, *QUICK, *arguments)
    assert (found, out) == (code, "") and text in err and "Traceback" not in err


# ---- hetsim diff ----------------------------------------------------------------


def test_diff_of_profiles_prints_fields_and_figures(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    quick = ["--predictor", "noise-scale", "--jobs", "1", "-a", "s-sgd"]
    code, out, err = run(capsys, "diff", profile, profile, "--set", "network.bandwidth_gbit_per_s=0.5", *quick)
    assert (code, err) == (0, "")
    for text in (
        "network.bandwidth_gbit_per_s",
        "5.0",
        "0.5",
        "time to target",
        "throughput",
        "luck?",
        "beyond",
        "limited by",
    ):
        assert text in out, text
    code, out, _ = run(capsys, "diff", profile, profile, *quick)
    assert code == 0 and out.rstrip().endswith("no difference")
    code, out, _ = run(capsys, "diff", profile, profile, "--set", "training.seeds=3", *quick, "--json")
    assert code == 0 and json.loads(out)["changed"] == [{"path": "training.seeds", "a": 2, "b": 3}]


def test_diff_of_results_shows_no_control_characters_of_theirs(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "compare", profile, *QUICK, "--json")
    assert code == 0
    document = json.loads(out)
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    document["algorithms"][0] |= {"samples_per_s": 1.0, "limited_by": "\x1b]0;evil\x07[red]"}
    document["winner"] = "[bold]\x1b[31m"
    document["algorithms"][1]["name"] = "[red]\x1b[2J"
    (tmp_path / "b.json").write_text(json.dumps(document), encoding="utf-8")
    code, out, err = run(capsys, "diff", tmp_path / "a.json", tmp_path / "b.json")
    assert (code, err) == (0, "")
    assert "\x1b" not in out and "\x07" not in out
    assert "[red]" in out and "[bold]" in out  # shown as text, not obeyed
    assert "only in A: lb-bsp" in out and "throughput" in out


def test_diff_of_schedules_names_the_row(capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path) -> None:
    for name, seed in (("one", "0"), ("two", "0"), ("three", "1")):
        jittery = ["--set", "workers.0.jitter_cv=0.1", "--updates", "20", "--seed", seed]
        assert run(capsys, "simulate", profile, "-a", "abs-sgd", *jittery, "-o", tmp_path / name)[0] == 0
    parquet = [tmp_path / name / "schedule.parquet" for name in ("one", "two", "three")]
    code, out, _ = run(capsys, "diff", *parquet[:2])
    assert code == 0 and "no difference" in out
    code, out, _ = run(capsys, "diff", parquet[0], parquet[2])
    assert code == 0 and "first row that differs: 0" in out and "grad of fast" in out


@pytest.mark.parametrize(
    ("b", "more", "text"),
    [
        ("nothing", (), "no shipped profile 'nothing'"),
        ("nothing.parquet", (), "no such file"),
        ("folder", (), "holds no comparison.json"),
        ("a.json", (), "no result of hetsim"),
        ("mixed-gpu-4", ("-a", "s-sdg"), "did you mean s-sgd?"),
        ("mixed-gpu-4", ("--set", "training.seed=1"), "did you mean seeds?"),
    ],
)
def test_diff_tells_bad_input(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    profile: Path,
    b: str,
    more: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("a.json").write_text("{}", encoding="utf-8")
    code, out, err = run(capsys, "diff", profile, b, *more)
    assert (code, out) == (2, "") and text in err and "Traceback" not in err
