"""A Schedule's log as linear operations on variables, in order: what the joint engine runs.

Every state is two variables (parameters x and velocity v), gradients become variables only where their noise is needed twice. Operations
name variables; `allocate` gives each a row for as long as something still reads it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from hetsim.cluster.spec import Training
from hetsim.convergence.linear import (
    START,
    ZERO,
    Ahead,
    Average,
    Compensate,
    Evaluate,
    Forecast,
    Gradient,
    Local,
    Operation,
    Outer,
    Program,
    Read,
    Step,
    Weights,
    inputs,
)
from hetsim.convergence.progress import progress_of
from hetsim.convergence.rates import batch_rule, warm_up
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind, MixRule, PointRule, StepRule
from hetsim.schedule.table import Schedule

SWING_STEPS = 10.0  # of each replica, over which a loss that swings is averaged: the memory of momentum .9 [our choice]
GRAD, JOIN, STEP, MIX, PREDICT = (
    int(k) for k in (Kind.GRAD, Kind.JOIN, Kind.STEP, Kind.MIX, Kind.PREDICT)
)  # fast to compare


@dataclass
class _Slot:
    """An accumulator: samples per point it was taken at, and the variable that holds its mean gradient once it has one."""

    samples: dict[int, int] = field(default_factory=dict)
    variable: int | None = None

    @property
    def total(self) -> int:
        return sum(self.samples.values())


class Compiler:
    """One pass over a Schedule's rows."""

    def __init__(self, schedule: Schedule, training: Training) -> None:
        self.schedule, self.training = schedule, training
        self.plain_rate = training.lr_rule == "none"
        self.operations: list[Operation] = []
        self.variables = 2
        self.x: dict[int, int] = {0: START}
        self.v: dict[int, int] = {0: ZERO}
        self.applied: dict[int, int] = {}  # state -> variable of the gradient applied last, where a blend needs it
        self.before: dict[
            int, tuple[int, int]
        ] = {}  # worker -> transfer and own gradient of its last damped prediction
        self.outer: dict[int, tuple[int, int]] = {}  # state -> the outer optimizer's parameters and velocity behind it
        self.seen: dict[int, int] = {0: 0}  # state -> samples in the updates that led to it
        self.last_batch: dict[int, int] = {}
        self.slots: dict[int, _Slot] = defaultdict(_Slot)
        self.joined: dict[int, list[tuple[int, float]]] = defaultdict(list)  # transfer -> (slot or state, weight)
        self.members: dict[int, set[int]] = defaultdict(set)  # of averages
        self.replica: dict[int, int] = dict.fromkeys(range(schedule.n), 0)  # worker -> its state
        predicts = schedule.rows(Kind.PREDICT)
        blends = predicts[np.isin(schedule.code[predicts], (PointRule.BLEND, PointRule.DAMPED_PREDICTION))]
        self.blending = bool(len(blends))
        forecasts = predicts[schedule.code[predicts] != PointRule.LOOK_AHEAD]
        self.shared = set(schedule.slot[forecasts].tolist())
        steps = schedule.rows(Kind.STEP)
        applied = Counter(
            s
            for s, _ in set(zip(schedule.source[steps].tolist(), schedule.state[steps].tolist(), strict=True))
            if s >= 0
        )
        self.applied_often = {s for s, count in applied.items() if count > 1}

    def new(self) -> int:
        self.variables += 1
        return self.variables - 1

    def run(self) -> list[Operation]:
        s = self.schedule
        points = {row: i + 1 for i, row in enumerate(progress_of(s).rows.tolist())}
        columns = (s.kind, s.worker, s.state, s.parent, s.source, s.slot, s.samples, s.first, s.scale, s.code)
        for row, (kind, worker, state, parent, source, slot, samples, first, scale, code) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if kind == GRAD and samples > 0:
                at = self.slots[slot].samples
                at[self.x[state]] = at.get(self.x[state], 0) + samples
            elif kind == JOIN:
                if slot >= 0 and samples > 0:
                    self.joined[source].append((slot, scale))
                elif state >= 0:
                    self.joined[source].append((state, scale))
                    self.members[source].add(worker)
            elif kind == STEP and state not in self.x:
                self._step(state, parent, source, slot, samples, first, scale, code)
            elif kind == MIX and state not in self.x:
                if code == MixRule.OUTER:
                    self._outer(state, parent, source, first, scale)
                else:
                    self._mix(state, parent, source, slot, scale, code)
            elif kind == PREDICT and state not in self.x:
                self._predict(worker, state, parent, source, slot, scale, code)
            if kind in (STEP, MIX):
                self.replica[worker] = state
            if row in points:
                self.operations.append(Read(self._read(kind, state, source), points[row]))
        return self.operations

    def _read(self, kind: int, state: int, source: int) -> int:
        """The variable whose loss is a point of the curve: the state, or where only some average the mean of all replicas.

        Which of them average last makes the expected loss of that mean swing, at large rates from a half to the double within a round: the
        curve is its running mean, or a single dip would pass for a target met."""
        members = self.members.get(source, ()) if kind == MIX else ()
        if not 0 < len(members) < self.schedule.n:
            return self.x[state]
        points: dict[int, float] = defaultdict(float)
        for worker in range(self.schedule.n):  # who is in it has the average, or will take it now
            points[self.x[state if worker in members else self.replica[worker]]] += 1.0 / self.schedule.n
        self.operations.append(Average(made := self.new(), tuple(points.items())))
        return made

    # ---- gradients -------------------------------------------------------------------------------------------------------

    def _mean(self, slots: list[tuple[int, float]], divisor: float) -> Gradient:
        """Σ weight·sum of the slots / divisor, lazily: through the points where the noise is used only here."""
        points: dict[int, float] = defaultdict(float)
        gradients: list[tuple[int, float]] = []
        noise = 0.0
        for number, weight in slots:
            slot = self.slots[number]
            if slot.variable is not None:
                gradients.append((slot.variable, weight * slot.total / divisor))
                continue
            for x, samples in slot.samples.items():
                points[x] += weight * samples / divisor
            noise += slot.total * (weight / divisor) ** 2
        return Gradient(tuple(points.items()), tuple(gradients), noise)

    def _materialise(self, number: int) -> None:
        slot = self.slots[number]
        if slot.variable is None and slot.total:
            gradient = self._mean([(number, 1.0)], slot.total)
            slot.variable = self.new()
            self.operations.append(Evaluate(slot.variable, gradient))

    # ---- one row each ----------------------------------------------------------------------------------------------------

    def _step(
        self, state: int, parent: int, source: int, slot: int, samples: int, divisor: int, scale: float, code: int
    ) -> None:
        slots = self.joined[source] if source >= 0 else [(slot, 1.0)]
        for number, _ in slots:
            if number in self.shared or source in self.applied_often:
                self._materialise(number)
        gradient = self._mean(slots, divisor if divisor > 0 else max(samples, 1))
        if code != StepRule.PLAIN:
            gradient, scale = self._compensated(slots, gradient, parent, scale, code), 1.0
        if self.training.nesterov or self.blending:  # the step, or a later forecast, uses this gradient's noise twice
            variable = self.new()
            self.operations.append(Evaluate(variable, gradient))
            gradient = Gradient(gradients=((variable, 1.0),))
            self.applied[state] = variable
        factor = self._factor(parent, samples if source >= 0 else None) * scale
        self.x[state], self.v[state] = self.new(), self.new()
        self.operations.append(Step(self.x[state], self.v[state], self.x[parent], self.v[parent], gradient, factor))
        self.seen[state], self.last_batch[state] = self.seen[parent] + samples, samples
        if parent in self.outer:
            self.outer[state] = self.outer[parent]

    def _compensated(
        self, slots: list[tuple[int, float]], gradient: Gradient, parent: int, strength: float, code: int
    ) -> Gradient:
        """The gradient with its first-order correction for the distance from where it was taken."""
        backups = {x for number, _ in slots for x in self.slots[number].samples}
        if len(backups) != 1:
            raise ScheduleError("a compensated step needs a gradient that was taken at one point")
        own, made = self.new(), self.new()
        self.operations.append(Evaluate(own, gradient))
        self.operations.append(Compensate(made, own, self.x[parent], backups.pop(), strength, StepRule(code)))
        return Gradient(gradients=((made, 1.0),))

    def _factor(self, parent: int, batch: int | None) -> float:
        """Warm-up by the samples before, and the batch rule for synchronized batches (None: a local step, to which no rule applies)."""
        rule = 1.0 if batch is None or self.plain_rate else float(batch_rule(np.array([batch]), self.training)[0])
        seen = np.array([self.seen[parent]]) if self.training.warmup_updates else None
        return rule if seen is None else rule * float(warm_up(seen, self.training)[0])

    def _mix(self, state: int, parent: int, source: int, anchor: int, weight: float, code: int) -> None:
        """(1 - weight)·own + weight·average. Weights that do not sum to 1: the rest stays on the anchor, or without one they are scaled.

        Shifted: own + weight·(average - anchor), weights scaled."""
        joined = self.joined[source]
        total = sum(w for _, w in joined)
        if (anchor < 0 or code == MixRule.SHIFT) and total <= 0.0:  # nobody had samples left: nothing to average
            joined, total, weight = [], 1.0, 0.0
        shift = code == MixRule.SHIFT
        share = weight if anchor >= 0 and not shift else weight / total
        points: dict[int, float] = defaultdict(float)
        for member, w in joined:
            points[self.x[member]] += share * w
        if anchor >= 0:
            points[self.x[anchor]] += -share * total if shift else weight * (1.0 - total)
        points[self.x[parent]] += 1.0 if shift else 1.0 - weight
        kept = tuple((x, w) for x, w in points.items() if abs(w) > 1e-15)
        same = self._averages.get((source, kept)) if weight == 1.0 else None
        if same is None:
            same = self._averages[source, kept] = self.new()
            self.operations.append(Average(same, kept))
        self.x[state] = same
        self.v[state] = ZERO if code == MixRule.RESET else self.v[parent]
        self.seen[state] = self.seen[parent]

    def _outer(self, state: int, parent: int, source: int, fragment: int, share: float) -> None:
        """A step of the outer optimizer on one fragment, then the replica mixed with what it has made."""
        joined, stated = self.joined[source], self.schedule.header.outer
        total = sum(w for _, w in joined)
        x_out, g_out, u_out = self.new(), self.new(), self.new()
        g, u = self.outer.get(parent, (START, ZERO))
        points: dict[int, float] = defaultdict(float)
        for member, w in joined:
            points[self.x[member]] += w / total
        self.operations.append(
            Outer(
                x_out, g_out, u_out, self.x[parent], g, u, tuple(points.items()), fragment, int(stated["fragments"]),
                stated["learning_rate"], stated["momentum"], share,
            )
        )  # fmt: skip
        self.x[state], self.v[state], self.seen[state] = x_out, self.v[parent], self.seen[parent]
        self.outer[state] = g_out, u_out

    @property
    def _averages(self) -> dict[tuple[int, Weights], int]:
        """Replicas that reach the same average share its variable, whatever their velocities."""
        found: dict[tuple[int, Weights], int] = self.__dict__.setdefault("_averages_made", {})
        return found

    def _predict(self, worker: int, state: int, parent: int, source: int, slot: int, scale: float, code: int) -> None:
        out = self.new()
        x, v = self.x[parent], self.v[parent]
        factor = self._factor(parent, self.last_batch.get(parent, self.training.global_batch_samples))
        self.x[state], self.v[state] = out, v
        if code == PointRule.LOOK_AHEAD:
            self.operations.append(Ahead(out, x, v, scale, factor))
            return
        damped = code == PointRule.DAMPED_PREDICTION
        own = 1.0 if damped or code == PointRule.LOCAL_PREDICTION else scale
        gradients: list[tuple[int, float]] = []
        if slot >= 0 and self.slots[slot].total:
            self._materialise(slot)
            gradients.append((self.slots[slot].variable or 0, own))
        if code == PointRule.LOCAL_STEP:  # a step of SGD alone: no velocity, no decay, never Nesterov's
            self.operations.append(Local(out, x, Gradient(gradients=tuple(gradients)), factor))
            return
        if damped:
            gradients = self._damped(worker, parent, source, gradients, scale)
        elif own != 1.0 and parent in self.applied:
            gradients.append((self.applied[parent], 1.0 - own))
        self.operations.append(Forecast(out, x, v, Gradient(gradients=tuple(gradients)), factor))

    def _damped(
        self, worker: int, parent: int, source: int, own: list[tuple[int, float]], damping: float
    ) -> list[tuple[int, float]]:
        """Own gradient + γ(own of before - last applied); the last applied where there is none of its own."""
        before, last = self.before.pop(worker, None), self.applied.get(parent)
        if own:
            self.before[worker] = source, own[0][0]
        if last is None:
            return own
        if not own:
            return [(last, 1.0)]
        if before is None or before[0] != source - 1:
            return own
        return [*own, (before[1], damping), (last, -damping)]


