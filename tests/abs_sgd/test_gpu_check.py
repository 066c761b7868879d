"""The prepared check of a machine with a GPU: its table comes whatever its steps do, and it runs on a CPU."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.torch
FILE = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.mark.parametrize(
    ("text", "result", "said"),
    [
        ("print('noise'); print('7 updates')", "ok", "7 updates"),
        ("print('no nccl'); raise SystemExit(3)", "skipped", "no nccl"),
        ("print('7 updates'); raise ValueError('wrong by far')", "failed", "ValueError: wrong by far"),
        ("import os; os._exit(9)", "failed", "exit code 9, without a word"),
        ("import os; print(os.environ['NVIDIA_TF32_OVERRIDE'])", "ok", "0"),
    ],
)
def test_every_end_of_a_step_is_a_line(gpu_check: ModuleType, text: str, result: str, said: str) -> None:
    found = gpu_check.attempt("step", python(text), 30.0)
    assert (found.name, found.result, found.said) == ("step", result, said)


def test_a_step_that_hangs_is_ended_with_all_it_started(gpu_check: ModuleType, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    text = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(p.pid)); p.wait()"
    start_s = time.monotonic()
    found = gpu_check.attempt("step", python(text), 3.0)
    assert (found.result, found.said) == ("failed", "ended after its 3 s")
    assert time.monotonic() - start_s < 30.0
    child, until = int(note.read_text()), time.monotonic() + 10.0
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < until, "the step's own child is left"
        time.sleep(0.05)


def test_without_time_or_device_steps_are_skipped_with_the_reason(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(gpu_check.STEPS)
    assert names[0] == "device"
    none = list(gpu_check.outcomes(names, "cpu", 0.0))
    assert [line.result for line in none] == ["skipped"] * len(names) and none[0].said == "no time was left"
    monkeypatch.setattr(gpu_check, "attempt", lambda name, *_: gpu_check.Outcome(name, "failed", 1.0, "no CUDA"))
    found = list(gpu_check.outcomes(names, "cuda", 4.0))
    assert [line.result for line in found] == ["failed"] + ["skipped"] * (len(names) - 1)
    assert found[1].said == "there is no such device"


@pytest.mark.parametrize(("failing", "code"), [("", 0), ("nccl-rank", 1)])
def test_the_exit_code_says_whether_a_step_failed(
    gpu_check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
    code: int,
) -> None:
    def attempt(name: str, command: object, limit_s: float) -> object:
        return gpu_check.Outcome(name, "failed" if name == failing else "ok", 1.0, f"up to {limit_s:.0f} s")

    monkeypatch.setattr(gpu_check, "attempt", attempt)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu", "--minutes", "2"])
    assert gpu_check.main() == code
    shown = capsys.readouterr().out
    assert all(name in shown for name in gpu_check.STEPS) and "up to 15 s" in shown


def test_a_step_runs_on_a_cpu(gpu_check: ModuleType) -> None:
    found = gpu_check.attempt(
        "nccl-wrapper", [sys.executable, str(FILE), "--device", "cpu", "--step", "nccl-wrapper"], 60.0
    )
    assert found.result == "ok" and found.said.startswith("100 updates"), found


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu(gpu_check: ModuleType) -> None:
    found = gpu_check.attempt("all", [sys.executable, str(FILE), "--device", "cpu"], 270.0)
    assert (found.result, found.said) == ("ok", "nothing failed on cpu"), found


def test_the_steps_fit_into_the_time(gpu_check: ModuleType) -> None:
    """A machine is lent for so long: the longest step alone leaves time for the others, and every step can start."""
    limits = [limit_s for limit_s, _ in gpu_check.STEPS.values()]
    assert max(limits) <= 120.0 and min(limits) >= gpu_check.LEAST_S
