"""The parameter server: pushes and pulls on shared links, and an inbox in order of arrival.

A push takes latency + bytes over the worker's and the server's link, a pull's answer likewise; the request itself rides free [our
choice: it is a few bytes, and its latency is in the answer's]. Links are shared max-min fairly, so many pushes at once queue at the
server's link (incast). Among messages of one instant a seeded draw per worker decides, so that no worker wins every tie; the messages
of one worker keep their order.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from simpy.events import NORMAL

from hetsim import commands as cmd
from hetsim.runtime.state import BLOCKED, Alarm, Rank, Transfer
from hetsim.schedule.kinds import Kind, Payload, WaitCause

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation


class Server:
    """The server of one run; idle where the algorithm has none."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.rank = Rank(simulation.n, "server", simulation.n)
        self.inbox: list[tuple[float, float, int, Transfer]] = []
        self.ties: dict[int, float] = {}
        self.arrivals = 0
        self.listening = False
        self.awake = False

    def start(self) -> None:
        """Run the server's program until it listens."""
        self.rank.program = self.sim.algorithm.server(cmd.ServerPort(n=self.sim.n, batches=self.sim.batches))
        self.rank.send = self.rank.program.send
        self.sim.resume(self.rank, None)

    # ---- workers' side ---------------------------------------------------------------------------------------------------

    def push(self, rank: Rank, command: cmd.Push) -> Transfer:
        """Send the accumulator."""
        sim = self.sim
        transfer = sim.new_transfer("push", (rank.rank,), rank.rank)
        sim.hand_over(rank, transfer)
        transfer.start_s = sim.env.now
        sim.changes.in_flight(transfer.members, +1)
        sim.collectives.launch(sim.fabric.push(rank.rank, sim.gradient_bytes), transfer)
        return transfer

    def pull(self, rank: Rank, command: cmd.Pull) -> Transfer:
        """Ask for parameters; the request is at the server at once."""
        transfer = self.sim.new_transfer("pull", (rank.rank,), rank.rank)
        transfer.start_s = self.sim.env.now
        self.deliver(transfer)
        return transfer

    def arrived(self, transfer: Transfer) -> None:
        """A push has reached the server, or an answer its worker."""
        sim, now = self.sim, self.sim.env.now
        sim.changes.in_flight(transfer.members, -1)
        if transfer.kind == "push":
            sim.log.add(
                Kind.REDUCE, transfer.worker, transfer.start_s, now, source=transfer.id, samples=transfer.samples
            )
            self.deliver(transfer)
            sim.complete(transfer, cmd.Reduced(transfer.samples, {}, transfer.members, False))
            return
        sim.log.add(Kind.REDUCE, transfer.worker, transfer.replied_s, now, source=transfer.id, code=Payload.PARAMETERS)
        sim.complete(transfer, cmd.Reduced(0, {}, (), transfer.stop))

    def adopt(self, rank: Rank, transfer: Transfer) -> Any:
        """Take over the parameters that a pull brought."""
        now = self.sim.env.now
        rank.state = rank.point = transfer.snapshot
        self.sim.log.add(Kind.COPY, rank.rank, now, now, transfer.snapshot, source=transfer.id)
        return transfer.result

    def waited(self, rank: Rank, transfer: Transfer) -> None:
        """Log the wait for an answer on its way."""
        now = self.sim.env.now
        if now > rank.since_s:
            self.sim.log.add(Kind.WAIT, rank.rank, rank.since_s, now, source=transfer.id, code=WaitCause.PULL)

    # ---- the server's side -----------------------------------------------------------------------------------------------

    def deliver(self, transfer: Transfer) -> None:
        """Put a message into the inbox; the server looks at it after everything else of this instant."""
        worker = transfer.worker
        if worker not in self.ties:
            self.ties[worker] = self.sim.draw(self.sim.ranks[worker], cmd.Draw("arrival"))
        self.arrivals += 1
        heapq.heappush(self.inbox, (self.sim.env.now, self.ties[worker], self.arrivals, transfer))
        if self.listening and not self.awake:
            self.awake = True
            self.sim.env.schedule(Alarm(self.sim.env, self.look), NORMAL, 0.0)

    def look(self, alarm: Alarm) -> None:
        """Give the listening server its next message."""
        self.awake = False
        if self.listening and self.inbox:
            self.listening = False
            self.sim.resume(self.rank, self.message())

    def message(self) -> cmd.Message:
        """Take the next message out of the inbox. Recorded is its transfer t, as -1 - t once the run is over."""
        at_s, _, _, transfer = heapq.heappop(self.inbox)
        if not self.inbox:
            self.ties.clear()
        over = self.over
        self.sim.log.outcomes[self.rank.rank].append(-1 - transfer.id if over else transfer.id)
        kind: Any = transfer.kind
        return cmd.Message(kind, transfer.worker, transfer.samples, transfer, over, at_s)

    @property
    def over(self) -> bool:
        """The budget of updates or samples is used up."""
        return self.sim.dispenser.exhausted or self.rank.updates >= self.sim.max_updates

    def receive(self, rank: Rank, command: cmd.Receive) -> Any:
        """The next message, now if one is there."""
        if self.inbox:
            return self.message()
        self.listening = True
        return BLOCKED

    def reply(self, rank: Rank, command: cmd.Reply) -> None:
        """Answer a pull with the parameters as they are now."""
        transfer: Transfer = command.message.handle  # type: ignore[assignment]
        transfer.snapshot = rank.state
        transfer.stop = self.over
        transfer.replied_s = now = self.sim.env.now
        for waiter in transfer.waiters:  # until now the server held the answer back
            if now > waiter.since_s:
                self.sim.log.add(Kind.WAIT, waiter.rank, waiter.since_s, now, source=transfer.id, code=WaitCause.GATE)
                waiter.since_s = now
        self.sim.changes.in_flight(transfer.members, +1)
        self.sim.collectives.launch(self.sim.fabric.pull(transfer.worker, self.sim.gradient_bytes), transfer)
