"""One machine as the profile's cluster: every worker a host of its own in a network namespace, its link shaped to the profile's.

    switch, parameter_server             nodes

    worker 0 ══╗                         worker 0 ──┐
    worker 1 ══╬ bridge                  worker 1 ──┴ bridge ══╗
    server   ══╝                         worker 2 ──┐          ╬ bridge
                                         worker 3 ──┴ bridge ══╝

    ══ shaped in both directions     ── as fast as the machine

Beside it every host has a second link, unshaped, to a bridge of its own: there the job's store is reached, whose small messages would
otherwise queue for 39 ms, 141 ms at worst, behind an all-reduce. Bridges live in a namespace too (`hub`): no interface, address or route
of the machine itself is touched, and the hosts reach nothing but each other.

What is not emulated is said by `NetLab.skipped`: latencies (the machine's own, some tens of microseconds, take their place), and own links
of workers that share a node's.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING

from abs_sgd import namespaces
from abs_sgd.namespaces import NetLabError, Probe

if TYPE_CHECKING:
    from hetsim.cluster.spec import Cluster, Link

__all__ = ["DATA_DEVICE", "PAYLOAD_SHARE", "NetLab", "NetLabError", "Probe"]

# Payload of what a token bucket counts: 1448 of 1514 bytes. 1500 of a packet less 20 IP, 20 TCP, 12 timestamps; with 14 Ethernet.
PAYLOAD_SHARE = 1448 / 1514
# What TCP hands down as one, instead of 64 KiB: a token bucket must hold some of them.
SEGMENTS_BYTES = 16 * 1024
# What a link may send at once after a rest: two of those, and 2 ms' worth, which the kernel may be late by on busy cores. Every collective
# after a rest gets it for nothing, so no more: all-reduces of 2.1 MB among four hosts, one of them behind 100 Mbit/s, took 2.5 % less than
# the ring formula with 96 KiB (and 64 KiB handed down), .3 % less with 32 (and 16).
BURST_BYTES, BURST_S = 2 * SEGMENTS_BYTES, 0.002
# A link is the token bucket and nothing else: no congestion control that paces and probes by itself (bbr: up to 6 % more than the
# formula, and another time at each start), no slow start after the pause that a computation is. Every kernel has reno. To a parameter
# server the kernel's own control stays: there several connections share a full link, which reno does unevenly (ssp: 18 to 60 % more).
COLLECTIVES_CONTROL = "reno"
DATA_DEVICE, STORE_DEVICE = "data0", "store0"
# 198.18.0.0/15 is set aside for benchmarks of networks (RFC 2544, RFC 6890): nobody's machines are there.
DATA_NETWORK, STORE_NETWORK = "198.18", "198.19"
STORE_PORT = 29500  # torchrun's; each namespace has all ports to itself
# torch warns at each connection that the address has no name. Errors of collectives are raised whatever stands here.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
MOST_HOSTS = 1000  # a Linux bridge has 1024 ports


class NetLab:
    """The hosts of a cluster, for as long as a `with` block lasts.

    `server=True` adds a host for the parameter server; its rank is the number of workers. A link's `bytes_per_s` is payload: the token
    bucket is set to `bytes_per_s * 8 / payload_share` bits, so that TCP's payload runs at the profile's rate and the profile's own
    `payload_share`, which is already in `bytes_per_s`, does not count twice. Infinite links stay unshaped.

    At the end, however it comes (also an exception, Ctrl-C, SIGTERM or SIGHUP), every process inside is killed and every namespace
    removed; what a SIGKILL leaves goes when the next lab starts. Entering raises NetLabError where namespaces cannot be had.
    """

    _labs = itertools.count()

    def __init__(
        self,
        cluster: Cluster,
        *,
        server: bool = False,
        payload_share: float = PAYLOAD_SHARE,
        burst_bytes: int | None = None,
    ) -> None:
        if not 0 < payload_share <= 1:
            raise ValueError(f"payload_share must be in (0, 1], not {payload_share}")
        if cluster.n + server > MOST_HOSTS:
            raise NetLabError(f"{cluster.n + server} hosts are too many to emulate: at most {MOST_HOSTS}")
        self.cluster = cluster
        self.n_hosts = cluster.n + server
        self.payload_share, self.burst_bytes = payload_share, burst_bytes
        self.processes: list[subprocess.Popen[bytes]] = []
        self._pid, self._lab = os.getpid(), next(self._labs)
        self._nodes = [w.node for w in cluster.workers] if cluster.network.topology == "nodes" else []
        self._bridges = {node: f"n{k}" for k, node in enumerate(dict.fromkeys(self._nodes))}
        self._signals = _EndingSignals()

    # ---- what is where -------------------------------------------------------------------------------------------------------

    @staticmethod
    def probe() -> Probe:
        """What emulation lacks on this machine."""
        return namespaces.probe()

    @property
    def skipped(self) -> tuple[str, ...]:
        """What of the profile's network is not emulated, in words."""
        links = [self.link(rank) for rank in range(self.n_hosts)]
        out = []
        if latency := max(link.latency_s for link in links):
            out.append(f"the links' latency ({latency * 1e6:g} us): the machine's own takes its place")
        if self._nodes and any(self.cluster.network.links[r] != self.link(r) for r in range(self.cluster.n)):
            out.append("workers' own links: only the link that a node's workers share is shaped")
        return tuple(out)

    def namespace(self, rank: int) -> str:
        """The name of a host's namespace."""
        return namespaces.name(self._pid, self._lab, str(self._checked(rank)))

    def address(self, rank: int) -> str:
        """A host's address on the shaped network."""
        return _address(DATA_NETWORK, self._checked(rank))

    def store_address(self, rank: int = 0) -> str:
        """A host's address on the network of the store; rank 0 holds the store."""
        return _address(STORE_NETWORK, self._checked(rank))

    def environment(self, rank: int) -> dict[str, str]:
        """What torch.distributed's `env://` reads, and the device that gloo and nccl are to use."""
        return {
            "RANK": str(self._checked(rank)),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.n_hosts),
            "MASTER_ADDR": self.store_address(),
            "MASTER_PORT": str(STORE_PORT),
            "GLOO_SOCKET_IFNAME": DATA_DEVICE,
            "NCCL_SOCKET_IFNAME": DATA_DEVICE,
        }

    def link(self, rank: int) -> Link:
        """The profile's link that a host's is shaped to. A server without one has the fastest worker's, as in the simulator."""
        network = self.cluster.network
        if self._checked(rank) == self.cluster.n:
            return network.server or max(network.links, key=lambda link: link.bytes_per_s)
        return network.node_links[self._nodes[rank]] if self._nodes else network.links[rank]

    # ---- doing ---------------------------------------------------------------------------------------------------------------

    def exec(
        self,
        rank: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host, in a session of its own. Its environment: this one's, `environment(rank)`, then `env`."""
        program = namespaces.find("ip")
        if program is None or not argv:
            raise NetLabError("nothing to run" if program else "the command ip is not installed (package iproute2)")
        process = subprocess.Popen(
            [program, "netns", "exec", self.namespace(rank), *argv],
            env={**QUIET, **os.environ, **self.environment(rank), **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def change(self, rank: int, bytes_per_s: float) -> None:
        """From now on a host's link carries this much payload per second in each direction; on "nodes", its node's link."""
        if not bytes_per_s > 0:
            raise ValueError(f"a link must carry something: bytes_per_s {bytes_per_s}")
        for namespace, device in self._ports(rank):
            if math.isfinite(bytes_per_s):
                wire = bytes_per_s / self.payload_share
                burst = self.burst_bytes or max(BURST_BYTES, math.ceil(wire * BURST_S))
                asked = device, wire * 8, burst
                shaped = self._shaped(namespace, device)
                for words in [namespaces.bucket(*asked)] if shaped else namespaces.shape(*asked):
                    namespaces.run("tc", "-n", namespace, *words)
            elif self._shaped(namespace, device):
                namespaces.run("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")

    @staticmethod
    def _shaped(namespace: str, device: str) -> bool:
        return "htb" in namespaces.run("tc", "-n", namespace, "qdisc", "show", "dev", device)

    def __enter__(self) -> NetLab:
        if (found := self.probe()).lacks:
            raise NetLabError(f"links cannot be emulated here: {found.reason}")
        namespaces.sweep()
        self._signals.take()
        try:
            with self._signals.held():
                self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process inside and remove every namespace of this lab; safe to call twice."""
        try:
            with self._signals.held():
                self._remove()
        finally:
            self._signals.give_back()

    def _remove(self) -> None:
        try:
            ours = namespaces.name(self._pid, self._lab, "x")[:-1]
            namespaces.remove([each for each in namespaces.existing() if each.startswith(ours)])
        finally:
            for process in self.processes:
                process.kill()  # one that had not yet entered its namespace
                process.wait()

    # ---- building ------------------------------------------------------------------------------------------------------------

    @property
    def _hub(self) -> str:
        return namespaces.name(self._pid, self._lab, "hub")

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.n_hosts:
            raise ValueError(f"there is no host {rank}: ranks are 0 to {self.n_hosts - 1}")
        return rank

    def _ports(self, rank: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """(namespace, device) of the two ends of the link that limits a host: each shapes what it sends."""
        if self._nodes and self._checked(rank) < self.cluster.n:
            bridge = self._bridges[self._nodes[rank]]
            return (self._hub, f"up-{bridge}"), (self._hub, f"down-{bridge}")
        return (self.namespace(rank), DATA_DEVICE), (self._hub, f"d{rank}")

    def _build(self) -> None:
        namespaces.run("ip", "netns", "add", self._hub)
        for bridge in ("data", "store", *self._bridges.values()):
            self._device(self._hub, bridge, "bridge")
        for bridge in self._bridges.values():
            self._device(self._hub, f"up-{bridge}", "veth", "peer", "name", f"down-{bridge}")
            self._plug(f"up-{bridge}", bridge)
            self._plug(f"down-{bridge}", "data")
        for rank in range(self.n_hosts):
            self._add_host(rank)
        limited = {self._ports(rank): rank for rank in range(self.n_hosts)}  # once per node
        for rank in limited.values():
            self.change(rank, self.link(rank).bytes_per_s)

    def _add_host(self, rank: int) -> None:
        host = self.namespace(rank)
        own_bridge = self._bridges[self._nodes[rank]] if self._nodes and rank < self.cluster.n else "data"
        namespaces.run("ip", "netns", "add", host)
        namespaces.run("ip", "-n", host, "link", "set", "dev", "lo", "up")
        for device, port, bridge, network in (
            (DATA_DEVICE, f"d{rank}", own_bridge, DATA_NETWORK),
            (STORE_DEVICE, f"s{rank}", "store", STORE_NETWORK),
        ):
            self._device(host, device, "veth", "peer", "name", port, "netns", self._hub)
            self._plug(port, bridge)
            namespaces.run("ip", "-n", host, "address", "add", f"{_address(network, rank)}/16", "dev", device)
        namespaces.run("ip", "-n", host, "link", "set", "dev", DATA_DEVICE, "gso_max_size", str(SEGMENTS_BYTES))
        _tcp(host, "tcp_slow_start_after_idle", "0")
        if self.n_hosts == self.cluster.n:
            _tcp(host, "tcp_congestion_control", COLLECTIVES_CONTROL)

    def _plug(self, port: str, bridge: str) -> None:
        _without_ipv6(self._hub, port)
        namespaces.run("ip", "-n", self._hub, "link", "set", "dev", port, "master", bridge, "up")

    def _device(self, namespace: str, device: str, *kind: str) -> None:
        namespaces.run("ip", "-n", namespace, "link", "add", "name", device, "type", *kind)
        _without_ipv6(namespace, device)
        namespaces.run("ip", "-n", namespace, "link", "set", "dev", device, "up")


def _address(network: str, rank: int) -> str:
    high, low = divmod(rank + 1, 256)
    return f"{network}.{high}.{low}"


def _tcp(namespace: str, setting: str, value: str) -> None:
    namespaces.run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{setting}")


def _without_ipv6(namespace: str, device: str) -> None:
    """No link-local address: gloo would have two to choose from, one of them not yet usable for a second."""
    if os.path.exists("/proc/sys/net/ipv6"):
        namespaces.run("ip", "-n", namespace, "link", "set", "dev", device, "addrgenmode", "none")


class _EndingSignals:
    """Signals that end a process unwind it instead, and wait while something is done that must not be cut in half.

    Only in the main thread, which alone receives signals; a handler that somebody else set stays the one that decides.
    """

    ENDING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))

    def __init__(self) -> None:
        self._taken: list[int] = []

    def take(self) -> None:
        """Turn SIGTERM and SIGHUP into SystemExit where they would end the process without unwinding."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _unwind)
                self._taken.append(number)

    def give_back(self) -> None:
        """Undo `take`."""
        while self._taken:
            signal.signal(self._taken.pop(), signal.SIG_DFL)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals that arrive meanwhile are delivered at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        arrived: list[int] = []
        before = {}
        for number in self.ENDING:
            if signal.getsignal(number) is not None:  # None: set by other than Python
                before[number] = signal.signal(number, lambda signum, frame: arrived.append(signum))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for number in dict.fromkeys(arrived):
                signal.raise_signal(number)


def _unwind(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
