"""What an all-reduce of M bytes among n workers sends over which links.

    ring           2(n-1)(α + M/(n·bw))               Patarasu & Yuan, J. Parallel Distrib. Comput. 69 (2009)
    tree           2⌈log2 n⌉·α + 2(n-1)/n · M/bw      double binary tree: Sanders, Speck & Träff, Parallel Computing 35 (2009); NCCL 2.4
    hierarchical   reduce-scatter and all-gather inside the nodes, then a ring among the nodes
    a table        measured times, see `from_table`

α is one hop's latency, bw the slowest member's bytes/s. On topology "nodes" a node's GPUs are neighbours in the ring, as NCCL orders
them, so that each byte of the ring crosses a node's shared link once in each direction however many GPUs the node has: the link
limits the ring, and more GPUs behind it cost no more than more nodes would. The published T4 placements support that over one flow per
GPU through the shared link (benchmarks/published_network.py), which would have "44", two nodes of four GPUs, synchronize 7 times as long
as "11"; measured, it adds 142 ms to a step against 61. What this leaves out: measured, "22" is 15-25 % slower than "1111" at small batches,
and two crowded nodes are worse than many; the model says equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hetsim.network.transfer import LinkId, Transfer

if TYPE_CHECKING:
    from hetsim.network.fabric import Fabric

Crossings = tuple[tuple[LinkId, float], ...]


def ring(fabric: Fabric, members: Sequence[int], payload_bytes: float) -> Transfer:
    """Ring: 2(n-1) steps of M/n bytes. On a switch C = 2(n-1)(α + M/(n·bw_min)) with α the largest latency of a member.

    Across N nodes a chunk makes 2(n-1) hops, min(2N, 2(n-1)) of them between nodes (the count of NCCL's tuning model, tuning.cc); the
    others cost a hop inside a node.
    """
    n, groups = len(members), fabric.by_node(members)
    steps = 2 * (n - 1)
    inside = [link for group in groups if len(group) > 1 for i in group for link in fabric.port(i)]
    if len(groups) == 1:
        return Transfer(steps * fabric.latency_s(inside), steps * payload_bytes / n, _once(inside))
    outside = _outside(fabric, groups)
    between = min(2 * len(groups), steps)
    latency = between * fabric.latency_s(outside) + (steps - between) * fabric.latency_s(inside)
    return Transfer(latency, steps * payload_bytes / n, _once(outside + inside))


def tree(fabric: Fabric, members: Sequence[int], payload_bytes: float) -> Transfer:
    """Double binary tree, pipelined: 2⌈log2 n⌉ hops, then 2(n-1)/n · M bytes over every link.

    Each of the two trees carries half the payload up and down again; a worker that is inner in one is a leaf in the other, so all send
    about the same, in sum 2(n-1)·M, and the volume per link is the ring's (NCCL counts bus bandwidth so for both). The chunks that fill
    the pipeline are taken to be small [our choice: Sanders et al. add a term of order sqrt(α·M/bw·log n) for the best chunk size].
    Across N nodes: a tree of nodes and a chain of the g GPUs in each, 2(⌈log2 N⌉·α + (g-1)·α_inside) (NCCL's tuning.cc).
    """
    n, groups = len(members), fabric.by_node(members)
    inside = [link for group in groups if len(group) > 1 for i in group for link in fabric.port(i)]
    if len(groups) == 1:
        return Transfer(2 * _levels(n) * fabric.latency_s(inside), 2 * (n - 1) * payload_bytes / n, _once(inside))
    nodes, outside = len(groups), _outside(fabric, groups)
    chain = max(map(len, groups)) - 1
    latency = 2 * (_levels(nodes) * fabric.latency_s(outside) + chain * fabric.latency_s(inside))
    # A chain's link carries 2M, a node's 2(N-1)/N · M.
    crossings = dict.fromkeys(outside, 1.0) | dict.fromkeys(inside, nodes / (nodes - 1))
    return Transfer(latency, 2 * (nodes - 1) * payload_bytes / nodes, tuple(crossings.items()))


def hierarchical(fabric: Fabric, members: Sequence[int], payload_bytes: float) -> Transfer:
    """Reduce-scatter and all-gather inside every node, 2(g-1)(α_inside + M/(g·bw_inside)), and a ring among the N nodes,
    2(N-1)(α + M/(N·bw_node)), one after the other (as Horovod's hierarchical all-reduce); alone in their nodes, workers form a plain ring.

    Nodes with fewer GPUs are through earlier; the ring starts when the slowest node is. The GPUs of a node each send their shard in the
    ring: their own links carry 1/g of it, the node's link all.
    """
    groups = fabric.by_node(members)
    crowded = [group for group in groups if len(group) > 1]
    if not crowded or len(groups) == 1:
        return ring(fabric, members, payload_bytes)
    volumes = [2 * (len(group) - 1) * payload_bytes / len(group) for group in crowded]
    largest = max(map(len, crowded))
    volume = 2 * (largest - 1) * payload_bytes / largest
    latency = max(
        2 * (len(group) - 1) * fabric.latency_s(link for i in group for link in fabric.port(i)) for group in crowded
    )
    shares = [v / volume if volume else 1.0 for v in volumes]
    inside = tuple(
        (link, share) for group, share in zip(crowded, shares, strict=True) for i in group for link in fabric.port(i)
    )
    n = len(groups)
    ways: dict[LinkId, float] = {}
    for group in groups:
        for i in group:
            ways |= dict.fromkeys(fabric.own(i), 1.0 / len(group))
        ways |= dict.fromkeys(fabric.node_link(fabric.nodes[group[0]]) or (), 1.0)
    among = Transfer(2 * (n - 1) * fabric.latency_s(ways), 2 * (n - 1) * payload_bytes / n, tuple(ways.items()))
    return Transfer(latency, volume, inside, among)


COLLECTIVES: dict[str, Callable[[Fabric, Sequence[int], float], Transfer]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
}


def from_table(
    fabric: Fabric, table: Sequence[tuple[float, float]], formula: Transfer, payload_bytes: float
) -> Transfer:
    """A measured all-reduce as a transfer: `table_seconds` at the links' bandwidths at the start, alone.

    What the formula counts as latency stays latency (never more than was measured); the rest becomes the volume that the formula's slowest
    phase pushes through its bottleneck in that time, so that later changes of bandwidth and other transfers stretch it.
    """
    seconds = table_seconds(table, payload_bytes)
    phases = formula.phases()
    latency = min(seconds, sum(phase.latency_s for phase in phases))
    start = -math.inf
    slowest = max(phases, key=lambda phase: phase.size_bytes / fabric.rate(phase, start))
    rate = fabric.rate(slowest, start)
    if rate == math.inf:
        return Transfer(seconds, 0.0, slowest.crossings)
    return Transfer(latency, (seconds - latency) * rate, slowest.crossings)


def table_seconds(table: Sequence[tuple[float, float]], payload_bytes: float) -> float:
    """Measured seconds, interpolated in log size and log seconds; constant below the smallest size, proportional above the largest."""
    points = sorted(table)
    if payload_bytes <= points[0][0]:
        return points[0][1]
    if payload_bytes >= points[-1][0]:
        return points[-1][1] * (payload_bytes / points[-1][0])
    for (x0, y0), (x1, y1) in pairwise(points):
        if payload_bytes <= x1:
            share = math.log(payload_bytes / x0) / math.log(x1 / x0)
            return y0 * math.exp(share * math.log(y1 / y0))
    raise AssertionError("payload lies inside the table")


def _outside(fabric: Fabric, groups: Sequence[Sequence[int]]) -> list[LinkId]:
    """Every member's own link and every node's shared one, both directions. A member's own link counts even where a neighbour in
    its node is the ring's way out: NCCL runs several rings, each leaving a node by another GPU."""
    links = [link for group in groups for i in group for link in fabric.own(i)]
    if fabric.nodes:
        links += [link for group in groups for link in fabric.node_link(fabric.nodes[group[0]]) or ()]
    return links


def _once(links: Sequence[LinkId]) -> Crossings:
    return tuple((link, 1.0) for link in dict.fromkeys(links))


def _levels(n: int) -> int:
    """⌈log2 n⌉, exactly."""
    return (n - 1).bit_length()
