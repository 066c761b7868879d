"""From a Schedule's log to what every rank has to do, in which order, so that no rank waits for another for ever.

A transfer is launched where its last contribution is joined and waited for where its result is first used, so that what
overlapped in the log overlaps on the ranks. A state is made on every rank whose rows name it. All ranks follow the one total
order of the log, so that what they have done up to a row is a state of the whole run, wherever each of them is at the moment;
`verify` then plays the orders against each other, without computing anything, before a process is started.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from abs_sgd.replay.operations import Adopt, Arrive, Gradient, Launch, Make, Operation, Orders, Transfer, made_from
from abs_sgd.replay.plan import Mix, Point, Step, make_plan
from abs_sgd.replay.verify import verify
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind, Payload, Schedule


@dataclass
class _Wire:
    """What is known about a transfer while the log is walked."""

    parts: list[tuple[int, int, float]] = field(default_factory=list)
    gradients: bool = False
    receivers: set[int] = field(default_factory=set)
    joined: int = -1  # row of the last contribution
    done: int = -1  # row of the REDUCE


class _Builder:
    def __init__(self, schedule: Schedule) -> None:
        self.s = schedule
        self.ranks = schedule.n + schedule.header.server
        self.keyed: list[list[tuple[tuple[int, int], Operation]]] = [[] for _ in range(self.ranks)]
        self.held: list[set[int]] = [{0} for _ in range(self.ranks)]
        self.arrived: list[set[int]] = [set() for _ in range(self.ranks)]
        self.adopted: dict[tuple[int, int], int] = {}
        self.continued: set[tuple[int, int]] = set()  # (rank, state) that something is made from
        self.actions: dict[int, Step | Mix | Point] = {}
        for action in make_plan(schedule, fused=False).actions:
            if isinstance(action, Step | Mix | Point):
                self.actions[action.state] = action
        self.wires: dict[int, _Wire] = defaultdict(_Wire)
        self.owner: dict[int, int] = {}  # of accumulators
        self.maker: dict[int, int] = {}  # first row that makes a state
        self._index()

    def _index(self) -> None:
        s = self.s
        grads = s.rows(Kind.GRAD)
        self.owner = dict(zip(s.slot[grads].tolist(), s.worker[grads].tolist(), strict=True))
        for row in np.flatnonzero(np.isin(s.kind, (Kind.STEP, Kind.MIX, Kind.PREDICT))).tolist():
            self.maker.setdefault(int(s.state[row]), row)
        for row in s.rows(Kind.JOIN).tolist():
            wire = self.wires[int(s.source[row])]
            wire.joined = row
            slot, state = int(s.slot[row]), int(s.state[row])
            if slot >= 0:
                wire.gradients = True
            if slot in self.owner or (slot < 0 and state >= 0):
                wire.parts.append((int(s.worker[row]), slot if slot >= 0 else state, float(s.scale[row])))
        for row in s.rows(Kind.REDUCE).tolist():
            wire = self.wires[int(s.source[row])]
            wire.done, wire.gradients = row, int(s.code[row]) == Payload.GRADIENT
        for row in s.rows(Kind.COPY).tolist():
            self._answer(row)

    def _answer(self, row: int) -> None:
        """A pull: its answer is not joined by anybody, the server sends the state that is copied when it replies."""
        s = self.s
        wire, state = self.wires[int(s.source[row])], int(s.state[row])
        if wire.parts or wire.gradients:
            return
        if not s.header.server:
            raise ScheduleError(f"row {row}: copies parameters that nobody offers")
        wire.parts.append((s.n, state, 1.0))
        if wire.done >= 0:
            replied = int(np.searchsorted(s.end_s, s.start_s[wire.done], "right")) - 1
            wire.joined = min(max(replied, self.maker.get(state, -1)), wire.done)

    def build(self) -> Orders:
        s = self.s
        answers = self._answers_by_row()
        columns = (s.kind, s.worker, s.state, s.parent, s.source, s.slot)
        for row, (kind, rank, state, parent, source, slot) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if kind == Kind.GRAD:
                self._hold(rank, state, row)
                if s.samples[row] > 0:
                    due_s = float(s.end_s[row])
                    self._add(rank, row, Gradient(slot, state, int(s.first[row]), int(s.samples[row]), due_s))
            elif (kind == Kind.JOIN and slot < 0 and state >= 0) or kind in (Kind.STEP, Kind.MIX):
                self._hold(rank, state, row)
            elif kind == Kind.PREDICT:
                self._hold(rank, parent, row)
                self._hold(rank, state, row)
            elif kind == Kind.COPY:
                self._copy(rank, state, source, row)
            for sent in answers.get(row, ()):
                self._hold(s.n, sent, row)
        self._last_steps()
        return self._finish()

    def _last_steps(self) -> None:
        """The replicas that leave no row for a step still make the last one they have a part in."""
        s = self.s
        steps = s.rows(Kind.STEP)
        wanted = set(range(s.n))
        for row in steps[(s.source[steps] >= 0) & (s.worker[steps] < s.n)][::-1].tolist():
            for rank in wanted & {part[0] for part in self.wires[int(s.source[row])].parts}:
                self._hold(rank, int(s.state[row]), len(s) - 1)
                wanted.discard(rank)
            if not wanted:
                return

    def _answers_by_row(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for wire in self.wires.values():
            if not wire.gradients and wire.parts and wire.parts[0][0] == self.s.n and wire.joined >= 0:
                found[wire.joined].append(wire.parts[0][1])
        return found

    def _add(self, rank: int, row: int, operation: Operation, after: int = 0) -> None:
        self.keyed[rank].append(((row, after), operation))

    def _hold(self, rank: int, state: int, row: int) -> None:
        """Make `state` on `rank`, and before it what it is made from."""
        wanted = [state]
        while wanted:
            state = wanted[-1]
            if state in self.held[rank]:
                wanted.pop()
                continue
            action = self.actions.get(state)
            if action is None:
                raise ScheduleError(f"row {row}: {self._name(rank)} needs state {state}, which nothing makes")
            missing = [x for x in made_from(action) if x not in self.held[rank]]
            if missing:
                if len(wanted) > len(self.actions):
                    raise ScheduleError(f"row {row}: state {state} is made from itself")
                wanted.extend(missing)
                continue
            self._make(rank, action, row)
            wanted.pop()

    def _make(self, rank: int, action: Step | Mix | Point, row: int) -> None:
        source = -1 if isinstance(action, Point) else int(self.s.source[self.maker[action.state]])
        due_s = float(self.s.end_s[row])
        if source >= 0:
            self._await(rank, source, row)
        own = (action.slot,) if isinstance(action, Point) and action.own else ()
        if isinstance(action, Step) and source < 0:
            own = tuple(slot for slot, _ in action.parts)  # type: ignore[assignment]
        if any(slot >= 0 and self.owner.get(slot) != rank for slot in own):
            raise ScheduleError(
                f"row {row}: {self._name(rank)} needs state {action.state}, made from a gradient that another worker keeps"
            )
        self._add(rank, row, Make(action, source, due_s))
        self.continued.update((rank, x) for x in made_from(action))
        self.held[rank].add(action.state)

    def _copy(self, rank: int, state: int, source: int, row: int) -> None:
        if len({part[0] for part in self.wires[source].parts}) != 1:
            raise ScheduleError(f"row {row}: parameters are copied from a transfer that brings more than one state")
        self._await(rank, source, row)
        if state not in self.held[rank]:
            self.held[rank].add(state)
            self.adopted[rank, state] = source
            self._add(rank, row, Adopt(state, source, float(self.s.end_s[row])))

    def _await(self, rank: int, source: int, row: int) -> None:
        if source in self.arrived[rank]:
            return
        wire = self.wires[source]
        self.arrived[rank].add(source)
        wire.receivers.add(rank)
        due_s = float(self.s.end_s[wire.done]) if wire.done >= 0 else 0.0
        self._add(rank, row, Arrive(source, due_s))

    def _finish(self) -> Orders:
        transfers: dict[int, Transfer] = {}
        for source, wire in self.wires.items():
            if not wire.receivers:
                continue  # in flight at the end, or never used
            wire.parts.sort(key=lambda part: part[0])
            senders = {part[0] for part in wire.parts}
            members = tuple(sorted(senders | wire.receivers))
            whole = any((rank, state) in self.continued for (rank, state), by in self.adopted.items() if by == source)
            transfers[source] = Transfer(members, tuple(wire.parts), wire.gradients, whole)
            if wire.done < 0:
                continue  # never complete: whoever waits for it waits for ever
            joined_s = float(self.s.end_s[wire.joined]) if wire.joined >= 0 else 0.0
            for rank in members:
                self._add(rank, wire.joined, Launch(source, joined_s), after=1)
                if rank not in wire.receivers:
                    self._add(rank, wire.done, Arrive(source, float(self.s.end_s[wire.done])))
        for keyed in self.keyed:
            keyed.sort(key=lambda pair: pair[0])  # stable: what was added first stays first
        operations = tuple(tuple(op for _, op in keyed) for keyed in self.keyed)
        rows = tuple(tuple(row for (row, _), _ in keyed) for keyed in self.keyed)
        return Orders(operations, transfers, tuple(_last_state(mine) for mine in operations), rows)

    def _name(self, rank: int) -> str:
        return self.s.worker_names([rank])[0]


def _last_state(operations: tuple[Operation, ...]) -> int:
    for operation in reversed(operations):
        if isinstance(operation, Adopt):
            return operation.state
        if isinstance(operation, Make) and not isinstance(operation.action, Point):
            return operation.action.state
    return 0


def make_orders(schedule: Schedule) -> Orders:
    """What every rank does. Raises ScheduleError where a rank cannot come by what its rows name, or where the ranks
    would wait for each other for ever."""
    orders = _Builder(schedule).build()
    verify(orders, schedule.worker_names(range(orders.ranks)))
    return orders
