"""The steady state of a Schedule as one linear map, so that a long run costs no more than a short one.

After its start a run repeats itself. One period of P updates turns the state z (parameters, velocity, older points still to be read) into
T z + noise of covariance Q, the same every time, so that second moments obey S' = T S Tᵀ + Q; `hetsim.convergence.doubling` then finds
where the loss meets a target in log₂ of the periods.

    uniform   every update has one delay and weights that add up to 1: a period is one update, its noise the mean over the window. Exact in
              the mean over batch sizes, because noise enters the moments linearly and does not depend on the state
    pattern   delays vary (parameter servers), or points are predicted from shares that change: the last updates of the window, again and
              again. The loss goes up and down within a pattern and a target is met where it is low, so it is read at the lowest phase
    rounds    parameters are averaged: as long as every replica makes the same steps, their average and the average of their velocities are
              closed under a round, (x, v) with the noise Σ w_i²/b_i of each position in the round

The deviations of predicted points (`sequence`) are taken at their own steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Training
from hetsim.convergence.moments import Coefficient, Moments, Term
from hetsim.convergence.plan import Plan, compensated, make_plan, plan_of, point_scales, reweighted
from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.sequence import Rule, SequenceRun
from hetsim.schedule.kinds import Kind, MixRule, PointRule
from hetsim.schedule.table import Schedule
from hetsim.schedule.updates import Updates

Floats = NDArray[np.float64]
PATTERN = 64  # most updates of a pattern [our choice]


@dataclass(frozen=True, eq=False)
class Maps:
    """T and Q, shape (r, r, N), N columns being directions within settings; `x`: which variable the loss is read at; `begins`: which ones
    are x_0 at the start, the others being 0."""

    transition: Floats
    noise: Floats
    x: int
    begins: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Steady:
    """A period of `updates` points of the curve. `plan` is set for sequences, `chain` (noise of each position) for rounds; `key` stands
    for all numbers the maps depend on, but for the model's."""

    updates: int
    key: bytes
    rule: Rule
    plan: Plan | None = None
    span: tuple[int, int] = (0, 0)
    chain: tuple[float, ...] = ()

    def maps(self, quadratic: Quadratic, rates: Floats, momenta: Floats, phase: int = 0) -> Maps | None:
        """The maps of every setting from `phase` updates into the period on; None where the period does not close on itself."""
        if self.plan is None:
            return _round_maps(self.chain, quadratic, rates, momenta, self.rule)
        begin, end = self.span
        return _sequence_maps(self.plan, (begin + phase, end + phase), quadratic, rates, momenta, self.rule)

    def lowest_phase(self, quadratic: Quadratic, rate: float, momentum: float, moments: Floats) -> int:
        """How far into the period the loss of one setting is lowest, over its trend, its `moments` (in the order of `Maps`) being those at
        the beginning."""
        if self.plan is None or self.updates == 1:
            return 0
        begin, end = self.span
        run = _Period(self.plan, quadratic, np.array([rate]), np.array([momentum]), self.rule)
        rows = [row for _, row in sorted(_live(self.plan, begin).items())]
        run.moments.C[...] = 0.0
        run.moments.C[np.ix_(rows, rows)] = moments
        x = self.plan.x[begin]
        losses = [float(quadratic.weight @ run.moments.C[x, x])]
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(begin, end):
                run.update(k, run.c)
                x = self.plan.x[k + 1]
                losses.append(float(quadratic.weight @ run.moments.C[x, x]))
            trend = np.geomspace(losses[0], losses[-1], len(losses))
        return int(np.nanargmin([*(losses / trend)[:-1], np.inf]))


def steady_state(schedule: Schedule, training: Training, window: tuple[int, int]) -> Steady | None:
    """The steady state over the points [begin, end) of a Schedule's curve; None where it has none that is known here."""
    if training.warmup_updates or reweighted(schedule) or compensated(schedule):
        return None
    rule = Rule(training.weight_decay, training.nesterov)
    updates = schedule.updates
    if not len(updates):
        return _rounds(schedule, training, window, rule)
    if not updates.is_sequence or len(schedule.rows(Kind.MIX)):
        return None
    return _uniform(schedule, training, window, rule) or _pattern(schedule, training, window[1], rule)


