"""Fit the noisy quadratic model to the loss of short synchronous trainings at several batches and learning rates.

What is fitted: the updates at which the loss first is at or below a ladder of levels from near the start down to the target, in logarithms.
The model there is exact for a constant batch B without delay. Per direction, with v' = βv + hθ + ε, θ' = θ - lr v',

    v'v' = β² vv + 2βh θv + h² θθ + (c/B)(L/L_0)^q        θ'v' = β θv + h θθ - lr v'v'        θ'θ' = θθ - 2 lr (β θv + h θθ) + lr² v'v'

Fitted: the bulk's largest curvature, its exponent and directions, the noise and its power q, and the floor. The largest curvature of all is
measured, not fitted (`largest`): undelayed training hardly shows it, delayed training hangs on it. So is the squared norm of the weights
before normalisations (`weight_square`), whose growth slows training down like a learning rate that decays (`lengthening`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.constants import NODES, NoisyQuadraticConstants
from hetsim.convergence.short_run import ShortRun, crossings_of, loss_ratios
from hetsim.errors import UsageError

Floats = NDArray[np.float64]
NAMES = ("curvature", "exponent", "directions", "noise", "noise_power", "floor_loss")
LEVELS = 10  # of the ladder [our choice]
TOP = 0.3  # of the way down is where the ladder begins: above it the loss hangs on the first few updates alone [our choice]
LAST_WEIGHT = 2.0  # of the two lowest levels: what is asked for lies there [our choice]
OUTLYING = 0.2  # log of updates from which a residual counts less: a noisy loss crosses early or late [our choice]
PRIOR = 0.05  # weight of being one e-fold from exponent 1 and 1,000 directions: ties are broken, data are not overruled [our choice]
FELL = 0.8  # share of the initial loss that some runs must get below; before that, any constants fit [our choice]
HIGHEST_TARGET = 0.9  # share of the initial loss
FEWEST = 2  # runs that must get that far, and batches they must be of
MOST_POWER = 2.0
MOST_FLOOR = 0.5  # of the target: a floor just below it makes the time to it anything [our choice]
AT_LIMIT = (
    0.01  # of a range: nearer to its end than this, a constant lies at it, and has no standard error [our choice]
)
STEPS = (
    1e-3,
    1e-3,
    1e-2,
    1e-3,
    1e-3,
    1e-3,
)  # relative, of the derivatives; the step of directions, whole, spans several
START = {"exponent": 0.5, "directions": 1000.0, "noise": 30.0, "noise_power": 0.75, "floor": 0.3}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A fitted number and its standard error; None where it cannot be told, `reason` saying why."""

    value: float
    error: float | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class QuadraticFit:
    """`values` by name (`NAMES`), the log residuals' root mean square (all levels, and the lowest one), and how far the runs went."""

    values: dict[str, Estimate]
    largest: float
    initial_loss: float
    target_loss: float
    residual: float
    residual_at_target: float
    lowest_loss: float
    runs: int

    @property
    def extrapolates(self) -> bool:
        """Whether no run reached the target."""
        return self.lowest_loss > self.target_loss

    @property
    def steepest(self) -> float:
        """The largest curvature of all: the measured one, which the fit keeps the bulk below."""
        return max(self.largest, self.values["curvature"].value)


