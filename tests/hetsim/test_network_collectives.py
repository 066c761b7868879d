"""What collectives cost: the published formulas, tables, nodes, servers and pairs."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from hetsim.cluster.spec import BandwidthChange, Link, Network
from hetsim.network import Fabric, SharedLinks, Transfer
from hetsim.network.collectives import COLLECTIVES, table_seconds

COLLECTIVE_NAMES = sorted(COLLECTIVES)
FAST, SLOW, ALPHA = 1e9, 1e8, 5e-5


def switch(n: int, collective: str = "ring", **extra: object) -> Fabric:
    return Fabric(Network(links=(Link(bytes_per_s=FAST, latency_s=ALPHA),) * n, collective=collective, **extra), n)  # type: ignore[arg-type]


def on_nodes(placement: str, collective: str = "ring", intra: Link | None = None, shared: float = FAST) -> Fabric:
    """One digit a node, its number of GPUs: "22" is two nodes with two each."""
    nodes = [f"n{k}" for k, digit in enumerate(placement) for _ in range(int(digit))]
    link = Link(bytes_per_s=shared, latency_s=ALPHA)
    network = Network(
        topology="nodes",
        collective=collective,  # type: ignore[arg-type]
        links=(link,) * len(nodes),
        node_links=dict.fromkeys(nodes, link),
        intra_node=intra or Link(bytes_per_s=10 * FAST, latency_s=ALPHA / 10),
    )
    return Fabric(network, len(nodes), nodes)


def everyone(fabric: Fabric) -> tuple[int, ...]:
    return tuple(range(fabric.n))


# ---- ring on a switch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8, 9, 10, 11, 12, 128, 1000])
def test_ring_is_its_formula(n: int) -> None:
    payload = 4.47e7
    assert switch(n).all_reduce_seconds(tuple(range(n)), payload) == pytest.approx(
        2 * (n - 1) * (ALPHA + payload / (n * FAST)), rel=1e-14
    )


def test_ring_takes_the_slowest_members_link_and_the_largest_latency() -> None:
    links = (
        Link(bytes_per_s=3e8, latency_s=1e-3),
        Link(bytes_per_s=1e8, latency_s=1e-5),
        Link(bytes_per_s=9e8, latency_s=2e-3),
    )
    fabric = Fabric(Network(links=links), 3, names=("a", "b", "c"))
    assert fabric.all_reduce_seconds((0, 1), 1e6) == pytest.approx(2 * (1e-3 + 1e6 / (2 * 1e8)), rel=1e-14)
    assert fabric.all_reduce_seconds((0, 1, 2), 1e6) == pytest.approx(4 * (2e-3 + 1e6 / (3 * 1e8)), rel=1e-14)
    assert fabric.all_reduce_seconds((0, 2), 1e6) == pytest.approx(2 * (2e-3 + 1e6 / (2 * 3e8)), rel=1e-14)
    assert fabric.bottleneck((0, 1, 2)) == "worker b" and fabric.bottleneck((2, 0)) == "worker a"


def test_nine_to_twelve_workers_make_no_jump() -> None:
    costs = [switch(n).all_reduce_seconds(tuple(range(n)), 4.47e7) for n in range(8, 14)]
    steps = [b - a for a, b in pairwise(costs)]
    assert all(0 < later < earlier for earlier, later in pairwise(steps))


@pytest.mark.parametrize("collective", COLLECTIVE_NAMES)
def test_one_worker_alone_is_free(collective: str) -> None:
    assert switch(4).all_reduce((2,), 1e9, collective) == Transfer(0.0, 0.0)
    assert switch(1, collective).all_reduce_seconds((0,), 1e9) == 0.0
    assert switch(1, collective).bottleneck((0,)) == ""


def test_a_transfer_runs_for_exactly_the_closed_form() -> None:
    fabric = switch(5)
    links = SharedLinks(fabric)
    transfer = fabric.all_reduce(everyone(fabric), 1e7)
    links.start(0.0, transfer, "c")
    assert links.next_event_s() == fabric.seconds(transfer) == transfer.latency_s + transfer.size_bytes / FAST


def test_the_same_members_get_the_same_transfer() -> None:
    fabric = switch(4)
    assert fabric.all_reduce((0, 1), 5.0) is fabric.all_reduce(tuple([0, 1]), 5.0)
    assert fabric.all_reduce((0, 1), 6.0) is not fabric.all_reduce((0, 1), 5.0)
    with pytest.raises(ValueError, match="twice"):
        fabric.all_reduce((0, 0), 5.0)


def test_many_groups_do_not_pile_up() -> None:
    fabric = switch(1000)
    for k in range(400):
        fabric.all_reduce_seconds(tuple(range(k % 7, 1000)), float(k))
    assert len(fabric._transfers) < 400


# ---- tree and hierarchical ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "levels"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10), (1025, 11)])
def test_tree_has_two_hops_a_level(n: int, levels: int) -> None:
    cost = switch(n, "tree").all_reduce_seconds(tuple(range(n)), 1e7)
    assert cost == pytest.approx(2 * levels * ALPHA + 2 * (n - 1) / n * 1e7 / FAST, rel=1e-14)


def test_tree_wins_over_ring_where_latency_rules() -> None:
    assert (
        switch(512, "tree").all_reduce_seconds(tuple(range(512)), 1e3)
        < switch(512).all_reduce_seconds(tuple(range(512)), 1e3) / 50
    )


def test_hierarchical_is_inside_then_among() -> None:
    fabric = on_nodes("444", "hierarchical")
    inside = 2 * 3 * (ALPHA / 10 + 1e7 / (4 * 10 * FAST))
    among = 2 * 2 * (ALPHA + 1e7 / (3 * FAST))
    assert fabric.all_reduce_seconds(everyone(fabric), 1e7) == pytest.approx(inside + among, rel=1e-14)


def test_hierarchical_waits_for_the_largest_node() -> None:
    fabric = on_nodes("14", "hierarchical")
    expected = 2 * 3 * (ALPHA / 10 + 1e7 / (4 * 10 * FAST)) + 2 * (ALPHA + 1e7 / (2 * FAST))
    assert fabric.all_reduce_seconds(everyone(fabric), 1e7) == pytest.approx(expected, rel=1e-14)
    slow_inside = on_nodes("24", "hierarchical", intra=Link(bytes_per_s=SLOW / 10))
    assert slow_inside.bottleneck(everyone(slow_inside)).startswith("inside node n1")


def test_hierarchical_spreads_a_node_over_its_workers_links() -> None:
    """Each of g workers sends 1/g of the node's part: own links of half the speed are enough for two workers, not for one."""
    shared, own = Link(bytes_per_s=FAST), Link(bytes_per_s=FAST / 2)
    network = Network(
        topology="nodes", links=(own,) * 4, node_links={"a": shared, "b": shared}, intra_node=Link(bytes_per_s=math.inf)
    )
    fabric = Fabric(network, 4, ["a", "a", "b", "b"])
    assert fabric.seconds(fabric.all_reduce((0, 1, 2, 3), 1e7, "hierarchical")) == pytest.approx(1e7 / FAST, rel=1e-14)
    assert fabric.seconds(fabric.all_reduce((0, 2), 1e7, "hierarchical")) == pytest.approx(2e7 / FAST, rel=1e-14)