def compile_schedule(schedule: Schedule, training: Training) -> Program:
    """The operations of a Schedule on as few rows as their lifetimes allow."""
    compiler, points = Compiler(schedule, training), progress_of(schedule)
    made = allocate(compiler.run(), len(points.rows) + 1)
    own = schedule.rows(Kind.STEP)
    own = own[schedule.source[own] < 0]
    some = any(0 < len(members) < schedule.n for members in compiler.members.values())
    newest = min(1.0, float(points.steps.mean()) / SWING_STEPS) if some else 1.0
    return replace(made, replicas=max(len(np.unique(schedule.worker[own])), 1), newest=newest)


def allocate(operations: list[Operation], points: int) -> Program:
    """Rows by liveness; a step's outputs take over the rows of inputs that end with it (in place)."""
    last: dict[int, int] = {}
    for i, operation in enumerate(operations):
        last.update(dict.fromkeys(inputs(operation), i))
    row = {START: 0, ZERO: 1}
    free: list[int] = []
    rows = 2
    out: list[Operation] = []

    def take(variable: int) -> int:
        nonlocal rows
        if not free:
            free.append(rows)
            rows += 1
        row[variable] = free.pop()
        return row[variable]

    for i, operation in enumerate(operations):
        ends = {v for v in inputs(operation) if last[v] == i}
        if isinstance(operation, Step):
            for made, before in ((operation.v_out, operation.v), (operation.x_out, operation.x)):
                if before in ends:
                    row[made] = row[before]
                    ends.discard(before)
                else:
                    take(made)
            at_x = tuple(j for j, _ in operation.gradient.points) == (operation.x,) and not operation.gradient.gradients
            in_place = row[operation.v_out] == row[operation.v] and row[operation.x_out] == row[operation.x]
            chained = at_x and in_place and operation.x_out in last and operation.v_out in last
            mapped: Operation = operation._replace(
                x_out=row[operation.x_out],
                v_out=row[operation.v_out],
                x=row[operation.x],
                v=row[operation.v],
                gradient=_rows(operation.gradient, row),
                chained=chained,
            )
            dead = [v for v in (operation.x_out, operation.v_out) if v not in last]
        else:
            mapped, dead = _place(operation, row, take, last)
        out.append(mapped)
        free.extend(row[v] for v in (*ends, *dead))
    return Program(tuple(out), rows, points)


