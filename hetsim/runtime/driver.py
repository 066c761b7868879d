"""The loop that drives every worker's program on simpy's virtual clock and logs what happens.

Only what takes virtual time goes through the event queue: a compute, a wait, a transfer. Everything else is answered at once by
`hetsim.runtime.hot`, which is why a run makes a million commands a second; this file says what the commands mean. At
one instant completions of transfers come first
(priority URGENT), then what workers do, then the server, so that a poll at the instant of completion sees it.

Ties are settled by worker name, never by position in the profile: permuting identical workers permutes the result. Where workers
contend for the server at one instant, a seeded draw decides, or the first by name would win every time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL

from hetsim import commands as cmd
from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster, Worker
from hetsim.compute import WorkTimer, pass_model
from hetsim.errors import DeadlockError, ProgramError
from hetsim.network import Fabric
from hetsim.runtime.collectives import Collectives
from hetsim.runtime.computing import Changes
from hetsim.runtime.data import Dispenser
from hetsim.runtime.exchanges import Exchanges
from hetsim.runtime.groups import Groups
from hetsim.runtime.hot import inner_loop
from hetsim.runtime.server import Server
from hetsim.runtime.state import BLOCKED, Alarm, Rank, Transfer
from hetsim.schedule.kinds import DiscardReason, JoinRule, Kind, MixRule, PointRule, StepRule
from hetsim.schedule.log import Log

Row = tuple[int, int, int, int, int, int, float]  # state, parent, source, slot, samples, first, scale


def share_of(total: int, names: list[str]) -> tuple[int, ...]:
    """`total` split equally; leftover samples go one each to the first workers by name."""
    base, left = divmod(total, len(names))
    first = set(sorted(range(len(names)), key=lambda i: names[i])[:left])
    return tuple(base + (i in first) for i in range(len(names)))


def speed_of(worker: Worker, samples: int) -> float:
    """Samples/s of one pass; infinite where it takes no time."""
    seconds = pass_model(worker).seconds(samples)
    return samples / seconds if seconds else math.inf


def uniform(seed: int, purpose: str, name: str, index: int) -> float:
    """The keyed draw in [0, 1) of a worker's program: the same whichever runtime drives it."""
    text = f"{seed}/{purpose}/{name}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2.0**64


def step_rule(command: cmd.Apply | cmd.Step) -> tuple[StepRule, float]:
    """The rule of a step and the number that goes with it: the factor on the learning rate, or λ."""
    if not command.compensation:
        return StepRule.PLAIN, command.scale
    if command.scale != 1.0:
        raise ProgramError("a compensated step has the learning rate as it is")
    if isinstance(command, cmd.Step):
        return StepRule.DELAY_COMPENSATED_RELATIVE, command.compensation
    rule = StepRule.DELAY_COMPENSATED_ADAPTIVE if command.adaptive else StepRule.DELAY_COMPENSATED
    return rule, command.compensation


