"""A validation beside the app: what came of it, and that nothing is left of one that nobody wants any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from finished_runs import TWO

from hetsim import validation_folder
from hetsim.archives import unpacked
from hetsim.errors import UsageError
from hetsim.webapp import validation_run
from hetsim.webapp.validation_run import Order, Run, start, unavailable

PATIENCE_S = 90.0
ROOT = Path(__file__).parents[2]


def order(updates: int, profile: str = TWO) -> Order:
    return Order(profile_yaml=profile, name="two", algorithms=("s-sgd",), updates=updates, pace_tolerance=10.0)


def until(happens: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.05)
    return False


def left_of(group: int) -> list[str]:
    """Processes of the group that have not ended, by name."""
    out = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state not in "ZX":
            out.append(name)
    return out


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(validation_run, "_last", None)
    yield
    last = validation_run._last
    if last is not None and not last.over:
        os.killpg(last.pid, signal.SIGKILL)


def at_work(run: Run) -> bool:
    return run.progress[0] > 0


# ---- orders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"updates": 3}, {"updates": 201}, {"runs": 0}, {"runs": 4}, {"algorithms": ()}, {"pace_tolerance": -0.1}]
)
def test_orders_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Order(**{"profile_yaml": TWO, "name": "two", "algorithms": ("s-sgd",), **wrong})  # type: ignore[arg-type]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_run, "find_spec", lambda name: None if name == "torch" else object())
    assert "pip install 'hetsim[train]'" in (unavailable() or "")
    with pytest.raises(UsageError, match="needs torch"):
        start(order(4))
    monkeypatch.setattr(validation_run, "find_spec", lambda name: None if name == "sklearn" else object())
    assert "scikit-learn" in (unavailable() or "")


# ---- runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_what_hetsim_says_of_an_order_that_it_refuses(tmp_path: Path) -> None:
    run = start(order(4, TWO.replace("samples_per_s", "samples_per_z")))
    assert run.wait(PATIENCE_S) and run.state == "failed"
    assert any("profile.yaml:" in line and "samples_per_z" in line for line in run.words)
    assert until(lambda: not list((tmp_path / "temporary").iterdir()))


@pytest.mark.torch
@pytest.mark.live
def test_a_run_from_beginning_to_end(tmp_path: Path) -> None:
    run = start(order(6))
    with pytest.raises(UsageError, match="another validation is under way"):
        start(order(6))
    assert run.wait(PATIENCE_S) and run.state == "done", run.words
    assert run.progress[:2] == (6, 6) and "s-sgd" in run.progress[2]
    assert run.material is not None and set(run.material.schedules["s-sgd"]) == {"predicted", "measured"}
    with unpacked(run.archive) as folder:
        assert validation_folder.read(folder).document == run.material.document
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("how", ["cancelled", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.torch
@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_nobody_wants_any_more_leaves_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation_run, "GONE_S", 1.0)
    alive = [True]
    run = start(order(200), alive=lambda: alive[0])
    assert until(lambda: at_work(run))
    assert len(left_of(run.pid)) >= 3
    if how == "cancelled":
        run.cancel()
        run.cancel()  # twice does no harm
        assert run.state == "ending"
    else:
        alive[0] = False
    assert run.wait(PATIENCE_S) and run.state == "cancelled"
    assert until(lambda: not left_of(run.pid))
    assert not list((tmp_path / "temporary").iterdir())


SERVER = """
import sys, time
from hetsim.webapp.validation_run import Order, start
if __name__ == "__main__":
    run = start(Order(profile_yaml=sys.argv[1], name="two", algorithms=("s-sgd",), updates=200))
    while not run.progress[0]:
        assert not run.over, run.words
        time.sleep(0.05)
    print(run.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.torch
@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_ends_with_an_app_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, str(tmp_path / "server.py"), TWO],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert server.stdout is not None
    try:
        pid = int(server.stdout.readline())
        assert len(left_of(pid)) >= 3
        server.kill()
        assert until(lambda: not left_of(pid))
    finally:
        server.kill()
        server.wait()