def _rows(gradient: Gradient, row: dict[int, int]) -> Gradient:
    return Gradient(
        tuple((row[j], w) for j, w in gradient.points),
        tuple((row[j], w) for j, w in gradient.gradients),
        gradient.noise,
    )


def _place(operation: Operation, row: dict[int, int], take, last: dict[int, int]) -> tuple[Operation, list[int]]:  # type: ignore[no-untyped-def]
    """An operation that is not a step, on rows; and its output where nothing ever reads it."""
    match operation:
        case Read(x=x, point=point):
            return Read(row[x], point), []
        case Evaluate(out=out, gradient=g):
            mapped: Operation = Evaluate(take(out), _rows(g, row))
        case Average(out=out, points=points):
            mapped = Average(take(out), tuple((row[j], w) for j, w in points))
        case Ahead(out=out, x=x, v=v):
            mapped = operation._replace(out=take(out), x=row[x], v=row[v])
        case Local(out=out, x=x, gradient=g):
            mapped = operation._replace(out=take(out), x=row[x], gradient=_rows(g, row))
        case Outer():
            made = operation._replace(
                x_out=take(operation.x_out),
                g_out=take(operation.g_out),
                u_out=take(operation.u_out),
                x=row[operation.x],
                g=row[operation.g],
                u=row[operation.u],
                points=tuple((row[j], w) for j, w in operation.points),
            )
            return made, [v for v in operation[:3] if v not in last]
        case Compensate(out=out, gradient=gradient, x=x, backup=backup):
            mapped = operation._replace(out=take(out), gradient=row[gradient], x=row[x], backup=row[backup])
        case Forecast(out=out, x=x, v=v, gradient=g):
            mapped = operation._replace(out=take(out), x=row[x], v=row[v], gradient=_rows(g, row))
        case _:
            raise AssertionError(operation)
    return mapped, [] if out in last else [out]