def test_tree_chains_the_workers_of_a_node() -> None:
    """Inside, every port carries the payload up and down again; the chain's hops add to the tree's."""
    fabric = on_nodes("3333", "tree", intra=Link(bytes_per_s=SLOW, latency_s=ALPHA / 10))
    expected = 2 * (2 * ALPHA + 2 * ALPHA / 10) + 2 * 1e7 / SLOW
    assert fabric.all_reduce_seconds(everyone(fabric), 1e7) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("collective", COLLECTIVE_NAMES)
@pytest.mark.parametrize("n", [2, 5])
def test_one_worker_a_node_is_a_switch(collective: str, n: int) -> None:
    nodes, plain = on_nodes("1" * n, collective), switch(n, collective)
    assert nodes.all_reduce_seconds(everyone(nodes), 1e7) == plain.all_reduce_seconds(everyone(plain), 1e7)


@pytest.mark.parametrize("collective", COLLECTIVE_NAMES)
def test_two_nodes_of_one_worker_pay_for_one_link_each(collective: str) -> None:
    fabric = on_nodes("22", collective)
    assert fabric.all_reduce_seconds((0, 2), 1e7) == pytest.approx(2 * (ALPHA + 1e7 / (2 * FAST)), rel=1e-14)


# ---- nodes --------------------------------------------------------------------------------------------------------------------------


