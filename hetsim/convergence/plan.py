"""A sequence of updates made ready for the moment recursion: which rows each update reads, which it makes, how much noise it adds.

For a Schedule whose updates form one parameter sequence x_0, x_1, ... update k is

    x_{k+1} = step(x_k, g_k),   g_k = h Σ_i w_i p_i + ε,   Var ε = c Σ_i w_i²/b_i,   w_i = b_i / divisor

with p_i the point of contribution i: x_j, or x_j - κ·lr·v_j (look-ahead), or a prediction of x_{j+1} (local-prediction, blend). Points
of one version and rule are one row. The mean of the predicted points of one update is a step with ĝ = a ḡ_j + (1-a) ḡ_{j-1}; with the
same shares in both updates, a = 1 and the same rate that is x_{j+1} itself. Where shares change, Σ (w'_i - w_i) g_i remains, of variance
c Σ_i (w'_i - w_i)²/b_i, uncorrelated with ḡ_j because w_i/b_i is the same for all i.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Training
from hetsim.convergence.rates import rate_factors
from hetsim.schedule.kinds import Kind, PointRule, StepRule
from hetsim.schedule.table import Schedule
from hetsim.schedule.updates import Updates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Key = tuple[
    int, int, float, float
]  # (version, rule, own share of the predicting gradient, κ or share of the last gradient)


class Made(NamedTuple):
    """A point made while update `version` is done: its row and how. `own` and `last` weigh ḡ_j and ḡ_{j-1} in ĝ."""

    row: int
    rule: int
    own: float  # for a local step κ
    last: float


@dataclass(frozen=True, eq=False)
class Plan:
    """K updates. `reads[k]` = ((row, weight), ...); `x[k]` the row of x_k; `made[k]` points made before the step of update k."""

    rows: int
    velocity: int
    gradient: int | None
    last_gradient: int | None
    x: list[int]
    reads: list[tuple[tuple[int, float], ...]]
    made: dict[int, list[Made]]
    noise: Floats  # Σ w²/b
    share_change: Floats  # Σ (w' - w)²/b of the predicted points update k reads
    blend: Floats  # a of the deviations fed back, per update made
    damping: Floats  # γ of damped predictions, the same
    rate: Floats
    rate_predicted: Floats
    samples: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.reads)


def point_scales(schedule: Schedule) -> Floats:
    """The scale (κ or blend) of the predicted point of every contribution, 1 where the point is not predicted."""
    rows = schedule.rows(Kind.PREDICT)
    point = schedule.updates.point
    size = int(max(schedule.state.max(initial=0), point.max(initial=0))) + 1
    scale = np.ones(size)
    scale[schedule.state[rows]] = schedule.scale[rows]
    return scale[point]


def reweighted(schedule: Schedule) -> bool:
    """Whether some gradient was handed over with a weight of its own, which updates do not record: only the joint engine knows it."""
    joins = schedule.rows(Kind.JOIN)
    return bool(np.any((schedule.slot[joins] >= 0) & (schedule.scale[joins] != 1.0)))


def compensated(schedule: Schedule) -> bool:
    """Whether some step is compensated for its delay, which makes it depend on its gradient's square: only the joint engine has that."""
    steps = schedule.rows(Kind.STEP)
    return bool(np.any(schedule.code[steps] != StepRule.PLAIN))


def plan_of(schedule: Schedule, training: Training) -> Plan:
    """The plan of a Schedule whose updates are a sequence."""
    return make_plan(schedule.updates, training, point_scales(schedule) if len(schedule) else None)


