"""Joining, starting and completing collectives.

A collective really starts when its last member has joined. A streamed one (DDP's overlap with the backward pass)
leaves in buckets: bucket j is
ready on worker i at `e_i - f·t_i·(1 - share of bytes in buckets 1..j)`, starts when it is ready everywhere and bucket j-1 is through, so
it ends at max_j [max_i ready_ij + Σ_{l≥j} C_l]. With constant speeds and links that is evaluated in closed form when the last member joins;
otherwise `hetsim.runtime.computing` reports each bucket as it becomes ready and the buckets travel as transfers of their own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from simpy.events import URGENT

from hetsim import commands as cmd
from hetsim.errors import ProgramError
from hetsim.network import SharedLinks, bucket_bytes
from hetsim.runtime.partial import Partial
from hetsim.runtime.state import Alarm, Rank, Transfer
from hetsim.schedule.kinds import Payload

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation


new = tuple.__new__


class Counter:
    """A counter shared by the workers of one synchronization; what others added is seen one link latency later."""

    __slots__ = ("own", "seen", "seen_of", "travelling")

    def __init__(self) -> None:
        self.travelling: deque[tuple[float, int, int]] = deque()  # when, who, samples; not yet with the others
        self.seen = 0  # what has reached everybody
        self.seen_of: dict[int, int] = {}
        self.own: dict[int, int] = {}  # all that each has added

    def add(self, now: float, seen_until: float, rank: int, samples: int) -> int:
        """Add, and count what this worker knows of; `now` and `seen_until` never go back."""
        self.travelling.append((now, rank, samples))
        self.own[rank] = self.own.get(rank, 0) + samples
        while self.travelling and self.travelling[0][0] <= seen_until:
            _, who, arrived = self.travelling.popleft()
            self.seen += arrived
            self.seen_of[who] = self.seen_of.get(who, 0) + arrived
        return self.own[rank] + self.seen - self.seen_of.get(rank, 0)


class Collectives:
    """The collectives of one run, and the links that all transfers share."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.links = SharedLinks(simulation.fabric)
        self.everybody = tuple(range(simulation.n))
        self.open: dict[Any, Transfer] = {}
        self.wake = Alarm(simulation.env, self.arrived)
        self.wake_s = float("inf")
        self.buckets = bucket_bytes(simulation.gradient_bytes)
        total = sum(self.buckets)
        done, self.left_after = 0.0, []  # share of the streamed part still to be computed when bucket j is ready
        for size in self.buckets:
            done += size
            self.left_after.append(1.0 - done / total if total else 0.0)
        self.left_after[-1] = 0.0
        self.early = list(enumerate(self.left_after))[:-1]
        self.bucket_seconds: dict[tuple[int, ...], list[float]] = {}
        self.seconds_of_all: list[float] | None = None
        self.idle: list[Alarm] = []  # alarms of streamed collectives that are through, to be used again
        self.counters: dict[int, Counter] = {}
        self.partial = Partial(self)
        network = simulation.cluster.network
        self.counter_latency_s = (
            max((link.latency_s for link in network.links), default=0.0) if simulation.n > 1 else 0.0
        )

    # ---- joining ---------------------------------------------------------------------------------------------------------

    def find(self, rank: Rank, group: tuple[int, ...] | None, key: Any) -> Transfer:
        """The open collective of that key, new where this worker is the first to come."""
        transfer = self.open.get(key)
        if transfer is None:
            members = self.everybody if group is None else group
            if rank.rank not in members:
                raise ProgramError(f"{rank.name} starts a collective of a group it is not in: {members}")
            transfer = self.open[key] = self.sim.new_transfer("all-reduce", members)
            transfer.index = key if group is None else key[1]
            # Agreed by what rides along: the last update of the budget, or nobody has any data beyond what is handed over
            # here, since all join after the first to come.
            transfer.stop = transfer.index + 1 >= self.sim.max_updates or self.sim.dispenser.exhausted
        return transfer

    def all_reduce(self, rank: Rank, command: cmd.AllReduce) -> Transfer:
        """Join the worker's next collective; the last to join starts it."""
        if command.quorum or command.trigger >= 0:
            return self.partial.join(rank, command)
        sim, group = self.sim, command.group
        if group is None:
            key: Any = rank.launches
            rank.launches += 1
        else:
            index = rank.group_launches.get(group, 0)
            rank.group_launches[group] = index + 1
            key = (group, index)
        transfer = self.open.get(key)
        if transfer is None:
            transfer = self.find(rank, group, key)
        now = sim.env.now
        if command.what == "gradients":
            sim.hand_over(rank, transfer, command.weight)
        else:
            transfer.payload, transfer.fragment = Payload.PARAMETERS, command.fragment
            transfer.offered[rank.rank] = rank.state
            sim.log.add(1, rank.rank, now, now, rank.state, -1, transfer.id, -1, 0, 0, command.weight)
        if command.gather:
            transfer.gathered[rank.rank] = command.gather
        transfer.missing = missing = transfer.missing - 1
        if not missing:
            del self.open[key]
        if command.stream and sim.n > 1:
            if sim.varying:
                sim.changes.join_streamed(rank, transfer)
            else:
                self.note_ready(rank, transfer, now)
        if not missing:
            self.start(transfer, now)
        return transfer

    def note_ready(self, rank: Rank, transfer: Transfer, end_s: float) -> None:
        """When this worker's buckets were ready, merged into the latest of each bucket so far."""
        streamed = self.sim.cluster.workload.backward_share * rank.times[1]
        ready = transfer.ready
        if ready is None:
            transfer.ready = [end_s - streamed * left for left in self.left_after]
            return
        for bucket, left in self.early:
            at = end_s - streamed * left
            if at > ready[bucket]:
                ready[bucket] = at
        ready[-1] = end_s  # joins come in order of time

    # ---- on the wire -----------------------------------------------------------------------------------------------------

    def start(self, transfer: Transfer, now: float) -> None:
        """All members have joined."""
        sim = self.sim
        if transfer.ready is not None:
            seconds = self.seconds_of_all
            if seconds is None or transfer.members is not self.everybody:
                seconds = self.seconds_of_buckets(transfer.members)
            ends = transfer.ready[0]
            for ready, c in zip(transfer.ready, seconds, strict=True):
                ends = (ready if ready > ends else ends) + c
            transfer.start_s = transfer.ready[0]
            alarm = self.idle.pop() if self.idle else Alarm(sim.env, self.streamed)
            alarm.subject, alarm.callbacks = transfer, alarm.call
            sim.env.schedule(alarm, URGENT, ends - now if ends > now else 0.0)
            return
        if transfer.flow >= 0:  # streamed bucket by bucket; the last bucket becomes ready now
            return
        transfer.start_s = now
        size = sim.gradient_bytes / transfer.fragment[1]
        sim.changes.beside.start(transfer, transfer.members, size)
        self.launch(sim.fabric.all_reduce(transfer.members, size), transfer)
        sim.changes.in_flight(transfer.members, +1)

    def seconds_of_buckets(self, members: tuple[int, ...]) -> list[float]:
        """Duration of each bucket alone on the links."""
        seconds = self.bucket_seconds.get(members)
        if seconds is None:
            seconds = [self.sim.fabric.all_reduce_seconds(members, size) for size in self.buckets]
            self.bucket_seconds[members] = seconds
            if members is self.everybody:  # found without hashing a long tuple
                self.seconds_of_all = seconds
        return seconds

    def launch(self, flow: Any, token: Any) -> None:
        """Put a flow on the links."""
        self.links.start(self.sim.env.now, flow, token)
        self.rearm()

    def rearm(self) -> None:
        """Sleep until the next thing that happens on the links."""
        at = self.links.next_event_s()
        now = self.sim.env.now
        if at == float("inf"):
            self.wake_s = at
            return
        if at != self.wake_s or self.wake.callbacks is None:
            self.wake_s = at
            self.wake = Alarm(self.sim.env, self.arrived)
            self.sim.env.schedule(self.wake, URGENT, max(at - now, 0.0))

    def arrived(self, alarm: Alarm) -> None:
        """Something happened on the links."""
        if alarm is not self.wake:
            return
        finished = self.links.advance(self.sim.env.now)
        self.wake_s = float("nan")
        for token in finished:
            if not isinstance(token, tuple) and token.kind in ("push", "pull"):
                self.sim.server.arrived(token)
            elif self.sim.changes.beside.landed(token):
                self.through(token)
        self.rearm()

    def through(self, token: Any) -> None:
        """A collective, or a bucket of a streamed one, has arrived."""
        if isinstance(token, tuple):
            self.sim.changes.bucket_done(*token)
        else:
            self.sim.changes.in_flight(token.members, -1)
            if token.kind == "exchange":
                self.sim.exchanges.through(token)
            elif token.kind == "group":
                self.sim.groups.through(token)
            else:
                self.done(token)

    def streamed(self, alarm: Alarm) -> None:
        """A streamed collective, evaluated in closed form, is through."""
        self.idle.append(alarm)
        self.done(alarm.subject)

    def done(self, transfer: Transfer) -> None:
        """A collective is complete on every member."""
        sim = self.sim
        samples = transfer.samples
        now = sim.env._now
        sim.log.add(2, -1, transfer.start_s, now, -1, -1, transfer.id, -1, samples, 0, 1.0, transfer.payload)
        contributors = transfer.contributors or transfer.members
        sim.complete(transfer, new(cmd.Reduced, (samples, transfer.gathered, contributors, transfer.stop)))

    # ---- the shared counter ----------------------------------------------------------------------------------------------

    def count(self, rank: Rank, command: cmd.Count) -> int:
        """Samples so far in the synchronization this worker joins next: its own at once, the others' one latency later."""
        counter = self.counters.setdefault(rank.launches, Counter())
        now = self.sim.env.now
        total = counter.add(now, now - self.counter_latency_s, rank.rank, command.samples)
        self.counters.pop(rank.launches - 3, None)
        self.sim.log.outcomes[rank.rank].append(total)
        return total

    def describe(self, transfer: Transfer) -> str:
        """A transfer in words, for a deadlock's grid."""
        if transfer.kind == "exchange":
            return f"exchange {transfer.id} with {self.sim.ranks[transfer.peer].name}"
        if transfer.kind == "group":
            missing = [self.sim.ranks[r].name for r in transfer.members if r not in transfer.offered]
            return f"group {transfer.id}, missing: {', '.join(missing) or 'nobody'}"
        if transfer.kind != "all-reduce":
            return f"{transfer.kind} {transfer.id} of {self.sim.ranks[transfer.worker].name}"
        group = None if transfer.members == self.everybody else transfer.members
        ranks = [self.sim.ranks[r] for r in transfer.members]
        started = [r.launches if group is None else r.group_launches.get(group, 0) for r in ranks]
        missing = [r.name for r, count in zip(ranks, started, strict=True) if count <= transfer.index]
        text = f"all-reduce {transfer.id}, joined by {len(ranks) - len(missing)} of {len(ranks)}"
        return text + (f", missing: {', '.join(missing)}" if missing else "")
