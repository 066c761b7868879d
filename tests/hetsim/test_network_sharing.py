"""Transfers in progress: closed forms, an exact rational fluid simulation, numerical integration, the clock at its resolution."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.spec import BandwidthChange, Link, Network
from hetsim.network import Fabric, SharedLinks, Transfer


def fabric(*links: Link, server: Link | None = None) -> Fabric:
    return Fabric(Network(links=links, server=server), len(links))


def run(links: SharedLinks, until: float = math.inf) -> list[tuple[object, float]]:
    """Every token with the time at which it was through; each step must make progress."""
    finished: list[tuple[object, float]] = []
    steps = 0
    while (at := links.next_event_s()) < math.inf and at <= until:
        finished += [(token, at) for token in links.advance(at)]
        assert links.next_event_s() > at
        steps += 1
        assert steps < 10_000
    return finished


# ---- alone -------------------------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e9), st.floats(0, 10), st.floats(0, 1e12), st.floats(1e3, 1e12))
def test_alone_on_constant_links_is_one_expression(now: float, latency: float, size: float, rate: float) -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=rate)))
    links.start(now, Transfer(latency, size, ((0, 1.0),)), "t")
    assert run(links) == [("t", now + latency + size / rate)]
    assert links.next_event_s() == math.inf and links.in_progress() == 0


def test_a_free_network_costs_its_latency() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=math.inf, latency_s=0.5), Link(bytes_per_s=math.inf, latency_s=0.25)))
    links.start(1.0, links.fabric.all_reduce((0, 1), 1e9), "a")
    links.start(1.0, links.fabric.push(1, 1e9), "b")
    links.start(1.0, Transfer(0.0, 0.0), "nothing")
    links.start(1.0, Transfer(0.25, 1e9), "over no link")
    assert run(links) == [("nothing", 1.0), ("over no link", 1.25), ("b", 1.5), ("a", 2.0)]


def test_nothing_in_progress_has_no_next_event_even_with_changes_ahead() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=1.0, changes=(BandwidthChange(at_s=5.0, bytes_per_s=2.0),))))
    assert links.next_event_s() == math.inf
    assert links.advance(3.0) == []


def test_time_never_runs_backwards() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=1.0)))
    links.advance(2.0)
    with pytest.raises(ValueError, match="backwards"):
        links.start(1.0, Transfer(0.0, 1.0, ((0, 1.0),)), "t")


def test_a_link_that_is_down_waits_for_its_return() -> None:
    change = BandwidthChange(at_s=1.0, until_s=4.0, bytes_per_s=0.0)
    links = SharedLinks(fabric(Link(bytes_per_s=1.0, changes=(change,))))
    links.start(0.0, Transfer(0.0, 2.0, ((0, 1.0),)), "t")
    assert run(links) == [("t", 5.0)]
    forever = SharedLinks(fabric(Link(bytes_per_s=0.0)))
    forever.start(0.0, Transfer(0.0, 2.0, ((0, 1.0),)), "t")
    assert forever.next_event_s() == math.inf and forever.in_progress() == 1


# ---- together ----------------------------------------------------------------------------------------------------------------


def test_pushes_at_once_share_the_servers_link() -> None:
    n, size, latency = 8, 1000.0, 0.5
    wide = fabric(*[Link(bytes_per_s=100.0, latency_s=latency)] * n, server=Link(bytes_per_s=200.0, latency_s=latency))
    links = SharedLinks(wide)
    for i in range(n):
        links.start(0.0, wide.push(i, size), i)
    assert run(links) == [(i, latency + n * size / 200.0) for i in range(n)]  # ties in order of start


def test_a_slow_worker_leaves_its_share_of_the_server_to_the_others() -> None:
    star = fabric(Link(bytes_per_s=10.0), Link(bytes_per_s=100.0), server=Link(bytes_per_s=100.0))
    links = SharedLinks(star)
    links.start(0.0, star.push(0, 100.0), "slow")
    links.start(0.0, star.push(1, 900.0), "fast")
    assert run(links) == [("slow", 10.0), ("fast", 10.0)]


def test_up_and_down_do_not_disturb_each_other() -> None:
    star = fabric(Link(bytes_per_s=10.0), Link(bytes_per_s=10.0), server=Link(bytes_per_s=10.0))
    links = SharedLinks(star)
    links.start(0.0, star.push(0, 100.0), "push")
    links.start(0.0, star.pull(0, 100.0), "pull")
    assert run(links) == [("push", 10.0), ("pull", 10.0)]


def test_one_worker_is_its_own_server() -> None:
    star = fabric(Link(bytes_per_s=10.0, latency_s=1.0), server=Link(bytes_per_s=10.0))
    links = SharedLinks(star)
    links.start(0.0, star.push(0, 100.0), "push")
    assert run(links) == [("push", 0.0)]


def test_a_latency_occupies_nothing() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=10.0)))
    links.start(0.0, Transfer(0.0, 50.0, ((0, 1.0),)), "first")
    links.start(0.0, Transfer(5.0, 50.0, ((0, 1.0),)), "second")
    assert run(links) == [("first", 5.0), ("second", 10.0)]


def test_a_late_comer_halves_the_rate_for_both() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=10.0)))
    links.start(0.0, Transfer(0.0, 100.0, ((0, 1.0),)), "a")
    links.start(
        4.0, Transfer(0.0, 100.0, ((0, 1.0),)), "b"
    )  # a has 60 left: both at 5 until t = 16, then b has 40 at 10
    assert run(links) == [("a", 16.0), ("b", 20.0)]


def test_finished_tokens_survive_a_start_at_the_same_time() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=10.0)))
    links.start(0.0, Transfer(0.0, 10.0, ((0, 1.0),)), "a")
    links.start(1.0, Transfer(0.0, 10.0, ((0, 1.0),)), "b")
    assert links.next_event_s() == 1.0
    assert links.advance(1.0) == ["a"]
    assert run(links) == [("b", 2.0)]


def test_phases_follow_each_other() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=10.0), Link(bytes_per_s=5.0)))
    links.start(1.0, Transfer(0.5, 10.0, ((0, 1.0),), Transfer(0.25, 10.0, ((2, 2.0),))), "t")
    assert run(links) == [("t", 1.0 + 0.5 + 1.0 + 0.25 + 4.0)]


Flow = tuple[Fraction, Fraction, Fraction, dict[int, Fraction]]  # start, latency, bytes, crossings


def exact_fluid(
    flows: list[Flow], capacity: list[Fraction], changes: list[tuple[Fraction, int, Fraction]]
) -> dict[int, Fraction]:
    """Brute force in rational arithmetic: rates from the definition of max-min, time from event to event."""
    left = {f: flow[2] for f, flow in enumerate(flows)}
    begins = {f: flow[0] + flow[1] for f, flow in enumerate(flows)}
    capacity, changes = list(capacity), sorted(changes)
    now, ends = Fraction(0), {}
    while left:
        active = [f for f in left if begins[f] <= now]
        rates: dict[int, Fraction] = {}
        while len(rates) < len(active):
            levels = {}
            for link, c in enumerate(capacity):
                rising = sum(flows[f][3].get(link, Fraction(0)) for f in active if f not in rates)
                if rising:
                    levels[link] = (c - sum(flows[f][3].get(link, Fraction(0)) * r for f, r in rates.items())) / rising
            level = min(levels.values())
            for f in active:
                if f not in rates and any(levels.get(link) == level for link in flows[f][3]):
                    rates[f] = level
        candidates = [now + left[f] / rates[f] for f in active]
        candidates += [begins[f] for f in left if begins[f] > now] + [at for at, _, _ in changes if at > now]
        then = min(candidates)
        for f in active:
            left[f] -= rates[f] * (then - now)
            if left[f] == 0:
                ends[f] = then
                del left[f]
        now = then
        for at, link, value in changes:
            if at == now:
                capacity[link] = value
    return ends


times = st.integers(0, 40).map(lambda k: Fraction(k, 4))
sizes = st.integers(1, 60).map(Fraction)


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[Flow], list[Fraction], list[tuple[Fraction, int, Fraction]]]:
    n = draw(st.integers(1, 4))
    rates = st.integers(1, 12).map(Fraction)
    crossings = st.dictionaries(
        st.integers(0, n - 1), st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2)]), min_size=1
    )
    flows = draw(st.lists(st.tuples(times, times, sizes, crossings), min_size=1, max_size=6))
    capacity = draw(st.lists(rates, min_size=n, max_size=n))
    changes = draw(
        st.lists(
            st.tuples(times.filter(bool), st.integers(0, n - 1), rates), max_size=4, unique_by=lambda c: (c[0], c[1])
        )
    )
    return flows, capacity, changes


@given(traffic(), st.sampled_from([0.0, 1e9]))
@settings(max_examples=200, deadline=None)
def test_contention_and_changes_equal_an_exact_fluid_simulation(
    case: tuple[list[Flow], list[Fraction], list[tuple[Fraction, int, Fraction]]], origin: float
) -> None:
    flows, capacity, changes = case
    expected = exact_fluid(flows, capacity, changes)
    spec = [
        Link(
            bytes_per_s=float(c),
            changes=tuple(
                BandwidthChange(at_s=origin + float(at), bytes_per_s=float(v))
                for at, k, v in sorted(changes)
                if k == link
            ),
        )
        for link, c in enumerate(capacity)
    ]
    links = SharedLinks(fabric(*spec))
    ends: dict[object, float] = {}
    for start, f in sorted((flow[0], f) for f, flow in enumerate(flows)):
        at = origin + float(start)
        ends |= dict(run(links, at))
        _, latency, size, crossings = flows[f]
        links.start(
            at, Transfer(float(latency), float(size), tuple((2 * k, float(m)) for k, m in crossings.items())), f
        )
    ends |= dict(run(links))
    for f, end in expected.items():
        assert ends[f] == pytest.approx(origin + float(end), rel=1e-14 if origin else 1e-12)
    assert len(ends) == len(flows)


# ---- link changes --------------------------------------------------------------------------------------------------------------


def test_changes_in_the_middle_are_integrated_exactly() -> None:
    changes = (
        BandwidthChange(at_s=2.0, bytes_per_s=3.0),
        BandwidthChange(at_s=3.0, until_s=5.5, bytes_per_s=11.0),
        BandwidthChange(at_s=4.0, until_s=4.25, bytes_per_s=1.0),
        BandwidthChange(at_s=9.0, bytes_per_s=0.5),
    )
    one = fabric(Link(bytes_per_s=7.0, changes=changes))
    start, latency, size = 0.75, 0.5, 60.0
    links = SharedLinks(one)
    links.start(start, Transfer(latency, size, ((0, 1.0),)), "t")
    ((_, end),) = run(links)
    # Independent: bytes through by time, summed over a fine grid that has the changes among its points.
    grid = np.arange(start + latency, 60.0, 1 / 4096)
    rate = np.full_like(grid, 7.0)
    rate[grid >= 2.0] = 3.0
    rate[(grid >= 3.0) & (grid < 5.5)] = 11.0
    rate[(grid >= 4.0) & (grid < 4.25)] = 1.0
    rate[grid >= 9.0] = 0.5
    through = np.concatenate([[0.0], np.cumsum(rate) / 4096])
    k = int(np.searchsorted(through, size)) - 1
    assert end == pytest.approx(grid[k] + (size - through[k]) / rate[k], rel=1e-12)


def test_the_latest_change_that_holds_wins() -> None:
    changes = (
        BandwidthChange(at_s=1.0, bytes_per_s=2.0),
        BandwidthChange(at_s=5.0, until_s=6.0, bytes_per_s=3.0),
        BandwidthChange(at_s=5.0, until_s=5.5, bytes_per_s=4.0),
    )
    one = fabric(Link(bytes_per_s=1.0, changes=changes))
    assert [one.capacity(0, t) for t in (0.0, 1.0, 4.9, 5.0, 5.5, 6.0)] == [1.0, 2.0, 2.0, 4.0, 3.0, 2.0]
    assert one.capacities(5.2)[:2] == [4.0, 4.0]
    assert [one.next_change(t) for t in (-1.0, 1.0, 5.0, 5.7, 6.0)] == [1.0, 5.0, 5.5, 6.0, math.inf]


def test_splitting_a_transfers_time_by_idle_changes_changes_nothing() -> None:
    """Changes to the same bandwidth, and of other links, leave the end bitwise the same."""
    idle = tuple(BandwidthChange(at_s=k / 7, bytes_per_s=3.0) for k in range(1, 50))
    plain, busy = SharedLinks(fabric(Link(bytes_per_s=3.0))), SharedLinks(fabric(Link(bytes_per_s=3.0, changes=idle)))
    for links in (plain, busy):
        links.start(0.1, Transfer(0.3, 17.7, ((0, 1.0),)), "t")
    assert run(plain) == run(busy)


# ---- the clock's resolution ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0.0, 1e9])
def test_transfers_far_shorter_than_the_clocks_resolution_end(now: float) -> None:
    star = fabric(*[Link(bytes_per_s=1e9)] * 7, server=Link(bytes_per_s=1.3e9))
    links = SharedLinks(star)
    for i in range(7):
        links.start(now, star.push(i, 0.1 * (i + 1)), i)  # 1e-10 s each; the clock's step at 1e9 s is 1.2e-7 s
    finished = run(links)
    assert {token for token, _ in finished} == set(range(7))
    assert all(at == pytest.approx(now, rel=1e-12, abs=1e-7) for _, at in finished)


def test_a_chain_of_collectives_stays_exact_at_a_horizon_of_1e9_seconds() -> None:
    ring = fabric(*[Link(bytes_per_s=1e8, latency_s=1e-4)] * 4)
    links, members, t = SharedLinks(ring), (0, 1, 2, 3), 1e9
    each = ring.all_reduce_seconds(members, 4.47e7)
    for _ in range(1000):
        links.start(t, ring.all_reduce(members, 4.47e7), "c")
        t = links.next_event_s()
        assert links.advance(t) == ["c"]
    assert t == pytest.approx(1e9 + 1000 * each, rel=1e-12)


def test_waking_a_little_early_is_harmless() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=3.0)))
    links.start(0.0, Transfer(0.1, 1.0, ((0, 1.0),)), "t")
    at = links.next_event_s()
    assert links.advance(math.nextafter(at, 0.0)) == []
    assert links.next_event_s() == at and links.advance(at) == ["t"]


def test_a_late_wake_up_returns_all_in_order_of_finishing() -> None:
    links = SharedLinks(fabric(Link(bytes_per_s=1.0), Link(bytes_per_s=2.0)))
    links.start(0.0, Transfer(0.0, 10.0, ((0, 1.0),)), "slow")
    links.start(0.0, Transfer(0.0, 10.0, ((2, 1.0),)), "fast")
    links.start(0.0, Transfer(10.0, 0.0), "tie")
    assert links.advance(100.0) == ["fast", "slow", "tie"]