def test_the_ring_stays_inside_a_node_where_all_members_are() -> None:
    fabric = on_nodes("42")
    assert fabric.all_reduce_seconds((0, 1, 2, 3), 1e7) == pytest.approx(
        6 * (ALPHA / 10 + 1e7 / (4 * 10 * FAST)), rel=1e-14
    )
    assert fabric.bottleneck((0, 1)) == "inside node n0"


def test_the_ring_crosses_a_shared_link_once_whatever_the_node_holds() -> None:
    fabric = on_nodes("44")
    # 14 hops, 4 of them between nodes; every chunk crosses each node's link once a round.
    expected = 4 * ALPHA + 10 * ALPHA / 10 + 2 * 7 / 8 * 1e7 / FAST
    assert fabric.all_reduce_seconds(everyone(fabric), 1e7) == pytest.approx(expected, rel=1e-14)


def test_order_of_members_and_of_nodes_does_not_matter() -> None:
    fabric = on_nodes("213")
    for collective in COLLECTIVE_NAMES:
        costs = set()
        for seed in range(5):
            members = list(everyone(fabric))
            random.Random(seed).shuffle(members)
            costs.add(fabric.seconds(fabric.all_reduce(tuple(members), 1e7, collective)))
        other = on_nodes("321")
        costs.add(other.seconds(other.all_reduce(everyone(other), 1e7, collective)))
        assert max(costs) == pytest.approx(min(costs), rel=1e-14)


def test_pushes_of_a_node_share_its_link() -> None:
    nodes = ["a", "a", "b"]
    link, server = Link(bytes_per_s=100.0), Link(bytes_per_s=1e9)
    network = Network(topology="nodes", links=(link,) * 3, node_links={"a": link, "b": link}, server=server)
    fabric = Fabric(network, 3, nodes)
    links = SharedLinks(fabric)
    for worker in range(3):
        links.start(0.0, fabric.push(worker, 100.0), worker)
    assert links.next_event_s() == 1.0 and links.advance(1.0) == [2]
    links.start(1.0, fabric.pull(0, 100.0), "pull")  # the other direction of the node's link is free
    assert links.advance(2.0) == [0, 1, "pull"]


def test_nodes_must_be_named() -> None:
    with pytest.raises(ValueError, match="node of each worker"):
        Fabric(Network(topology="nodes", links=(Link(bytes_per_s=1.0),)), 1)
    with pytest.raises(ValueError, match="2 workers but 1 links"):
        Fabric(Network(links=(Link(bytes_per_s=1.0),)), 2)


# ---- parameter server and pairs -------------------------------------------------------------------------------------------------------


def test_push_and_pull_take_the_slower_of_two_links() -> None:
    links = (Link(bytes_per_s=10.0, latency_s=1.0), Link(bytes_per_s=100.0, latency_s=0.5))
    fabric = Fabric(Network(topology="parameter_server", links=links, server=Link(bytes_per_s=50.0, latency_s=0.25)), 2)
    for transfer in (fabric.push(0, 200.0), fabric.pull(0, 200.0)):
        assert fabric.seconds(transfer) == 1.0 + 20.0
    assert fabric.seconds(fabric.push(1, 200.0)) == 0.5 + 4.0
    assert {fabric.describe(link) for link, _ in fabric.push(1, 200.0).crossings} == {"worker 1", "server"}
    assert not {link for link, _ in fabric.push(1, 1.0).crossings} & {link for link, _ in fabric.pull(1, 1.0).crossings}


def test_without_a_server_link_it_has_the_fastest_workers() -> None:
    fabric = Fabric(Network(links=(Link(bytes_per_s=10.0), Link(bytes_per_s=100.0))), 2)
    assert fabric.seconds(fabric.push(0, 100.0)) == 10.0 and fabric.seconds(fabric.push(1, 100.0)) == 1.0


def test_an_exchange_uses_both_directions_at_once() -> None:
    fabric = Fabric(
        Network(links=(Link(bytes_per_s=10.0, latency_s=0.5), Link(bytes_per_s=20.0), Link(bytes_per_s=20.0))), 3
    )
    assert fabric.seconds(fabric.exchange(0, 1, 100.0)) == 10.5
    assert fabric.exchange(1, 0, 100.0) is fabric.exchange(0, 1, 100.0)
    assert len(fabric.exchange(0, 1, 100.0).crossings) == 4
    assert fabric.seconds(fabric.exchange(1, 1, 100.0)) == 0.0
    inside = on_nodes("21")
    assert {inside.describe(link) for link, _ in inside.exchange(0, 1, 1.0).crossings} == {"inside node n0"}
    assert {inside.describe(link) for link, _ in inside.exchange(0, 2, 1.0).crossings} >= {"node n0", "node n1"}