# ---- sequences ---------------------------------------------------------------------------------------------------------------------------


def _uniform(schedule: Schedule, training: Training, window: tuple[int, int], rule: Rule) -> Steady | None:
    plan, updates = plan_of(schedule, training), schedule.updates
    begin, end = window
    inside = slice(begin, end)
    parts = slice(int(updates.begin[begin]), int(updates.begin[end]))
    lag = _lag(updates, plan, parts)
    constant = (plan.rate[inside], plan.rate_predicted[inside], plan.blend[inside], plan.damping[inside])
    if lag is None or any(np.ptp(values) > 0 for values in constant):
        return None
    sums = np.array([sum(weight for _, weight in reads) for reads in plan.reads[inside]])
    if any(begin <= k < end for k in plan.made) or np.any(np.abs(sums - 1.0) > 1e-12):
        return None
    if plan.share_change[inside].any():
        return None
    noise = float(plan.noise[inside].mean())
    rate, predicted, blend, damping = (float(values[0]) for values in constant)
    count = 2 * lag + 4  # the delay fills, one update, and all that still read from it
    short = make_plan(_made_up(np.minimum(np.arange(count), lag)), training)
    period = replace(
        short,
        noise=np.full(count, noise),
        blend=np.full(count, blend),
        damping=np.full(count, damping),
        rate=np.full(count, rate),
        rate_predicted=np.full(count, predicted),
    )
    key = np.array([lag, noise, rate, predicted, blend, damping, rule.weight_decay, rule.nesterov]).tobytes()
    return Steady(1, b"uniform" + key, rule, period, (lag + 1, lag + 2))


def _lag(updates: Updates, plan: Plan, parts: slice) -> int | None:
    """The one delay of all contributions, an exact prediction counting as none; None where they differ."""
    forecast = updates.predicted[parts] & (updates.rule[parts] >= int(PointRule.LOCAL_PREDICTION))
    if np.any(updates.predicted[parts] & ~forecast):
        return None
    lags = updates.staleness[parts] - forecast
    return int(lags[0]) if len(lags) and np.ptp(lags) == 0 and int(lags[0]) >= 0 else None


def _made_up(staleness: NDArray[np.int64]) -> Updates:
    """Updates of one worker with these delays."""
    count = len(staleness)
    number, zeros, ones = np.arange(count), np.zeros(count, np.int64), np.ones(count, np.int64)
    return Updates(
        row=number,
        state=number + 1,
        parent=number,
        time_s=number.astype(np.float64),
        samples=ones,
        divisor=ones,
        scale=np.ones(count),
        source=number,
        begin=np.arange(count + 1),
        worker=zeros,
        slot=number,
        part_samples=ones,
        point=number - staleness,
        staleness=staleness,
        predicted=np.zeros(count, bool),
        rule=zeros,
        is_sequence=True,
    )


def _pattern(schedule: Schedule, training: Training, end: int, rule: Rule) -> Steady | None:
    """The last updates before `end`, repeated: once to start, once for the map, once for its phase, and as many as still read from it."""
    updates = schedule.updates
    length = min(PATTERN, end - 1)
    first = end - length
    longest = int(updates.staleness[updates.begin[first] : updates.begin[end]].max(initial=0))
    if longest + 2 > length:
        return None
    order = np.concatenate([np.arange(first, end)] * 4)[: 3 * length + longest + 2]
    scales = point_scales(schedule)
    tiled, scale = _repeated(updates, order, scales)
    plan = make_plan(tiled, training, scale)
    content = [
        tiled.staleness,
        tiled.worker,
        tiled.part_samples,
        tiled.rule,
        tiled.predicted,
        scale,
        tiled.begin,
        tiled.divisor,
    ]
    key = b"".join(np.ascontiguousarray(a).tobytes() for a in (*content, plan.rate, plan.noise))
    decay = np.array([rule.weight_decay, rule.nesterov]).tobytes()
    return Steady(length, b"pattern" + decay + key, rule, plan, (length, 2 * length))


