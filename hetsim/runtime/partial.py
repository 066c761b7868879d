"""Collectives of the whole group that start without those who still compute.

    a  |compute|join             starts once a quorum of workers with samples has joined, or one rank, the trigger, has;
    b  |compute-------|missed    who joins at the same instant is in it
       net     |  r_0  |

Who has not joined takes part all the same, in the background, with what its accumulator holds at that moment (often nothing), and finds
out by `missed` when its pass is done; then it waits for the result and applies it as everybody does, so that all replicas make the
same updates. All members carry the transfer, whatever they contribute [our choice: the ring of the whole group].

Workers without samples do not start anything: at the end of the data the last collectives start when all have joined.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from simpy.events import NORMAL

from hetsim import commands as cmd
from hetsim.errors import ProgramError
from hetsim.runtime.state import Alarm, Rank, Transfer
from hetsim.schedule.kinds import JoinRule

if TYPE_CHECKING:
    from hetsim.runtime.collectives import Collectives

by_name = attrgetter("order")


class Partial:
    """Those of one run."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self.begun: dict[int, Transfer] = {}  # by how many came before, until all have passed them

    def join(self, rank: Rank, command: cmd.AllReduce) -> Transfer:
        """Join the worker's next collective; it starts, if that is enough, when this instant is over or at once."""
        sim, key = self.collectives.sim, rank.launches
        if command.group is not None or command.what != "gradients" or command.stream:
            raise ProgramError(f"{sim.algorithm.name}: only whole gradients of the whole group can go with a quorum")
        if key in self.begun:
            raise ProgramError(
                f"{sim.algorithm.name}: {rank.name} joins a collective that has started; ask for `missed` first"
            )
        transfer = self.collectives.find(rank, None, key)
        rank.launches = key + 1
        transfer.passed += 1
        transfer.asked += rank.held > 0
        joined = transfer.joined = transfer.joined or set()
        joined.add(rank.rank)
        enough = transfer.asked >= command.quorum if command.quorum else command.trigger in joined and rank.held > 0
        sim.hand_over(rank, transfer, command.weight)
        if command.gather:
            transfer.gathered[rank.rank] = command.gather
        if not transfer.begun and (enough or len(joined) == sim.n):
            transfer.begun = True
            alarm = Alarm(sim.env, self.begin, transfer)
            if command.at_once:
                self.begin(alarm)
            else:
                sim.env.schedule(alarm, NORMAL, 0.0)
        return transfer

    def begin(self, alarm: Alarm) -> None:
        """Take what the absent have, and start."""
        transfer: Transfer = alarm.subject
        sim, joined = self.collectives.sim, transfer.joined or set()
        del self.collectives.open[transfer.index]
        if transfer.passed < sim.n:
            self.begun[transfer.index] = transfer
        absent = sorted((rank for rank in sim.ranks if rank.rank not in joined), key=by_name)
        taken = [rank.rank for rank in absent if rank.held]
        for rank in absent:
            if rank.held:
                sim.hand_over(rank, transfer, rule=JoinRule.TAKEN)
        transfer.contributors = tuple(sorted([*joined, *taken]))
        busy = any(rank.waiting is None and not rank.finished for rank in absent)  # with a pass that is not in it
        last = transfer.index + 1 >= sim.max_updates
        transfer.stop = last or (sim.dispenser.exhausted and not busy)
        self.collectives.start(transfer, sim.env.now)

    def missed(self, rank: Rank, command: cmd.Missed) -> Transfer | None:
        """The worker's next collective if it has started without it. Recorded is its number, or -1."""
        transfer = self.begun.get(rank.launches)
        self.collectives.sim.log.outcomes[rank.rank].append(-1 if transfer is None else transfer.id)
        if transfer is None:
            return None
        rank.launches += 1
        transfer.passed += 1
        if transfer.passed == self.collectives.sim.n:
            del self.begun[transfer.index]
        return transfer
