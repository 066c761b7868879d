"""Largest stable learning rates and noise floors of delayed SGD with momentum on a quadratic, and the warnings that follow.

Everything is in a = lr·h, h the largest curvature. A delay of one update costs momentum dearly: at β = .9 the bound falls from 3.8 to 0.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hetsim.errors import UsageError
from hetsim.schedule.kinds import PointRule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Caution:
    """A warning for the reader of a result: a code for programs, a sentence for people."""

    code: str
    text: str


def largest_stable(momentum: float, delay: float) -> float:
    """Largest a = lr·h for heavy-ball SGD whose gradients are `delay` updates old.

    ω solves atan2(sin ω, cos ω - β) + (τ-½)ω = π/2 on (0, π); a = 2 sin(ω/2) sqrt(1 - 2β cos ω + β²). Closed forms: τ = 0: 2(1+β);
    τ = 1: 1-β; β = 0: 2 sin(π/(2(2τ+1))). A mean staleness that is no integer is taken as it is.
    """
    if not 0.0 <= momentum < 1.0 or delay < 0.0:
        raise UsageError(f"momentum must be in [0, 1) and the delay not negative, not {momentum:g} and {delay:g}")
    if delay == 0.0:
        return 2.0 * (1.0 + momentum)
    if delay == 1.0:
        return 1.0 - momentum
    if momentum == 0.0:
        return 2.0 * math.sin(math.pi / (2.0 * (2.0 * delay + 1.0)))

    def phase(
        w: float,
    ) -> float:  # rises from -π/2 to τπ; for τ ≥ ½ without a turn, its first root is the bound in any case
        return math.atan2(math.sin(w), math.cos(w) - momentum) + (delay - 0.5) * w - 0.5 * math.pi

    low, high = 0.0, math.pi
    for w in np.linspace(0.0, math.pi, 65)[1:].tolist():
        if phase(w) > 0.0:
            high = w
            break
        low = w
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if phase(middle) > 0.0 else (middle, high)
    w = 0.5 * (low + high)
    return 2.0 * math.sin(0.5 * w) * math.sqrt(1.0 - 2.0 * momentum * math.cos(w) + momentum**2)


def transition(
    a: float, momentum: float, delay: int = 0, point: PointRule = PointRule.CURRENT, scale: float = 1.0
) -> Floats:
    """The matrix of one update of the mean on one direction, velocities in units of lr. `scale` is κ (look-ahead) or the blend.

    Predicted points have one update of delay: p_{k+1} = x_k - κ·u_k with u = lr·v, or x_k - (βu_k + s·lr·g_k + (1-s)·lr·g_{k-1}), or
    x_k - κ·lr·g_k (local-step). Damping is of what the mean does not have.
    """
    b = momentum
    if point == PointRule.CURRENT:
        m = np.zeros((delay + 2, delay + 2))  # x_k, ..., x_{k-τ}, u_k
        m[-1, delay], m[-1, -1] = a, b
        m[0] = -m[-1]
        m[0, 0] += 1.0
        m[range(1, delay + 1), range(delay)] = 1.0
        return m
    if point == PointRule.LOOK_AHEAD:  # x_k, u_k, p_k
        u = np.array([0.0, b, a])
        return np.stack((np.array([1.0, 0.0, 0.0]) - u, u, np.array([1.0, -scale, 0.0])))
    if point == PointRule.LOCAL_STEP:  # the same three
        u = np.array([0.0, b, a])
        return np.stack((np.array([1.0, 0.0, 0.0]) - u, u, np.array([1.0, 0.0, -scale * a])))
    own = scale if point == PointRule.BLEND else 1.0
    u = np.array([0.0, b, a, 0.0])  # x_k, u_k, p_k, lr·g_{k-1}
    x = np.array([1.0, 0.0, 0.0, 0.0])
    p = x - np.array([0.0, b, own * a, 1.0 - own])
    return np.stack((x - u, u, p, np.array([0.0, 0.0, a, 0.0])))


@lru_cache(maxsize=1024)  # some hundred eigenvalue problems, asked for again by every row
def largest_stable_at(
    momentum: float, point: PointRule, scale: float = 1.0, *, delay: int = 1, several: bool = False
) -> float:
    """Largest stable a for a compute point, from the eigenvalues of `transition`.

    With `several` workers each predicts by its own gradient and deviates from the mean point by d' = -s·a·d: s·a < 1 as well [derived
    here]; with damping γ by d' = -a(d + γd_before): a·max(γ, 1-γ) < 1. Equal shares cancel deviations in the update, but not their
    growth, until rounding lets them through.
    """
    if point == PointRule.CURRENT:
        return largest_stable(momentum, delay)

    def stable(a: float) -> bool:
        return float(np.abs(np.linalg.eigvals(transition(a, momentum, delay, point, scale))).max()) <= 1.0 + 1e-12

    grid = np.linspace(0.0, 2.0 * (1.0 + momentum) * 1.05, 400)[1:].tolist()
    low, high = 0.0, grid[-1]
    for a in grid:
        if not stable(a):
            high = a
            break
        low = a
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if stable(middle) else (low, middle)
    damped = point == PointRule.DAMPED_PREDICTION
    own = max(scale, 1.0 - scale) if damped else 1.0 if point == PointRule.LOCAL_PREDICTION else scale
    feeds_back = several and point not in (PointRule.CURRENT, PointRule.LOOK_AHEAD) and own > 0
    return min(low, 1.0 / own) if feeds_back else low


def best_kappa(momentum: float) -> float:
    """κ of look-ahead with the largest stability bound, 2β/(2-β)² [derived here]: 0 at β = 0, 1.49 at .9, up to 2."""
    return 2.0 * momentum / (2.0 - momentum) ** 2


def largest_stable_look_ahead(momentum: float, kappa: float) -> float:
    """Largest stable a = lr·h for gradients at x_{k-1} - κ·lr·v_{k-1}, one update late.

    z³ - (1+β)z² + (β + a(1+κ))z - aκ has its roots inside the circle while κ²a² + (1-κβ)a < 1-β (Jury). Largest at `best_kappa`: (1-β/2)².
    """
    b = 1.0 - kappa * momentum
    root = math.sqrt(b**2 + 4.0 * kappa**2 * (1.0 - momentum))
    return 2.0 * (1.0 - momentum) / (b + root)


def noise_floor(learning_rate: float, curvature: float, momentum: float, delay: int) -> float:
    """Stationary E θ² per unit of c/B, delay 0 or 1; inf where it is unstable. a = lr·h.

    τ = 0: lr(1+β) / [h(1-β)(2(1+β)-a)];  τ = 1: lr(1+β+a) / [h(1-β-a)(2(1+β)+a)].
    """
    a, b = learning_rate * curvature, momentum
    if delay not in (0, 1):
        raise UsageError("the noise floor has a closed form for a delay of 0 or 1 only")
    if a >= largest_stable(b, delay):
        return math.inf
    if delay == 0:
        return learning_rate * (1 + b) / (curvature * (1 - b) * (2 * (1 + b) - a))
    return learning_rate * (1 + b + a) / (curvature * (1 - b - a) * (2 * (1 + b) + a))


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What besides learning rate and momentum decides on stability: mean delay in updates, and where gradients are taken (`scale`: κ of
    look-ahead, or the blend)."""

    delay: float = 0.0
    point: PointRule = PointRule.CURRENT
    scale: float = 1.0
    several: bool = False

    def bound(self, momentum: float) -> float:
        """Largest stable a = lr·h here."""
        if self.point == PointRule.CURRENT:
            return largest_stable(momentum, self.delay)
        return largest_stable_at(momentum, self.point, self.scale, several=self.several)


