"""The links of a cluster and what each kind of communication sends over them.

Every link is full duplex: two directed links. Worker i's own link towards the others is (2i, 2i + 1); then come the server's, the
nodes' shared ones and the workers' ports inside their node. What crosses which link is decided here and in
`hetsim.network.collectives`; how transfers share links in `hetsim.network.sharing`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hetsim.cluster.spec import Link, Network
from hetsim.network.capacity import Timeline
from hetsim.network.collectives import COLLECTIVES, from_table
from hetsim.network.transfer import NOTHING, LinkId, Transfer

if TYPE_CHECKING:
    from hetsim.cluster.spec import Cluster

_MANY_CROSSINGS = 8  # below, finding the slowest link is as cheap as looking it up
_REMEMBERED_CROSSINGS = 500_000  # about 50 MB; random groups of many workers would otherwise pile up


class Fabric:
    """Directed links with capacities over time, and the transfers that cross them.

    `nodes` names each worker's node (needed on topology "nodes"), `names` each worker, for explanations. On topology "nodes" traffic to
    other nodes crosses the worker's own link and the link that its node shares; traffic inside a node crosses the workers' ports on
    `intra_node` (their own links where there is none). A server without a link of its own has the fastest worker's [our choice].
    """

    def __init__(
        self, network: Network, n: int, nodes: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> None:
        if len(network.links) != n:
            raise ValueError(f"{n} workers but {len(network.links)} links")
        if network.topology == "nodes" and nodes is None:
            raise ValueError('topology "nodes" needs the node of each worker: Fabric(network, n, nodes=...)')
        self.network, self.n = network, n
        self.names = tuple(names) if names is not None else tuple(str(i) for i in range(n))
        self.nodes = tuple(nodes) if nodes is not None and network.topology == "nodes" else ()
        self._links: list[Link] = list(network.links)
        self._server = n
        self._links.append(network.server or max(network.links, key=lambda link: link.bytes_per_s))
        self._node_index = {node: len(self._links) + k for k, node in enumerate(network.node_links) if self.nodes}
        self._links += [network.node_links[node] for node in self._node_index]
        self._port = len(self._links)
        if self.nodes and network.intra_node is not None:
            self._links += [network.intra_node] * n
        self._timelines = {k: Timeline(link) for k, link in enumerate(self._links) if link.changes}
        self._changes = sorted({at for line in self._timelines.values() for at in line.times})
        self._capacities: tuple[int, list[float]] = (-1, [])
        self._transfers: dict[object, Transfer] = {}
        self._same_members: dict[object, tuple[tuple[int, ...], Transfer]] = {}
        self._rates: dict[int, tuple[Transfer, int, float]] = {}
        self._remembered = 0

    @classmethod
    def of(cls, cluster: Cluster) -> Fabric:
        """The fabric of a cluster, with its nodes and names."""
        return cls(cluster.network, cluster.n, [w.node for w in cluster.workers], [w.name for w in cluster.workers])

    # ---- links over time ---------------------------------------------------------------------------------------------------

    def capacity(self, link: LinkId, t: float) -> float:
        """Bytes per second of a directed link at time t."""
        line = self._timelines.get(link // 2)
        return line.at(t) if line is not None else self._links[link // 2].bytes_per_s

    def next_change(self, t: float) -> float:
        """The first time after t at which a capacity may change; inf if none does."""
        k = bisect_right(self._changes, t)
        return self._changes[k] if k < len(self._changes) else math.inf

    def capacities(self, t: float) -> list[float]:
        """Bytes per second of every directed link at time t; the list is shared, not to be changed."""
        epoch = bisect_right(self._changes, t)
        if self._capacities[0] != epoch:
            rates = [rate for link in self._links for rate in (link.bytes_per_s, link.bytes_per_s)]
            for k, line in self._timelines.items():
                rates[2 * k] = rates[2 * k + 1] = line.at(t)
            self._capacities = (epoch, rates)
        return self._capacities[1]

    def rate(self, transfer: Transfer, t: float) -> float:
        """Bytes per second of a transfer alone: its slowest link's capacity over multiplicity at time t."""
        if len(transfer.crossings) <= _MANY_CROSSINGS:
            return min([self.capacity(link, t) / m for link, m in transfer.crossings], default=math.inf)
        epoch = bisect_right(self._changes, t)
        known = self._rates.get(id(transfer))
        if known is not None and known[1] == epoch:  # it keeps the transfer alive, so the id is still its own
            return known[2]
        capacities = self.capacities(t)
        rate = min(capacities[link] / m for link, m in transfer.crossings)
        self._make_room(transfer)
        self._rates[id(transfer)] = (transfer, epoch, rate)
        return rate

    # ---- what crosses which link ---------------------------------------------------------------------------------------------

    def own(self, worker: int) -> tuple[LinkId, LinkId]:
        """Up and down direction of a worker's own link."""
        return 2 * worker, 2 * worker + 1

    def port(self, worker: int) -> tuple[LinkId, LinkId]:
        """Up and down direction of a worker's way to the others of its node."""
        k = self._port + worker if self._port < len(self._links) else worker
        return 2 * k, 2 * k + 1

    def node_link(self, node: str) -> tuple[LinkId, LinkId] | None:
        """Up and down direction of the link that a node's workers share."""
        k = self._node_index.get(node)
        return None if k is None else (2 * k, 2 * k + 1)

    def by_node(self, members: Iterable[int]) -> list[list[int]]:
        """Members grouped by node, in order of rank; one group each where workers are on no node."""
        if not self.nodes:
            return [[i] for i in sorted(members)]
        groups: dict[str, list[int]] = {}
        for i in sorted(members):
            groups.setdefault(self.nodes[i], []).append(i)
        return list(groups.values())

    def latency_s(self, links: Iterable[LinkId]) -> float:
        """One hop over these links: the largest of their latencies [our choice: a path's links are one hop]."""
        return max((self._links[link // 2].latency_s for link in links), default=0.0)

    def _way(self, worker: int, direction: int) -> list[LinkId]:
        """Links between a worker and the world outside its node; direction 0 is up, 1 down."""
        shared = self.node_link(self.nodes[worker]) if self.nodes else None
        return [self.own(worker)[direction], *([shared[direction]] if shared else [])]

    # ---- transfers -----------------------------------------------------------------------------------------------------------

    def all_reduce(self, members: tuple[int, ...], payload_bytes: float, collective: str | None = None) -> Transfer:
        """An all-reduce of `payload_bytes` among some workers; nothing where there is one. Measured tables beat formulas."""
        quick = (id(members), payload_bytes, collective)  # hashing 10,000 members for every collective would dominate
        known = self._same_members.get(quick)
        if known is not None:  # it keeps `members` alive, so the id is still theirs
            return known[1]
        key = (members, payload_bytes, collective)
        transfer = self._transfers.get(key)
        if transfer is None:
            transfer = self._collective(members, payload_bytes, collective)
            self._make_room(transfer)
            self._transfers[key] = transfer
        self._same_members[quick] = (members, transfer)
        return transfer

    def _collective(self, members: tuple[int, ...], payload_bytes: float, collective: str | None) -> Transfer:
        if len(members) <= 1:
            return NOTHING
        if len(set(members)) != len(members):
            raise ValueError(f"a member twice in {members}")
        transfer = COLLECTIVES[collective or self.network.collective](self, members, payload_bytes)
        if self.network.all_reduce_table and len(members) == self.n and collective in (None, self.network.collective):
            return from_table(self, self.network.all_reduce_table, transfer, payload_bytes)
        return transfer

    def push(self, worker: int, payload_bytes: float) -> Transfer:
        """Worker to server: α + M/bw through the worker's uplink and the server's downlink."""
        return self._path(("push", worker, payload_bytes), payload_bytes, worker, 0)

    def pull(self, worker: int, payload_bytes: float) -> Transfer:
        """Server to worker: α + M/bw through the server's uplink and the worker's downlink."""
        return self._path(("pull", worker, payload_bytes), payload_bytes, worker, 1)

    def _path(self, key: object, payload_bytes: float, worker: int, direction: int) -> Transfer:
        transfer = self._transfers.get(key)
        if transfer is None:
            links = [*self._way(worker, direction), 2 * self._server + 1 - direction]
            transfer = Transfer(self.latency_s(links), payload_bytes, tuple((link, 1.0) for link in links))
            if self.n == 1:  # one worker is its own server: no communication, as for collectives
                transfer = Transfer(0.0, 0.0, ())
            self._make_room(transfer)
            self._transfers[key] = transfer
        return transfer

    def exchange(self, a: int, b: int, payload_bytes: float) -> Transfer:
        """Two workers send each other `payload_bytes` at the same time."""
        key = ("exchange", min(a, b), max(a, b), payload_bytes)
        transfer = self._transfers.get(key)
        if transfer is None:
            if self.nodes and self.nodes[a] == self.nodes[b]:
                links = [*self.port(a), *self.port(b)]
            else:
                links = [link for worker in (a, b) for direction in (0, 1) for link in self._way(worker, direction)]
            transfer = (
                Transfer(self.latency_s(links), payload_bytes, tuple((link, 1.0) for link in links))
                if a != b
                else NOTHING
            )
            self._make_room(transfer)
            self._transfers[key] = transfer
        return transfer

    def _make_room(self, transfer: Transfer) -> None:
        self._remembered += 8 + len(transfer.crossings)
        if self._remembered > _REMEMBERED_CROSSINGS:
            for cache in (self._transfers, self._same_members, self._rates):
                cache.clear()
            self._remembered = 8 + len(transfer.crossings)

    # ---- closed forms and explanations -----------------------------------------------------------------------------------------

    def seconds(self, transfer: Transfer, t: float = 0.0) -> float:
        """How long a transfer takes alone at the capacities of time t."""
        total = 0.0
        for phase in transfer.phases():
            total += phase.latency_s + (phase.size_bytes / self.rate(phase, t) if phase.size_bytes else 0.0)
        return total

    def all_reduce_seconds(self, members: tuple[int, ...], payload_bytes: float, t: float = 0.0) -> float:
        """How long an all-reduce takes alone at the capacities of time t."""
        return self.seconds(self.all_reduce(members, payload_bytes), t)

    def bottleneck(self, members: tuple[int, ...], t: float = 0.0, payload_bytes: float = 1.0) -> str:
        """The link that limits an all-reduce's rate, in words: "worker c", "node n1", "inside node n1", "server"; "" for one worker."""
        phases = [phase for phase in self.all_reduce(members, payload_bytes).phases() if phase.crossings]
        if not phases:
            return ""
        phase = max(phases, key=lambda p: p.size_bytes / self.rate(p, t))
        capacities = self.capacities(t)
        return self.describe(min(phase.crossings, key=lambda crossing: capacities[crossing[0]] / crossing[1])[0])

    def describe(self, link: LinkId) -> str:
        """Whose link this is."""
        k = link // 2
        if k < self.n:
            return f"worker {self.names[k]}"
        if k == self._server:
            return "server"
        for node, index in self._node_index.items():
            if index == k:
                return f"node {node}"
        return f"inside node {self.nodes[k - self._port]}"