def fit_quadratic(
    runs: Sequence[ShortRun], *, target_loss: float, largest: float, weight_square: float | None = None
) -> QuadraticFit:
    """Constants by least squares on log updates; standard errors by the delta method with one cluster per run (the levels of one run err
    together). Raises UsageError, saying what is missing, where the runs are too short or too alike."""
    from scipy.optimize import least_squares

    initial = float(np.mean([run.loss[0] for run in runs])) if runs else math.nan
    lowest = _check(runs, initial, target_loss)
    end = max(target_loss, lowest)
    levels = np.geomspace(initial - TOP * (initial - end), end, LEVELS)
    problem = _Problem(runs, levels, initial, target_loss, largest, weight_square)
    low, high = np.full(len(NAMES), -np.inf), np.full(len(NAMES), np.inf)
    low[4], high[4] = 0.0, MOST_POWER
    low[0], high[0] = (
        math.log(1e-6 * largest),
        math.log(largest),
    )  # no direction of the bulk is steeper than the steepest
    low[1], high[1], low[2], high[2] = math.log(0.02), math.log(5.0), math.log(10.0), math.log(1e5)
    best = None
    for share in (0.03, 0.3):  # of the largest curvature; the valley is long and bent, two starts find its end
        start = np.array([math.log(share * largest), *problem.start])
        found = least_squares(
            problem.residuals,
            start,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=OUTLYING,
            diff_step=np.array(STEPS),
            max_nfev=60,
        )
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    logs = np.where(problem.missed, np.nan, problem.misses(best.x))
    return QuadraticFit(
        values=problem.estimates(best.x, np.asarray(best.jac), low, high),
        largest=largest,
        initial_loss=initial,
        target_loss=target_loss,
        residual=float(np.sqrt(np.nanmean(logs**2))),
        residual_at_target=float(np.sqrt(np.nanmean(logs[-1] ** 2))),
        lowest_loss=lowest,
        runs=len(runs),
    )


def _check(runs: Sequence[ShortRun], initial: float, target: float) -> float:
    """The lowest loss that at least FEWEST runs reached."""
    if not math.isfinite(initial) or not 0 < target < HIGHEST_TARGET * initial:
        raise UsageError(
            f"the target {target:g} must lie between 0 and {HIGHEST_TARGET:.0%} of the initial loss, {initial:.3g}"
        )
    far = [run for run in runs if np.nanmin(run.loss) <= FELL * initial]
    batches = {run.batch_samples for run in far}
    if len(far) < FEWEST or len(batches) < FEWEST:
        lowest = min(float(np.nanmin(run.loss)) for run in runs)
        raise UsageError(
            f"the runs are too short to fit: {len(far)} of {len(runs)} came below {FELL:.0%} of the initial loss ({initial:.3g}), of "
            f"{len(batches)} batch size{'s' * (len(batches) != 1)}; {FEWEST} runs of {FEWEST} sizes are needed. "
            f"The lowest loss was {lowest:.3g}: train on more samples, or at other learning rates"
        )
    return sorted(float(np.nanmin(run.loss)) for run in far)[FEWEST - 1]


