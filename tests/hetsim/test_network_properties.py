"""How costs of all-reduces move with bandwidth, latency, payload and the order of workers, on random networks."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.spec import Link, Network, Topology
from hetsim.network import Fabric, SharedLinks
from hetsim.network.collectives import COLLECTIVES

rates = st.sampled_from([1e6, 3e7, 1e8, 1e9, 2.5e10, math.inf])
latencies = st.sampled_from([0.0, 1e-6, 5e-5, 1e-2])
link = st.builds(lambda rate, latency: Link(bytes_per_s=rate, latency_s=latency), rates, latencies)
TABLES = ((), ((1e6, 0.001), (1e8, 0.09)))


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[Network, list[str]]:
    n = draw(st.integers(1, 7))
    topology: Topology = draw(st.sampled_from(["switch", "nodes", "parameter_server"]))
    nodes = [f"n{draw(st.integers(0, 2))}" for _ in range(n)]
    network = Network(
        topology=topology,
        collective=draw(st.sampled_from(sorted(COLLECTIVES))),
        links=tuple(draw(st.lists(link, min_size=n, max_size=n))),
        node_links={node: draw(link) for node in sorted(set(nodes))} if topology == "nodes" else {},
        intra_node=draw(st.none() | link),
        server=draw(st.none() | link),
        all_reduce_table=draw(st.sampled_from(TABLES)),
    )
    return network, nodes


def cost(network: Network, nodes: list[str], payload: float) -> float:
    fabric = Fabric(network, len(nodes), nodes)
    return fabric.all_reduce_seconds(tuple(range(fabric.n)), payload)


def improved(link: Link, bandwidth: float, latency: float) -> Link:
    return replace(link, bytes_per_s=link.bytes_per_s * bandwidth, latency_s=link.latency_s * latency)


def with_links(network: Network, k: int, bandwidth: float, latency: float) -> Network:
    """One link of the network changed: a worker's, a node's, the one inside nodes."""
    links = [improved(x, bandwidth, latency) if i == k else x for i, x in enumerate(network.links)]
    shared = {
        node: improved(x, bandwidth, latency) if len(links) + i == k else x
        for i, (node, x) in enumerate(network.node_links.items())
    }
    intra = network.intra_node
    if intra is not None and k == len(links) + len(shared):
        intra = improved(intra, bandwidth, latency)
    return replace(network, links=tuple(links), node_links=shared, intra_node=intra)


payloads = st.sampled_from([0.0, 1.0, 1e3, 1e6, 4.47e7, 1e9])


@given(fabrics(), payloads, st.integers(0, 10), st.floats(1.0, 100.0))
@settings(max_examples=200, deadline=None)
def test_more_bandwidth_never_costs_more(
    case: tuple[Network, list[str]], payload: float, k: int, factor: float
) -> None:
    network, nodes = case
    assert cost(with_links(network, k, factor, 1.0), nodes, payload) <= cost(network, nodes, payload) * (1 + 1e-12)


@given(fabrics(), payloads, st.integers(0, 10), st.floats(1.0, 100.0))
@settings(max_examples=200, deadline=None)
def test_more_latency_never_costs_less(case: tuple[Network, list[str]], payload: float, k: int, factor: float) -> None:
    network, nodes = case
    assert cost(with_links(network, k, 1.0, factor), nodes, payload) >= cost(network, nodes, payload) * (1 - 1e-12)


@given(fabrics(), st.lists(st.floats(0.0, 1e12), min_size=2, max_size=2))
@settings(max_examples=200, deadline=None)
def test_more_payload_never_costs_less(case: tuple[Network, list[str]], sizes: list[float]) -> None:
    network, nodes = case
    small, large = sorted(sizes)
    assert cost(network, nodes, small) <= cost(network, nodes, large) * (1 + 1e-12)


@given(fabrics(), payloads, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_permuting_workers_changes_nothing(case: tuple[Network, list[str]], payload: float, rng: random.Random) -> None:
    network, nodes = case
    order = list(range(len(nodes)))
    rng.shuffle(order)
    permuted = replace(network, links=tuple(network.links[i] for i in order))
    assert cost(permuted, [nodes[i] for i in order], payload) == pytest.approx(cost(network, nodes, payload), rel=1e-12)


@given(fabrics(), payloads)
@settings(max_examples=100, deadline=None)
def test_shared_links_agree_with_the_closed_form(case: tuple[Network, list[str]], payload: float) -> None:
    network, nodes = case
    fabric = Fabric(network, len(nodes), nodes)
    links = SharedLinks(fabric)
    links.start(0.0, fabric.all_reduce(tuple(range(fabric.n)), payload), "c")
    done: list[object] = []
    while not done:
        done = links.advance(links.next_event_s())
    assert links.now == pytest.approx(fabric.all_reduce_seconds(tuple(range(fabric.n)), payload), rel=1e-12)
    assert (fabric.bottleneck(tuple(range(fabric.n))) == "") == (len(nodes) == 1)
