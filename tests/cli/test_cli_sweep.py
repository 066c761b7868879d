"""hetsim sweep: what it prints and writes, specifications, the estimate, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_clusters import SMALL

from hetsim import wording
from hetsim.cli import main

QUICK = ["-a", "s-sgd", "-a", "abs-sgd", "-j", "1", "--set", "training.target_loss=1.2"]
SPEC = """\
profile: small.yaml
set: {training.target_loss: 1.2}
over:
  network.bandwidth_gbit_per_s: [1, 10]
latin:
  samples: 3
  fields: {training.global_batch_samples: {from: 64, to: 512, scale: log, whole: true}}
algorithms: [s-sgd, "abs-sgd:compute_point=current"]
"""


def small_file(folder: Path) -> Path:
    """A small profile as a file."""
    (folder / "small.yaml").write_text(SMALL, encoding="utf-8")
    return folder / "small.yaml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["sweep", *(str(a) for a in arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_grid_prints_who_wins_and_writes_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [
        small_file(tmp_path),
        "--over",
        "network.bandwidth_gbit_per_s=1..100:3:log",
        *QUICK,
        "-o",
        tmp_path / "out",
    ]
    code, out, err = run(capsys, *command)
    assert code == 0 and "3 cells × 2 algorithms" in err and "(3 cells computed now; report.html" in err
    for text in ("fastest", "best baseline", "median", "by network.bandwidth_gbit_per_s: 1: "):
        assert text in " ".join(out.split())
    table = pq.read_table(tmp_path / "out" / "sweep.parquet")
    assert table["network.bandwidth_gbit_per_s"].to_pylist() == [1.0, 1.0, 10.0, 10.0, 100.0, 100.0]
    assert table["algorithm"].to_pylist() == ["s-sgd", "abs-sgd"] * 3
    cells = [line.split() for line in out.splitlines()[2:5]]
    for i, (cell, bandwidth, fastest, *seconds) in enumerate(cells):
        pair = dict(zip(("s-sgd", "abs-sgd"), table["seconds"].to_pylist()[2 * i : 2 * i + 2], strict=True))
        best = min(pair, key=lambda name: pair[name])
        assert (int(cell), float(bandwidth), fastest) == (i, 10.0**i, best)
        assert " ".join(seconds) == wording.seconds(pair[best])
    assert run(capsys, *command)[2].endswith("was complete already\n")


def test_a_specification_runs_and_its_folder_reproduces_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    small_file(tmp_path)
    code, out, err = run(capsys, tmp_path / "spec.yaml", "-o", tmp_path / "out", "--json", "-j", "1")
    found: dict[str, Any] = json.loads(out)
    assert code == 0, err
    assert found["schema_version"] == 1 and found["summary"]["cells"] == 6 and len(found["rows"]) == 12
    assert "training.target_loss" not in found["specification"]
    assert len({row["training.global_batch_samples"] for row in found["rows"]}) == 3
    assert "target_loss: 1.2" in (tmp_path / "out" / "profile.yaml").read_text(encoding="utf-8")
    code, _, err = run(capsys, tmp_path / "out" / "spec.yaml", "-o", tmp_path / "again", "-j", "2")
    assert code == 0, err
    one, other = (tmp_path / name / "sweep.parquet" for name in ("out", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [small_file(tmp_path), "--latin", "network.bandwidth_gbit_per_s=1..100:log", "--samples", "50", *QUICK]
    code, out, _ = run(capsys, *arguments, "--dry-run", "-o", tmp_path / "out")
    assert code == 0 and "50 cells × 2 algorithms = 100 rows" in out and "4 cells timed here" in out
    assert [p.name for p in tmp_path.iterdir()] == ["small.yaml"]
    code, out, _ = run(capsys, *arguments, "--dry-run", "--json")
    document = json.loads(out)
    assert (document["cells"], document["todo"], document["rows"], document["processes"]) == (50, 50, 100, 1)
    assert document["seconds"] > 0 and document["size_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to sweep over"),
        (["--over", "network.bandwith=1,2"], "unknown key"),
        (["--over", "training.momentum=2"], "must be less than 1"),
        (["--over", "a"], "must read path=a,b,c"),
        (["--over", "training.seeds=1,2", "--samples", "5"], "name its fields with --latin"),
        (["--over", "training.seeds=1,2", "-a", "s-gd"], "did you mean s-sgd"),
        (["--over", "training.seeds=1,2", "--method", "quick"], "unknown method 'quick'"),
        (["--over", "training.seeds=1,2", "--backend", "spark"], "unknown backend 'spark'"),
        (["--over", "training.seeds=1,2", "--predictor", "oracle"], "unknown predictor 'oracle'"),
        (["--over", "training.seeds=1..200000:200000:whole"], "the most a sweep has"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, "homogeneous-4", *arguments, "-j", "1")
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1, err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("over: {training.seeds: [1]}\nmethd: full\n", "spec.yaml:2:1: methd: unknown key (did you mean method?)"),
        ("over: {training.seeds: {from: 1, to: 5}}\n", "spec.yaml:1:24: over.training.seeds: how many values?"),
        ("over: {training.seeds: {from: 5, to: 1, count: 2}}\n", "from the lower to the higher"),
        ("over:\n  training.seeds: {from: 1, to: 5, number: 3}\n", "spec.yaml:2:"),
        ("latin: {samples: 0, fields: {a: {from: 1, to: 2}}}\n", "must be at least 1"),
        ("latin: {samples: 3, fields: {a: {from: 1, to: x}}}\n", "must be a number, not 'x'"),
        ("over: {training.seeds: [1]}\nseeds: !!python/object:os.system x\n", "tags are not allowed"),
        ("over: {training.seeds: []}\n", "no values to sweep over"),
        ("over: {training.seeds: [1]}\nschema_version: 99\n", "is newer than this hetsim reads"),
        ("over: {training.seeds: [1]}\nprofile: no-such-profile\n", "no shipped profile 'no-such-profile'"),
    ],
)
def test_a_wrong_specification_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    code, out, err = run(capsys, tmp_path / "spec.yaml", "-j", "1")
    assert (code, out) == (2, "") and says in err and "Traceback" not in err, err


def test_a_specification_is_not_changed_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    code, _, err = run(capsys, tmp_path / "spec.yaml", "--seeds", "3", "--set", "training.momentum=0")
    assert code == 2 and "change it there, not by --seeds, --set" in err
