"""Loss curves of runs of which only the beginning was simulated.

Where delays form a pattern the loss goes up and down within it, so the simulated updates are judged one by one; else, and from there
on, the map of the steady state (`hetsim.steady_run`) gives the loss after 1, 2, 3, ... periods, in growing steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.constants import constants_of
from hetsim.convergence.doubling import trajectory
from hetsim.convergence.nqm import assumptions
from hetsim.convergence.predictor import Curve, Setting
from hetsim.convergence.sequence import HOPELESS
from hetsim.steady_run import Short, SteadyRun
from hetsim.steady_tuning import nodes_of, quadratic_of
from hetsim.tuning import Crossing

DENSE = 16  # points of a curve in every doubling of the periods, 6 % apart or less [our choice]

_Number = TypeVar("_Number", np.int64, np.float64)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def curve_of(run: SteadyRun, found: Short, setting: Setting, until: float) -> Curve:
    """Loss at one setting over about `until` updates. The crossing found is a point of it."""
    if found.curve is not None:
        return found.curve
    known = constants_of(run.task.cluster.workload)
    quadratic, period = quadratic_of(known, nodes_of(run.steady)), run.steady.updates
    head = _head(run, setting) if period > 1 else _Line(np.zeros(1, np.int64), np.array([known.initial_loss]))
    if len(head.updates) <= run.line.point and period > 1:  # diverged while it was simulated
        counts = np.zeros(0, np.int64)
    else:
        counts = dense(int(max(until / period, 1.0)) + 1)
        counts = counts[counts * period > head.updates[-1]]
    maps = run.steady.maps(quadratic, np.array([setting.learning_rate]), np.array([setting.momentum]), found.phase)
    ratio = np.zeros(0) if maps is None else trajectory(maps, quadratic, counts.tolist()) / quadratic.initial_loss
    tail = _Line(counts[: len(ratio)] * period, known.floor_loss + (known.initial_loss - known.floor_loss) * ratio)
    line = _Line(np.concatenate((head.updates, tail.updates)), np.concatenate((head.loss, tail.loss)))
    sane = (line.loss <= known.loss(HOPELESS)) & (line.loss >= known.floor_loss)
    length = len(sane) if sane.all() else int(np.argmin(sane))
    samples, seconds = run.at(line.updates[:length])
    whole = Curve(
        updates=line.updates[:length],
        samples=np.rint(samples).astype(np.int64),
        time_s=seconds,
        loss=line.loss[:length],
        diverged=length < len(sane) or (period > 1 and len(head.updates) <= run.line.point),
        assumptions=assumptions(known, run.task.cluster),
    )
    return whole if found.crossing is None else _through(whole, found.crossing, run.task.target.value)


@dataclass(frozen=True, eq=False)
class _Line:
    updates: Ints
    loss: Floats


def _head(run: SteadyRun, setting: Setting) -> _Line:
    """The simulated updates up to the end of the window."""
    schedule, cluster = run.result.schedule, run.task.cluster
    (curve,) = run.task.model().curves(schedule, cluster, [setting])
    until = run.line.point + 1
    return _Line(curve.updates[:until], curve.loss[:until])


def dense(most: int) -> Ints:
    """1, 2, 3, ... up to the first at or beyond `most`: every number at first, then `DENSE` in every doubling, whose differences are powers
    of two."""
    octave = np.arange(DENSE, 2 * DENSE)
    counts = [np.arange(1, DENSE)]
    scale = 1
    while counts[-1][-1] < most:
        counts.append(octave * scale)
        scale *= 2
    every = np.concatenate(counts)
    return every[: int(np.searchsorted(every, most)) + 1]


def _through(curve: Curve, met: Crossing, target: float) -> Curve:
    """The same curve with the crossing as one of its points, and above the target before it."""
    before, after = curve.updates < met.updates, curve.updates > met.updates
    before &= curve.loss > target
    after &= curve.time_s >= met.seconds

    def joined(values: NDArray[_Number], at: float) -> NDArray[_Number]:
        return np.concatenate((values[before], np.array([at]).astype(values.dtype), values[after]))

    return Curve(
        updates=joined(curve.updates, met.updates),
        samples=joined(curve.samples, round(met.samples)),
        time_s=joined(curve.time_s, met.seconds),
        loss=joined(curve.loss, target),
        diverged=curve.diverged,
        assumptions=curve.assumptions,
    )
