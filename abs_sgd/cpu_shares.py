"""Processes with unequal shares of this machine's cores: a control group for each, with a quota.

    with groups((0.8, 0.3)) as made:
        ...                # start processes, the first of which calls
        enter(made[0])     # and gets 0.8 of a core from there on, with its threads and the processes it starts

A rank with half a core computes at half speed, whatever else the machine does, and what it sends and receives comes out of the same
share: a cluster of unequal workers whose physics nobody made up. Linux, control groups version 1 or 2, and the right to write
to them (root as a rule). A group is removed with the last process in it gone, at the latest when the context ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hetsim.errors import HetsimError, UsageError

ROOT = Path("/sys/fs/cgroup")
PREFIX = "hetsim-shares-"
# The scheduler hands out a quota period by period: a short one makes a slow worker rather than a stuttering one. Ten milliseconds are
# well below a pass and ten times the shortest that the kernel takes [our choice].
PERIOD_US = 10_000
LEAST_SHARE = (
    0.05  # the kernel refuses quotas below 1 ms a period; below 5 % a rank takes minutes to import torch [our choice]
)
# Against what else the machine does, by version: a share is promised, so it goes first until its quota is used up.
MOST_WEIGHT = {
    1: 262_144,
    2: 10_000,
}  # kernel/sched/core.c, MAX_SHARES; Documentation/admin-guide/cgroup-v2.rst, cpu.weight
STOP_S = 5.0


class CpuSharesError(HetsimError):
    """This machine does not hand out shares of its cores; the message says why."""


@dataclass(frozen=True)
class Probe:
    """Whether shares can be had here, and why not."""

    ok: bool
    reason: str = ""


def probe(root: Path = ROOT) -> Probe:
    """Whether control groups can be made here: makes one and removes it."""
    try:
        with CpuShares((0.5,), root=root, check_cores=False):
            return Probe(True)
    except CpuSharesError as error:
        return Probe(False, str(error))


@dataclass(frozen=True)
class Group:
    """Where a process writes its id, and the core it computes on: as text, to hand on to it."""

    path: Path
    core: int

    def __str__(self) -> str:
        return f"{self.core}:{self.path}"


class CpuShares:
    """A group with a quota per share; shares are of one core, so that a machine with two cores has 2 to give.

    Raises UsageError for shares that no machine, or not this one, can give; CpuSharesError on entry where there are no control groups.
    """

    def __init__(self, shares: Sequence[float], *, root: Path = ROOT, check_cores: bool = True) -> None:
        check(shares)
        self.shares = tuple(shares)
        self.root = root
        self.cores = cores_for(shares) if check_cores else (0,) * len(shares)
        self.groups: list[Group] = []

    def __enter__(self) -> CpuShares:
        base, version = _controller(self.root)
        remove_leftovers(base)
        try:
            for number, share in enumerate(self.shares):
                group = base / f"{PREFIX}{os.getpid()}-{number}"
                group.mkdir()
                self.groups.append(Group(group, self.cores[number]))
                _limit(group, version, share)
        except OSError as error:
            self.close()
            raise CpuSharesError(
                f"shares of cores need control groups that can be written to (root): {error.strerror}: {error.filename}"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the groups. Their processes have been ended by who started them; a dying one may take a moment to leave."""
        until = time.monotonic() + STOP_S
        for group in self.groups:
            while True:
                try:
                    group.path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.01)
        self.groups = []


@contextlib.contextmanager
def groups(shares: Sequence[float]) -> Iterator[Sequence[Group]]:
    """A group for each share, none for none."""
    if not shares:
        yield ()
        return
    with CpuShares(shares) as made:
        yield made.groups


def enter(group: str) -> None:
    """Move this process, all its threads, into a group (as text) and onto its core.

    Onto one core, since the kernel hands a quota out by core, 5 ms at a time: where two threads of a rank may run on two cores, the one
    that computes takes all of a small quota, and the one that sends stands still for many periods.
    """
    core, _, path = group.partition(":")
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {int(core)})
    (Path(path) / "cgroup.procs").write_text(str(os.getpid()))


def cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def check(shares: Sequence[float]) -> None:
    """Raise UsageError for shares that cannot be given."""
    if not shares:
        raise UsageError("CPU shares: name one for each rank, as in 0.8,0.4")
    for share in shares:
        if not LEAST_SHARE <= share <= 1.0:
            raise UsageError(f"CPU share {share:g}: a rank computes on one core, of which it gets {LEAST_SHARE:g} to 1")


def cores_for(shares: Sequence[float]) -> tuple[int, ...]:
    """A core for each share, the largest shares first, each onto the core with the most left. Raises UsageError where one does not fit."""
    left = dict.fromkeys(cores(), 1.0)
    found = [-1] * len(shares)
    for number in sorted(range(len(shares)), key=lambda n: -shares[n]):
        core = max(left, key=lambda c: left[c], default=-1)
        if core < 0 or left[core] < shares[number] - 1e-9:
            raise UsageError(
                f"CPU shares {', '.join(f'{x:g}' for x in shares)} do not fit onto {len(left)} cores, none of which can be split"
            )
        left[core] -= shares[number]
        found[number] = core
    return tuple(found)


def _controller(root: Path) -> tuple[Path, int]:
    """Where groups with a quota are made, and the version of control groups. Raises CpuSharesError."""
    if (root / "cgroup.controllers").is_file():  # version 2
        enabled = (root / "cgroup.subtree_control").read_text().split()
        if "cpu" not in enabled:
            raise CpuSharesError(f"shares of cores: the cpu controller is not enabled in {root}/cgroup.subtree_control")
        return root, 2
    for name in ("cpu", "cpu,cpuacct"):
        if (root / name / "cpu.cfs_quota_us").is_file():
            return root / name, 1
    raise CpuSharesError(f"shares of cores need Linux control groups with the cpu controller; there is none in {root}")


def _limit(group: Path, version: int, share: float) -> None:
    quota = round(share * PERIOD_US)
    if version == 2:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cpu.weight").write_text(str(MOST_WEIGHT[2]))
        return
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(quota))
    (group / "cpu.shares").write_text(str(MOST_WEIGHT[1]))


def remove_leftovers(base: Path) -> None:
    """Groups of commands that were killed; those of a running one, and those with a process in them, stay."""
    for group in base.glob(f"{PREFIX}*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()
