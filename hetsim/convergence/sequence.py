"""The moment recursion of one parameter sequence, for every setting and direction at once.

PyTorch's SGD: v' = βv + g + wd·x, x' = x - lr·v' (Nesterov: x' = x - lr·(g + wd·x + βv')). The state is x_k, v_k and the older points
that some later update still reads, each one row of `Moments`, so a delay of τ costs τ + 2 rows and asynchronous methods cost one row
per worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.lengthening import lengths_of
from hetsim.convergence.moments import Moments, Term
from hetsim.convergence.plan import Made, Plan
from hetsim.convergence.quadratic import Quadratic
from hetsim.schedule.kinds import PointRule

Floats = NDArray[np.float64]
CHECK_EVERY = 64  # updates between looks for settings that are done; a look costs about one update
HOPELESS = 1e6  # times the initial loss: no return from there, and far from overflow
ROUNDING = 2.0**-24  # relative, of a share in float32: what equal shares let through of exploding deviations
COLUMN_BYTES = 128e6  # moments held at once; settings are run in parts where they need more


@dataclass(frozen=True)
class Rule:
    """PyTorch SGD's weight decay and Nesterov; when to stop: with `target` (on the quadratic's own loss) a setting ends once it is reached,
    with `slack` as well, all end at `slack` times the updates the first one took."""

    weight_decay: float = 0.0
    nesterov: bool = False
    target: float | None = None
    slack: float | None = None


DEFAULT_RULE = Rule()


@dataclass(frozen=True, eq=False)
class Losses:
    """`loss` (K+1, S), NaN after `length[s]` entries: a setting that reached the target or diverged is not run to the end."""

    loss: Floats
    length: NDArray[np.int64]
    diverged: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: list[Losses]) -> Losses:
        """Settings side by side."""
        return cls(
            np.concatenate([p.loss for p in parts], axis=1),
            np.concatenate([p.length for p in parts]),
            np.concatenate([p.diverged for p in parts]),
        )


class Watch:
    """Losses of the settings still running, and which columns of the moments are theirs."""

    def __init__(self, points: int, settings: int, initial: float, rule: Rule, newest: float = 1.0) -> None:
        self.newest = newest
        self.loss = np.full((points, settings), np.nan)
        self.loss[0] = initial
        self.length = np.full(settings, points, np.int64)
        self.diverged = np.zeros(settings, bool)
        self.alive = np.arange(settings)
        self.initial, self.target, self.slack = initial, rule.target, rule.slack
        self.stop_at = points

    def record(self, point: int, second_moments: Floats, weight: Floats) -> None:
        """The loss of every setting still running. einsum, not BLAS: a setting's sum must not depend on its neighbours, to the last bit."""
        read = np.einsum("sd,d->s", second_moments.reshape(-1, len(weight)), weight)
        if self.newest < 1.0:
            read = self.loss[point - 1, self.alive] + self.newest * (read - self.loss[point - 1, self.alive])
        self.loss[point, self.alive] = read

    def look(self, point: int, since: int) -> NDArray[np.bool_] | None:
        """After `point`: settle the settings that are done; a mask of those that go on, or None where all do."""
        seen = self.loss[since : point + 1, self.alive]
        with np.errstate(invalid="ignore"):
            # exploding replicas cancel to anything when they are averaged, also to less than nothing
            bad = ~np.all((seen >= 0.0) & (seen <= HOPELESS * self.initial), axis=0)
            met = np.zeros_like(bad) if self.target is None else np.any(seen <= self.target, axis=0) & ~bad
        if self.slack is not None and met.any():
            self.stop_at = min(self.stop_at, int(point * self.slack) + 1)
        done = bad | met
        if not done.any():
            return None
        going_on: NDArray[np.bool_] = ~done
        self.diverged[self.alive[bad]] = True
        self.length[self.alive[done]] = point + 1
        self.alive = self.alive[going_on]
        return going_on

    def result(self) -> Losses:
        """Close the books: a setting that ends above its start has diverged too."""
        last = self.loss[self.length - 1, np.arange(len(self.length))]
        return Losses(self.loss, self.length, self.diverged | ~(last <= self.initial * (1 + 1e-9)))


