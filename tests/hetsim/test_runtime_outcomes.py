"""Recorded outcomes are enough: programs driven by the log alone, without a clock, do again what they did.

Every program is asked for its commands and given what the Schedule recorded: polls, counts, clock readings and the server's messages from
the outcomes, samples and seconds from GRAD rows, transfers from JOIN and COPY rows. Each command must be the next row of its worker.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster
from test_contract import CLUSTERS, OPTIONS

from hetsim import commands as cmd
from hetsim.algorithms import make, registry
from hetsim.cluster.spec import Cluster
from hetsim.runtime import Simulation
from hetsim.runtime.driver import uniform
from hetsim.schedule import DiscardReason, JoinRule, Kind, Payload, PointRule, Schedule
from hetsim.simulate import simulate

NAMES = sorted(registry())
BLOCKED = object()


class Replay:
    """All programs of a run, fed from its Schedule."""

    def __init__(self, s: Schedule, c: Cluster, name: str, options: dict[str, Any]) -> None:
        self.s, self.n = s, s.n
        self.algorithm = make(name, options)
        world = Simulation(c, self.algorithm)
        self.programs = [rank.program for rank in world.ranks]
        if self.algorithm.has_server:
            self.programs.append(self.algorithm.server(cmd.ServerPort(n=s.n, batches=world.batches)))
        self.rows: list[deque[int]] = [deque() for _ in range(s.n + 1)]
        ends = s.rows(Kind.DISCARD)[s.code[s.rows(Kind.DISCARD)] == DiscardReason.RUN_ENDED]
        joins = s.rows(Kind.JOIN)
        taken = joins[s.code[joins] == JoinRule.TAKEN]  # no doing of their worker's program
        if (
            name == "ad-psgd"
        ):  # partners are averaged, whatever their programs do: of an exchange only its start is a command
            _, first = np.unique(s.source[joins], return_index=True)
            taken = np.concatenate([np.delete(joins, first), s.rows(Kind.MIX)])
        skipped = {*ends.tolist(), *s.rows(Kind.WAIT).tolist(), *s.rows(Kind.REDUCE).tolist(), *taken.tolist()}
        for i in range(len(s)):
            if i not in skipped:
                self.rows[int(s.worker[i])].append(i)
        self.polls = [deque(p) for p in s.polls]
        self.outcomes = [deque(o) for o in s.outcomes]
        reduces = s.rows(Kind.REDUCE)
        self.members = {
            t: tuple(sorted(s.worker[joins[s.source[joins] == t]].tolist()))
            for t in np.unique(s.source[joins]).tolist()
        }
        absent = {(int(s.worker[row]), int(s.source[row])) for row in taken}
        self.still_to_join = {t: {w for w in who if (w, t) not in absent} for t, who in self.members.items()}
        self.draws: dict[tuple[int, str], int] = {}
        self.samples = dict(zip(s.source[reduces].tolist(), s.samples[reduces].tolist(), strict=True))
        self.arrived_s = dict(zip(s.source[reduces].tolist(), s.end_s[reduces].tolist(), strict=True))  # of pushes
        collective = s.source[reduces[s.worker[reduces] < 0]]
        self.last = int(collective.max()) if len(collective) else -1
        self.pulls = [
            deque(s.source[np.flatnonzero((s.kind == Kind.COPY) & (s.worker == w))].tolist()) for w in range(s.n)
        ]
        self.stepped = set(s.source[s.rows(Kind.STEP)].tolist())
        self.handles: dict[int, cmd.Handle] = {}
        self.kinds: dict[int, str] = {}
        self.gathered: dict[int, dict[int, tuple[float, ...]]] = {}
        self.sent: dict[int, int] = {}
        self.replied: set[int] = set()
        self.updates = [0] * (s.n + 1)
        self.pending: list[Any] = [None] * len(self.programs)

    def handle(self, transfer: int, kind: str) -> cmd.Handle:
        self.kinds[transfer] = kind
        return self.handles.setdefault(transfer, cmd.Handle(transfer))

    def take(self, rank: int, kind: Kind, source: int | None = None) -> int:
        """The next row of this worker, which must be of that kind."""
        row = self.rows[rank].popleft()
        assert self.s.kind[row] == kind, (
            f"rank {rank} makes a {kind.name}, the log has a {Kind(int(self.s.kind[row])).name} in row {row}"
        )
        if source is not None:
            assert self.s.source[row] == source
        return row

    def run(self) -> None:
        """Round and round until all have ended; a round in which nothing happens is a hang."""
        alive = set(range(len(self.programs)))
        answers: list[Any] = [None] * len(self.programs)
        waiting: dict[int, Any] = {}
        while alive & set(range(self.n)):
            moved = False
            for rank in sorted(alive):
                while True:
                    if rank in waiting:
                        answer = self.answer(rank, waiting[rank])
                        if answer is BLOCKED:
                            break
                        del waiting[rank]
                        answers[rank] = answer
                    moved = True
                    try:
                        waiting[rank] = self.programs[rank].send(answers[rank])
                    except StopIteration:
                        alive.discard(rank)
                        break
            assert moved, f"hangs: {waiting}"
        assert not any(self.rows[: self.n]) and not any(self.polls)
        assert not any(self.outcomes[: self.n])
        if self.algorithm.has_server:
            assert not self.rows[self.n] and not self.outcomes[self.n]

    def answer(self, rank: int, command: Any) -> Any:
        s = self.s
        match command:
            case cmd.Compute(samples, _):
                left = self.rows[rank]
                if not any(s.kind[row] == Kind.GRAD for row in left):
                    return cmd.Computed(0, 0.0)
                row = self.take(rank, Kind.GRAD)
                assert s.samples[row] <= samples
                return cmd.Computed(int(s.samples[row]), float(s.end_s[row] - s.start_s[row]))
            case cmd.AllReduce(what, weight, gather):
                row = self.take(rank, Kind.JOIN)
                assert s.scale[row] == weight and (s.state[row] >= 0) == (what == "parameters")
                return self.join(rank, int(s.source[row]), "all-reduce", gather)
            case cmd.Push():
                row = self.take(rank, Kind.JOIN)
                self.sent[int(s.source[row])] = rank
                return self.join(rank, int(s.source[row]), "push", ())
            case cmd.Pull():
                transfer = int(self.pulls[rank].popleft())
                self.sent[transfer] = rank
                return self.handle(transfer, "pull")
            case cmd.Exchange(_):
                return self.handle(int(s.source[self.take(rank, Kind.JOIN)]), "exchange")
            case cmd.GroupReduce():
                transfer = int(self.outcomes[rank].popleft())
                if transfer < 0:
                    return None
                assert self.s.source[self.take(rank, Kind.JOIN)] == transfer
                return self.join(rank, transfer, "group", ())
            case cmd.Over():
                return bool(self.outcomes[rank].popleft())
            case cmd.Poll():
                return bool(self.polls[rank].popleft())
            case cmd.Wait(handle, _):
                return self.waited(rank, handle.id)
            case cmd.Apply(handle, _, divisor):
                return self.applied(rank, handle.id, divisor)
            case cmd.Step():
                self.take(rank, Kind.STEP, -1)
                return None
            case cmd.Predict(handle):
                if self.algorithm.point_rule(1)[0] != PointRule.CURRENT:
                    self.take(rank, Kind.PREDICT, handle.id)
                return None
            case cmd.Merge(handle, weight, anchored):
                row = self.take(rank, Kind.MIX, handle.id)
                assert s.scale[row] == weight and (s.slot[row] >= 0) == (anchored or command.shift)
                return None
            case cmd.Count() | cmd.Now():
                value = self.outcomes[rank].popleft()
                return int(value) if isinstance(command, cmd.Count) else value
            case cmd.Missed():
                transfer = int(self.outcomes[rank].popleft())
                return None if transfer < 0 else self.handle(transfer, "all-reduce")
            case cmd.Draw(purpose, shared):
                index = self.draws[rank, purpose] = self.draws.get((rank, purpose), -1) + 1
                return uniform(s.header.seed, purpose, "" if shared else s.header.workers[rank], index)
            case cmd.Receive():
                if not self.outcomes[rank]:
                    return BLOCKED
                recorded = int(self.outcomes[rank][0])
                transfer = recorded if recorded >= 0 else -1 - recorded
                if transfer not in self.sent:
                    return BLOCKED
                self.outcomes[rank].popleft()
                kind: Any = self.kinds[transfer]
                samples = self.samples[transfer] if kind == "push" else 0
                at_s = self.arrived_s.get(transfer, 0.0)
                return cmd.Message(kind, self.sent[transfer], samples, self.handles[transfer], recorded < 0, at_s)
            case cmd.Discard(reason, None):
                row = self.take(rank, Kind.DISCARD)
                assert DiscardReason(int(s.code[row])).name.lower() == reason
                return int(s.samples[row])
            case cmd.Discard(reason, handle):
                row = self.take(rank, Kind.DISCARD, handle.id)
                assert DiscardReason(int(s.code[row])).name.lower() == reason
                return int(s.samples[row])
            case cmd.Reply(message):
                self.replied.add(message.handle.id)
                return None
        raise AssertionError(f"{command!r} has no answer here")

    def join(self, rank: int, transfer: int, kind: str, gather: tuple[float, ...]) -> cmd.Handle:
        self.still_to_join[transfer].remove(rank)
        if gather:
            self.gathered.setdefault(transfer, {})[rank] = gather
        return self.handle(transfer, kind)

    def waited(self, rank: int, transfer: int) -> Any:
        goes_on = any(self.s.kind[row] in (Kind.GRAD, Kind.JOIN) for row in self.rows[rank])
        if self.kinds[transfer] == "group":
            if self.still_to_join[transfer]:
                return BLOCKED
            return cmd.Reduced(0, {}, self.members[transfer], not goes_on)
        if self.kinds[transfer] == "exchange":
            return cmd.Reduced(0, {}, self.members[transfer], not goes_on)
        if self.kinds[transfer] == "pull":
            if transfer not in self.replied:
                return BLOCKED
            self.take(rank, Kind.COPY, transfer)
            return cmd.Reduced(0, {}, (), not self.pulls[rank])
        if self.still_to_join[transfer]:
            return BLOCKED
        if self.algorithm.name in (
            "streaming-diloco",
            "dasgd",
        ):  # the last to be launched may not be the first that says stop
            return cmd.Reduced(self.samples[transfer], {}, self.members[transfer], not goes_on)
        return cmd.Reduced(
            self.samples[transfer], self.gathered.get(transfer, {}), self.members[transfer], transfer == self.last
        )

    def applied(self, rank: int, transfer: int, divisor: int) -> int:
        """An update without samples leaves no row, nor does one in no time that another replica has made before."""
        if self.samples[transfer]:
            self.updates[rank] += 1
            head = self.rows[rank][0] if self.rows[rank] else -1
            if head >= 0 and self.s.kind[head] == Kind.STEP and self.s.source[head] == transfer:
                assert self.s.first[self.take(rank, Kind.STEP)] == (divisor or self.samples[transfer])
            else:
                assert transfer in self.stepped
        return self.updates[rank]


def again(c: Cluster, name: str, options: dict[str, Any], **budget: int) -> Schedule:
    s = simulate(c, name, options=options, **budget).schedule
    Replay(s, c, name, options).run()
    return s


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "label", ["unequal", "one", "five", "jitter", "events", "update times", "free network", "epochs", "tiny data"]
)
def test_outcomes_are_enough(label: str, name: str) -> None:
    again(CLUSTERS[label], name, {}, updates=15)
    again(CLUSTERS[label], name, {}, max_samples=83)


@pytest.mark.parametrize(("name", "options"), [(n, o) for n in NAMES for o in OPTIONS[n]], ids=str)
def test_outcomes_are_enough_for_every_option(name: str, options: dict[str, Any]) -> None:
    again(CLUSTERS["jitter"], name, options, updates=15)
    again(CLUSTERS["update times"], name, options, max_samples=101)


def test_every_replica_steps_where_updates_take_time() -> None:
    """With update_s every worker's own STEP is in the log, and each is met by its program."""
    c = cluster([4.0, 2.0, 1.0], gradient_bytes=4.0, bandwidths=[2.0] * 3, global_batch_samples=12, update_s=0.25)
    s = again(c, "s-sgd", {}, updates=5)
    assert len(s.rows(Kind.STEP)) == 15


