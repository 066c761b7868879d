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

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Training
from hetsim.convergence.rates import rate_factors
from hetsim.schedule.kinds import Kind, PointRule
from hetsim.schedule.table import Schedule
from hetsim.schedule.updates import Updates

Floats = NDArray[np.float64]
Key = tuple[
    int, int, float, float
]  # (version, rule, own share of the predicting gradient, κ or share of the last gradient)


@dataclass(frozen=True)
class Made:
    """A point made while update `version` is done: its row and how. `own` and `last` weigh ḡ_j and ḡ_{j-1} in ĝ."""

    row: int
    rule: int
    own: float
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


def plan_of(schedule: Schedule, training: Training) -> Plan:
    """The plan of a Schedule whose updates are a sequence."""
    return make_plan(schedule.updates, training, point_scales(schedule) if len(schedule) else None)


def make_plan(updates: Updates, training: Training, scales: Floats | None = None) -> Plan:
    """The plan of hand-made or extracted `updates`; `scales` is κ or blend per contribution (default 1)."""
    assert updates.is_sequence, "only a sequence of updates has a plan; use the joint engine"
    scales = np.ones(len(updates.worker)) if scales is None else scales
    rate, predicted_rate = rate_factors(updates.samples, updates.scale, training)
    keys, change = _points(updates, scales, exact_rate=np.asarray(rate == predicted_rate))
    owner = updates.owner
    divisor = np.where(updates.divisor > 0, updates.divisor, np.maximum(updates.samples, 1))
    weight = updates.part_samples / divisor[owner]
    noise: Floats = np.bincount(owner, weight**2 / updates.part_samples, len(updates)).astype(np.float64)
    blend = np.zeros(len(updates))
    blend_rows = (updates.rule >= PointRule.LOCAL_PREDICTION) & updates.predicted
    blend[np.maximum(owner - updates.staleness, 0)[blend_rows]] = np.where(
        updates.rule == PointRule.BLEND, scales, 1.0
    )[blend_rows]
    needs_last = any(key[1] >= PointRule.LOCAL_PREDICTION for key in keys.values())
    return _allocate(updates, keys, weight, training.nesterov or needs_last, needs_last).finish(
        noise=noise, share_change=change, blend=blend, rate=rate, rate_predicted=predicted_rate
    )


def _points(updates: Updates, scales: Floats, exact_rate: NDArray[np.bool_]) -> tuple[dict[int, Key], Floats]:
    """The point of every contribution, as (version, rule, own, last); and the noise of changed shares per update."""
    owner = updates.owner
    version = owner - updates.staleness
    plain = ~updates.predicted | (updates.rule == PointRule.CURRENT)
    keys: dict[int, Key] = {}
    change = np.zeros(len(updates))
    for i in np.flatnonzero(plain | (updates.rule == PointRule.LOOK_AHEAD)).tolist():
        keys[i] = (int(version[i]), 0, 1.0, 0.0) if plain[i] else (int(version[i]), 1, 1.0, float(scales[i]))
    groups: dict[tuple[int, int, float], list[int]] = defaultdict(list)
    for i in np.flatnonzero(updates.predicted & (updates.rule >= PointRule.LOCAL_PREDICTION)).tolist():
        a = float(scales[i]) if updates.rule[i] == PointRule.BLEND else 1.0
        groups[int(owner[i]), int(version[i]), a].append(i)
    for (k, j, a), members in groups.items():
        own, variance = _shares(updates, k, j, members)
        change[k] += variance
        exact = a == 1.0 and abs(own - 1.0) < 1e-12 and exact_rate[j]
        key: Key = (j + 1, 0, 1.0, 0.0) if exact else (j, int(PointRule.BLEND), a * own, 1.0 - a)
        keys.update(dict.fromkeys(members, key))
    return keys, change


def _shares(updates: Updates, k: int, j: int, members: list[int]) -> tuple[float, float]:
    """Share of update k's predicted points that had a gradient of their own in update j, and Σ (w'_i - own·w_i)²/b_i.

    A worker without samples in update j predicts with g = 0, so only `own` of ḡ_j is in the mean prediction. With all shares of update k
    behind these points the weights w' are relative to the whole of update k."""
    begin, end = int(updates.begin[j]), int(updates.begin[j + 1])
    before = updates.part_samples[begin:end].astype(np.float64)
    place = {w: i for i, w in enumerate(updates.worker[begin:end].tolist())}
    total = float(updates.part_samples[updates.begin[k] : updates.begin[k + 1]].sum())
    now = np.zeros(len(before))
    mine = 0.0
    for i in members:
        mine += float(updates.part_samples[i])
        at = place.get(int(updates.worker[i]))
        if at is not None:
            now[at] += float(updates.part_samples[i])
    remainder = now / total - now.sum() / total * before / before.sum()
    return float(now.sum() / mine), float(np.sum(remainder**2 / before))


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
        self, *, noise: Floats, share_change: Floats, blend: Floats, rate: Floats, rate_predicted: Floats
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
            rate=rate,
            rate_predicted=rate_predicted,
            samples=self.samples,
        )


def _allocate(updates: Updates, keys: dict[int, Key], weight: Floats, gradient: bool, last: bool) -> _Allocation:
    count = len(updates)
    begin = updates.begin.tolist()
    weights = weight.tolist()
    used: list[dict[Key, float]] = []
    last_use: dict[Key, int] = {}
    for k in range(count):
        reads: dict[Key, float] = {}
        for i in range(begin[k], begin[k + 1]):
            reads[keys[i]] = reads.get(keys[i], 0.0) + weights[i]
        used.append(reads)
        last_use.update(dict.fromkeys(reads, k))
    fixed = 1 + gradient + last
    out = _Allocation(fixed, 0, 1 if gradient else None, 2 if last else None, [], [], {}, updates.samples)
    free: list[int] = []

    def take() -> int:
        if free:
            return free.pop()
        out.rows += 1
        return out.rows - 1

    special: dict[int, list[Key]] = defaultdict(list)
    for key in last_use:
        if key[1]:
            special[key[0]].append(key)
    row: dict[Key, int] = {(0, 0, 1.0, 0.0): take()}
    dies: dict[int, list[Key]] = defaultdict(list)
    for key, k in last_use.items():
        dies[k].append(key)
    for k in range(count):
        x_key: Key = (k, 0, 1.0, 0.0)
        out.x.append(row[x_key])
        for key in special[k]:
            row[key] = take()
            out.made.setdefault(k, []).append(Made(row[key], key[1], key[2], key[3]))
        out.reads.append(tuple((row[key], w) for key, w in used[k].items()))
        for key in dies[k]:
            if key != x_key:
                free.append(row[key])
        if last_use.get(x_key, -1) <= k:
            free.append(row[x_key])
        row[k + 1, 0, 1.0, 0.0] = take()
    out.x.append(row[count, 0, 1.0, 0.0])
    return out
