"""The noisy quadratic model: a loss of independent directions, each with its own curvature and gradient noise.

    loss = ½ Σ_j h_j θ_j²        per-sample gradient of direction j: h_j θ_j + noise of variance c_j

Zhang et al. 2019 (arXiv 1907.04164) use h_j = 1/j and c_j = h_j over 10^4 directions and find that it predicts how batch size, momentum and
averaging trade against each other in real networks. A power-law spectrum is smooth, so a few dozen nodes with multiplicities
stand for its thousand directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.errors import UsageError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """D nodes: curvature `h`, per-sample gradient variance `c`, `start` = E θ_0², `multiplicity` directions each. All shape (D,).

    `noise_power` = q: the variance is c (loss / initial loss)^q, q = 0 noise that stays. Gradients of cross entropy vanish on samples that
    are already right, so in networks noise falls with the loss. `lengthening`: one over the squared norm of weights that the loss knows
    only by their direction (`hetsim.convergence.lengthening`), on the scale of θ; 0 where there are none."""

    h: Floats
    c: Floats
    start: Floats
    multiplicity: Floats
    noise_power: float = 0.0
    lengthening: float = 0.0

    def __post_init__(self) -> None:
        arrays = (self.h, self.c, self.start, self.multiplicity)
        if any(a.shape != self.h.shape or a.ndim != 1 for a in arrays) or not self.h.size:
            raise UsageError("a quadratic needs h, c, start and multiplicity of one length, at least 1")
        if any(not np.all(np.isfinite(a)) or np.any(a < 0) for a in arrays):
            raise UsageError("a quadratic needs finite h, c, start and multiplicity, none negative")
        if not 0.0 <= self.noise_power < np.inf:
            raise UsageError("a quadratic needs a noise_power of at least 0")
        if not 0.0 <= self.lengthening < np.inf:
            raise UsageError("a quadratic needs a finite lengthening of at least 0")

    def __len__(self) -> int:
        return len(self.h)

    @property
    def weight(self) -> Floats:
        """What turns second moments into the loss: loss = weight · E θ², weight_j = ½ multiplicity_j h_j."""
        return 0.5 * self.multiplicity * self.h

    @property
    def initial_loss(self) -> float:
        """E loss before the first update."""
        return float(self.weight @ self.start)

    @property
    def largest_curvature(self) -> float:
        return float(self.h.max())

    @property
    def directions(self) -> float:
        return float(self.multiplicity.sum())

    @property
    def critical_batch(self) -> float:
        """Batch at which noise and signal of the first gradient are equal: tr Σ / |G|² = Σ c / Σ h² E θ_0² (samples)."""
        signal = float(self.multiplicity @ (self.h**2 * self.start))
        return float(self.multiplicity @ self.c) / signal if signal > 0 else np.inf

    def with_outlier(self, curvature: float | None) -> Quadratic:
        """One direction more, with the noise per curvature and the initial loss of the steepest, so that it limits the learning rate and
        hardly shows in the loss [our choice]; None adds nothing."""
        if curvature is None:
            return self
        top = int(np.argmax(self.h))
        noise = self.c[top] * curvature / self.h[top]
        return Quadratic(
            np.append(curvature, self.h),
            np.append(noise, self.c),
            np.append(self.start[top] * self.h[top] / curvature, self.start),
            np.append(1.0, self.multiplicity),
            self.noise_power,
            self.lengthening,
        )

    def compressed(self, nodes: int, exact: int | None = None) -> Quadratic:
        """The same model with about `nodes` nodes: the `exact` steepest directions kept (default a third), the rest binned evenly in
        log curvature, each bin at its mean curvature (so the initial loss of a spectrum with equal `start` is unchanged).

        Error: second order in the bins' log width; 48 nodes for a 1/j spectrum of 1,000 directions stay within .1 % of the loss."""
        if len(self) <= nodes:
            return self
        exact = nodes // 3 if exact is None else exact
        order = np.argsort(-self.h, kind="stable")
        h = np.maximum(self.h[order], 1e-300)
        tail = np.log(h[exact]) - np.log(h[exact:])
        bins = np.minimum((tail / max(float(tail[-1]), 1e-300) * (nodes - exact)).astype(int), nodes - exact - 1)
        label = np.concatenate((np.arange(exact), exact + bins))
        m = self.multiplicity[order]
        total = np.bincount(label, m).astype(np.float64)
        kept = total > 0

        def mean(values: Floats) -> Floats:
            return (np.bincount(label, m * values[order])[kept] / total[kept]).astype(np.float64)

        return Quadratic(mean(self.h), mean(self.c), mean(self.start), total[kept], self.noise_power, self.lengthening)

    def noise_factor(self, loss: Floats) -> Floats | float:
        """(loss / initial loss)^q, what the noise is worth at a loss; finite and not negative whatever the loss has become."""
        if not self.noise_power:
            return 1.0
        return np.asarray(np.clip(np.nan_to_num(loss / self.initial_loss), 0.0, 1e6) ** self.noise_power)


def power_law(
    directions: int = 1000,
    *,
    exponent: float = 1.0,
    noise: float = 1.0,
    start: float = 1.0,
    noise_exponent: float = 1.0,
) -> Quadratic:
    """h_j = j^-exponent, c_j = noise · h_j^noise_exponent, E θ_0² = start, j = 1..directions (Zhang et al. 2019: all ones)."""
    j = np.arange(1, directions + 1, dtype=np.float64)
    h = j**-exponent
    return Quadratic(h, noise * h**noise_exponent, np.full(directions, start), np.ones(directions))
