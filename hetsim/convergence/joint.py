"""The general engine: any log, by the joint second moments of everything that is still alive.

Replicas that drift apart and are averaged, several pulled copies, points predicted from noise that is also applied: each is a linear
operation on a few variables (`operations`), so one row and column of `Moments` per operation keeps all correlations exactly. It is the
oracle for the sequence engine and the only engine where a Schedule is not one sequence.

Local steps between two averages are composed first, (x, v) -> M (x, v) + noise of covariance Q per node, and touch the joint moments once.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.lengthening import lengths_of
from hetsim.convergence.linear import (
    START,
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
    inputs,
)
from hetsim.convergence.moments import Coefficient, Moments, PairMap, Term
from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.sequence import DEFAULT_RULE, Losses, Rule, Watch
from hetsim.schedule.kinds import MEAN_SQUARE_DECAY, MEAN_SQUARE_EPS, StepRule

Floats = NDArray[np.float64]
LOOK_EVERY = 16  # points of the curve between looks for settings that are done
APART = 1e-10  # squared distance over squared size below which two points are the same: moments keep no more digits
MOMENT_BYTES = 8e6  # per part of the settings: small enough for the caches, measured
Chain = tuple[
    tuple[float, float, float], ...
]  # (weight of x in the gradient, noise, rate factor) of the steps to compose


def run_joint(
    program: Program, quadratic: Quadratic, learning_rate: Floats, momentum: Floats, rule: Rule = DEFAULT_RULE
) -> Losses:
    """E loss at every point of the curve for every setting, arrays of shape (S,)."""
    part = max(1, int(MOMENT_BYTES // (8.0 * program.rows**2 * len(quadratic))))
    parts = []
    for at in range(0, len(learning_rate), part):
        chosen = slice(at, at + part)
        parts.append(_Run(program, quadratic, learning_rate[chosen], momentum[chosen], rule).run())
    return Losses.joined(parts)


class _Run:
    def __init__(
        self, program: Program, quadratic: Quadratic, learning_rate: Floats, momentum: Floats, rule: Rule
    ) -> None:
        self.program, self.weight = program, quadratic.weight
        self.decay, self.nesterov = rule.weight_decay, rule.nesterov
        self.watch = Watch(program.points, len(learning_rate), quadratic.initial_loss, rule, program.newest)
        settings, nodes = len(learning_rate), len(quadratic)
        self.lr, self.beta = np.repeat(learning_rate, nodes), np.repeat(momentum, nodes)
        self.h, self.c = np.tile(quadratic.h, settings), np.tile(quadratic.c, settings)
        self.quadratic, self.full_noise = quadratic, self.c
        self.node = np.tile(np.arange(nodes), settings)
        self.mean_square = np.zeros_like(self.lr)  # of the gradients of adaptively compensated steps
        self.moments = Moments(program.rows, settings * nodes)
        self.moments.start(START, np.tile(quadratic.start, settings))
        self.lengths = lengths_of(quadratic, learning_rate, momentum, rule.weight_decay)
        # v row -> rate factors of the steps that have not lengthened weights yet
        self.steps: dict[int, list[float]] = {}
        self.left = 0  # steps of before, fewer than replicas, that have not either
        self.pending: dict[int, list[tuple[float, float, float]]] = defaultdict(list)  # x row -> steps not yet done
        self.velocity: dict[int, int] = {}  # x row -> v row of its pending steps
        self.owner: dict[int, int] = {}  # v row -> x row
        self.maps: dict[Chain, PairMap] = {}
        self.since = 1

    def run(self) -> Losses:
        with np.errstate(over="ignore", invalid="ignore"):
            for operation in self.program.operations:
                if isinstance(operation, Step) and self.lengths is not None:
                    self.steps[operation.v_out] = [*self.steps.pop(operation.v, []), operation.factor]
                if isinstance(operation, Step) and operation.chained:
                    self._postpone(operation)
                    continue
                if self.pending:
                    for row in inputs(operation):
                        self._flush(self.owner.get(row, row))
                self._do(operation)
                if isinstance(operation, Read) and self._done(operation.point):
                    break
        return self.watch.result()

    def _done(self, point: int) -> bool:
        watch = self.watch
        if point % LOOK_EVERY and point + 1 < self.program.points:
            return False
        going_on = watch.look(point, self.since)
        self.since = point + 1
        if going_on is not None:
            columns = np.repeat(going_on, len(self.weight))
            for name in ("lr", "beta", "h", "c", "full_noise", "mean_square", "node"):
                setattr(self, name, getattr(self, name)[columns])
            self.moments.keep(columns)
            self.maps.clear()
            if self.lengths is not None:
                self.lengths.keep(going_on)
        if len(watch.alive) and point < watch.stop_at:
            return False
        watch.length[watch.alive] = point + 1
        return True

    # ---- operations ------------------------------------------------------------------------------------------------------

    def _terms(self, gradient: Gradient, scale: Coefficient = 1.0) -> list[Term]:
        return [(j, scale * self.h * w) for j, w in gradient.points] + [(j, scale * w) for j, w in gradient.gradients]

    def _do(self, operation: Operation) -> None:
        combine = self.moments.combine
        match operation:
            case Read(x=x, point=point):
                self.watch.record(point, self.moments.C[x, x], self.weight)
                if (
                    self.quadratic.noise_power
                ):  # held until the next point: within a round of local steps the noise of its start
                    factor = self.quadratic.noise_factor(self.watch.loss[point, self.watch.alive])
                    self.c = self.full_noise * np.repeat(factor, len(self.weight))
                    self.maps.clear()
                self._lengthen()
            case Evaluate(out=out, gradient=g):
                combine(out, self._terms(g) or [(START, 0.0)], g.noise * self.c)
            case Average(out=out, points=points):
                combine(out, list(points))
            case Ahead(out=out, x=x, v=v, kappa=kappa, factor=factor):
                combine(out, [(x, None), (v, -kappa * factor * self.lr)])
            case Local(out=out, x=x, gradient=g, factor=factor):
                combine(out, [(x, None), *self._terms(g, -factor * self.lr)])
            case Outer():
                self._outer(operation)
            case Compensate():
                self._compensate(operation)
            case Forecast():
                self._forecast(operation)
            case Step():
                self._step(operation)

    def _lengthen(self) -> None:
        """The steps since this was last done, once there are as many as replicas: one of the replicas' mean for each time so many, by the
        velocities as they are now, each as often as its replica has stepped."""
        factors = [f for each in self.steps.values() for f in each]
        count, left = divmod(self.left + len(factors), self.program.replicas)
        if self.lengths is None or not count:
            return
        self.left = left
        rows = list(self.steps)
        share = np.array([len(each) for each in self.steps.values()]) / len(factors)
        square = np.einsum("i,j,ijc->c", share, share, self.moments.C[np.ix_(rows, rows)])
        for _ in range(count):
            self.lengths.step(float(np.mean(factors)), square)
        self.lr = np.repeat(self.lengths.learning_rate, len(self.weight))
        self.steps.clear()
        self.maps.clear()

    def _step(self, s: Step) -> None:
        lr = s.factor * self.lr
        first: list[Term] = [(s.v, self.beta), *self._terms(s.gradient)]
        if self.decay:
            first.append((s.x, self.decay))
        self.moments.combine(s.v_out, _merged(first), s.gradient.noise * self.c if s.gradient.noise else None)
        if not self.nesterov:
            self.moments.combine(s.x_out, [(s.x, None), (s.v_out, -lr)])
            return
        ((gradient, _),) = s.gradient.gradients
        kept = 1.0 - lr * self.decay if self.decay else None
        self.moments.combine(s.x_out, [(s.x, kept), (s.v_out, -lr * self.beta), (gradient, -lr)])

    def _outer(self, o: Outer) -> None:
        """Masked, so that every direction has its own coefficients: 1 inside the fragment, 0 outside."""
        inside = (self.node % o.fragments == o.fragment).astype(np.float64)
        average: list[Term] = [(j, w * inside) for j, w in o.points]
        rate = o.rate * inside
        velocity: list[Term] = [(o.u, 1.0 - inside + o.momentum * inside), (o.g, inside)]
        self.moments.combine(o.u_out, _merged([*velocity, *((j, -w) for j, w in average if w is not None)]))
        outer: list[Term] = [(o.g, 1.0 - rate), *((j, o.rate * w) for j, w in average if w is not None)]
        self.moments.combine(o.g_out, _merged([*outer, (o.u_out, -o.momentum * rate)]))
        self.moments.combine(o.x_out, [(o.x, 1.0 - o.share * inside), (o.g_out, o.share * inside)])

    def _compensate(self, c: Compensate) -> None:
        square = self.moments.C[c.gradient, c.gradient]
        factor: Floats = c.strength * square
        if c.rule == StepRule.DELAY_COMPENSATED_RELATIVE:
            factor = factor * self._relative(square, c.x, c.backup)
        if c.rule == StepRule.DELAY_COMPENSATED_ADAPTIVE:
            self.mean_square = MEAN_SQUARE_DECAY * self.mean_square + (1.0 - MEAN_SQUARE_DECAY) * square
            factor = factor / np.sqrt(self.mean_square + MEAN_SQUARE_EPS)
        self.moments.combine(c.out, [(c.gradient, None), (c.x, factor), (c.backup, -factor)])

    def _relative(self, square: Floats, x: int, backup: int) -> Floats:
        """Norm of a gradient over that of its correction, per setting; 0 where rounding alone is to be corrected."""
        C, nodes = self.moments.C, len(self.weight)
        both = C[x, x] + C[backup, backup]
        apart = both - 2.0 * C[x, backup]
        own, correction, least = (
            part.reshape(-1, nodes) @ self.quadratic.multiplicity
            for part in (square, square**2 * apart, square**2 * both * APART)
        )
        ratio = np.divide(own, correction, out=np.zeros_like(own), where=correction > least)
        return np.repeat(np.sqrt(ratio), nodes)

    def _forecast(self, f: Forecast) -> None:
        lr = f.factor * self.lr
        gain = 1.0 + self.beta if self.nesterov else 1.0
        velocity = self.beta**2 if self.nesterov else self.beta
        terms: list[Term] = [(f.x, 1.0 - lr * gain * self.decay), (f.v, -lr * velocity)]
        self.moments.combine(f.out, terms + self._terms(f.gradient, -lr * gain))

    # ---- composed local steps --------------------------------------------------------------------------------------------

    def _postpone(self, s: Step) -> None:
        ((_, weight),) = s.gradient.points
        self.pending[s.x].append((weight, s.gradient.noise, s.factor))
        self.velocity[s.x] = s.v
        self.owner[s.v] = s.x

    def _flush(self, x: int) -> None:
        steps = self.pending.pop(x, None)
        if steps is None:
            return
        v = self.velocity.pop(x)
        del self.owner[v]
        chain = tuple(steps)
        if chain not in self.maps:
            if len(self.maps) > 64:
                self.maps.clear()
            self.maps[chain] = self._compose(chain)
        self.moments.transform(x, v, self.maps[chain])

    def _compose(self, chain: Chain) -> PairMap:
        one, zero = np.ones_like(self.lr), np.zeros_like(self.lr)
        xx, xv, vx, vv = one, zero, zero, one
        qxx, qxv, qvv = zero, zero, zero
        for weight, noise, factor in chain:
            a, lr = self.h * weight + self.decay, factor * self.lr
            vx, vv = self.beta * vx + a * xx, self.beta * vv + a * xv
            xx, xv = xx - lr * vx, xv - lr * vv
            qvv, qxv = (
                self.beta**2 * qvv + 2 * self.beta * a * qxv + a**2 * qxx + noise * self.c,
                self.beta * qxv + a * qxx,
            )
            qxx, qxv = qxx - 2 * lr * qxv + lr**2 * qvv, qxv - lr * qvv
        return PairMap(xx, xv, vx, vv, qxx, qxv, qvv)


def _merged(terms: list[Term]) -> list[Term]:
    """Terms of one row added up (a step's gradient and its weight decay may both be taken at x); the first row stays first."""
    total: dict[int, Coefficient] = {}
    for row, coefficient in terms:
        value: Coefficient = 1.0 if coefficient is None else coefficient
        total[row] = total[row] + value if row in total else value
    return list(total.items())
