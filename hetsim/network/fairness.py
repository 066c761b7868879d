"""Max-min fair rates of transfers that share links."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from hetsim.network.transfer import LinkId


def max_min_rates(
    crossings_per_flow: Sequence[Sequence[tuple[LinkId, float]]],
    capacities: Sequence[float] | Mapping[LinkId, float],
) -> list[float]:
    """Max-min fair rates by progressive filling: all flows speed up together until a link of theirs is full.

    A flow at rate r that crosses a link with multiplicity m uses m·r of it: Σ_f m_fl · r_f ≤ capacity_l. The result is the only one in
    which every flow crosses a full link on which no flow is faster (Bertsekas & Gallager, Data Networks, 6.5.2). A flow that
    crosses no finite link has rate inf.

    As flows freeze, the level at which a link fills up only rises, so a heap of levels that are refreshed when popped suffices.
    """
    users: dict[LinkId, list[tuple[int, float]]] = {}
    for flow, crossings in enumerate(crossings_per_flow):
        for link, m in crossings:
            if capacities[link] != math.inf and m > 0.0:
                users.setdefault(link, []).append((flow, m))
    rates = [math.inf] * len(crossings_per_flow)
    free = {link: capacities[link] for link in users}  # what frozen flows leave
    heap = [(free[link] / sum([m for _, m in flows]), link) for link, flows in users.items()]
    heapq.heapify(heap)
    reached = 0.0  # rounding must not let a later level fall below an earlier one
    waiting = len({flow for flows in users.values() for flow, _ in flows})
    while waiting:
        popped, link = heapq.heappop(heap)
        rising = users[link] = [use for use in users[link] if rates[use[0]] == math.inf]
        if not rising:
            continue
        level = max(free[link] / sum([m for _, m in rising]), reached)
        if level > popped and heap and level > heap[0][0]:
            heapq.heappush(heap, (level, link))
            continue
        reached = level
        waiting -= len(rising)
        for flow, _ in rising:
            rates[flow] = level
            for crossed, m in crossings_per_flow[flow]:
                if crossed in free:
                    free[crossed] = max(free[crossed] - m * level, 0.0)
    return rates
