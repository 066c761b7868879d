"""From a Schedule's log to what has to be computed: every version once, every gradient sum in as few passes as allowed.

    Pass    a gradient sum at one state over ranges of samples, into an accumulator
    Step    parent -> state by a weighted sum of accumulators
    Mix     parent -> state by averaging states
    Point   parent -> state, a predicted compute point

Ids are the Schedule's. Replicas that share a state's id are computed once; states and accumulators are dropped after
their last use. Fusing (for sample-separable models): accumulators of several workers that are taken at one state and
go into one step with equal weight, and nowhere else, become one pass; passes of one accumulator at one state always
do. Otherwise passes are made one by one in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from abs_sgd.update import Outer
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind, MixRule, PointRule, Schedule, StepRule

Range = tuple[int, int]  # first sample number, count


@dataclass(frozen=True, slots=True)
class Pass:
    """Gradient sum at `state` over `ranges`, added to accumulator `slot`; `worker`'s buffers are used."""

    slot: int
    state: int
    worker: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """`parts`: (accumulator, weight) in rank order. `shared`: by a transfer, not a worker's own local step. `compensation`: λ, of which
    `taken_at` is the state the gradient was taken at; -1 and 0 where a step is plain."""

    state: int
    parent: int
    parts: tuple[tuple[int, float], ...]
    samples: int
    divisor: int
    scale: float
    time_s: float
    shared: bool
    taken_at: int = -1
    compensation: float = 0.0
    rule: StepRule = StepRule.PLAIN


@dataclass(frozen=True, slots=True)
class Mix:
    """`parts`: (state, weight) in rank order; `anchor` -1: none. `heard`: samples of all steps before it, where only some average and a
    replica's own count would miss the others'; -1 where all do. `outer`: a step of the outer optimizer on a fragment.
    `shift`: the replica moves by how far the average is from the anchor. `beside`: the replicas of all others at that time, where only some
    average: what training has come to is the mean of all."""

    state: int
    parent: int
    parts: tuple[tuple[int, float], ...]
    anchor: int
    weight: float
    reset: bool
    time_s: float
    heard: int = -1
    outer: Outer | None = None
    shift: bool = False
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """`slot`: the worker's own accumulator, -1 where it has no samples; `rule`: PointRule; `amount`: kappa, the own
    share or the damping. `before`: the worker's point of the synchronization before, where damped prediction needs it, else -1."""

    state: int
    parent: int
    slot: int
    rule: int
    amount: float
    before: int = -1

    @property
    def own(self) -> bool:
        """Whether it hangs on the worker's own gradient; if not, every replica predicts the same one and they share its id."""
        return self.rule not in (PointRule.CURRENT, PointRule.LOOK_AHEAD)


Action = Pass | Step | Mix | Point


@dataclass(frozen=True)
class Plan:
    """Actions in order, and what may be dropped after each."""

    actions: list[Action] = field(default_factory=list)
    drop_states: list[tuple[int, ...]] = field(default_factory=list)
    drop_slots: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """Number of forward/backward passes."""
        return sum(isinstance(a, Pass) for a in self.actions)


_Piece = tuple[int, int, int, int]  # state, worker, first, count
_Share = tuple[int, int, float]  # worker, accumulator or state, weight


