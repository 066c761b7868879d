"""Partial all-reduces of random groups, which a generator of groups hands out (Luo et al. 2020).

    a  |compute|join ······|         asks first: all who are in no group are divided at random, here into {a, c} and {b, d};
    b  |compute---|join|             b, c and d find theirs when they ask, and a group's all-reduce starts when its last member has joined
    c  |compute-----------|join

A worker is in a group from the division until it has the group's average, and in one at a time: groups with a common member come one after
the other, and none waits for another in a circle. Asking takes no time [our choice: it is a few bytes]. A worker that leaves serves the
group it is in and is drawn for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetsim import commands as cmd
from hetsim.runtime.state import Rank, Transfer
from hetsim.schedule.kinds import Kind, Payload

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation


class Groups:
    """Those of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.current: dict[int, Transfer] = {}  # by worker
        self.asked = [0] * simulation.n
        self.left: set[int] = set()
        self.divisions = 0

    def reduce(self, rank: Rank, command: cmd.GroupReduce) -> Transfer | None:
        """Join the worker's group; the last to join starts it. Recorded is its number, or -1."""
        sim, now = self.sim, self.sim.env.now
        if rank.rank not in self.current and not command.leaving:
            self.divide(rank, command)
        self.asked[rank.rank] += 1
        transfer = self.current.get(rank.rank)
        sim.log.outcomes[rank.rank].append(-1 if transfer is None else transfer.id)
        if transfer is None:
            self.left.add(rank.rank)
            return None
        transfer.offered[rank.rank] = rank.state
        sim.log.add(Kind.JOIN, rank.rank, now, now, rank.state, source=transfer.id)
        transfer.missing -= 1
        if not transfer.missing:
            sim.collectives.start(transfer, now)
        return transfer

    def divide(self, rank: Rank, command: cmd.GroupReduce) -> None:
        """All who are in no group and not too far behind, at random, into as few groups of at most `size` as even as can be."""
        sim, asked = self.sim, self.asked
        idle = [
            other
            for other in sim.ranks
            if other.rank not in self.current
            and other.rank not in self.left
            and asked[rank.rank] - asked[other.rank] < command.slack
        ]
        idle.sort(key=lambda other: (sim.chance("group", other.name, self.divisions), other.order))
        self.divisions += 1
        count = -(-len(idle) // command.size)
        for i in range(count):
            members = sorted(other.rank for other in idle[i::count])
            transfer = sim.new_transfer("group", tuple(members), rank.rank)
            transfer.payload = Payload.PARAMETERS
            self.current |= dict.fromkeys(members, transfer)

    def through(self, transfer: Transfer) -> None:
        """A group has its average."""
        for member in transfer.members:
            del self.current[member]
        self.sim.exchanges.made += 1
        transfer.stop = self.sim.exchanges.enough or self.sim.dispenser.exhausted
        self.sim.collectives.done(transfer)
