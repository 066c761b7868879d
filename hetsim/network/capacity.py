"""What a link carries over time: constant, or piecewise constant where a profile has events."""

from __future__ import annotations

import math
from bisect import bisect_right

from hetsim.cluster.spec import Link


class Timeline:
    """Bytes per second of one link at every time; change k holds on [at_s, until_s), the latest to start wins."""

    __slots__ = ("rates", "times")

    def __init__(self, link: Link) -> None:
        edges = {c.at_s for c in link.changes} | {c.until_s for c in link.changes}
        self.times = sorted(edge for edge in edges if edge != math.inf)
        self.rates = [link.bytes_per_s] + [_rate(link, at) for at in self.times]

    def at(self, t: float) -> float:
        return self.rates[bisect_right(self.times, t)]


def _rate(link: Link, t: float) -> float:
    holding = [c for c in link.changes if c.at_s <= t < c.until_s]
    # max() keeps the first of equals: reversed, of two changes at one instant the later in the profile wins.
    return max(reversed(holding), key=lambda c: c.at_s).bytes_per_s if holding else link.bytes_per_s
