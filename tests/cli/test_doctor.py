"""What `hetsim doctor` says of machines that lack something."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from abs_sgd import doctor, namespaces
from hetsim.cli import main

ALWAYS = [
    "python",
    "cores",
    "memory",
    "torch",
    "gpus",
    "scikit-learn",
    "streamlit",
    "browser",
    "shaped links",
    "shares of cores",
]
CPU_TORCH = {"version": "2.9.1", "cuda_build": None, "cuda": False, "gloo": True, "nccl": False}


def found(name: str) -> list[doctor.Check]:
    return [check for check in doctor.examine() if check.name == name]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Python and nothing else."""
    monkeypatch.setattr(doctor, "find_spec", lambda module: None)
    monkeypatch.setattr(shutil, "which", lambda program, **more: None)
    monkeypatch.setattr(doctor.cpu_shares, "probe", lambda: doctor.cpu_shares.Probe(False, "no control groups"))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch say this of itself."""

    def say(code: str) -> None:
        monkeypatch.setattr(doctor, "find_spec", lambda module: object())
        monkeypatch.setattr(doctor, "ASK_TORCH", code)

    return say


def test_a_bare_machine_gets_advice_for_each_absence(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["schema_version"] == 1
    rows = {row["name"]: row for row in document["checks"]}
    assert list(rows) == ALWAYS
    for name in ("torch", "gpus", "scikit-learn", "streamlit", "browser", "shaped links", "shares of cores"):
        assert not rows[name]["ok"] and rows[name]["disables"] and rows[name]["remedy"], name
    assert rows["torch"]["remedy"] == "pip install 'hetsim[train]'"
    assert rows["streamlit"]["remedy"] == "pip install 'hetsim[app]'"
    assert rows["python"]["ok"] and not rows["python"]["disables"]


def test_the_table_names_what_is_disabled(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for text in ("torch", "disables: training", "pip install 'hetsim[train]'", "iproute2", "hetsim app"):
        assert text in out


def test_usage_errors_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpus"]) == 2
    assert "hetsim doctor --help" in capsys.readouterr().err


def test_a_torch_that_does_not_import_is_told_with_its_reason(says: Any) -> None:
    says("raise OSError('libtorch.so: cannot open')")
    (torch,) = found("torch")
    assert not torch.ok and torch.found == "does not import: OSError: libtorch.so: cannot open"
    assert "install torch again" in torch.remedy
    assert not found("gloo") and not found("cuda")


def test_a_torch_that_takes_forever_is_given_up(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TORCH_LIMIT_S", 0.2)
    says("import time; time.sleep(60)")
    (torch,) = found("torch")
    assert not torch.ok and "more than 0.2 s" in torch.found


@pytest.mark.parametrize(
    "more, gpu, remedy",
    [
        ({}, True, "a CUDA build of torch (https://pytorch.org/get-started)"),
        ({"cuda_build": "12.8"}, True, "a working NVIDIA driver"),
        ({"cuda_build": "12.8"}, False, "a machine with an NVIDIA GPU and a CUDA build of torch"),
        ({"cuda_build": "12.8", "cuda": True, "nccl": True}, True, ""),
    ],
)
def test_what_cuda_lacks(
    more: dict[str, Any], gpu: bool, remedy: str, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_gpus", lambda: doctor.Check(name="gpus", ok=gpu, found="A100, 40960 MiB"))
    says(f"print('a warning'); print({json.dumps(CPU_TORCH | more)!r})")
    (torch,), (gloo,), (nccl,), (cuda,) = (found(name) for name in ("torch", "gloo", "nccl", "cuda"))
    assert torch.ok and torch.found == ("2.9.1, CUDA 12.8" if "cuda_build" in more else "2.9.1, CPU build")
    assert gloo.ok and nccl.ok is ("nccl" in more)
    assert (cuda.ok, cuda.remedy) == (not remedy, remedy)


def test_gpus_are_listed_with_their_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'A100, 40960 MiB'\necho 'T4, 15360 MiB'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, **more: str(program) if name == "nvidia-smi" else None)
    assert doctor._gpus() == doctor.Check(name="gpus", ok=True, found="A100, 40960 MiB; T4, 15360 MiB")
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", encoding="utf-8")
    failed = doctor._gpus()
    assert not failed.ok and failed.found == "nvidia-smi reports none"


def test_each_lack_of_shaped_links_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = (namespaces.Lack(what="no root", remedy="run as root"), namespaces.Lack(what="no tc", remedy="iproute2"))
    monkeypatch.setattr(namespaces, "probe", lambda: namespaces.Probe(lacks=lacks))
    monkeypatch.setattr(namespaces, "stale", list)
    assert [(c.ok, c.found, c.remedy) for c in doctor._links()] == [
        (False, "no root", "run as root"),
        (False, "no tc", "iproute2"),
    ]
    monkeypatch.setattr(namespaces, "probe", namespaces.Probe)
    assert [c.ok for c in doctor._links()] == [True]


def test_what_a_killed_run_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = [namespaces.name(pid, 0, host) for pid in (gone.pid, os.getpid()) for host in ("0", "hub")]
    monkeypatch.setattr(namespaces, "existing", lambda: names)
    monkeypatch.setattr(namespaces, "probe", namespaces.Probe)
    told = [check for check in doctor._links() if check.name == "leftovers"]
    assert len(told) == 1 and not told[0].ok
    assert told[0].found == f"2 network namespaces of killed runs: hetsim-{gone.pid}-0-0, …"


WITHOUT_TORCH = """
import importlib.util, sys
real = importlib.util.find_spec
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not installed")
sys.meta_path.insert(0, Blocked())
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
from hetsim.cli import main
assert main(["doctor", "--json"]) == 0
assert not {"torch", "streamlit", "sklearn", "scipy", "plotly"} & set(sys.modules), "loaded what it only reports on"
"""


def test_it_runs_where_torch_is_not_and_loads_nothing_heavy() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert rows["torch"]["found"] == "not installed"


@pytest.mark.torch
def test_this_machines_torch_is_described_as_it_describes_itself() -> None:
    import torch
    import torch.distributed as dist

    rows = {check.name: asdict(check) for check in doctor.examine()}
    assert rows["torch"]["ok"] and rows["torch"]["found"].startswith(torch.__version__)
    assert rows["cuda"]["ok"] == torch.cuda.is_available()
    assert rows["gloo"]["ok"] == dist.is_gloo_available() and rows["nccl"]["ok"] == dist.is_nccl_available()
