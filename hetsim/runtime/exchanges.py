"""Averaging of two replicas, started by one of them, while both may compute.

    a  |compute------|wait|step|       starts an exchange with b and computes meanwhile
    b  |compute---|step|compute---     knows nothing of it: its replica moves under its hands
            |  x_a, x_b  |             through: both become (x_a + x_b)/2, as they are then, at once

A gradient under way was taken where it was taken; its step starts from the average. The two send their parameters to each other at the same
time [our choice: an all-reduce of two]; averaging takes no time of a worker. A partner that has left is none: its replica stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetsim import commands as cmd
from hetsim.runtime.state import Rank, Transfer
from hetsim.schedule.kinds import Kind, MixRule, Payload

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation


class Exchanges:
    """Those of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.made = 0

    def start(self, rank: Rank, command: cmd.Exchange) -> Transfer:
        """Send the parameters on their way."""
        sim, now = self.sim, self.sim.env.now
        members = (rank.rank,) if sim.ranks[command.peer].finished else tuple(sorted({rank.rank, command.peer}))
        transfer = sim.new_transfer("exchange", members, rank.rank)
        transfer.peer, transfer.start_s, transfer.payload = command.peer, now, Payload.PARAMETERS
        sim.log.add(Kind.JOIN, rank.rank, now, now, rank.state, source=transfer.id)
        sim.changes.beside.start(transfer, members, sim.gradient_bytes)
        sim.changes.in_flight(members, +1)
        sim.collectives.launch(sim.fabric.all_reduce(members, sim.gradient_bytes), transfer)
        return transfer

    def through(self, transfer: Transfer) -> None:
        """Both sides have the other's parameters: average, once nobody is in the middle of an update."""
        ranks = [self.sim.ranks[member] for member in transfer.members]
        for rank in ranks:
            if rank.after_update is not None:
                rank.after_update.append(lambda: self.through(transfer))
                return
        sim, now = self.sim, self.sim.env.now
        here = [rank for rank in ranks if rank.rank == transfer.worker or not rank.finished]
        for rank in here:
            if rank.rank != transfer.worker:
                sim.log.add(Kind.JOIN, rank.rank, now, now, rank.state, source=transfer.id)
        sim.log.add(Kind.REDUCE, -1, transfer.start_s, now, source=transfer.id, code=transfer.payload)
        for rank in here:
            self.average(rank, transfer)
        self.made += 1
        stop = self.enough or sim.dispenser.exhausted
        sim.complete(transfer, cmd.Reduced(0, {}, tuple(rank.rank for rank in here), stop))

    def average(self, rank: Rank, transfer: Transfer) -> None:
        """The replica moves; the point of a pass under way does not."""
        now, parent = self.sim.env.now, rank.state
        rank.state = state = self.sim.child(transfer, ("merge", parent))
        if rank.waiting is not None:
            rank.point = state
        self.sim.log.add(
            Kind.MIX, rank.rank, now, now, state, parent, transfer.id, samples=transfer.samples, code=MixRule.KEEP
        )

    @property
    def enough(self) -> bool:
        """As many as the run is for."""
        return self.made >= self.sim.max_updates

    def over(self, rank: Rank, command: cmd.Over) -> bool:
        """Whether there were enough; recorded, since it is an outcome."""
        self.sim.log.outcomes[rank.rank].append(self.enough)
        return self.enough
