"""A short synchronous training of constant batch, and what the quadratic model says of one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.lengthening import lengths_of
from hetsim.convergence.quadratic import Quadratic

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShortRun:
    """One training without delay: losses after so many updates, from 0 on."""

    batch_samples: int
    learning_rate: float
    momentum: float
    updates: NDArray[np.int64]
    loss: Floats

    def crossings(self, levels: Floats) -> Floats:
        """Updates at which the loss first is at or below each level, interpolated; NaN where it never is."""
        out = np.full(len(levels), np.nan)
        for i, level in enumerate(levels.tolist()):
            below = np.flatnonzero(self.loss <= level)
            if len(below) and below[0] > 0:
                k = int(below[0])
                high, low = float(self.loss[k - 1]), float(self.loss[k])
                share = (high - level) / (high - low)
                out[i] = self.updates[k - 1] + share * (self.updates[k] - self.updates[k - 1])
        return out


def loss_ratios(
    quadratic: Quadratic,
    batch: Floats,
    learning_rate: Floats,
    momentum: Floats,
    updates: int,
) -> Floats:
    """E loss over the initial one after 0..updates updates without delay, shape (updates + 1, S)."""
    lengths = lengths_of(quadratic, learning_rate, momentum)
    lr, b = learning_rate[:, None], momentum[:, None]
    h, w, initial = quadratic.h, quadratic.weight, quadratic.initial_loss
    noise = quadratic.c / batch[:, None]
    xx = np.tile(quadratic.start, (len(lr), 1))
    xv, vv = np.zeros_like(xx), np.zeros_like(xx)
    out = np.ones((updates + 1, len(lr)))
    bb, b2h, hh = b * b, 2 * b * h, h * h
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(updates):
            factor = np.reshape(quadratic.noise_factor(out[k] * initial), (-1, 1))
            vv = bb * vv + b2h * xv + hh * xx + noise * factor
            mixed = b * xv + h * xx
            xx, xv = xx - 2 * lr * mixed + lr * lr * vv, mixed - lr * vv
            if lengths is not None:
                lengths.step(1.0, vv)
                lr = lengths.learning_rate[:, None]
            out[k + 1] = xx @ w / initial
    return out


def crossings_of(ratio: Floats, levels: Floats) -> Floats:
    """Updates, interpolated in the log of the loss; the number of updates where a level is not met, and at least half an update."""
    out = np.full(len(levels), float(len(ratio)))
    for i, level in enumerate(levels.tolist()):
        below = np.flatnonzero(ratio <= level)
        if len(below) and below[0] > 0 and level > 0:
            k = int(below[0])
            out[i] = k - 1 + math.log(ratio[k - 1] / level) / math.log(ratio[k - 1] / ratio[k])
    return np.asarray(np.maximum(out, 0.5), np.float64)
