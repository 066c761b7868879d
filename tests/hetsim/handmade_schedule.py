"""Schedules written by hand, row by row, and a Monte-Carlo executor of any log: an oracle that shares no code with the engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Training
from hetsim.convergence.quadratic import Quadratic
from hetsim.schedule import Header, Kind, MixRule, Payload, PointRule, Schedule
from hetsim.schedule.log import Log

Floats = NDArray[np.float64]


class Script:
    """Writes rows at integer times; states, slots and transfers are numbered in order."""

    def __init__(self, workers: int) -> None:
        self.log, self.n = Log(workers), workers
        self.states, self.slots, self.transfers, self.now, self.taken = 1, 0, 0, 0.0, 0

    def _add(self, kind: Kind, worker: int, **columns: float) -> None:
        self.now += 1.0
        self.log.add(kind, worker, self.now - 1.0, self.now, **columns)  # type: ignore[arg-type]

    def grad(self, worker: int, point: int, samples: int, slot: int | None = None) -> int:
        if slot is None:
            slot, self.slots = self.slots, self.slots + 1
        self._add(Kind.GRAD, worker, state=point, slot=slot, samples=samples, first=self.taken)
        self.taken += samples
        return slot

    def reduce(self, slots: Sequence[tuple[int, int, int]], weights: Sequence[float] | None = None) -> int:
        """A gradient transfer of (worker, slot, samples)."""
        transfer, self.transfers = self.transfers, self.transfers + 1
        for (worker, slot, samples), weight in zip(slots, weights or [1.0] * len(slots), strict=True):
            self._add(Kind.JOIN, worker, source=transfer, slot=slot, samples=samples, scale=weight)
        total = sum(s for _, _, s in slots)
        self._add(Kind.REDUCE, -1, source=transfer, samples=total, code=Payload.GRADIENT)
        return transfer

    def average(self, states: Sequence[int], weights: Sequence[float] | None = None) -> int:
        """A parameter transfer."""
        transfer, self.transfers = self.transfers, self.transfers + 1
        for worker, (state, weight) in enumerate(zip(states, weights or [1.0] * len(states), strict=True)):
            self._add(Kind.JOIN, worker, source=transfer, state=state, scale=weight)
        self._add(Kind.REDUCE, -1, source=transfer, code=Payload.PARAMETERS)
        return transfer

    def _state(self) -> int:
        self.states += 1
        return self.states - 1

    def step(self, worker: int, parent: int, samples: int, *, source: int = -1, slot: int = -1) -> int:
        state = self._state()
        self._add(
            Kind.STEP, worker, state=state, parent=parent, source=source, slot=slot, samples=samples, first=samples
        )
        return state

    def mix(self, worker: int, parent: int, source: int, *, weight: float = 1.0, anchor: int = -1) -> int:
        state = self._state()
        self._add(
            Kind.MIX, worker, state=state, parent=parent, source=source, slot=anchor, scale=weight, code=MixRule.KEEP
        )
        return state

    def predict(self, worker: int, parent: int, slot: int, rule: PointRule, scale: float, source: int = -1) -> int:
        state = self._state()
        self._add(Kind.PREDICT, worker, state=state, parent=parent, source=source, slot=slot, scale=scale, code=rule)
        return state

    def schedule(self) -> Schedule:
        names = tuple(f"w{i}" for i in range(self.n))
        header = Header(algorithm="by-hand", options={}, seed=0, workers=names, dataset_samples=10**9)
        return Schedule(header=header, **self.log.columns())


def one_update_delay(batches: Sequence[Sequence[int]], rule: PointRule, scale: float = 1.0) -> Schedule:
    """Rounds of unequal batches with one update of delay: batch k+1 is taken while synchronization k is under way."""
    s = Script(len(batches[0]))
    points, x, transfer, total = [0] * s.n, 0, -1, 0
    for row in batches:
        slots = [(i, s.grad(i, points[i], b), b) for i, b in enumerate(row)]
        if transfer >= 0:
            x = s.step(0, x, total, source=transfer)
        transfer, total = s.reduce(slots), sum(row)
        if rule == PointRule.CURRENT:
            points = [x] * s.n
        elif rule == PointRule.LOOK_AHEAD:
            points = [s.predict(0, x, -1, rule, scale)] * s.n
        else:
            points = [s.predict(i, x, slot, rule, scale, transfer) for i, slot, _ in slots]
    s.step(0, x, total, source=transfer)
    return s.schedule()


def synchronous(batches: Sequence[Sequence[int]]) -> Schedule:
    """Rounds of unequal batches without delay."""
    s = Script(len(batches[0]))
    x = 0
    for row in batches:
        transfer = s.reduce([(i, s.grad(i, x, b), b) for i, b in enumerate(row)])
        x = s.step(0, x, sum(row), source=transfer)
    return s.schedule()


def local_sgd(rounds: int, batches: Sequence[int], steps: Sequence[int], *, weight: float = 1.0) -> Schedule:
    """Every worker takes its number of local steps, then all average."""
    s = Script(len(batches))
    states = [0] * s.n
    for _ in range(rounds):
        for i, (b, h) in enumerate(zip(batches, steps, strict=True)):
            for _ in range(h):
                states[i] = s.step(i, states[i], b, slot=s.grad(i, states[i], b))
        transfer = s.average(states)
        states = [s.mix(i, x, transfer, weight=weight) for i, x in enumerate(states)]
    return s.schedule()


def asynchronous(order: Sequence[int], batches: Sequence[int]) -> Schedule:
    """A parameter server: workers push in this order, each on the copy it pulled after its own last push."""
    s = Script(len(batches))
    copies, x = [0] * s.n, 0
    for worker in order:
        b = batches[worker]
        transfer = s.reduce([(worker, s.grad(worker, copies[worker], b), b)])
        x = copies[worker] = s.step(s.n, x, b, source=transfer)
    return s.schedule()


def monte_carlo(
    schedule: Schedule, q: Quadratic, lr: float, momentum: float, training: Training, paths: int, seed: int
) -> dict[int, tuple[float, float]]:
    """state -> (mean loss, standard error), by `sampled_states`."""
    x = sampled_states(schedule, q, lr, momentum, training, paths, seed)
    losses = {k: 0.5 * (value**2 @ (q.h * q.multiplicity)) for k, value in x.items()}
    return {k: (float(loss.mean()), float(loss.std() / np.sqrt(paths))) for k, loss in losses.items()}


def sampled_states(
    schedule: Schedule, q: Quadratic, lr: float, momentum: float, training: Training, paths: int, seed: int
) -> dict[int, Floats]:
    """state -> parameters, shape (paths, D), by executing every row on sampled runs. Plain SGD as PyTorch does it."""
    rng = np.random.default_rng(seed)
    shape = (paths, len(q))
    x = {0: rng.standard_normal(shape) * np.sqrt(q.start)}
    v = {0: np.zeros(shape)}
    last: dict[int, Floats] = {0: np.zeros(shape)}
    before: dict[int, Floats] = {}  # worker -> own mean of its last damped prediction, which is of the last update
    sums: dict[int, Floats] = defaultdict(lambda: np.zeros(shape))
    held: dict[int, int] = defaultdict(int)
    joined: dict[int, list[tuple[int, float]]] = defaultdict(list)
    b, decay = momentum, training.weight_decay

    def stepped(at: int, g: Floats) -> tuple[Floats, Floats]:
        full = g + decay * x[at]
        velocity = b * v[at] + full
        return x[at] - lr * (full + b * velocity if training.nesterov else velocity), velocity

    s = schedule
    for r in range(len(s)):
        state, parent, source, slot = int(s.state[r]), int(s.parent[r]), int(s.source[r]), int(s.slot[r])
        samples, scale = int(s.samples[r]), float(s.scale[r])
        match Kind(int(s.kind[r])):
            case Kind.GRAD:
                sums[slot] = sums[slot] + samples * q.h * x[state]
                sums[slot] = sums[slot] + np.sqrt(samples * q.c) * rng.standard_normal(shape)
                held[slot] += samples
            case Kind.JOIN:
                joined[source].append((slot if slot >= 0 else state, scale))
            case Kind.STEP:
                g = sums[slot] if source < 0 else sum((w * sums[j] for j, w in joined[source]), np.zeros(shape))
                last[state] = g / int(s.first[r])
                x[state], v[state] = stepped(parent, last[state])
            case Kind.MIX:
                total = sum(w for _, w in joined[source])
                mean = sum((w * x[j] for j, w in joined[source]), np.zeros(shape))
                shift = s.code[r] == MixRule.SHIFT
                mean = mean / total if slot < 0 or shift else mean + (1.0 - total) * x[slot]
                mean = mean + x[parent] - x[slot] if shift else mean
                x[state], v[state] = (1.0 - scale) * x[parent] + scale * mean, v[parent]
            case Kind.PREDICT if s.code[r] == PointRule.LOOK_AHEAD:
                x[state] = x[parent] - scale * lr * v[parent]
            case Kind.PREDICT if s.code[r] == PointRule.LOCAL_STEP:
                x[state] = x[parent] - scale * lr * (sums[slot] / held[slot] if slot >= 0 else np.zeros(shape))
            case Kind.PREDICT if s.code[r] == PointRule.DAMPED_PREDICTION:
                own, worker = sums[slot] / held[slot], int(s.worker[r])
                deviation = before[worker] - last[parent] if worker in before else np.zeros(shape)
                x[state], before[worker] = stepped(parent, own + scale * deviation)[0], own
            case Kind.PREDICT:
                own = 1.0 if s.code[r] == PointRule.LOCAL_PREDICTION else scale
                g = sums[slot] / held[slot] if slot >= 0 else np.zeros(shape)
                x[state] = stepped(parent, own * g + (1.0 - own) * last[parent])[0]
    return x