def test_another_outcome_is_another_run() -> None:
    """The check can fail: one poll turned around and the programs no longer do what the log says."""
    c = CLUSTERS["jitter"]
    s = simulate(c, "abs-sgd", updates=15).schedule
    polls = [bytearray(p) for p in s.polls]
    polls[0][3] ^= 1
    with pytest.raises((AssertionError, IndexError)):
        Replay(dataclasses.replace(s, polls=tuple(bytes(p) for p in polls)), c, "abs-sgd", {}).run()


def test_what_is_recorded() -> None:
    """Polls as one byte each, clock readings and counts as numbers, messages of the server as transfers."""
    c = CLUSTERS["unequal"]
    s = simulate(c, "abs-sgd", updates=15).schedule
    grads = [int(np.count_nonzero((s.kind == Kind.GRAD) & (s.worker == w))) for w in range(s.n)]
    assert [len(p) for p in s.polls[: s.n]] == [g - 1 for g in grads]  # one at every boundary but the first
    assert not any(len(o) for o in s.outcomes)
    timed = simulate(c, "abs-sgd", options={"trigger": "period_s", "period_s": 2.0}, updates=5).schedule
    assert all(list(o) == sorted(o) and len(o) > 5 for o in timed.outcomes[: s.n])
    served = simulate(c, "asgd", updates=15).schedule
    messages = [int(x) for x in served.outcomes[served.n]]
    transfers = [x if x >= 0 else -1 - x for x in messages]
    reduces = served.rows(Kind.REDUCE)
    assert sorted(transfers) == sorted(served.source[reduces].tolist())
    assert messages[-1] < 0 <= messages[0]
    gradients = set(served.source[reduces[served.code[reduces] == Payload.GRADIENT]].tolist())
    assert gradients == set(served.source[served.rows(Kind.JOIN)].tolist())
