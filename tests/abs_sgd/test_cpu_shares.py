"""Shares of cores: what is written where, which core each gets, and that a process then has no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from abs_sgd import cpu_shares
from abs_sgd.cpu_shares import CpuShares, CpuSharesError, cores_for, groups, probe
from hetsim.errors import UsageError


def made_root(tmp_path: Path, version: int) -> Path:
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        (tmp_path / "cgroup.subtree_control").write_text("cpu")
        return tmp_path
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    return tmp_path / "cpu"


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_for_each_share(tmp_path: Path, version: int) -> None:
    base = made_root(tmp_path, version)
    with CpuShares((0.5, 0.2), root=tmp_path, check_cores=False) as made:
        paths = [group.path for group in made.groups]
        assert [path.parent for path in paths] == [base, base] and len(set(paths)) == 2
        said = [(p / ("cpu.max" if version == 2 else "cpu.cfs_quota_us")).read_text() for p in paths]
        assert said == (["5000 10000", "2000 10000"] if version == 2 else ["5000", "2000"])
        for path in paths:  # a real group has no files of ours to remove
            for file in path.iterdir():
                file.unlink()
    assert not any(path.exists() for path in paths)


def test_without_control_groups_the_reason_is_given(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert not found.ok and "control groups" in found.reason
    (tmp_path / "cgroup.controllers").write_text("memory")
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(CpuSharesError, match="not enabled"), CpuShares((0.5,), root=tmp_path, check_cores=False):
        pass


def test_no_shares_are_no_groups() -> None:
    with groups(()) as made:
        assert list(made) == []


def test_shares_are_packed_onto_whole_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_shares, "cores", lambda: [4, 7])
    assert cores_for((0.8, 0.6, 0.3, 0.2)) == (4, 7, 7, 4)
    assert cores_for((0.2, 1.0, 0.8)) == (7, 4, 7)
    with pytest.raises(UsageError, match="do not fit"):
        cores_for((0.7, 0.7, 0.6))


@pytest.mark.parametrize("shares", [(), (0.0,), (1.5,), (0.5, float("nan")), (-0.2,)])
def test_shares_that_cannot_be(shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="CPU share"):
        CpuShares(shares)


BUSY = """
import sys, time
from abs_sgd.cpu_shares import enter
enter(sys.argv[1])
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 1.0:
    pass
print((time.process_time() - used) / (time.monotonic() - start))
"""


def test_a_process_gets_its_share_and_no_more() -> None:
    if not (found := probe()).ok:
        pytest.skip(found.reason)
    with groups((0.3,)) as made:
        done = subprocess.run([sys.executable, "-c", BUSY, str(made[0])], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        used, path = float(done.stdout), made[0].path
    assert 0.0 < used < 0.36  # less where the machine is busy; a quota is overdrawn by a tick at most
    assert not path.exists()


def test_groups_of_a_command_that_was_killed_are_removed_by_the_next() -> None:
    if not (found := probe()).ok:
        pytest.skip(found.reason)
    script = (
        "import os, signal; from abs_sgd.cpu_shares import CpuShares; s = CpuShares((0.5,)).__enter__(); "
        "print(s.groups[0].path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    left = Path(done.stdout.strip())
    assert left.is_dir()
    with groups((0.4,)) as made:
        assert not left.exists() and made[0].path.is_dir()
