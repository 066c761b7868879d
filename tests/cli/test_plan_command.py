"""hetsim plan: what it prints can be copied and run, --json is one document, wrong input is told with its exit code."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest

from hetsim.cli import main

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
