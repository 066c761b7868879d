"""Collectives that take longer while their members compute.

On CPUs, and wherever a collective needs the processor that computes (gloo's threads, copies through the host), it takes longer beside
computation than alone: many times as long where ranks have shares of cores, since at each of its steps the thread that sends waits for
its turn. The profile has both measured, `all_reduce_table` alone and `all_reduce_busy_table` while every worker computes. With a
share c of the members computing, a collective moves on at the rate

    1 / (1 + (busy / alone - 1) · c)

which is exact where all or none compute; in between each member that computes delays its own steps of the ring [our choice]. The links
know nothing of it: what was lost while they worked is made up for when they are through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simpy.events import URGENT

from hetsim.network.collectives import table_seconds
from hetsim.runtime.state import Alarm

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation

MOST_EXCESS = 1e6  # a product with it stays a number whatever the tables say [our choice]


@dataclass(eq=False, slots=True)
class Flight:
    """A collective on the links, then what it lost there: `left_s` seconds alone, at the rate of the moment."""

    token: Any
    members: tuple[int, ...]
    excess: float  # busy / alone - 1
    since_s: float
    left_s: float = 0.0
    through: bool = False  # the links are
    alarm: Alarm | None = None


class Beside:
    """The collectives of one run that are in flight; `any`: whether computing slows them at all."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.table = simulation.cluster.network.all_reduce_busy_table
        self.any = bool(self.table) and simulation.n > 1
        self.flights: dict[Any, Flight] = {}
        self.excess: dict[tuple[int, float], float] = {}

    def start(self, token: Any, members: tuple[int, ...], size_bytes: float) -> None:
        """A collective starts on the links."""
        if self.any and len(members) > 1:
            self.flights[token] = Flight(token, members, self._excess(members, size_bytes), self.sim.env.now)

    def _excess(self, members: tuple[int, ...], size_bytes: float) -> float:
        """How much longer beside computation, at the least nothing; of part of the group in the proportion of the whole."""
        key = len(members), size_bytes
        if key not in self.excess:
            alone_s = self.sim.fabric.all_reduce_seconds(self.sim.collectives.everybody, size_bytes)
            busy_s = table_seconds(self.table, size_bytes)
            excess = max(busy_s / alone_s - 1.0, 0.0) if alone_s > 0.0 else 0.0
            self.excess[key] = min(excess, MOST_EXCESS)
        return self.excess[key]

    def changing(self) -> None:
        """Somebody is about to begin or end a pass: count what was lost, or made up for, until now."""
        for flight in self.flights.values():
            self._settle(flight)

    def changed(self) -> None:
        """Somebody has begun or ended a pass."""
        for flight in self.flights.values():
            if flight.through:
                self._arm(flight)

    def landed(self, token: Any) -> bool:
        """The links are through with a collective: whether it is complete; otherwise `Collectives.complete` hears of it later."""
        flight = self.flights.get(token)
        if flight is None:
            return True
        self._settle(flight)
        if flight.left_s <= 0.0:
            del self.flights[token]
            return True
        flight.through = True
        self._arm(flight)
        return False

    def _slow(self, flight: Flight) -> float:
        ranks = self.sim.ranks
        return 1.0 + flight.excess * sum(ranks[m].computing for m in flight.members) / len(flight.members)

    def _settle(self, flight: Flight) -> None:
        now = self.sim.env.now
        seconds, slow = now - flight.since_s, self._slow(flight)
        flight.since_s = now
        if flight.through:
            flight.left_s = max(0.0, flight.left_s - seconds / slow)
        else:
            flight.left_s += seconds * (1.0 - 1.0 / slow)

    def _arm(self, flight: Flight) -> None:
        """Schedule the end at the present rate; what was scheduled before is void."""
        flight.alarm = Alarm(self.sim.env, self._fired, flight)
        self.sim.env.schedule(flight.alarm, URGENT, flight.left_s * self._slow(flight))

    def _fired(self, alarm: Alarm) -> None:
        flight: Flight = alarm.subject
        if alarm is flight.alarm:
            del self.flights[flight.token]
            self.sim.collectives.through(flight.token)