# ---- measured tables ------------------------------------------------------------------------------------------------------------------

TABLE = ((1e6, 0.001), (1e8, 0.09))


def test_a_table_is_interpolated_in_the_logarithms() -> None:
    assert table_seconds(TABLE, 1e7) == pytest.approx(math.sqrt(0.001 * 0.09), rel=1e-14)
    assert table_seconds(TABLE[::-1], 1e6) == 0.001 and table_seconds(TABLE, 1e8) == 0.09
    assert table_seconds(TABLE, 1e3) == 0.001 == table_seconds(TABLE, 0.0)
    assert table_seconds(TABLE, 3e8) == pytest.approx(0.27, rel=1e-14)
    assert table_seconds(((5.0, 2.0),), 20.0) == 8.0


def test_measured_beats_the_formula_for_the_whole_group_only() -> None:
    for fabric in (switch(4, all_reduce_table=TABLE), switch(4, "tree", all_reduce_table=TABLE)):
        for payload in (1e3, 1e6, 3e7, 1e9):
            assert fabric.all_reduce_seconds((0, 1, 2, 3), payload) == pytest.approx(
                table_seconds(TABLE, payload), rel=1e-12
            )
        plain = switch(4, fabric.network.collective)
        assert fabric.all_reduce_seconds((0, 1, 2), 3e7) == plain.all_reduce_seconds((0, 1, 2), 3e7)
    one_named = switch(4, all_reduce_table=TABLE)
    assert one_named.seconds(one_named.all_reduce((0, 1, 2, 3), 3e7, "tree")) == switch(4, "tree").all_reduce_seconds(
        (0, 1, 2, 3), 3e7
    )


def test_later_bandwidth_stretches_a_measured_transfer() -> None:
    half = Link(bytes_per_s=FAST, latency_s=ALPHA, changes=(BandwidthChange(at_s=10.0, bytes_per_s=FAST / 2),))
    fabric = Fabric(Network(links=(half,) * 4, all_reduce_table=TABLE), 4)
    latency, measured = 6 * ALPHA, table_seconds(TABLE, 3e7)
    assert fabric.all_reduce_seconds((0, 1, 2, 3), 3e7, t=0.0) == pytest.approx(measured, rel=1e-12)
    assert fabric.all_reduce_seconds((0, 1, 2, 3), 3e7, t=10.0) == pytest.approx(
        latency + 2 * (measured - latency), rel=1e-12
    )


@pytest.mark.parametrize("n", [2, 9])  # few and many crossings
def test_a_change_of_one_link_reaches_collectives_that_cross_it(n: int) -> None:
    slowed = Link(bytes_per_s=8.0, changes=(BandwidthChange(at_s=10.0, until_s=12.0, bytes_per_s=2.0),))
    fabric = Fabric(Network(links=(slowed, *[Link(bytes_per_s=8.0)] * (n - 1))), n)
    assert [fabric.all_reduce_seconds(everyone(fabric), 80.0, t) for t in (0.0, 10.0, 12.0)] == pytest.approx(
        [2 * (n - 1) * 80.0 / n / rate for rate in (8.0, 2.0, 8.0)], rel=1e-14
    )
    links = SharedLinks(fabric)
    links.start(9.0, Transfer(0.0, 20.0, fabric.all_reduce(everyone(fabric), 80.0).crossings), "c")  # 8 + 2·2 + 8
    assert [links.next_event_s(), *links.advance(12.5)] == [10.0] and links.advance(13.0) == ["c"]


def test_a_table_on_a_free_network_is_all_latency() -> None:
    fabric = Fabric(Network(links=(Link(bytes_per_s=math.inf),) * 2, all_reduce_table=TABLE), 2)
    assert fabric.all_reduce_seconds((0, 1), 1e6) == 0.001


@pytest.mark.parametrize("collective", COLLECTIVE_NAMES)
def test_a_free_network_costs_only_latency(collective: str) -> None:
    for latency in (0.0, 0.5):
        fabric = Fabric(Network(links=(Link(bytes_per_s=math.inf, latency_s=latency),) * 4, collective=collective), 4)  # type: ignore[arg-type]
        assert fabric.all_reduce_seconds((0, 1, 2, 3), 1e12) == latency * (4 if collective == "tree" else 6)