def make_plan(updates: Updates, training: Training, scales: Floats | None = None) -> Plan:
    """The plan of hand-made or extracted `updates`; `scales` is κ or blend per contribution (default 1)."""
    assert updates.is_sequence, "only a sequence of updates has a plan; use the joint engine"
    scales = np.ones(len(updates.worker)) if scales is None else scales
    rate, predicted_rate = rate_factors(updates.samples, updates.scale, training)
    owner = updates.owner
    forecast = updates.predicted & (updates.rule >= int(PointRule.LOCAL_PREDICTION))
    damped = updates.rule == int(PointRule.DAMPED_PREDICTION)
    own = np.where((updates.rule >= int(PointRule.BLEND)) & ~damped, scales, 1.0)
    points, special, change = _points(updates, scales, own, forecast, np.asarray(rate == predicted_rate))
    divisor = np.where(updates.divisor > 0, updates.divisor, np.maximum(updates.samples, 1))
    weight = updates.part_samples / divisor[owner]
    noise: Floats = np.bincount(owner, weight**2 / updates.part_samples, len(updates)).astype(np.float64)
    blend, damping = np.zeros(len(updates)), np.zeros(len(updates))
    several = forecast & (np.diff(updates.begin)[owner] > 1)  # one alone is the mean, and never deviates from it
    blend[(owner - updates.staleness)[several]] = own[several]
    damping[(owner - updates.staleness)[several & damped]] = scales[several & damped]
    needs_last = any(point.rule >= PointRule.LOCAL_PREDICTION for point in special)
    rows = _allocate(updates, points, special, weight, training.nesterov or needs_last, needs_last)
    return rows.finish(
        noise=noise, share_change=change, blend=blend, damping=damping, rate=rate, rate_predicted=predicted_rate
    )


class _Special(NamedTuple):
    """A point that is not simply x_j: made at version j, by a rule; `own` and `last` as in `Made`."""

    version: int
    rule: int
    own: float
    last: float


def _points(
    updates: Updates, scales: Floats, own: Floats, forecast: NDArray[np.bool_], exact_rate: NDArray[np.bool_]
) -> tuple[Ints, list[_Special], Floats]:
    """The point of every contribution: j for x_j, -1 - i for special point i; the special points; the noise of changed shares."""
    version = updates.owner - updates.staleness
    points = version.copy()
    special: dict[_Special, int] = {}
    for i in np.flatnonzero(updates.predicted & (updates.rule == int(PointRule.LOOK_AHEAD))).tolist():
        key = _Special(int(version[i]), int(PointRule.LOOK_AHEAD), 1.0, float(scales[i]))
        points[i] = -1 - special.setdefault(key, len(special))
    change = np.zeros(len(updates))
    members = np.flatnonzero(forecast)
    if len(members):
        group, share = _shares(updates, members, version[members], own[members], change)
        plain = updates.rule[members] == int(PointRule.LOCAL_STEP)
        exact = (own[members] == 1.0) & ~plain & (np.abs(share - 1.0) < 1e-12)[group] & exact_rate[version[members]]
        points[members[exact]] = version[members[exact]] + 1
        for at in np.flatnonzero(~exact).tolist():
            i, a = int(members[at]), float(own[members[at]])
            mine = float(share[group[at]])
            rest = 1.0 - mine if updates.rule[i] == int(PointRule.DAMPED_PREDICTION) else 1.0 - a
            key = _Special(int(version[i]), int(PointRule.BLEND), a * mine, rest)
            if updates.rule[i] == int(PointRule.LOCAL_STEP):
                key = key._replace(rule=int(PointRule.LOCAL_STEP), last=0.0)
            points[i] = -1 - special.setdefault(key, len(special))
    return points, list(special), change


