"""Transfers in progress: who is in its latency, who flows at what rate, and what happens next.

    start ──── latency ────┬──── bytes flow at the max-min fair rate ────┬─ finished (or the next phase)
                           activates_s                                   finish_s

Rates hold between events (a transfer begins to flow, one is through, a capacity changes), so integration is exact. A transfer keeps its
anchor (time, bytes left) for as long as its rate stays the same; its end is then anchor + bytes/rate, one expression, without accumulation.
Time only ever moves to the events themselves, which keeps progress certain where a step would be smaller than the clock's resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hetsim.network.fabric import Fabric
from hetsim.network.fairness import max_min_rates
from hetsim.network.transfer import LinkId, Transfer

MOST_KNOWN = 4096  # mixtures of transfers whose rates are remembered [our choice]


@dataclass(slots=True, eq=False)
class _Flow:
    """A transfer in progress; `left_bytes` are left at `anchor_s`, from which it flows at `rate`."""

    token: object
    transfer: Transfer
    order: int
    anchor_s: float
    left_bytes: float
    rate: float = 0.0
    finish_s: float = math.inf

    def flow_at(self, rate: float, now: float) -> None:
        """Change the rate from `now` on."""
        if rate == self.rate:
            return
        if self.rate > 0.0:
            self.left_bytes = max(self.left_bytes - self.rate * (now - self.anchor_s), 0.0)
        self.anchor_s = max(now, self.anchor_s)
        self.rate = rate
        self.finish_s = self.anchor_s + self.left_bytes / rate if rate > 0.0 else math.inf


class SharedLinks:
    """Transfers in progress on a fabric; their rates are max-min fair.

    A transfer that is alone and meets no change of capacity is decided when it starts and costs one event. Otherwise, when a transfer
    begins to flow or ends, those that share links with it, directly or through others, get new rates; when a capacity changes, all do.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.now = -math.inf
        self._started = 0
        self._alone: _Flow | None = None  # decided in advance; then the other two are empty
        self._latent: list[_Flow] = []
        self._flowing: list[_Flow] = []
        self._users: dict[LinkId, dict[_Flow, None]] = {}  # who flows over a link; ordered, for reproducible rounding
        self._change_s = math.inf  # the next change of a capacity; inf when nothing flows
        self._finished: list[Any] = []
        # rates met before, by the transfers' identity, and the capacities these hold for
        self._known: dict[tuple[int, ...], tuple[tuple[Transfer, ...], list[float]]] = {}
        self._known_at: list[float] = []

    def start(self, now: float, transfer: Transfer, token: object) -> None:
        """Begin a transfer; `token` comes back from `advance` when it is through. `now` is never before the last time seen."""
        self._move(now)
        self._started += 1
        flow = _begin(token, transfer, self._started, now)
        if self._alone is None and not self._latent and not self._flowing:
            self._start_alone(flow)
        else:
            self._share()
            self._latent.append(flow)
            self._settle(now)

    def advance(self, now: float) -> list[Any]:
        """Move to `now`: tokens of what is through by then, in order of finishing; of one instant in order of start."""
        self._move(now)
        if not self._finished:
            return []
        finished, self._finished = self._finished, []
        return finished

    def next_event_s(self) -> float:
        """The earliest time at which something is through, begins to flow or changes speed; inf when nothing is in progress."""
        if self._finished:
            return self.now
        if self._alone is not None:
            return self._alone.finish_s
        return self._next_s()

    def in_progress(self) -> int:
        """How many transfers are under way, in their latency or flowing."""
        return len(self._latent) + len(self._flowing) + (self._alone is not None)

    # ---- one alone -----------------------------------------------------------------------------------------------------------

    def _start_alone(self, flow: _Flow) -> None:
        """Decide the end at once where nothing can change before it."""
        if flow.left_bytes > 0.0:
            flow.rate = self.fabric.rate(flow.transfer, self.now)
            flow.finish_s = flow.anchor_s + flow.left_bytes / flow.rate if flow.rate > 0.0 else math.inf
        else:
            flow.finish_s = flow.anchor_s
        if flow.transfer.then is None and self.fabric.next_change(self.now) >= flow.finish_s:
            self._alone = flow
            return
        flow.rate, flow.finish_s = 0.0, math.inf
        self._latent.append(flow)
        self._settle(self.now)

    def _share(self) -> None:
        """Others come: what was decided alone takes part in sharing. No capacity changes before its end."""
        flow, self._alone = self._alone, None
        if flow is None:
            return
        if flow.anchor_s <= self.now:
            self._flow([flow])
        else:
            flow.rate, flow.finish_s = 0.0, math.inf
            self._latent.append(flow)

    # ---- time ----------------------------------------------------------------------------------------------------------------

    def _next_s(self) -> float:
        at = self._change_s
        for flow in self._flowing:
            if flow.finish_s < at:
                at = flow.finish_s
        for flow in self._latent:
            if flow.anchor_s < at:
                at = flow.anchor_s
        return at

    def _move(self, now: float) -> None:
        if now < self.now:
            raise ValueError(f"time runs backwards: from {self.now} to {now}")
        flow = self._alone
        if flow is not None:
            if flow.finish_s <= now:
                self._alone = None
                self._finished.append(flow.token)
        elif self._latent or self._flowing:
            while (at := self._next_s()) <= now:
                self._settle(at)
        self.now = now

    def _settle(self, at: float) -> None:
        """All that happens at one instant: ends, phases that follow, begins, new rates."""
        through: list[_Flow] = []
        while True:
            ended = [flow for flow in self._flowing if flow.finish_s <= at]
            begun = [flow for flow in self._latent if flow.anchor_s <= at]
            if not ended and not begun and at < self._change_s:
                break
            if ended:
                self._flowing = [flow for flow in self._flowing if flow.finish_s > at]
                for flow in ended:
                    for link, _ in flow.transfer.crossings:
                        del self._users[link][flow]
            if begun:
                self._latent = [flow for flow in self._latent if flow.anchor_s > at]
            self._flow([flow for flow in begun if flow.left_bytes > 0.0])
            touched = self._flowing if at >= self._change_s else self._touched(ended + begun)
            ended += [flow for flow in begun if flow.left_bytes <= 0.0]  # these end where their latency does
            self._latent += [
                _begin(flow.token, flow.transfer.then, flow.order, at) for flow in ended if flow.transfer.then
            ]
            through += [flow for flow in ended if not flow.transfer.then]
            self._reshare(touched, at)
            self._change_s = self.fabric.next_change(at) if self._flowing else math.inf
        if through:
            self._finished += [flow.token for flow in sorted(through, key=lambda flow: flow.order)]

    def _flow(self, begun: list[_Flow]) -> None:
        self._flowing += begun
        for flow in begun:
            for link, _ in flow.transfer.crossings:
                self._users.setdefault(link, {})[flow] = None

    def _touched(self, changed: list[_Flow]) -> list[_Flow]:
        """Flows that share a link with one of these, or with a flow that does, and so on; in order of start."""
        found: dict[_Flow, None] = {}
        links = {link for flow in changed for link, _ in flow.transfer.crossings}
        pending = list(links)
        while pending:
            for flow in self._users.get(pending.pop(), ()):
                if flow not in found:
                    found[flow] = None
                    new = {link for link, _ in flow.transfer.crossings} - links
                    links |= new
                    pending += new
        return sorted(found, key=lambda flow: flow.order)

    def _reshare(self, flows: list[_Flow], at: float) -> None:
        """New max-min rates from `at` on, of flows that share no link with any other."""
        if len(flows) == 1:
            flows[0].flow_at(self.fabric.rate(flows[0].transfer, at), at)
        elif flows:
            rates = self._rates(tuple([flow.transfer for flow in flows]), self.fabric.capacities(at))
            for flow, rate in zip(flows, rates, strict=True):
                flow.flow_at(rate, at)

    def _rates(self, transfers: tuple[Transfer, ...], capacities: list[float]) -> list[float]:
        """Max-min rates, remembered: a parameter server meets the same few mixtures again and again."""
        if capacities is not self._known_at or len(self._known) > MOST_KNOWN:
            self._known, self._known_at = {}, capacities
        key = tuple(map(id, transfers))  # the fabric makes each transfer once; the entry keeps them alive
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = transfers, max_min_rates([t.crossings for t in transfers], capacities)
        return known[1]


def _begin(token: object, transfer: Transfer, order: int, at: float) -> _Flow:
    """A transfer or a phase of one that starts at `at`; what crosses no link has nothing to wait for but its latency."""
    return _Flow(token, transfer, order, at + transfer.latency_s, transfer.size_bytes if transfer.crossings else 0.0)