def run_sequence(
    plan: Plan, quadratic: Quadratic, learning_rate: Floats, momentum: Floats, rule: Rule = DEFAULT_RULE
) -> Losses:
    """E loss after 0..K updates for every setting, arrays of shape (S,)."""
    part = max(1, int(COLUMN_BYTES // (8.0 * plan.rows**2 * len(quadratic))))
    parts: list[Losses] = []
    for at in range(0, len(learning_rate), part):
        chosen = slice(at, at + part)
        parts.append(SequenceRun(plan, quadratic, learning_rate[chosen], momentum[chosen], rule).run())
    return Losses.joined(parts)


class SequenceRun:
    """The recursion over one plan."""

    def __init__(self, plan: Plan, quadratic: Quadratic, learning_rate: Floats, momentum: Floats, rule: Rule) -> None:
        self.plan, self.quadratic, self.decay, self.nesterov = plan, quadratic, rule.weight_decay, rule.nesterov
        settings, nodes = len(learning_rate), len(quadratic)
        self.lr, self.beta = np.repeat(learning_rate, nodes), np.repeat(momentum, nodes)
        self.h, self.c = np.tile(quadratic.h, settings), np.tile(quadratic.c, settings)
        self.moments = Moments(plan.rows, settings * nodes)
        self.moments.start(plan.x[0], np.tile(quadratic.start, settings))
        self.watch = Watch(len(plan) + 1, settings, quadratic.initial_loss, rule)
        self.predicted = bool(plan.blend.any())  # points that several workers predict, each from its own gradient
        self.gain = 1.0 + self.beta if rule.nesterov else np.ones_like(self.beta)  # of the gradient in the step
        self.lengths = lengths_of(quadratic, learning_rate, momentum, rule.weight_decay)
        self.deviation = np.zeros_like(self.lr)  # b_i · E d_i² of a predicted point's deviation d_i from the mean point
        self.spread = np.zeros_like(self.lr)  # b_i · E δ_i², δ_i the deviation of its gradient
        self.lagged = np.zeros_like(self.lr)  # b_i · E δ_i δ_i,before

    def run(self) -> Losses:
        plan, watch, weight = self.plan, self.watch, self.quadratic.weight
        power = self.quadratic.noise_power
        since = 1
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(len(plan)):
                c = self.c
                if power:
                    c = c * np.repeat(self.quadratic.noise_factor(watch.loss[k, watch.alive]), len(weight))
                self.update(k, c)
                if self.lengths is not None:
                    self.lengths.step(float(plan.rate[k]), self.moments.C[plan.velocity, plan.velocity])
                    self.lr = np.repeat(self.lengths.learning_rate, len(weight))
                x = plan.x[k + 1]
                watch.record(k + 1, self.moments.C[x, x], weight)
                if (k + 1) % CHECK_EVERY == 0 or k + 1 == len(plan):
                    going_on = watch.look(k + 1, since)
                    since = k + 2
                    if going_on is not None:
                        self._keep(np.repeat(going_on, len(weight)))
                        if self.lengths is not None:
                            self.lengths.keep(going_on)
                    if not len(watch.alive) or k + 1 >= watch.stop_at:
                        watch.length[watch.alive] = k + 2
                        break
        return watch.result()

    def update(self, k: int, c: Floats) -> None:
        """Update k of the plan, with gradient noise of variance `c` per sample."""
        plan = self.plan
        noise = plan.noise[k] * c
        if self.predicted:
            noise = noise + (plan.share_change[k] + ROUNDING**2 * plan.noise[k]) * self._deviation_noise(k, c)
        made = plan.made.get(k, ())
        for point in made:
            if point.rule == PointRule.LOOK_AHEAD:
                self._look_ahead(k, point)
        if plan.gradient is not None:
            self._step_through_gradient(k, noise, made)
        else:
            self._step(k, noise)

    def _keep(self, columns: NDArray[np.bool_]) -> None:
        for name in ("lr", "beta", "h", "c", "gain", "deviation", "spread", "lagged"):
            setattr(self, name, getattr(self, name)[columns])
        self.moments.keep(columns)

    def _points(self, k: int) -> list[Term]:
        """h Σ w p, the mean gradient of update k."""
        return [(row, self.h * weight if weight != 1.0 else self.h) for row, weight in self.plan.reads[k]]

    def _step(self, k: int, noise: Floats) -> None:
        plan, moments = self.plan, self.moments
        terms: list[Term] = [(plan.velocity, self.beta), *self._points(k)]
        if self.decay:
            terms.append((plan.x[k], self.decay))
        moments.combine(plan.velocity, terms, noise)
        moments.combine(plan.x[k + 1], [(plan.x[k], None), (plan.velocity, -plan.rate[k] * self.lr)])

    def _step_through_gradient(self, k: int, noise: Floats, made: tuple[Made, ...] | list[Made]) -> None:
        """The same with ḡ_k as a variable of its own, for Nesterov's step and for points predicted from it."""
        plan, moments = self.plan, self.moments
        assert plan.gradient is not None
        if plan.last_gradient is not None:
            moments.combine(plan.last_gradient, [(plan.gradient, None)])
        moments.combine(plan.gradient, self._points(k), noise)
        for point in made:
            if point.rule == PointRule.LOCAL_STEP:
                self._local_step(k, point)
            elif point.rule == PointRule.BLEND:
                self._predict(k, point)
        terms: list[Term] = [(plan.velocity, self.beta), (plan.gradient, None)]
        if self.decay:
            terms.append((plan.x[k], self.decay))
        moments.combine(plan.velocity, terms)
        lr = plan.rate[k] * self.lr
        if self.nesterov:
            kept = 1.0 - lr * self.decay if self.decay else None
            step = [(plan.x[k], kept), (plan.velocity, -lr * self.beta), (plan.gradient, -lr)]
            moments.combine(plan.x[k + 1], step)
        else:
            moments.combine(plan.x[k + 1], [(plan.x[k], None), (plan.velocity, -lr)])

    def _look_ahead(self, k: int, point: Made) -> None:
        """x_k - κ·lr·v_k; `last` carries κ."""
        ahead = -point.last * self.plan.rate_predicted[k] * self.lr
        self.moments.combine(point.row, [(self.plan.x[k], None), (self.plan.velocity, ahead)])

    def _local_step(self, k: int, point: Made) -> None:
        """The mean point after each worker's own step of plain SGD: x_k - κ·lr·ḡ_k."""
        assert self.plan.gradient is not None
        rate = -point.own * self.plan.rate_predicted[k] * self.lr
        self.moments.combine(point.row, [(self.plan.x[k], None), (self.plan.gradient, rate)])

    def _predict(self, k: int, point: Made) -> None:
        """The mean predicted point: a step from x_k with ĝ = own·ḡ_k + last·ḡ_{k-1} at the rate the workers assume."""
        plan = self.plan
        assert plan.gradient is not None and plan.last_gradient is not None
        lr = plan.rate_predicted[k] * self.lr
        terms: list[Term] = [
            (plan.x[k], 1.0 - lr * self.gain * self.decay),
            (plan.velocity, -lr * (self.beta**2 if self.nesterov else self.beta)),
            (plan.gradient, -lr * self.gain * point.own),
            (plan.last_gradient, -lr * self.gain * point.last),
        ]
        self.moments.combine(point.row, terms)

    def _deviation_noise(self, k: int, c: Floats) -> Floats:
        """h²·u: the variance on update k's gradient per unit of Σ (w' - w)²/b.

        A worker's own point deviates from the mean point by d' = -γa(h d + ε), γ = lr (Nesterov: lr(1+β)); u = b·E d² obeys
        u' = (γa)²(h² u + c), which grows without bound where γa·h ≥ 1. Equal shares cancel it only as far as they are equal: to ROUNDING.
        Damped by η: d' = -γ(δ + ηδ_before), δ = h d + ε.
        Leading order: deviations count as independent of each other and of the past."""
        noise: Floats = self.h**2 * self.deviation
        step = self.plan.blend[k] * self.plan.rate_predicted[k] * self.lr * self.gain
        damping, spread = self.plan.damping[k], noise + c
        self.deviation = step**2 * spread
        if damping:
            self.deviation += step**2 * (2 * damping * self.lagged + damping**2 * self.spread)
            self.lagged = -step * self.h * (spread + damping * self.lagged)
            self.spread = spread
        return noise
