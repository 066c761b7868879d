"""Max-min fair rates: the certificate, scaling, and cases worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.network import max_min_rates

Flows = list[list[tuple[int, float]]]


def certified(crossings: Flows, capacities: list[float], rates: list[float]) -> None:
    """No link is over full, and every flow crosses a full one on which no flow is faster."""
    used = [0.0] * len(capacities)
    fastest = [0.0] * len(capacities)
    for flow, rate in zip(crossings, rates, strict=True):
        for link, m in flow:
            if capacities[link] < math.inf:
                used[link] += m * rate
                fastest[link] = max(fastest[link], rate)
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacities, strict=True))
    for flow, rate in zip(crossings, rates, strict=True):
        finite = [link for link, _ in flow if capacities[link] < math.inf]
        if not finite:
            assert rate == math.inf
            continue
        assert any(used[k] >= capacities[k] * (1 - 1e-9) and fastest[k] <= rate * (1 + 1e-9) for k in finite)


def naive(crossings: Flows, capacities: list[float]) -> list[Fraction]:
    """The definition, in exact arithmetic: raise all, freeze whoever crosses a link that is full, repeat."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(crossings):
        level = None
        levels = {}
        for link, capacity in enumerate(capacities):
            rising = sum(
                Fraction(m) for f, flow in enumerate(crossings) if f not in rates for k, m in flow if k == link
            )
            if rising:
                frozen = sum(
                    Fraction(m) * rates[f]
                    for f, flow in enumerate(crossings)
                    if f in rates
                    for k, m in flow
                    if k == link
                )
                levels[link] = (Fraction(capacity) - frozen) / rising
        level = min(levels.values())
        full = {link for link, at in levels.items() if at == level}
        rates |= {f: level for f, flow in enumerate(crossings) if f not in rates and full & {k for k, _ in flow}}
    return [rates[f] for f in range(len(crossings))]


@st.composite
def networks(draw: st.DrawFn) -> tuple[Flows, list[float]]:
    n_links = draw(st.integers(1, 8))
    capacities = draw(
        st.lists(st.sampled_from([0.5, 1.0, 3.0, 7.0, 1e3, 1e9, math.inf]), min_size=n_links, max_size=n_links)
    )
    multiplicities = st.sampled_from([1.0, 1.0, 2.0, 0.25, 1.5, 1 / 3])
    flow = st.dictionaries(st.integers(0, n_links - 1), multiplicities, min_size=1, max_size=n_links).map(
        lambda d: list(d.items())
    )
    return draw(st.lists(flow, min_size=1, max_size=10)), capacities


@given(networks())
@settings(max_examples=300, deadline=None)
def test_every_flow_crosses_a_full_link_on_which_no_flow_is_faster(case: tuple[Flows, list[float]]) -> None:
    crossings, capacities = case
    certified(crossings, capacities, max_min_rates(crossings, capacities))


@given(networks())
@settings(max_examples=150, deadline=None)
def test_rates_equal_the_definition_in_exact_arithmetic(case: tuple[Flows, list[float]]) -> None:
    crossings, capacities = case
    capacities = [c if c < math.inf else 1e12 for c in capacities]
    expected = [float(rate) for rate in naive(crossings, capacities)]
    assert max_min_rates(crossings, capacities) == pytest.approx(expected, rel=1e-9)


@given(networks(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_flows_does_not_matter(case: tuple[Flows, list[float]], random: object) -> None:
    crossings, capacities = case
    order = list(range(len(crossings)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rates = max_min_rates(crossings, capacities)
    shuffled = max_min_rates([crossings[f] for f in order], capacities)
    assert shuffled == pytest.approx([rates[f] for f in order], rel=1e-9)


def test_a_chain_worked_out_by_hand() -> None:
    # Link 0 (10) carries a, b; link 1 (4) carries b, c; link 2 (100) carries c: b and c get 2 each, a the rest of link 0.
    assert max_min_rates([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0), (2, 1.0)]], [10.0, 4.0, 100.0]) == [
        8.0,
        2.0,
        2.0,
    ]


def test_multiplicity_weighs_on_the_link_not_on_the_fair_share() -> None:
    # 3r + r = 8: both run at 2, one of them using 6 of the link.
    assert max_min_rates([[(0, 3.0)], [(0, 1.0)]], [8.0]) == [2.0, 2.0]


def test_equal_flows_get_bitwise_equal_rates() -> None:
    rates = max_min_rates([[(i, 1.0), (99, 1.0)] for i in range(64)], {**dict.fromkeys(range(64), 1e9), 99: 0.7e9})
    assert set(rates) == {0.7e9 / 64}


def test_free_links_and_links_that_are_down() -> None:
    assert max_min_rates([[(0, 1.0)], []], [math.inf]) == [math.inf, math.inf]
    assert max_min_rates([[(0, 1.0)], [(1, 1.0)]], [0.0, 5.0]) == [0.0, 5.0]
    assert max_min_rates([], []) == []