SYNCHRONOUS = Circumstances()


def cautions(
    *,
    learning_rate: float,
    momentum: float,
    largest_curvature: float,
    circumstances: Circumstances = SYNCHRONOUS,
    batch_samples: float | None = None,
    critical_batch_samples: float | None = None,
    lengthens: bool = False,
) -> list[Caution]:
    """Warnings for one setting: `unstable-learning-rate` beyond the bound, `learning-rate-near-bound` from 80 % of it [our choice],
    `batch-past-critical` beyond the gradient noise scale. `lengthens`: weights before normalisations do (`lengthening`), so that what is
    unstable becomes slow."""
    bound, delay = circumstances.bound(momentum), circumstances.delay
    a = learning_rate * largest_curvature
    out = []
    updates = "1 update" if f"{delay:.3g}" == "1" else f"{delay:.3g} updates"
    where = f"learning rate × largest curvature = {a:.3g}, at momentum {momentum:g} and a delay of {updates},"
    if a >= bound:
        then = "unstable until weights before normalisations have lengthened" if lengthens else "expect divergence"
        out.append(Caution("unstable-learning-rate", f"{where} is past the stability bound {bound:.3g}: {then}."))
    elif a > 0.8 * bound:
        out.append(Caution("learning-rate-near-bound", f"{where} is close to the stability bound {bound:.3g}."))
    if batch_samples is not None and critical_batch_samples is not None and batch_samples > critical_batch_samples:
        text = (
            f"{batch_samples:.0f} samples per update are past the critical batch of about {critical_batch_samples:.0f}:"
        )
        out.append(Caution("batch-past-critical", f"{text} more samples/s, but hardly fewer updates."))
    return out
