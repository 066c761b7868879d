"""Passes whose speed changes while they run.

A pass is work in nominal seconds, done at rate 1/(slow-down by event × slow-down while a collective is in flight). Whenever a factor
changes in the middle of a pass, the work done so far is settled at the old rate and the end is scheduled anew, so the piecewise constant
rate is integrated exactly. Passes that feed a streamed collective also have milestones: the work left when each bucket is ready.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from simpy.events import NORMAL, URGENT

from hetsim.compute import SpeedProfile
from hetsim.runtime.beside import Beside
from hetsim.runtime.state import Alarm, Rank, Transfer

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation


by_name = attrgetter("order")


class Changes:
    """What makes passes slower while they run, and the passes that have to follow."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        cluster = simulation.cluster
        self.overlap = cluster.network.overlap_slowdown if simulation.n > 1 else 1.0
        self.profiles = [SpeedProfile(w.slowdowns) for w in cluster.workers]
        network = cluster.network
        links = (*network.links, *network.node_links.values(), *([network.intra_node] if network.intra_node else []))
        self.everybody: list[Rank] = []
        self.beside = Beside(simulation)
        self.any = (
            self.beside.any
            or self.overlap != 1.0
            or any(w.slowdowns for w in cluster.workers)
            or any(link.changes for link in links)
        )

    def schedule(self) -> None:
        """Put every worker's next change of speed on the clock."""
        for rank in sorted(self.sim.ranks, key=by_name):  # what ends at one instant is settled by name
            rank.slowdown = self.profiles[rank.rank].factor(0.0)
            self.schedule_next(rank)

    def schedule_next(self, rank: Rank) -> None:
        at = self.profiles[rank.rank].next_change(self.sim.env.now)
        if math.isfinite(at):
            self.sim.env.schedule(Alarm(self.sim.env, self.changed, (rank, at)), URGENT, at - self.sim.env.now)

    def changed(self, alarm: Alarm) -> None:
        """A slow-down begins or ends."""
        rank, at = alarm.subject
        self.settle(rank)
        rank.slowdown = self.profiles[rank.rank].factor(max(at, self.sim.env.now))
        self.arm(rank)
        self.schedule_next(rank)

    def in_flight(self, members: tuple[int, ...], step: int) -> None:
        """A collective of these members starts (+1) or ends (-1)."""
        if self.overlap == 1.0:
            return
        for rank in self.named(members):
            self.settle(rank)
            rank.in_flight += step
            self.arm(rank)

    def named(self, members: tuple[int, ...]) -> list[Rank]:
        """These workers in order of name; remembered for everybody."""
        if members is self.sim.collectives.everybody:
            if not self.everybody:
                self.everybody = sorted(self.sim.ranks, key=by_name)
            return self.everybody
        return sorted((self.sim.ranks[member] for member in members), key=by_name)

    # ---- one pass --------------------------------------------------------------------------------------------------------

    def factor(self, rank: Rank) -> float:
        """Seconds per nominal second at this instant."""
        return rank.slowdown * (self.overlap if rank.in_flight else 1.0)

    def begin(self, rank: Rank, work_s: float, stream: bool) -> None:
        """Start a compute of `work_s` nominal seconds."""
        self.beside.changing()
        rank.computing, rank.work_left_s, rank.since_s = True, work_s, self.sim.env.now
        self.beside.changed()
        rank.milestones = []
        rank.streaming = stream and self.sim.n > 1
        if rank.streaming:
            streamed = self.sim.cluster.workload.backward_share * rank.times[1]
            left = self.sim.collectives.left_after[:-1]
            rank.milestones = [(streamed * share, bucket) for bucket, share in enumerate(left)]
        self.arm(rank)

    def settle(self, rank: Rank) -> None:
        """Count the work done since the last change."""
        if rank.computing:
            now = self.sim.env.now
            rank.work_left_s = max(0.0, rank.work_left_s - (now - rank.since_s) / self.factor(rank))
            rank.since_s = now

    def arm(self, rank: Rank) -> None:
        """Schedule the pass's next milestone or end at the present rate; what was scheduled before is void."""
        if not rank.computing:
            return
        alarm = rank.alarm = Alarm(self.sim.env, self.fired, rank)
        until = rank.milestones[0][0] if rank.milestones else 0.0
        delay = (rank.work_left_s - until) * self.factor(rank)
        self.sim.env.schedule(alarm, NORMAL, max(0.0, delay))

    def fired(self, alarm: Alarm) -> None:
        """A milestone or the end of a pass, unless its speed changed in between."""
        rank: Rank = alarm.subject
        if alarm is not rank.alarm or not rank.computing:
            return
        rank.since_s = self.sim.env.now
        if rank.milestones:
            rank.work_left_s, bucket = rank.milestones.pop(0)
            self.arm(rank)
            self.bucket_ready(rank, bucket)
            return
        self.beside.changing()
        rank.computing = False
        self.beside.changed()
        self.sim.computed(alarm)

    # ---- streamed collectives --------------------------------------------------------------------------------------------

    def bucket_ready(self, rank: Rank, bucket: int) -> None:
        """One bucket of the worker's coming collective is ready."""
        transfer = self.sim.collectives.find(rank, None, rank.launches)
        self.note(transfer, bucket)

    def join_streamed(self, rank: Rank, transfer: Transfer) -> None:
        """At its join everything a worker has not announced yet is ready (after a last pass: the last bucket)."""
        buckets = len(self.sim.collectives.buckets)
        for bucket in range(buckets - 1 if rank.streaming else 0, buckets):
            self.note(transfer, bucket)
        rank.streaming = False

    def note(self, transfer: Transfer, bucket: int) -> None:
        """Count a member's bucket; send what can go."""
        if transfer.flow < 0:
            transfer.flow = 0
            transfer.ahead = [len(transfer.members)] * len(self.sim.collectives.buckets)
        transfer.ahead[bucket] -= 1
        self.send(transfer)

    def send(self, transfer: Transfer) -> None:
        """Launch the next bucket if it is ready everywhere and the one before is through."""
        bucket = transfer.flow
        if transfer.sending or bucket >= len(transfer.ahead) or transfer.ahead[bucket]:
            return
        if bucket == 0:
            transfer.start_s = self.sim.env.now
        transfer.sending = True
        size = self.sim.collectives.buckets[bucket]
        flow = self.sim.fabric.all_reduce(transfer.members, size)
        self.in_flight(transfer.members, +1)
        self.beside.start((transfer, bucket), transfer.members, size)
        self.sim.collectives.launch(flow, (transfer, bucket))

    def bucket_done(self, transfer: Transfer, bucket: int) -> None:
        """A bucket is through."""
        self.in_flight(transfer.members, -1)
        transfer.sending = False
        transfer.flow = bucket + 1
        if transfer.flow == len(transfer.ahead):
            self.sim.collectives.done(transfer)
        else:
            self.send(transfer)
