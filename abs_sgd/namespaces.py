"""Network namespaces that hetsim makes: how they are named, probed for, and taken down again.

A name is `hetsim-<pid>-<lab>-<host>`: the process that owns it, its count of labs, the host inside. So whoever comes later can tell what
a killed process left behind (`sweep`), and nothing that hetsim did not make is ever touched. Commands run without a shell.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetsim.errors import HetsimError

NAME = re.compile(r"hetsim-([1-9][0-9]*)-([0-9]+)-([a-z0-9]+)")
SYSTEM_PATH = os.pathsep.join(("/usr/sbin", "/sbin"))  # where ip and tc are, and a user's PATH may not look
CLONE_NEWNET = 0x40000000  # sched.h
MOUNTED = Path("/var/run/netns")  # where `ip netns` mounts them
COMMAND_LIMIT_S = 30.0  # each takes milliseconds; more means that the kernel hangs [our choice]
KILL_LIMIT_S = 5.0  # how long a killed process may take to go [our choice]


class NetLabError(HetsimError):
    """The network cannot be emulated here, or a command of `ip` or `tc` failed."""


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that emulating links needs and this machine does not offer, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What shaping links in namespaces lacks here; nothing if it works."""

    lacks: tuple[Lack, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.lacks

    @property
    def reason(self) -> str:
        """One line; empty if nothing is missing."""
        return "; ".join(map(str, self.lacks))


def name(pid: int, lab: int, host: str) -> str:
    """The namespace of a host. Raises ValueError for what would not be recognised as ours again."""
    made = f"hetsim-{pid}-{lab}-{host}"
    if not NAME.fullmatch(made):
        raise ValueError(f"{made!r} is no name of a namespace of hetsim")
    return made


def run(program: str, *words: str) -> str:
    """Run `ip` or `tc` and return what it prints. Raises NetLabError with what it complained about."""
    path = find(program)
    if path is None:
        raise NetLabError(f"the command {program} is not installed (package iproute2)")
    try:
        done = subprocess.run(
            [path, *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches the caller, not a command half done
        )
    except subprocess.TimeoutExpired as error:
        raise NetLabError(f"{program} {' '.join(words)}: no answer in {COMMAND_LIMIT_S:g} s") from error
    if done.returncode:
        raise NetLabError(f"{program} {' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def find(program: str) -> str | None:
    """Where a program of the system is."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM_PATH)))


def existing() -> list[str]:
    """The namespaces on this machine that bear a name of ours, whoever owns them."""
    words = (line.split() for line in run("ip", "netns", "list").splitlines())
    return [first[0] for first in words if first and NAME.fullmatch(first[0])]


def remove(names: Iterable[str]) -> None:
    """Kill what runs in these namespaces and delete them, with all links in them. Raises NetLabError if one remains."""
    problems = {}
    for each in names:
        if not NAME.fullmatch(each):
            raise ValueError(f"{each!r} is not ours to remove")
        _kill_inside(each)
        try:
            run("ip", "netns", "delete", each)
        except NetLabError as error:
            problems[each] = str(error)
    if problems and (left := problems.keys() & set(existing())):  # else somebody else swept it at the same moment
        raise NetLabError("\n".join(problems[each] for each in sorted(left)))


def stale() -> list[str]:
    """The namespaces whose owner is dead, which SIGKILL leaves. One whose number another process now has is not among them."""
    return [each for each in existing() if not _alive(_owner(each))]


def sweep() -> list[str]:
    """Remove the namespaces whose owner is dead; returns their names."""
    remove(left := stale())
    return left


def probe() -> Probe:
    """Try the whole way in a namespace of its own: create it, a link, a bridge, a token bucket, and a process inside."""
    lacks = tuple(_requirements())
    if lacks:
        return Probe(lacks=lacks)
    trial = name(os.getpid(), time.monotonic_ns(), "probe")
    steps: Sequence[tuple[str, str, tuple[str, ...]]] = (
        ("network namespaces are not permitted", "run outside the container, or with --privileged",
         ("ip", "netns", "add", trial)),
        ("links between namespaces are not permitted", "allow CAP_NET_ADMIN, or a kernel with veth",
         ("ip", "-n", trial, "link", "add", "name", "a", "type", "veth", "peer", "name", "b")),
        ("there are no bridges", "allow CAP_NET_ADMIN, or a kernel with bridge",
         ("ip", "-n", trial, "link", "add", "name", "c", "type", "bridge")),
        *(("links cannot be shaped", "a kernel with sch_htb and cls_u32", ("tc", "-n", trial, *words))
          for words in shape("a", 1e6, 1 << 18)),
        ("processes cannot enter a namespace", "run outside the container, or with --privileged",
         ("ip", "netns", "exec", trial, sys.executable, "-c", "")),
    )  # fmt: skip
    try:
        for what, remedy, words in steps:
            try:
                run(*words)
            except NetLabError as error:
                return Probe(lacks=(Lack(what=f"{what}: {error}", remedy=remedy),))
    finally:
        remove(each for each in existing() if each == trial)
    return Probe()


def shape(device: str, bits_per_s: float, burst_bytes: int) -> Sequence[tuple[str, ...]]:
    """What `tc` is to be told so that an unshaped device sends at this rate.

    Packets of 52 bytes, which are IP's and TCP's headers with a time stamp and nothing else, pass beside the bucket: bare
    acknowledgements do not queue behind a collective's data, as they do not on a host with the usual fair queueing. A thousand packets
    may queue before any is dropped, more than a collective sends.
    """
    bare = ("u32", "match", "u16", "52", "0xffff", "at", "2")  # IP's total length
    return (
        ("qdisc", "replace", "dev", device, "root", "handle", "1:", "htb", "default", "10"),
        bucket(device, bits_per_s, burst_bytes),
        ("filter", "replace", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", *bare, "flowid", "1:0"),
    )


def bucket(device: str, bits_per_s: float, burst_bytes: int) -> tuple[str, ...]:
    """What `tc` is to be told so that a device that is shaped has a token bucket of this rate."""
    rate, burst = f"{bits_per_s:.0f}bit", f"{burst_bytes}b"
    where = ("class", "replace", "dev", device, "parent", "1:", "classid", "1:10")
    return (*where, "htb", "rate", rate, "burst", burst, "cburst", burst, "quantum", "65536")


def _requirements() -> Iterable[Lack]:
    if not sys.platform.startswith("linux"):
        yield Lack(what="network namespaces are Linux's", remedy="use a Linux machine")
        return
    if os.geteuid() != 0:
        yield Lack(what="network namespaces need root", remedy="run as root")
    for program in ("ip", "tc"):
        if find(program) is None:
            yield Lack(what=f"the command {program} is not installed", remedy="install the package iproute2")


def _owner(namespace: str) -> int:
    found = NAME.fullmatch(namespace)
    assert found is not None
    return int(found[1])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _kill_inside(namespace: str) -> None:
    """SIGKILL to every process in the namespace, until there is none; a namespace that is only half made has none."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < deadline:
        try:
            inside = [int(word) for word in run("ip", "netns", "pids", namespace).split()]
        except NetLabError:
            return
        inside = [pid for pid in inside if pid != os.getpid()]
        if not inside:
            return
        for pid in inside:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def enter(namespace: str) -> None:
    """Move the calling thread, and every thread it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(MOUNTED / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            raise NetLabError(f"{namespace}: cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)