class _Builder:
    """Walks the log once. Gradients are emitted at their row, or when first needed if fused."""

    def __init__(self, schedule: Schedule, fused: bool) -> None:
        self.schedule = schedule
        self.fused = fused
        self.actions: list[Action] = []
        self.made = {0}
        self.pieces: dict[int, list[_Piece]] = defaultdict(list)  # by slot
        self.joined: dict[int, list[_Share]] = defaultdict(list)  # accumulators by transfer
        self.offered: dict[int, list[_Share]] = defaultdict(list)  # states by transfer
        self.taken: set[int] = set()  # slots already computed
        self.sums: dict[int, tuple[tuple[int, float], ...]] = {}  # transfer -> accumulators that hold its sum
        self.points: dict[int, tuple[int, int]] = {}  # by worker: transfer and state of its last damped prediction
        self.replica = dict.fromkeys(range(schedule.n + 1), 0)  # worker -> its state
        self.alone: set[int] = set()  # slots that something else than one step reads
        self._collect()

    def _collect(self) -> None:
        s = self.schedule
        rows = s.rows(Kind.GRAD)
        columns = (s.slot, s.state, s.worker, s.first, s.samples)
        for slot, state, worker, first, count in zip(*(c[rows].tolist() for c in columns), strict=True):
            if count > 0:
                self.pieces[slot].append((state, worker, first, count))
        rows = s.rows(Kind.JOIN)
        uses: dict[int, int] = defaultdict(int)
        joins = (s.source, s.worker, s.slot, s.state, s.scale)
        for source, worker, slot, state, weight in zip(*(c[rows].tolist() for c in joins), strict=True):
            if slot >= 0:
                self.joined[source].append((worker, slot, weight))
                uses[slot] += 1
            elif state >= 0:
                self.offered[source].append((worker, state, weight))
        for members in (*self.joined.values(), *self.offered.values()):
            members.sort(key=lambda m: m[0])
        self.alone = {slot for slot, count in uses.items() if count > 1}
        self.alone.update(s.slot[s.rows(Kind.PREDICT)].tolist())

    def build(self) -> Plan:
        s = self.schedule
        rows = np.flatnonzero(np.isin(s.kind, (Kind.GRAD, Kind.STEP, Kind.MIX, Kind.PREDICT)))
        stepped = 0
        columns = (s.kind, s.worker, s.end_s, s.state, s.parent, s.source, s.slot, s.samples, s.first, s.scale, s.code)
        for kind, worker, end_s, state, parent, source, slot, samples, first, scale, code in zip(
            *(c[rows].tolist() for c in columns), strict=True
        ):
            if kind == Kind.GRAD:
                if not self.fused and samples > 0:
                    self._pass(slot, state, worker, ((first, samples),))
                    self.taken.add(slot)
                continue
            if kind != Kind.PREDICT:
                self.replica[worker] = state
            if state in self.made:
                continue
            self.made.add(state)
            stepped += samples if kind == Kind.STEP else 0
            if kind == Kind.STEP:
                parts = self._sums([(slot, 1.0)]) if source < 0 else self._transfer(source)
                step = Step(state, parent, parts, samples, first, scale, end_s, source >= 0)
                self.actions.append(step if code == StepRule.PLAIN else self._compensated(step, code))
            elif kind == Kind.MIX:
                offered = tuple((m[1], m[2]) for m in self.offered[source])
                outer = self._outer(first, scale) if code == MixRule.OUTER else None
                shift = code == MixRule.SHIFT
                heard = -1 if len(offered) == s.n and outer is None and not shift else stepped
                reset, beside = code == MixRule.RESET, self._beside(source)
                self.actions.append(Mix(state, parent, offered, slot, scale, reset, end_s, heard, outer, shift, beside))
            else:
                own = slot if slot in self.pieces else -1
                self._sums([(own, 1.0)])
                self.actions.append(Point(state, parent, own, code, scale, self._before(worker, source, state, code)))
        return _with_lifetimes(self.actions)

    def _compensated(self, step: Step, code: int) -> Step:
        """With the state its gradient was taken at. Raises ScheduleError where there is more than one."""
        points = {piece[0] for slot, _ in step.parts for piece in self.pieces[slot]}
        if len(points) != 1:
            raise ScheduleError(f"state {step.state}: a compensated step needs a gradient that was taken at one point")
        return replace(step, scale=1.0, taken_at=points.pop(), compensation=step.scale, rule=StepRule(code))

    def _beside(self, source: int) -> tuple[int, ...]:
        """The replicas of who is not in an average."""
        members = {member[0] for member in self.offered[source]}
        return tuple(self.replica[w] for w in range(self.schedule.n) if w not in members)

    def _before(self, worker: int, source: int, state: int, code: int) -> int:
        """The worker's last point, if it was predicted one synchronization ago."""
        if code != PointRule.DAMPED_PREDICTION:
            return -1
        last, self.points[worker] = self.points.get(worker), (source, state)
        return last[1] if last is not None and last[0] == source - 1 else -1

    def _outer(self, fragment: int, share: float) -> Outer:
        stated = self.schedule.header.outer
        return Outer(
            fragment=fragment,
            fragments=int(stated["fragments"]),
            learning_rate=stated["learning_rate"],
            momentum=stated["momentum"],
            share=share,
        )

    def _transfer(self, source: int) -> tuple[tuple[int, float], ...]:
        if source not in self.sums:
            self.sums[source] = self._sums([(slot, weight) for _, slot, weight in self.joined[source]])
        return self.sums[source]

    def _pass(self, slot: int, state: int, worker: int, ranges: tuple[Range, ...]) -> None:
        self.actions.append(Pass(slot, state, worker, ranges))

    def _sums(self, members: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
        """Make sure that the accumulators exist; returns those that hold the sum, merged where they may be."""
        members = [(slot, weight) for slot, weight in members if slot in self.pieces]
        leaders: dict[tuple[int, float], int] = {}
        kept: list[tuple[int, float]] = []
        fresh: dict[tuple[int, int], list[Range]] = {}
        owner: dict[int, int] = {}
        for slot, weight in members:
            leader = slot
            if slot not in self.taken:
                states = {piece[0] for piece in self.pieces[slot]}
                if slot not in self.alone and len(states) == 1:
                    leader = leaders.setdefault((next(iter(states)), weight), slot)
                for state, worker, first, count in self.pieces[slot]:
                    fresh.setdefault((leader, state), []).append((first, count))
                    owner.setdefault(leader, worker)
                self.taken.add(slot)
            if leader == slot:
                kept.append((slot, weight))
        for (leader, state), ranges in fresh.items():
            self._pass(leader, state, owner[leader], tuple(ranges))
        return tuple(kept)


def _with_lifetimes(actions: list[Action]) -> Plan:
    last_state: dict[int, int] = {}
    last_slot: dict[int, int] = {}
    for at, action in enumerate(actions):
        last_state[action.state] = at
        match action:
            case Pass():
                last_slot[action.slot] = at
            case Step():
                last_state[action.parent] = last_state[action.taken_at] = at
                last_slot.update((slot, at) for slot, _ in action.parts)
            case Mix():
                last_state[action.parent] = last_state[action.anchor] = at
                last_state.update((state, at) for state, _ in action.parts)
                last_state.update((state, at) for state in action.beside)
            case Point():
                last_state[action.parent] = last_state[action.before] = at
                last_slot[action.slot] = at
    return Plan(actions, _by_action(last_state, len(actions)), _by_action(last_slot, len(actions)))


def _by_action(last: dict[int, int], count: int) -> list[tuple[int, ...]]:
    drops: list[list[int]] = [[] for _ in range(count)]
    for identity, at in last.items():
        if identity >= 0:
            drops[at].append(identity)
    return [tuple(d) for d in drops]


def make_plan(schedule: Schedule, *, fused: bool) -> Plan:
    """What executing `schedule` takes. Raises ScheduleError for a rule that no executor knows."""
    return _Builder(schedule, fused).build()
