"""One rank of a replay: does what its orders say, with true gradients and true transfers.

What it holds after any row of the log can be taken out (`held`) and put into another rank process (`take_up`), which then goes on.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abs_sgd.checkpoint import plain_of, state_of
from abs_sgd.gradients import Buffers, FlatModel
from abs_sgd.replay.cuts import Cut
from abs_sgd.replay.exchange import Exchange, weighted_sum
from abs_sgd.replay.inprocess import compensation_of, initial_state, numbers_of
from abs_sgd.replay.job import Job
from abs_sgd.replay.operations import Adopt, Arrive, Gradient, Launch, Make, Operation, Orders
from abs_sgd.replay.plan import Mix, Point, Step
from abs_sgd.update import LAST_MEAN, State, Updater, UpdateRule
from abs_sgd.workloads.task import Task, dropout_of
from hetsim.schedule import Kind, PointRule, Schedule

Made = Callable[[int, State], State]


class RankRun:
    """States, accumulators and transfers of one rank.

    `made(id, state)` sees every state when the rank comes by it and returns what the rank goes on with.
    """

    def __init__(self, schedule: Schedule, orders: Orders, rank: int, task: Task, job: Job, made: Made) -> None:
        self.orders, self.rank, self.task, self.job, self.made = orders, rank, task, job, made
        self.model = FlatModel(task.make_model(job.seed))
        self.model.model.train()
        rule = UpdateRule(**job.rule)
        blends = bool(np.any(np.isin(schedule.code[schedule.rows(Kind.PREDICT)], LAST_MEAN)))
        self.updater = Updater(rule, keep_mean_gradient=blends)
        self.like_P = torch.zeros_like(self.model.parameters_P)
        self.exchange = Exchange(orders, rank, self.like_P, rule, exact=job.exact, mean=blends)
        self.states = {0: initial_state(schedule, self.model.parameters_P)}
        self.sums: dict[int, Tensor] = {}
        self.counts = counts_of(schedule, job.thinning)
        self.updates = 0
        self.late_s = 0.0
        self.begun_s = 0.0
        self.start_buffers: Buffers = self.model.save_buffers() if self.model.has_buffers else []
        self.seen = 0

    def execute(self, cuts: Sequence[Cut], save: Callable[[Cut], None], after: Cut | None = None) -> None:
        """All operations in order, or those after a cut; `save(cut)` is called at every later one."""
        operations, rows = self.orders.operations[self.rank], self.orders.rows[self.rank]
        drops = _drops(operations, self.orders, self.rank)
        self.begun_s = time.monotonic() - (self.job.pace or 0.0) * (after.time_s if after else 0.0)
        at = bisect_right(rows, after.row) if after else 0
        for cut in [c for c in cuts if after is None or c.row > after.row]:
            until = bisect_right(rows, cut.row)
            self._execute(operations[at:until], drops[at:until])
            save(cut)
            at = until
        self._execute(operations[at:], drops[at:])

    def _execute(self, operations: Sequence[Operation], drops: Sequence[_Drops]) -> None:
        for operation, (states, slots, transfers) in zip(operations, drops, strict=True):
            if isinstance(operation, Launch):
                self._pace(operation)  # not before its time
            self._do(operation)
            if not isinstance(operation, Launch):
                self._pace(operation)
            for state in states:
                if state != self.orders.final[self.rank]:
                    self.states.pop(state, None)
            for slot in slots:
                self.sums.pop(slot, None)
            for transfer in transfers:
                self.exchange.drop(transfer)

    def held(self) -> dict[str, Any]:
        """All that the rest of the run depends on, what is in flight waited for."""
        return {
            "transfers": self.exchange.settle(),
            "states": {identity: plain_of(state) for identity, state in self.states.items()},
            "sums": self.sums,
            "buffers": self.model.save_buffers() if self.start_buffers else [],
            "updates": self.updates,
            "seen": self.seen,
            "late_s": self.late_s,
        }

    def take_up(self, held: dict[str, Any]) -> None:
        """Go on from what another process held."""
        self.exchange.restore(held["transfers"])
        self.states = {identity: state_of(plain) for identity, plain in held["states"].items()}
        self.sums = dict(held["sums"])
        if self.start_buffers:
            self.model.load_buffers(held["buffers"])
        self.updates, self.seen, self.late_s = held["updates"], held["seen"], held["late_s"]

    def _pace(self, operation: Operation) -> None:
        if self.job.pace is None:
            return
        if self.like_P.is_cuda:
            torch.cuda.synchronize()  # kernels are only queued so far
        left_s = self.begun_s + self.job.pace * operation.due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self.late_s = max(self.late_s, -left_s)

    def _do(self, operation: Operation) -> None:
        match operation:
            case Gradient():
                self._gradient(operation)
            case Launch():
                self._launch(operation.transfer)
            case Arrive():
                self.exchange.arrive(operation.transfer)
            case Adopt():
                brought = self.exchange.states(operation.transfer)[0][1]
                self.updates = brought.progress.updates
                self.states[operation.state] = self.made(operation.state, brought)
            case Make():
                made = self._make(operation)
                if not isinstance(operation.action, Point):
                    self.updates = made.progress.updates
                self.states[operation.action.state] = self.made(operation.action.state, made)

    def _gradient(self, operation: Gradient) -> None:
        numbers = numbers_of([(operation.first, operation.count)], self.job.thinning)
        if not len(numbers):
            return
        self.model.load(self.states[operation.state].parameters_P)
        batch = self.task.batch(numbers, self.job.seed)
        with dropout_of(self.task, self.job.seed, int(numbers[0])):
            gradient_P = self.model.gradient_sum(lambda model: self.task.loss_sum(model, batch))
        self.seen += len(numbers)
        held = self.sums.get(operation.slot)
        self.sums[operation.slot] = gradient_P if held is None else held.add_(gradient_P)

    def _launch(self, transfer: int) -> None:
        wire = self.orders.transfers[transfer]
        mine = [(weight, identity) for rank, identity, weight in wire.parts if rank == self.rank]
        if wire.gradients:
            own_P = weighted_sum([(weight, self.sums.get(slot)) for weight, slot in mine])
            self.exchange.launch(transfer, own_P, None, 1.0)
        elif mine:
            weight, state = mine[0]
            self.exchange.launch(transfer, None, self.states[state], weight)
        else:
            self.exchange.launch(transfer, None, None, 0.0)

    def _make(self, operation: Make) -> State:
        action = operation.action
        parent = self.states[action.parent]
        match action:
            case Step():
                return self._step(action, parent, operation.transfer)
            case Mix(outer=outer) if outer is not None:
                parts = self.exchange.states(operation.transfer)
                return self.updater.outer_average(parent, parts, outer, heard=action.heard)
            case Mix():
                return self.updater.average(
                    parent,
                    self.exchange.states(operation.transfer),
                    anchor=self.states[action.anchor] if action.anchor >= 0 else None,
                    weight=action.weight,
                    reset=action.reset,
                    heard=action.heard,
                    shift=action.shift,
                )
            case Point():
                return self._point(action, parent)

    def _step(self, action: Step, parent: State, transfer: int) -> State:
        if action.samples == 0 or action.divisor == 0:
            return parent  # a synchronization without samples makes no step
        if transfer >= 0:
            total_P = self.exchange.total(transfer)
        else:
            total_P = weighted_sum([(weight, self.sums.get(slot)) for slot, weight in action.parts])
        counted = sum(self.counts.get(slot, 0) for slot, _ in action.parts)
        thinned = self.job.thinning > 1
        divisor = action.divisor * counted / action.samples if thinned else float(action.divisor)
        if total_P is None or counted == 0:
            total_P, divisor = torch.zeros_like(parent.parameters_P), 1.0
        return self.updater.step(
            parent,
            total_P,
            divisor=divisor,
            samples=action.samples,
            scale=action.scale,
            compensation=compensation_of(action, self.states),
        )

    def _point(self, action: Point, parent: State) -> State:
        own_P, count = self.sums.get(action.slot), self.counts.get(action.slot, 0)
        before = self.states[action.before] if action.before >= 0 else None
        return self.updater.point(parent, PointRule(action.rule), action.amount, own_P, count, before)


def counts_of(schedule: Schedule, thinning: int) -> dict[int, int]:
    """Training samples in every accumulator: the divisor of a step is known without asking the other ranks."""
    rows = schedule.rows(Kind.GRAD)
    first, end = schedule.first[rows], schedule.first[rows] + schedule.samples[rows]
    counts: dict[int, int] = {}
    for slot, count in zip(
        schedule.slot[rows].tolist(), (-(-end // thinning) + -first // thinning).tolist(), strict=True
    ):
        counts[slot] = counts.get(slot, 0) + count
    return counts


_Drops = tuple[list[int], list[int], list[int]]


def _drops(operations: tuple[Operation, ...], orders: Orders, rank: int) -> list[_Drops]:
    """States, accumulators and transfers whose last use an operation is."""
    last: tuple[dict[int, int], dict[int, int], dict[int, int]] = ({}, {}, {})
    for at, operation in enumerate(operations):
        for uses, found in zip(_uses(operation, orders, rank), last, strict=True):
            found.update(dict.fromkeys(uses, at))
    drops: list[_Drops] = [([], [], []) for _ in operations]
    for kind, found in enumerate(last):
        for identity, at in found.items():
            drops[at][kind].append(identity)
    return drops


def _uses(operation: Operation, orders: Orders, rank: int) -> _Drops:
    match operation:
        case Gradient():
            return [operation.state], [operation.slot], []
        case Launch() | Arrive():
            wire = orders.transfers[operation.transfer]
            own = [identity for member, identity, _ in wire.parts if member == rank]
            mine = ([], own) if wire.gradients else (own, [])
            return (*mine, [operation.transfer])
        case Adopt():
            return [operation.state], [], [operation.transfer]
        case Make(action=Step() as step, transfer=transfer):
            slots = [slot for slot, _ in step.parts] if transfer < 0 else []
            return [step.parent, step.state, step.taken_at], slots, [transfer]
        case Make(action=Mix() as mix, transfer=transfer):
            return [mix.parent, mix.state, mix.anchor], [], [transfer]
        case Make(action=Point() as point):
            return [point.parent, point.state, point.before], [point.slot], []
    raise AssertionError(operation)
