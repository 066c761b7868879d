"""Weights that the loss knows only by their direction, and that every step makes longer.

The output of a normalisation (batch, group or layer norm) does not change with the length of the weights before it. Their gradient is
therefore at right angles to them and falls with their length, and a step can only lengthen them: over |w_0|², ρ = |w|²/|w_0|²,

    w·v' = β w·v + λ|w|²        |w'|² = |w|² - 2 lr w·v' + lr² |v'|²        w'·v' = w·v' - lr |v'|²        (λ: weight decay)

What turns them is lr/ρ, as if the learning rate decayed: the more the larger it is and the noisier the gradient, so that rates a factor of
ten apart train at nearly the same pace, and a training past its stability bound lengthens its weights until it is stable again
(van Laarhoven 2017, arXiv 1706.05350; Arora, Li, Lyu 2019, arXiv 1812.03981). |v'|² is the model's second moment over ρ; the model's
curvature and noise are those at the first length. For small angles; with Nesterov's step right in the long run only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetsim.convergence.quadratic import Quadratic

Floats = NDArray[np.float64]
SHORTEST = 1e-6  # of the first squared norm: weight decay alone would take it to nothing [our choice]


class Lengths:
    """ρ of every setting, shape (S,), beginning with 1."""

    def __init__(self, quadratic: Quadratic, learning_rate: Floats, momentum: Floats, decay: float = 0.0) -> None:
        self.rate, self.momentum, self.decay = learning_rate, momentum, decay
        self.square = quadratic.multiplicity * quadratic.lengthening  # of the velocities, over |w_0|²
        self.ratio = np.ones_like(learning_rate)
        self.along = np.zeros_like(learning_rate)  # w·v over |w_0|²

    def step(self, factor: float, second_moments: Floats) -> None:
        """An update at `factor` times the learning rate; E v'² of every direction, shape (S·D,) or (S, D)."""
        lr = factor * self.rate
        square = np.einsum("sd,d->s", second_moments.reshape(len(lr), -1), self.square) / self.ratio
        along = self.momentum * self.along + self.decay * self.ratio
        self.ratio = np.maximum(self.ratio - 2.0 * lr * along + lr * lr * square, SHORTEST)
        self.along = along - lr * square

    @property
    def learning_rate(self) -> Floats:
        """What turns the weights, shape (S,)."""
        return self.rate / self.ratio

    def keep(self, settings: NDArray[np.bool_]) -> None:
        """Drop the settings that are False."""
        for name in ("rate", "momentum", "ratio", "along"):
            setattr(self, name, getattr(self, name)[settings])


def lengths_of(quadratic: Quadratic, learning_rate: Floats, momentum: Floats, decay: float = 0.0) -> Lengths | None:
    """None where no weights lengthen."""
    return Lengths(quadratic, learning_rate, momentum, decay) if quadratic.lengthening else None