def _shares(updates: Updates, members: Ints, version: Ints, own: Floats, change: Floats) -> tuple[Ints, Floats]:
    """Groups of predicted points (same update k, version j and blend): the group of each, and each group's share that had a gradient of
    its own in update j. A worker without samples there predicts with g = 0, so only that share of ḡ_j is in the mean prediction
    (damped prediction: with ḡ_{j-1}, which has the rest).

    Adds Σ_i (w'_i - share·w_i)²/b_i to `change[k]`; with N samples now of B' from workers with b_i before, S = Σ b_i, it is
    (Σ n_i²/b_i - N²/S) / B'²."""
    owner, worker = updates.owner, updates.worker
    keys = np.stack((owner[members].astype(np.float64), version.astype(np.float64), own), axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    wide = int(worker.max()) + 1
    places = owner * wide + worker  # ascending: contributions are ordered by update, then worker
    wanted = version * wide + worker[members]
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    found = places[at] == wanted
    now = updates.part_samples[members].astype(np.float64)
    mine = np.bincount(group, now)
    with_own = np.bincount(group, now * found, len(first))
    squares = np.bincount(group, found * now**2 / updates.part_samples[at], len(first))
    k, before = owner[members[first]], np.add.reduceat(updates.part_samples, updates.begin[:-1])[version[first]]
    total = np.add.reduceat(updates.part_samples, updates.begin[:-1])[k]
    expected = with_own**2 / before
    remainder = squares - expected
    np.add.at(change, k, np.where(remainder > 1e-12 * expected, remainder, 0.0) / total**2)
    return group, (with_own / mine).astype(np.float64)


@dataclass
class _Allocation:
    """Rows by liveness: a point's row is free again after the last update that reads it."""

    rows: int
    velocity: int
    gradient: int | None
    last_gradient: int | None
    x: list[int]
    reads: list[tuple[tuple[int, float], ...]]
    made: dict[int, list[Made]]
    samples: NDArray[np.int64]

    def finish(
        self,
        *,
        noise: Floats,
        share_change: Floats,
        blend: Floats,
        damping: Floats,
        rate: Floats,
        rate_predicted: Floats,
    ) -> Plan:
        return Plan(
            rows=self.rows,
            velocity=self.velocity,
            gradient=self.gradient,
            last_gradient=self.last_gradient,
            x=self.x,
            reads=self.reads,
            made=self.made,
            noise=noise,
            share_change=share_change,
            blend=blend,
            damping=damping,
            rate=rate,
            rate_predicted=rate_predicted,
            samples=self.samples,
        )


def _allocate(
    updates: Updates, points: Ints, special: list[_Special], weight: Floats, gradient: bool, last: bool
) -> _Allocation:
    count = len(updates)
    fixed = 1 + gradient + last
    out = _Allocation(fixed, 0, 1 if gradient else None, 2 if last else None, [], [], {}, updates.samples)
    used, last_use = _uses(updates, points, weight)
    made_at: dict[int, list[int]] = defaultdict(list)
    for i, (version, *_) in enumerate(special):
        made_at[version].append(-1 - i)
    free: list[int] = []

    def take() -> int:
        if free:
            return free.pop()
        out.rows += 1
        return out.rows - 1

    row = {0: take()}
    for k in range(count):
        x = row[k]
        out.x.append(x)
        for made in made_at.get(k, ()):
            row[made] = take()
            _, rule, own, rest = special[-1 - made]
            out.made.setdefault(k, []).append(Made(row[made], rule, own, rest))
        reads = used[k]
        out.reads.append(tuple((row[point], w) for point, w in reads.items()))
        for point in reads:
            if point != k and last_use[point] == k:
                free.append(row.pop(point))
        if last_use.get(k, -1) <= k:
            free.append(row.pop(k))
        row[k + 1] = take()
    out.x.append(row[count])
    return out


def _uses(updates: Updates, points: Ints, weight: Floats) -> tuple[list[dict[int, float]], dict[int, int]]:
    """Per update, its points and their weights; per point, the last update that reads it."""
    begin, point, weights = updates.begin.tolist(), points.tolist(), weight.tolist()
    used: list[dict[int, float]] = []
    last_use: dict[int, int] = {}
    for k in range(len(updates)):
        reads: dict[int, float] = {}
        for i in range(begin[k], begin[k + 1]):
            reads[point[i]] = reads.get(point[i], 0.0) + weights[i]
        used.append(reads)
        for p in reads:
            last_use[p] = k
    return used, last_use