def _repeated(updates: Updates, order: NDArray[np.int64], scales: Floats) -> tuple[Updates, Floats]:
    """Updates one after the other in this order, with their contributions; nothing reads from before the first."""
    counts = np.diff(updates.begin)[order]
    begin = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    parts = np.repeat(updates.begin[:-1][order] - begin[:-1], counts) + np.arange(begin[-1])
    number = np.arange(len(order))
    owner = np.repeat(number, counts)
    known = updates.staleness[parts] <= owner  # else the point would lie before the first update: x_0
    staleness = np.where(known, updates.staleness[parts], owner)
    tiled = replace(
        updates,
        row=number,
        state=number + 1,
        parent=number,
        time_s=number.astype(np.float64),
        samples=updates.samples[order],
        divisor=updates.divisor[order],
        scale=updates.scale[order],
        source=number,
        begin=begin,
        worker=updates.worker[parts],
        slot=parts,
        part_samples=updates.part_samples[parts],
        point=owner - staleness,
        staleness=staleness,
        predicted=updates.predicted[parts] & known,
        rule=updates.rule[parts],
    )
    return tiled, scales[parts]


class _Transition(Moments):
    """Moments of the noise alone, and beside them how every variable depends on those at the start of the period."""

    def __init__(self, rows: int, columns: int, inputs: Sequence[int]) -> None:
        super().__init__(rows, columns)
        self.T: Floats = np.zeros((rows, len(inputs), columns))
        for i, row in enumerate(inputs):
            self.T[row, i] = 1.0

    def combine(self, out: int, terms: Sequence[Term], noise: Coefficient | None = None) -> None:
        (first, coefficient), *rest = terms
        new = self.T[first] * (1.0 if coefficient is None else coefficient)
        for row, a in rest:
            new += self.T[row] if a is None else self.T[row] * a
        super().combine(out, terms, noise)
        self.T[out] = new


class _Period(SequenceRun):
    """One period, by the engine that runs whole schedules."""

    def _deviation_noise(self, k: int, c: Floats) -> Floats:
        """h²·u at the fixed point of the engine's recursion; without bound where deviations grow. With a = step·h and damping η, δ is
        autoregressive, δ' = -a δ - aη δ_before + ε: E δ² = c(1+aη) / ((1-aη)((1+aη)² - a²)), E δδ_before = -a/(1+aη) E δ²."""
        step = self.plan.blend[k] * self.plan.rate_predicted[k] * self.lr * self.gain
        a, damping = step * self.h, self.plan.damping[k]
        with np.errstate(divide="ignore", invalid="ignore"):
            left = (1.0 - a * damping) * ((1.0 + a * damping) ** 2 - a**2)
            spread = c * (1.0 + a * damping) / left
            noise = a**2 * spread * (1.0 + damping**2 - 2.0 * damping * a / (1.0 + a * damping))
            return np.asarray(np.where((left > 0) & (a * damping < 1.0), noise, np.inf))


def _sequence_maps(
    plan: Plan, span: tuple[int, int], quadratic: Quadratic, rates: Floats, momenta: Floats, rule: Rule
) -> Maps | None:
    begin, end = span
    inputs, outputs = _live(plan, begin), _live(plan, end)
    if inputs.keys() != outputs.keys():
        return None
    names = sorted(inputs)  # so that the order is the same at every phase
    run = _Period(plan, quadratic, rates, momenta, rule)
    run.moments = moments = _Transition(plan.rows, len(run.lr), [inputs[name] for name in names])
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(begin, end):
            run.update(k, run.c)
    rows = [outputs[name] for name in names]
    begins = np.array([name[0] != "" for name in names])
    return Maps(moments.T[rows], moments.C[np.ix_(rows, rows)], names.index(("x", 0, 0)), begins)


def _live(plan: Plan, k: int) -> dict[tuple[str, int, int], int]:
    """The variables that update k or a later one reads, and their rows: ("x", j - k, 0) for x_j, ("p", j - k, i) for the i-th point made at
    update j, and what the optimizer keeps, all named relative to k, so that periods can be told to close."""
    kept = [
        row
        for row in (plan.velocity, plan.gradient)
        if row is not None and (row != plan.gradient or plan.last_gradient is not None)
    ]
    out = {("", row, 0): row for row in kept}
    fixed = {plan.velocity, plan.gradient, plan.last_gradient}
    for row in range(plan.rows):
        if row not in fixed and _read_later(plan, row, k):
            out[_writer(plan, row, k)] = row
    return out