class Simulation:
    """One run of one algorithm on one cluster. `run()` returns the log; the clock starts at 0."""

    def __init__(
        self,
        cluster: Cluster,
        algorithm: Algorithm,
        *,
        seed: int = 0,
        max_updates: int | None = None,
        max_samples: int | None = None,
        most_rows: int | None = None,
    ) -> None:
        self.cluster, self.algorithm, self.seed = cluster, algorithm, seed
        self.max_updates = max_updates if max_updates is not None else np.iinfo(np.int64).max
        budget = max_samples if max_samples is not None else cluster.training.max_samples
        if max_updates is not None and max_samples is None:
            budget = int(np.iinfo(np.int64).max)
        self.env = simpy.Environment()
        self.over = self.env.event()
        n = cluster.n
        self.n = n
        self.log = Log(n + 1, most_rows)
        self.dispenser = Dispenser(cluster.workload.dataset_samples, budget)
        self.fabric = Fabric.of(cluster)
        self.gradient_bytes = cluster.workload.gradient_bytes
        self.rule, self.rule_scale = algorithm.point_rule(n)
        self.next_state, self.next_transfer = 1, 0
        self.draws: dict[tuple[int, str], int] = {}
        names = [w.name for w in cluster.workers]
        by_name = {name: place for place, name in enumerate(sorted(names))}
        self.ranks = [Rank(w.rank, w.name, by_name[w.name]) for w in cluster.workers]
        self.unfinished = n
        self.changes = Changes(self)
        self.varying = self.changes.any
        self.collectives = Collectives(self)
        self.server = Server(self)
        self.exchanges = Exchanges(self)
        self.groups = Groups(self)
        training = cluster.training
        self.batches = batches = share_of(training.global_batch_samples, names)
        speeds = tuple(speed_of(w, max(batches[w.rank], 1)) for w in cluster.workers)
        max_pass = tuple(w.max_batch_samples for w in cluster.workers)
        self.handlers: dict[type, Callable[[Rank, Any], Any]] = {}
        self.resume, self.computed, self.complete = inner_loop(self)
        for rank, worker in zip(self.ranks, cluster.workers, strict=True):
            port = cmd.Port(
                rank=rank.rank,
                name=rank.name,
                n=n,
                batch=batches[rank.rank],
                batches=batches,
                micro_batch=training.micro_batch_samples,
                speeds=speeds,
                max_pass=max_pass,
                names=tuple(names),
            )
            rank.program = algorithm.worker(port)
            rank.send = rank.program.send
            rank.timer = WorkTimer(worker, seed, training.micro_batch_samples).next
            rank.alarm = Alarm(self.env, self.computed, rank)
            rank.update_s = worker.update_s
            rank.polled = self.log.polls[rank.rank].append
        self.handlers |= {
            cmd.AllReduce: self.collectives.all_reduce,
            cmd.Missed: self.collectives.partial.missed,
            cmd.Wait: self.wait,
            cmd.Apply: self.apply,
            cmd.Step: self.step,
            cmd.Predict: self.predict,
            cmd.Merge: self.merge,
            cmd.Exchange: self.exchanges.start,
            cmd.GroupReduce: self.groups.reduce,
            cmd.Over: self.exchanges.over,
            cmd.Push: self.server.push,
            cmd.Pull: self.server.pull,
            cmd.Receive: self.server.receive,
            cmd.Reply: self.server.reply,
            cmd.Discard: self.discard,
            cmd.Count: self.collectives.count,
            cmd.Draw: self.draw,
            cmd.Now: self.now,
        }

    # ---- running ---------------------------------------------------------------------------------------------------------

    def run(self) -> Log:
        """Run to the end of the budget. Raises DeadlockError, ProgramError."""
        self.changes.schedule()
        if self.algorithm.has_server:
            self.server.start()
        for rank in sorted(self.ranks, key=lambda r: r.order):
            self.resume(rank, None)
        try:
            self.env.run(until=self.over)
        except RuntimeError as error:
            if not str(error).startswith("No scheduled events left"):  # simpy's words; others are the program's own
                raise
            raise DeadlockError(self.env.now, self.grid()) from None
        return self.log

    def finish(self, rank: Rank) -> None:
        """A program has ended."""
        rank.finished = True
        if rank.rank == self.n:
            return
        if rank.slot >= 0:
            self.drop(rank, DiscardReason.RUN_ENDED)
        self.unfinished -= 1
        if not self.unfinished:
            self.over.succeed()

    # ---- transfers -------------------------------------------------------------------------------------------------------

    def new_transfer(self, kind: str, members: tuple[int, ...], worker: int = -1) -> Transfer:
        """The next transfer, numbered."""
        transfer = Transfer(self.next_transfer, kind, members, worker)
        self.next_transfer += 1
        return transfer

    def hand_over(self, rank: Rank, transfer: Transfer, weight: float = 1.0, rule: JoinRule = JoinRule.JOINED) -> None:
        """Move the accumulator into a transfer."""
        now = self.env.now
        self.log.add(Kind.JOIN, rank.rank, now, now, -1, -1, transfer.id, rank.slot, rank.held, 0, weight, rule)
        rank.sent = (transfer.id, rank.slot, rank.held)
        transfer.samples += rank.held
        rank.slot, rank.held = -1, 0

    def wait(self, rank: Rank, command: cmd.Wait) -> Any:
        """Block until complete; what is complete is answered at once."""
        transfer: Transfer = command.handle  # type: ignore[assignment]
        if transfer.done:
            return self.server.adopt(rank, transfer) if transfer.kind == "pull" else transfer.result
        rank.waiting, rank.since_s = transfer, self.env.now
        transfer.waiters.append(rank)
        return BLOCKED

    # ---- what changes parameters -----------------------------------------------------------------------------------------

    def child(self, transfer: Transfer, key: Any) -> int:
        """The state reached from `key` by this transfer; replicas that get there later share it."""
        state = transfer.children.get(key)
        if state is None:
            state = transfer.children[key] = self.next_state
            self.next_state += 1
        return state

    def apply(self, rank: Rank, command: cmd.Apply) -> Any:
        """Optimizer step on a transfer's gradient sum; nothing happens where it holds no samples."""
        transfer: Transfer = command.handle  # type: ignore[assignment]
        if not transfer.done:
            raise ProgramError(
                f"{self.algorithm.name}: {rank.name} applies transfer {transfer.id} before it is complete"
            )
        if not transfer.samples:
            return rank.updates
        parent = rank.state
        state = transfer.children.get(parent)  # there once its row is logged
        rank.updates += 1
        if state is not None and not rank.update_s:
            rank.state = rank.point = state
            return rank.updates
        state = self.child(transfer, ("apply", parent))  # the same id for replicas that take update_s over it
        if not rank.update_s:
            transfer.children[parent] = state
        rank.state = rank.point = state
        divisor = command.divisor or transfer.samples
        rule, scale = step_rule(command)
        row = (state, parent, transfer.id, -1, transfer.samples, divisor, scale)
        return self.busy(rank, Kind.STEP, row, rule, rank.updates)

    def step(self, rank: Rank, command: cmd.Step) -> Any:
        """Optimizer step on the own accumulator."""
        if not rank.held:
            return rank.updates
        parent, state = rank.state, self.next_state
        self.next_state += 1
        rule, scale = step_rule(command)
        row = (state, parent, -1, rank.slot, rank.held, rank.held, scale)
        rank.state = rank.point = state
        rank.slot, rank.held = -1, 0
        rank.updates += 1
        return self.busy(rank, Kind.STEP, row, rule, rank.updates)

    def predict(self, rank: Rank, command: cmd.Predict) -> Any:
        """Move the compute point where the algorithm's `compute_point` says."""
        if self.rule == PointRule.CURRENT:
            return None
        transfer: Transfer = command.handle  # type: ignore[assignment]
        number, slot, samples = rank.sent
        if number != transfer.id:
            raise ProgramError(f"{self.algorithm.name}: {rank.name} predicts from a transfer that was not its last")
        parent = rank.state
        key = ("look-ahead", parent) if self.rule == PointRule.LOOK_AHEAD else ("predict", parent, rank.rank)
        point = self.child(transfer, key)
        rank.point = point
        row = (point, parent, transfer.id, slot, samples, 0, self.rule_scale)
        return self.busy(rank, Kind.PREDICT, row, self.rule, None)

    def merge(self, rank: Rank, command: cmd.Merge) -> Any:
        """Mix the reduced parameters into the replica; its optimizer state stays its own."""
        transfer: Transfer = command.handle  # type: ignore[assignment]
        if not transfer.done:
            raise ProgramError(
                f"{self.algorithm.name}: {rank.name} merges transfer {transfer.id} before it is complete"
            )
        parent = rank.state
        state = self.child(transfer, ("merge", parent))
        anchor = rank.anchor if command.anchored else -1
        fragment, rule = (transfer.fragment[0], MixRule.OUTER) if command.outer else (0, MixRule.KEEP)
        if command.shift:
            anchor, rule = transfer.offered[rank.rank], MixRule.SHIFT
        row = (state, parent, transfer.id, anchor, transfer.samples, fragment, command.weight)
        rank.state = rank.point = rank.anchor = state
        return self.busy(rank, Kind.MIX, row, rule, None)

    def busy(self, rank: Rank, kind: Kind, row: Row, code: int, answer: Any) -> Any:
        """Log an operation on parameters, now, or after `update_s` where it takes time."""
        now = self.env.now
        if not rank.update_s:
            self.log.add(kind, rank.rank, now, now, *row, code)
            return answer

        rank.after_update = []

        def done(_: Alarm) -> None:
            self.log.add(kind, rank.rank, now, self.env.now, *row, code)
            waiting, rank.after_update = rank.after_update or [], None
            for go_on in waiting:
                go_on()
            self.resume(rank, answer)

        self.env.schedule(Alarm(self.env, done), NORMAL, rank.update_s)
        return BLOCKED

    # ---- small answers ---------------------------------------------------------------------------------------------------

    def drop(self, rank: Rank, reason: DiscardReason) -> int:
        """Discard an accumulator."""
        now, samples = self.env.now, rank.held
        self.log.add(Kind.DISCARD, rank.rank, now, now, slot=rank.slot, samples=samples, code=reason)
        rank.slot, rank.held = -1, 0
        return samples

    def discard(self, rank: Rank, command: cmd.Discard) -> int:
        """Drop what will never be used: the own accumulator, or a pushed gradient at the server."""
        try:
            reason = DiscardReason[command.reason.upper().replace("-", "_")]
        except KeyError:
            raise ProgramError(
                f"{self.algorithm.name}: {rank.name} discards for the unknown reason {command.reason!r}"
            ) from None
        if command.handle is None:
            return self.drop(rank, reason) if rank.slot >= 0 else 0
        transfer: Transfer = command.handle  # type: ignore[assignment]
        now = self.env.now
        self.log.add(Kind.DISCARD, rank.rank, now, now, source=transfer.id, samples=transfer.samples, code=reason)
        return transfer.samples

    def draw(self, rank: Rank, command: cmd.Draw) -> float:
        """Uniform in [0, 1), keyed by (seed, purpose, name or nobody's, how many were drawn)."""
        key = (rank.rank, command.purpose)
        index = self.draws[key] = self.draws.get(key, -1) + 1
        return self.chance(command.purpose, "" if command.shared else rank.name, index)

    def chance(self, purpose: str, name: str, index: int) -> float:
        """The run's draw of that key."""
        return uniform(self.seed, purpose, name, index)

    def now(self, rank: Rank, command: cmd.Now) -> float:
        """The clock; recorded, since it is an outcome."""
        self.log.outcomes[rank.rank].append(self.env.now)
        return float(self.env.now)

    def grid(self) -> list[str]:
        """One line per worker that cannot go on: what it waits for and who is missing there."""
        lines = []
        for rank in [*self.ranks, *([self.server.rank] if self.algorithm.has_server else [])]:
            if rank.finished:
                what = "finished"
            elif rank.waiting is None:
                what = "waits for a message" if rank.rank == self.n else "is not waiting"
            else:
                what = "waits for " + self.collectives.describe(rank.waiting)
            lines.append(f"  rank {rank.rank} ({rank.name}): {what}; {rank.updates} updates applied")
        return lines