class _Problem:
    """Parameters (logs of curvature, exponent, directions, noise; the noise's power; logit of floor over target) to residuals."""

    def __init__(
        self,
        runs: Sequence[ShortRun],
        levels: Floats,
        initial: float,
        target: float,
        largest: float,
        weight_square: float | None,
    ) -> None:
        self.weight_square = weight_square
        self.levels, self.initial, self.target, self.largest = levels, initial, min(target, float(levels[-1])), largest
        self.measured = np.stack([run.crossings(levels) for run in runs], axis=1)
        ends = np.array([float(run.updates[-1]) for run in runs])
        self.missed = np.isnan(self.measured)  # by the end of the run: the model must not be there before
        self.measured = np.where(self.missed, ends, self.measured)
        settings = [(run.batch_samples, run.learning_rate, run.momentum) for run in runs]
        self.settings = sorted(set(settings))  # runs that differ by seed alone share a prediction
        self.which = np.array([self.settings.index(s) for s in settings])
        self.batch, self.rate, self.momentum = (np.array(c, np.float64) for c in zip(*self.settings, strict=True))
        self.updates = int(1.5 * self.measured.max()) + 2
        self.weight = np.ones(len(levels))
        self.weight[-2:] = LAST_WEIGHT

    @property
    def start(self) -> list[float]:
        logs = [math.log(START[name]) for name in ("exponent", "directions", "noise")]
        return [*logs, START["noise_power"], math.log(START["floor"] / (1 - START["floor"]))]

    def values(self, x: Floats) -> dict[str, float]:
        curvature, exponent, directions, noise = np.exp(x[:4]).tolist()
        floor = MOST_FLOOR * self.target * _share(x[5])
        return dict(zip(NAMES, (curvature, exponent, directions, noise, float(x[4]), floor), strict=True))

    def misses(self, x: Floats) -> Floats:
        """log(predicted / measured updates), shape (levels, runs); a level the model misses counts as the end, and one that the run missed
        as its end, where the model is there before."""
        v = self.values(x)
        square = None if self.weight_square is None else self.weight_square / (self.initial - v["floor_loss"])
        model = NoisyQuadraticConstants(
            directions=max(2, round(v["directions"])), exponent=v["exponent"], noise=v["noise"], target_ratio=1.0, source="",
            outlier=self.largest, curvature=v["curvature"], noise_power=v["noise_power"], weight_square=square,
        )  # fmt: skip
        quadratic = model.quadratic(NODES)
        ratios = loss_ratios(quadratic, self.batch, self.rate, self.momentum, self.updates)
        wanted = (self.levels - v["floor_loss"]) / (self.initial - v["floor_loss"])
        predicted = np.stack([crossings_of(ratios[:, s], wanted) for s in range(ratios.shape[1])], axis=1)
        logs = np.log(predicted[:, self.which] / self.measured)
        return np.asarray(np.where(self.missed, np.minimum(logs, 0.0), logs), np.float64)

    def residuals(self, x: Floats) -> Floats:
        data = (self.weight[:, None] * self.misses(x)).ravel()
        usual = np.array([x[1], x[2] - math.log(1000.0)])
        return np.concatenate((data, PRIOR * usual))

    def estimates(self, x: Floats, jacobian: Floats, low: Floats, high: Floats) -> dict[str, Estimate]:
        """Values with standard errors; none for what lies at the end of its range, which is held fixed, and for what changes nothing."""
        values = self.values(x)
        reasons = self.unknown(x, jacobian, low, high)
        free = [i for i, name in enumerate(NAMES) if name not in reasons]
        deviation = dict(zip(free, self._deviations(x, jacobian[:, free]).tolist(), strict=True))
        share = _share(x[5])
        scale = [values[name] for name in NAMES[:4]] + [1.0, values["floor_loss"] * (1 - share)]
        return {
            name: Estimate(
                value=values[name],
                error=float(deviation[i] * scale[i]) if i in deviation else None,
                reason=reasons.get(name, ""),
            )
            for i, name in enumerate(NAMES)
        }

    def unknown(self, x: Floats, jacobian: Floats, low: Floats, high: Floats) -> dict[str, str]:
        """Why some constants have no standard error, by name."""
        position, bounded = np.full(len(x), 0.5), np.isfinite(low) & np.isfinite(high)
        position[bounded] = (x - low)[bounded] / (high - low)[bounded]
        position[5] = _share(x[5])
        slope = np.abs(jacobian[: len(self.levels) * len(self.which)]).max(axis=0)
        out = {}
        for name, at, steep in zip(NAMES, position.tolist(), slope.tolist(), strict=True):
            if not AT_LIMIT < at < 1.0 - AT_LIMIT:
                out[name] = f"at the {'lower' if at < 0.5 else 'upper'} end of what is allowed"
            elif not steep > 0.0:
                out[name] = "the updates do not depend on it here"
        return out

    def _deviations(self, x: Floats, jacobian: Floats) -> Floats:
        """Standard errors of the free parameters."""
        data, clusters = len(self.levels) * len(self.which), len(self.which)
        inverse = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-10)
        scores = (self.residuals(x)[:data, None] * jacobian[:data]).reshape(len(self.levels), clusters, -1).sum(0)
        middle = scores.T @ scores * clusters / max(clusters - 1, 1)
        return np.asarray(np.sqrt(np.maximum(np.diag(inverse @ middle @ inverse), 0.0)), np.float64)


def _share(logit: float) -> float:
    """Of the largest floor allowed."""
    return float(1.0 / (1.0 + math.exp(-float(np.clip(logit, -500.0, 500.0)))))
