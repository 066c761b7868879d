"""Which sample comes when, and randomness that belongs to a sample rather than to the order of computation.

Keyed draws are a counter-based hash (the finaliser of SplitMix64, Steele, Lea and Flood 2014): the same (seed, epoch,
sample) gives the same draw whatever algorithm, worker or batch meets the sample, and however passes are fused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(seed: int, *keys: Ints | int) -> Words:
    """64 random bits for each combination of keys (arrays broadcast)."""
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seed, dtype=np.int64).astype(np.uint64) + GOLDEN)
        for key in keys:
            state = _mix((state ^ np.asarray(key, dtype=np.int64).astype(np.uint64)) + GOLDEN)
    return state


def uniform(seed: int, *keys: Ints | int) -> Floats:
    """Uniform on (0, 1), never 0 or 1."""
    return ((words(seed, *keys) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal(seed: int, *keys: Ints | int) -> Floats:
    """Standard normal (Box-Muller)."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, *keys, 0)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform(seed, *keys, 1)))


class SampleOrder:
    """Sample number (running over all epochs) -> index into the data: one permutation per epoch, keyed by (seed,
    epoch)."""

    KEPT = 4  # permutations; asynchronous workers are rarely more than an epoch apart

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self._permutations: dict[int, Ints] = {}

    def epoch(self, epoch: int) -> Ints:
        """The order of one epoch."""
        if epoch not in self._permutations:
            if len(self._permutations) >= self.KEPT:
                del self._permutations[min(self._permutations)]
            self._permutations[epoch] = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        return self._permutations[epoch]

    def indices(self, numbers: Ints) -> Ints:
        """Data index of each sample number."""
        if not len(numbers):
            return numbers
        epochs, places = np.divmod(numbers, self.samples)
        low, high = int(epochs.min()), int(epochs.max())
        if low == high:
            return self.epoch(low)[places]
        found = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self.epoch(epoch)[places[here]]
        return found
