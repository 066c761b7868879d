"""From a Schedule's log to what every rank has to do, in which order, so that no rank waits for another for ever.

    Gradient   a gradient sum at a state over a range of samples, into an accumulator
    Launch     a transfer starts: all its members launch it, in the same order on all of them; nobody waits
    Arrive     a transfer is waited for
    Adopt      a state comes from a transfer
    Make       a step, an average or a predicted point, from what the rank holds

A transfer is launched where its last contribution is joined and waited for where its result is first used, so that what
overlapped in the log overlaps on the ranks. A state is made on every rank whose rows name it. All ranks follow the one total
order of the log; `verify` then plays the orders against each other, without computing anything, before a process is started.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from abs_sgd.replay.plan import Mix, Point, Step, make_plan
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind, Payload, Schedule


@dataclass(frozen=True, slots=True)
class Gradient:
    """Gradient sum at `state` over [first, first+count), added to `slot`."""

    slot: int
    state: int
    first: int
    count: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Transfer `transfer` starts."""

    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Arrive:
    """Wait for `transfer`."""

    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Adopt:
    """`state` is what `transfer` brought."""

    state: int
    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Make:
    """`action` is made from what the rank holds; `transfer` -1: from its own accumulator or states alone."""

    action: Step | Mix | Point
    transfer: int
    due_s: float


Operation = Gradient | Launch | Arrive | Adopt | Make


@dataclass(frozen=True, slots=True)
class Transfer:
    """`parts`: (rank, accumulator or state, weight) in rank order. `whole`: a state with its optimizer's, not parameters alone."""

    members: tuple[int, ...]
    parts: tuple[tuple[int, int, float], ...]
    gradients: bool
    whole: bool

    @property
    def direct(self) -> tuple[int, int] | None:
        """(sender, receiver) where one rank sends to one other; None: a collective."""
        senders = {rank for rank, _, _ in self.parts}
        receivers = set(self.members) - senders
        return (senders.pop(), receivers.pop()) if len(senders) == len(receivers) == 1 else None


@dataclass(frozen=True)
class Orders:
    """Operations of every rank, the transfers by id, and the state each rank ends with."""

    operations: tuple[tuple[Operation, ...], ...]
    transfers: dict[int, Transfer]
    final: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Workers, and the server where there is one."""
        return len(self.operations)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Members of the collectives, every set once, in an order that is the same everywhere."""
        return sorted({t.members for t in self.transfers.values() if t.direct is None})


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
            missing = [x for x in _made_from(action) if x not in self.held[rank]]
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
        own = (action.slot,) if isinstance(action, Point) else ()
        if isinstance(action, Step) and source < 0:
            own = tuple(slot for slot, _ in action.parts)  # type: ignore[assignment]
        if any(slot >= 0 and self.owner.get(slot) != rank for slot in own):
            raise ScheduleError(
                f"row {row}: {self._name(rank)} needs state {action.state}, made from a gradient that another worker keeps"
            )
        self._add(rank, row, Make(action, source, due_s))
        self.continued.update((rank, x) for x in _made_from(action))
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
        return Orders(operations, transfers, tuple(_last_state(mine) for mine in operations))

    def _name(self, rank: int) -> str:
        return self.s.worker_names([rank])[0]


def _made_from(action: Step | Mix | Point) -> tuple[int, ...]:
    if isinstance(action, Mix) and action.anchor >= 0:
        return action.parent, action.anchor
    return (action.parent,)


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


def verify(orders: Orders, names: list[str]) -> None:
    """Play all orders against each other: a wait ends when every member has launched. Raises ScheduleError."""
    at = [0] * orders.ranks
    launched: dict[int, set[int]] = defaultdict(set)
    ready: list[dict[str, set[int]]] = [{"states": {0}, "slots": set()} for _ in range(orders.ranks)]
    moved = True
    while moved:
        moved = False
        for rank, operations in enumerate(orders.operations):
            while at[rank] < len(operations):
                operation = operations[at[rank]]
                if isinstance(operation, Arrive):
                    wire = orders.transfers[operation.transfer]
                    if launched[operation.transfer] != set(wire.members):
                        break
                _check_ready(operation, orders, rank, ready[rank], names)
                if isinstance(operation, Launch):
                    launched[operation.transfer].add(rank)
                at[rank] += 1
                moved = True
    stuck = []
    for rank, operations in enumerate(orders.operations):
        if at[rank] < len(operations):
            waited: Arrive = operations[at[rank]]  # type: ignore[assignment]
            members = orders.transfers[waited.transfer].members
            missing = [names[m] for m in members if m not in launched[waited.transfer]]
            stuck.append(
                f"{names[rank]} waits for transfer {waited.transfer}, which {', '.join(missing)} cannot join before"
            )
    if stuck:
        raise ScheduleError("this schedule cannot be executed: " + "; ".join(stuck))
    _same_order(orders)  # afterwards: a rank that never comes to a launch is told as what it is, a wait without end


def _check_ready(operation: Operation, orders: Orders, rank: int, ready: dict[str, set[int]], names: list[str]) -> None:
    """What an operation reads is there, and what it makes is noted."""
    needs: set[int] = set()
    match operation:
        case Gradient():
            needs = {operation.state}
            ready["slots"].add(operation.slot)
        case Make():
            needs = set(_made_from(operation.action))
            ready["states"].add(operation.action.state)
        case Adopt():
            ready["states"].add(operation.state)
        case Launch():
            wire = orders.transfers[operation.transfer]
            own = {identity for member, identity, _ in wire.parts if member == rank}
            missing = own - ready["slots" if wire.gradients else "states"]
            if missing:
                raise ScheduleError(
                    f"this schedule cannot be executed: transfer {operation.transfer} starts before {names[rank]} has "
                    f"{'the gradient' if wire.gradients else 'the state'} {min(missing)} it contributes"
                )
    if needs - ready["states"]:
        raise ScheduleError(
            f"this schedule cannot be executed: {names[rank]} needs state {min(needs)} before it is made"
        )


def _same_order(orders: Orders) -> None:
    """Members of one group launch its transfers in one order, or two collectives would be taken for each other."""
    seen: dict[tuple[int, ...], list[int]] = {}
    for rank, operations in enumerate(orders.operations):
        mine: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for operation in operations:
            if isinstance(operation, Launch):
                wire = orders.transfers[operation.transfer]
                if wire.direct is None:
                    mine[wire.members].append(operation.transfer)
        for members, order in mine.items():
            if seen.setdefault(members, order) != order:
                raise ScheduleError(
                    f"this schedule cannot be executed: rank {rank} launches collectives in another order"
                )
