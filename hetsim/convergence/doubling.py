"""When second moments under S' = T S Tᵀ + Q meet a target: by doubling, then halving.

2ˡ periods are one map again, T_{l+1} = T_l T_l and Q_{l+1} = T_l Q_l T_lᵀ + Q_l. The first l at which some setting is at the target
brackets the soonest of them between 2ˡ⁻¹ and 2ˡ periods; halving finds the period, what lies inside it is interpolated. The part of the
moments that is noise only grows: a setting in which it alone is above the target never gets there and is followed no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.quadratic import Quadratic
from hetsim.convergence.sequence import HOPELESS
from hetsim.convergence.steady import Maps

Floats = NDArray[np.float64]
BLOCK = 32_768  # numbers of a product computed at once: 256 kB, measured


@dataclass(frozen=True, eq=False)
class Soonest:
    """Per setting: `periods` until the target, infinite for those that are not among the soonest (they take longer, or never get there),
    and the last `loss` seen, infinite for those that diverged."""

    periods: Floats
    loss: Floats


@dataclass(frozen=True, eq=False)
class _Level:
    alive: NDArray[np.int64]
    transition: Floats
    noise: Floats


def soonest(maps: Maps, quadratic: Quadratic, settings: int, target: float, most: float) -> Soonest:
    """The settings that are at `target` (on the quadratic's own loss) within the first power of two of periods at which any is; followed
    for `most` periods at least."""
    nodes, weight, initial = len(quadratic), quadratic.weight, quadratic.initial_loss
    periods, last = np.full(settings, np.inf), np.full(settings, np.inf)
    level = _Level(np.arange(settings), maps.transition, maps.noise)
    levels: list[_Level] = []
    with np.errstate(over="ignore", invalid="ignore"):
        while len(level.alive):
            levels.append(level)
            noise = _loss(level.noise[maps.x, maps.x], weight)
            from_start = level.transition[maps.x, maps.begins].sum(axis=0)  # all that begins at x_0 begins equal
            loss = _loss(from_start**2 * np.tile(quadratic.start, len(level.alive)), weight) + noise
            fine = (loss >= 0.0) & (loss <= HOPELESS * initial)
            last[level.alive] = np.where(fine, loss, np.inf)
            met = fine & (loss <= target)
            if met.any():
                chosen = level.alive[met]
                periods[chosen] = _halved(levels, chosen, maps, quadratic, target)
                break
            if 2.0 ** (len(levels) - 1) >= most:
                break
            level = _doubled(level, fine & (noise <= target), nodes)
    return Soonest(periods, np.where(last <= initial * (1 + 1e-9), last, np.inf))


def after(maps: Maps, quadratic: Quadratic, settings: int, periods: int) -> Floats:
    """The moments, shape (r, r, N), after so many periods."""
    moments = np.zeros(maps.noise.shape)
    moments[np.ix_(maps.begins, maps.begins)] = np.tile(quadratic.start, settings)
    t, q = maps.transition, maps.noise
    with np.errstate(over="ignore", invalid="ignore"):
        while periods:
            if periods % 2:
                moments = _after(t, q, moments)
            t, q, periods = _times(t, t), _after(t, q, q), periods // 2
    return moments


def trajectory(maps: Maps, quadratic: Quadratic, periods: Sequence[int]) -> Floats:
    """The loss of one setting after each of these numbers of periods, which must not fall; not finite once it has diverged.

    Costs one product for every 1 in the binary numbers of periods between one and the next.
    """
    moments = np.zeros(maps.noise.shape)
    moments[np.ix_(maps.begins, maps.begins)] = quadratic.start
    powers = [(maps.transition, maps.noise)]
    out, at = np.empty(len(periods)), 0
    with np.errstate(over="ignore", invalid="ignore"):
        for i, period in enumerate(periods):
            further, level = int(period) - at, 0
            while further >> level:
                if level == len(powers):
                    t, q = powers[-1]
                    powers.append((_times(t, t), _after(t, q, q)))
                if further >> level & 1:
                    moments = _after(*powers[level], moments)
                level += 1
            at = int(period)
            out[i] = quadratic.weight @ moments[maps.x, maps.x]
    return out


def _columns(settings: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    return (settings[:, None] * nodes + np.arange(nodes)).reshape(-1)


def _doubled(level: _Level, fine: NDArray[np.bool_], nodes: int) -> _Level:
    columns = _columns(np.flatnonzero(fine), nodes)
    t, q = level.transition[:, :, columns], level.noise[:, :, columns]
    return _Level(level.alive[fine], _times(t, t), _after(t, q, q))


def _halved(levels: list[_Level], chosen: NDArray[np.int64], maps: Maps, quadratic: Quadratic, target: float) -> Floats:
    """Periods at which each of the chosen settings meets the target."""
    nodes, weight, x = len(quadratic), quadratic.weight, maps.x
    moments = np.zeros((*maps.noise.shape[:2], len(chosen) * nodes))
    moments[np.ix_(maps.begins, maps.begins)] = np.tile(quadratic.start, len(chosen))
    done = np.zeros(len(chosen))
    for number in range(len(levels) - 2, -1, -1):
        t, q = _part(levels[number], chosen, nodes)
        further = _after(t, q, moments)
        above = _loss(further[x, x], weight) > target
        moments = np.where(np.repeat(above, nodes), further, moments)
        done += np.where(above, 2.0**number, 0.0)
    t, q = _part(levels[0], chosen, nodes)
    high, low = _loss(moments[x, x], weight), _loss(_after(t, q, moments)[x, x], weight)
    share = np.clip((high - target) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return done + share


def _part(level: _Level, chosen: NDArray[np.int64], nodes: int) -> tuple[Floats, Floats]:
    columns = _columns(np.searchsorted(level.alive, chosen), nodes)
    return level.transition[:, :, columns], level.noise[:, :, columns]


def _loss(second_moment: Floats, weight: Floats) -> Floats:
    """einsum, not BLAS: a setting's sum must not depend on its neighbours, to the last bit."""
    return np.asarray(np.einsum("sd,d->s", second_moment.reshape(-1, len(weight)), weight))


def _after(t: Floats, q: Floats, s: Floats) -> Floats:
    """T S Tᵀ + Q."""
    return _times(_times(t, s), t.transpose(1, 0, 2)) + q


def _times(a: Floats, b: Floats) -> Floats:
    """The matrix product in every column, some columns at a time so that they stay in the cache."""
    out = np.empty((len(a), *b.shape[1:]))
    part = max(64, BLOCK // (out.shape[0] * out.shape[1]))
    for at in range(0, out.shape[2], part):
        one, other, product = (array[:, :, at : at + part] for array in (a, b, out))
        np.multiply(one[:, 0, None], other[None, 0], out=product)
        for j in range(1, len(b)):
            product += one[:, j, None] * other[None, j]
    return out