def _read_later(plan: Plan, row: int, k: int) -> bool:
    for u in range(k, len(plan)):
        if any(point.row == row for point in plan.made.get(u, ())):
            return False
        if plan.x[u] == row or any(read == row for read, _ in plan.reads[u]):
            return True
        if plan.x[u + 1] == row:
            return False
    return False


def _writer(plan: Plan, row: int, k: int) -> tuple[str, int, int]:
    for u in range(k - 1, -1, -1):
        if plan.x[u + 1] == row:
            return "x", u + 1 - k, 0
        for i, point in enumerate(plan.made.get(u, ())):
            if point.row == row:
                return "p", u - k, i
    return "x", -k, 0


# ---- rounds of averaging -----------------------------------------------------------------------------------------------------------------


def _rounds(schedule: Schedule, training: Training, window: tuple[int, int], rule: Rule) -> Steady | None:
    """The mean round of the window; None where replicas make different numbers of steps, average otherwise than all with all, or step from
    elsewhere than their gradient was taken."""
    mixes, steps = schedule.rows(Kind.MIX), schedule.rows(Kind.STEP)
    if not len(mixes) or training.nesterov or np.any(schedule.code[mixes] != MixRule.KEEP):
        return None
    if np.any(schedule.slot[mixes] >= 0) or np.any(schedule.scale[mixes] != 1.0) or np.any(schedule.source[steps] >= 0):
        return None
    grads = schedule.rows(Kind.GRAD)
    point = np.full(int(schedule.slot.max(initial=-1)) + 1, -1, np.int64)
    point[schedule.slot[grads]] = schedule.state[grads]
    if np.any(point[schedule.slot[steps]] != schedule.parent[steps]):
        return None
    begin, end = window
    joins = schedule.rows(Kind.JOIN)
    chosen = joins[(schedule.source[joins] >= begin) & (schedule.source[joins] < end)]
    if len(chosen) != (end - begin) * schedule.n:
        return None
    share = np.zeros((end - begin, schedule.n))
    share[schedule.source[chosen] - begin, schedule.worker[chosen]] = schedule.scale[chosen]
    share /= share.sum(axis=1, keepdims=True)
    steps_of = [_steps_of(schedule, w, begin, end) for w in range(schedule.n)]
    if any(b is None or steps_of[0] is None or b.shape != steps_of[0].shape for b in steps_of):
        return None
    batches = np.stack([b for b in steps_of if b is not None])
    chain = np.einsum("rw,wrh->h", share**2, 1.0 / batches) / (end - begin)
    key = np.array([rule.weight_decay, *chain]).tobytes()
    return Steady(1, b"rounds" + key, rule, chain=tuple(chain.tolist()))


def _steps_of(schedule: Schedule, worker: int, begin: int, end: int) -> Floats | None:
    """Samples of each step of one worker in each round, shape (rounds, steps); None where the numbers of steps differ."""
    steps, mixes = (schedule.rows(kind) for kind in (Kind.STEP, Kind.MIX))
    steps, mixes = steps[schedule.worker[steps] == worker], mixes[schedule.worker[mixes] == worker]
    round_of = np.searchsorted(mixes, steps)
    inside = (round_of >= begin) & (round_of < end)
    counts = np.bincount(round_of[inside] - begin, minlength=end - begin)
    if not len(counts) or np.ptp(counts) > 0 or not counts[0]:
        return None
    return np.asarray(schedule.samples[steps[inside]].reshape(end - begin, -1), np.float64)


def _round_maps(chain: Sequence[float], quadratic: Quadratic, rates: Floats, momenta: Floats, rule: Rule) -> Maps:
    """(x, v) after the steps of a round, x first."""
    settings, nodes = len(rates), len(quadratic)
    lr, beta = np.repeat(rates, nodes), np.repeat(momenta, nodes)
    h, c = np.tile(quadratic.h, settings), np.tile(quadratic.c, settings)
    moments = _Transition(2, settings * nodes, (0, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for noise in chain:
            moments.combine(1, [(1, beta), (0, h + rule.weight_decay)], noise * c)
            moments.combine(0, [(0, None), (1, -lr)])
    return Maps(moments.T, moments.C, 0, np.array([True, False]))
