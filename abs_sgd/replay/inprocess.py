"""Training in virtual time: true gradients of a real model on real data, the Schedule's clock.

What a cluster one does not own would have done, from a laptop or one GPU. The log is executed, never the program, so
nothing here knows any algorithm. Loss is measured outside the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from abs_sgd.gradients import Buffers, FlatModel, average_buffers
from abs_sgd.replay.plan import Mix, Pass, Plan, Point, Range, Step, make_plan
from abs_sgd.update import LAST_MEAN, Compensation, State, Updater, UpdateRule
from abs_sgd.workloads.task import Ints, Task, dropout_of
from hetsim.convergence.predictor import Curve
from hetsim.errors import UsageError
from hetsim.schedule import Kind, PointRule, Schedule

DIVERGED_FACTOR = 2.0  # times the initial loss ... [our choice]
DIVERGED_EVALUATIONS = 3  # ... this often in a row [our choice]: a spike alone is not divergence

Observer = Callable[[int, State], None]
GiveUp = Callable[[float, float], bool]  # of seconds and loss at an evaluation


@dataclass
class _Sum:
    """A gradient sum and the number of samples in it (None: none yet)."""

    gradient_P: Tensor | None = None
    samples: int = 0


@dataclass
class _Trace:
    """The curve while it grows; `step` is the distance between evaluations in samples."""

    step: int
    stop_at: float
    give_up: GiveUp | None
    updates: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    diverged: bool = False
    given_up: bool = False
    due: int = 0

    def add(self, state: State, time_s: float, loss: float) -> None:
        self.updates.append(state.progress.updates)
        self.samples.append(state.progress.samples)
        self.time_s.append(time_s)
        self.loss.append(loss)
        self.due = (state.progress.samples // self.step + 1) * self.step
        limit = DIVERGED_FACTOR * self.loss[0]
        recent = self.loss[1:][-DIVERGED_EVALUATIONS:]
        grown = len(recent) == DIVERGED_EVALUATIONS and min(recent) > limit > 0.0
        self.diverged = not math.isfinite(loss) or grown
        self.given_up = self.give_up is not None and self.give_up(time_s, loss)

    @property
    def done(self) -> bool:
        return self.diverged or self.loss[-1] <= self.stop_at or self.given_up

    def curve(self, assumptions: tuple[str, ...]) -> Curve:
        return Curve(
            updates=np.array(self.updates, np.int64),
            samples=np.array(self.samples, np.int64),
            time_s=np.array(self.time_s),
            loss=np.array(self.loss),
            diverged=self.diverged,
            assumptions=assumptions,
        )


def numbers_of(ranges: Iterable[Range], thinning: int) -> Ints:
    """Running sample numbers of ranges. With thinning r, one sample of the task stands for r of the Schedule: each
    multiple of r."""
    parts = [np.arange(-(-first // thinning), -(-(first + count) // thinning)) for first, count in ranges]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def compensation_of(action: Step, states: Mapping[int, State]) -> Compensation | None:
    """What a step is compensated by; None where it is plain."""
    if not action.compensation:
        return None
    taken_at_P = states[action.taken_at].parameters_P
    return Compensation(strength=action.compensation, taken_at_P=taken_at_P, rule=action.rule)


def initial_state(schedule: Schedule, parameters_P: Tensor) -> State:
    """x_0, and where an outer optimizer goes on from it, its own."""
    initial_P = parameters_P.clone()
    return State(parameters_P=initial_P, outer_P=initial_P if schedule.header.outer else None)


class InProcess:
    """One Schedule and one task, ready to be trained with any update rule.

    `fused`: passes of sample-separable models are joined where `abs_sgd.replay.plan` allows it; ignored for other
    models, which run pass by pass with their buffers per replica. `thinning` = r: one training sample stands for r of
    the Schedule's, so that a small data set is trained at the same distance from its critical batch as the profile's.
    """

    def __init__(self, schedule: Schedule, task: Task, *, seed: int = 0, fused: bool = True, thinning: int = 1) -> None:
        if thinning < 1:
            raise UsageError("thinning must be at least 1")
        self.schedule = schedule
        self.task = task
        self.seed = seed
        self.thinning = thinning
        self.plan: Plan = make_plan(schedule, fused=fused and task.separable)
        self._blends = any(isinstance(a, Point) and a.rule in LAST_MEAN for a in self.plan.actions)

    def train(
        self,
        rule: UpdateRule,
        *,
        stop_at: float = -math.inf,
        give_up: GiveUp | None = None,
        evaluate_every_samples: int | None = None,
        observe: Observer | None = None,
        assumptions: tuple[str, ...] = (),
    ) -> Curve:
        """Train from the task's initial parameters; the loss is taken every so many of the Schedule's samples and at
        the end (0: at the start only).

        Ends with the log, at a loss of `stop_at`, when `give_up(seconds, loss)` says so, or when diverged.
        `observe(id, state)` sees every state once.
        """
        run = _Run(self, Updater(rule, keep_mean_gradient=self._blends), observe)
        every = self.task.evaluate_every_samples * self.thinning
        every = every if evaluate_every_samples is None else evaluate_every_samples
        trace = _Trace(every or 2**62, stop_at, give_up)
        trace.add(run.states[0], 0.0, run.loss(run.states[0]))
        last: tuple[State, float] | None = None  # newest version not yet evaluated
        for at, action in enumerate(self.plan.actions):
            if trace.done:
                break
            run.execute(action)
            if isinstance(action, Mix) or (isinstance(action, Step) and action.shared):
                state = run.reached(action)
                last = state, action.time_s
                if state.progress.samples >= trace.due:
                    trace.add(*last, run.loss(state))
                    last = None
            run.drop(self.plan.drop_states[at], self.plan.drop_slots[at])
        if last is not None and every and not trace.done and last[0].progress.samples > trace.samples[-1]:
            trace.add(*last, run.loss(last[0]))
        return trace.curve(assumptions)


def retrace(
    schedule: Schedule,
    task: Task,
    rule: UpdateRule,
    *,
    seed: int = 0,
    evaluate_every_samples: int | None = None,
    parameters_P: Tensor | None = None,
) -> tuple[Curve, float | None]:
    """Train by a Schedule; its loss curve, and how far a live run's `parameters_P` are from where its replicas ended: the largest
    ‖Δ‖/‖x‖. None without parameters, and where the training was cut off because it diverged."""
    ends, seen = _last_states(schedule), dict[int, Tensor]()

    def keep(number: int, state: State) -> None:
        if number in ends:
            seen[number] = state.parameters_P.cpu()

    curve = InProcess(schedule, task, seed=seed).train(
        rule, evaluate_every_samples=evaluate_every_samples, observe=keep
    )
    if parameters_P is None or set(seen) != ends:
        return curve, None
    norm = torch.linalg.vector_norm(parameters_P)
    return curve, max(float(torch.linalg.vector_norm(seen[end] - parameters_P) / norm) for end in ends)


def rounding_alone(schedule: Schedule, task: Task, rule: UpdateRule, *, seed: int = 0) -> float | None:
    """How far training by a Schedule ends from itself, ‖Δ‖/‖x‖, when its initial parameters are a rounding error away. None where it
    diverges.

    What a live run differs by, sums in another order, is as small; where training with a large learning rate enlarges that, or a unit of a
    ReLU falls on the other side of its kink, no replay can be nearer.
    """

    def nudged(model_seed: int) -> nn.Module:
        model = task.make_model(model_seed)
        generator = torch.Generator().manual_seed(model_seed)
        with torch.no_grad():
            for parameter in model.parameters():
                signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * signs)
        return model

    ends: list[Tensor] = []
    for each in (task, replace(task, make_model=nudged)):
        seen = dict[int, Tensor]()

        def keep(number: int, state: State, seen: dict[int, Tensor] = seen) -> None:
            seen[0] = state.parameters_P.cpu()

        InProcess(schedule, each, seed=seed).train(rule, evaluate_every_samples=2**60, observe=keep)
        ends.append(seen[0])
    moved = float(torch.linalg.vector_norm(ends[0] - ends[1]) / torch.linalg.vector_norm(ends[0]))
    return moved if math.isfinite(moved) else None


def _last_states(schedule: Schedule) -> set[int]:
    """Where each replica ended; where there is a server, its state is the one that counts."""
    changes = np.isin(schedule.kind, (Kind.STEP, Kind.MIX))
    out = set()
    for rank in [schedule.n] if schedule.header.server else range(schedule.n):
        rows = np.flatnonzero((schedule.worker == rank) & changes)
        if len(rows):
            out.add(int(schedule.state[rows[-1]]))
    return out


class _Run:
    """The states and accumulators of one training run."""

    def __init__(self, owner: InProcess, updater: Updater, observe: Observer | None) -> None:
        task = owner.task
        self.task, self.seed, self.thinning = task, owner.seed, owner.thinning
        self.updater = updater
        self.observe = observe
        self.model = FlatModel(task.make_model(owner.seed))
        self.model.model.train()
        self.states = {0: initial_state(owner.schedule, self.model.parameters_P)}
        self.sums: dict[int, _Sum] = {}
        self.buffers: dict[int, Buffers] = {}  # per worker; empty for models without
        self.seen: dict[int, int] = {}  # samples per worker, weights of the buffers' average
        self.start_buffers = self.model.save_buffers() if self.model.has_buffers else []

    def execute(self, action: Pass | Step | Mix | Point) -> None:
        match action:
            case Pass():
                self._pass(action)
                return
            case Step():
                made = self._step(action)
            case Mix():
                made = self._mix(action)
            case Point():
                made = self._point(action)
        self.states[action.state] = made
        if self.observe is not None:
            self.observe(action.state, made)

    def drop(self, states: tuple[int, ...], slots: tuple[int, ...]) -> None:
        for state in states:
            self.states.pop(state, None)
        for slot in slots:
            self.sums.pop(slot, None)

    def reached(self, action: Step | Mix) -> State:
        """What an action has brought training to: its state, or where only some replicas are averaged in it the mean of all."""
        state = self.states[action.state]
        if isinstance(action, Step) or not action.beside:
            return state
        mean_P = len(action.parts) * state.parameters_P
        for other in action.beside:
            mean_P += self.states[other].parameters_P
        return replace(state, parameters_P=mean_P / (len(action.parts) + len(action.beside)))

    def loss(self, state: State) -> float:
        """Held-out loss at a state, BatchNorm's statistics averaged over the replicas by samples seen."""
        self.model.load(state.parameters_P)
        if self.buffers:
            ranks = sorted(self.buffers)
            self.model.load_buffers(average_buffers([self.buffers[w] for w in ranks], [self.seen[w] for w in ranks]))
        return self.task.evaluate(self.model.model)

    def _pass(self, action: Pass) -> None:
        numbers = numbers_of(action.ranges, self.thinning)
        held = self.sums.setdefault(action.slot, _Sum())
        if not len(numbers):
            return
        self.model.load(self.states[action.state].parameters_P)
        batch = self.task.batch(numbers, self.seed)
        if self.task.separable:
            gradient_P = self.model.gradient_sum(lambda model: self.task.loss_sum(model, batch))
        else:
            gradient_P = self._own_pass(action.worker, numbers, lambda model: self.task.loss_sum(model, batch))
        held.gradient_P = gradient_P if held.gradient_P is None else held.gradient_P.add_(gradient_P)
        held.samples += len(numbers)

    def _own_pass(self, worker: int, numbers: Ints, loss_sum: Callable[[torch.nn.Module], Tensor]) -> Tensor:
        """A pass with the worker's own buffers; dropout is keyed by (seed, first sample)."""
        if self.start_buffers:
            self.model.load_buffers(self.buffers.get(worker, self.start_buffers))
        with dropout_of(self.task, self.seed, int(numbers[0])):
            gradient_P = self.model.gradient_sum(loss_sum)
        if self.start_buffers:
            self.buffers[worker] = self.model.save_buffers()
            self.seen[worker] = self.seen.get(worker, 0) + len(numbers)
        return gradient_P

    def _step(self, action: Step) -> State:
        parent = self.states[action.parent]
        if action.samples == 0 or action.divisor == 0:
            return parent  # a synchronization without samples makes no step
        total_P: Tensor | None = None
        counted = 0
        for slot, weight in action.parts:  # in rank order
            held = self.sums[slot]
            counted += held.samples
            if held.gradient_P is None:
                continue
            part_P = held.gradient_P if weight == 1.0 else weight * held.gradient_P
            total_P = part_P if total_P is None else total_P + part_P
        divisor = float(action.divisor) if self.thinning == 1 else action.divisor * counted / action.samples
        if total_P is None:
            total_P, divisor = torch.zeros_like(parent.parameters_P), 1.0
        return self.updater.step(
            parent,
            total_P,
            divisor=divisor,
            samples=action.samples,
            scale=action.scale,
            compensation=compensation_of(action, self.states),
        )

    def _mix(self, action: Mix) -> State:
        if action.outer is not None:
            parts = [(weight, self.states[state]) for state, weight in action.parts]
            return self.updater.outer_average(self.states[action.parent], parts, action.outer, heard=action.heard)
        return self.updater.average(
            self.states[action.parent],
            [(weight, self.states[state]) for state, weight in action.parts],
            anchor=self.states[action.anchor] if action.anchor >= 0 else None,
            weight=action.weight,
            reset=action.reset,
            heard=action.heard,
            shift=action.shift,
        )

    def _point(self, action: Point) -> State:
        parent = self.states[action.parent]
        own = self.sums.get(action.slot, _Sum())
        before = self.states[action.before] if action.before >= 0 else None
        return self.updater.point(parent, PointRule(action.rule), action.amount, own.gradient_P, own.samples, before)
