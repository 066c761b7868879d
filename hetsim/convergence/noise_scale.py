"""The gradient noise scale: how many samples a target costs at a batch size, and how to measure it while training.

S = S_min (1 + B_n/B) updates of batch B reach the target, B_n = tr Σ / |G|² (McCandlish et al. 2018, arXiv 1812.06162). With batches that
vary, update k is worth 1/(1 + B_n/B_k) and training ends when these sum to S_min.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Cluster
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Curve, Setting, Target
from hetsim.convergence.progress import Progress, progress_of
from hetsim.errors import UsageError
from hetsim.schedule.table import Schedule

Floats = NDArray[np.float64]


def updates_needed(batch: float | Floats, min_updates: float, noise_scale: float) -> float | Floats:
    """S = S_min (1 + B_n/B)."""
    return min_updates * (1.0 + noise_scale / batch)


def worth(batch: float | Floats, noise_scale: float) -> float | Floats:
    """1/(1 + B_n/B) = B/(B + B_n): what an update of batch B adds to the sum that ends at S_min. No samples, no progress."""
    return batch / (batch + noise_scale)


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """tr Σ (per-sample gradient variance) and |G|², both unbiased; both None, with a `reason`, where they are undefined.

    |G|² can come out negative on one update; average both over many updates before dividing.
    """

    trace: float | None
    squared_norm: float | None
    reason: str = ""

    @property
    def scale(self) -> float | None:
        """tr Σ / |G|² in samples, None where |G|² is not positive."""
        if self.trace is None or self.squared_norm is None or self.squared_norm <= 0:
            return None
        return self.trace / self.squared_norm


def estimate_noise(
    sum_squares_per_rank: Sequence[float], samples_per_rank: Sequence[int], square_of_total: float
) -> NoiseEstimate:
    """tr Σ and |G|² from one all-reduce of gradient sums s_i over unequal batches b_i.

    Q = Σ |s_i|²/b_i (one scalar more in the payload), T = |Σ s_i|²/B; E Q = n tr Σ + B |G|² and E T = tr Σ + B |G|², so
    tr Σ = (Q - T)/(n - 1), |G|² = (T - tr Σ)/B, n counting the ranks that contributed. `square_of_total` is |Σ s_i|².
    """
    if len(sum_squares_per_rank) != len(samples_per_rank):
        raise UsageError("the noise estimate needs one squared norm per rank's samples")
    pairs = [(q, b) for q, b in zip(sum_squares_per_rank, samples_per_rank, strict=True) if b > 0]
    return estimate_noise_reduced(sum(q / b for q, b in pairs), sum(b for _, b in pairs), square_of_total, len(pairs))


def estimate_noise_reduced(q: float, total_samples: int, square_of_total: float, contributors: int) -> NoiseEstimate:
    """The same from what a payload carries: Q, B, |Σ s_i|² and the number of ranks that contributed."""
    if contributors < 2:
        reason = f"{contributors} of the workers contributed; the noise scale needs at least 2"
        return NoiseEstimate(trace=None, squared_norm=None, reason=reason)
    t = square_of_total / total_samples
    trace = (q - t) / (contributors - 1)
    return NoiseEstimate(trace=trace, squared_norm=(t - trace) / total_samples)


class NoiseScale:
    """Progress by the gradient noise scale alone: batch sizes count, delays, learning rate and momentum do not.

    The curve falls from 1 (all of the training left) to 0 (done).
    """

    name = "noise-scale"

    def target(self, cluster: Cluster) -> Target:
        """Nothing left to do. The noise scale knows one end of training per workload; training.target_loss has no meaning here."""
        metric = f"share of the training left, by the gradient noise scale ({constants_of(cluster.workload).metric})"
        return Target(metric=metric, value=0.0)

    def curves(
        self, schedule: Schedule, cluster: Cluster, settings: Sequence[Setting], *, seed: int = 0
    ) -> list[Curve]:
        """The same curve for every setting."""
        known = constants_of(cluster.workload)
        done = progress_of(schedule)
        return [self._curve(done, cluster, known.noise_scale.min_updates, known.noise_scale.noise_scale_samples)] * len(
            settings
        )

    def _curve(self, done: Progress, cluster: Cluster, min_updates: float, noise_scale: float) -> Curve:
        gained = done.steps * worth(done.samples / done.steps, noise_scale)
        left = np.concatenate(([1.0], 1.0 - np.cumsum(gained) / min_updates))
        past = np.flatnonzero(left <= 0)
        end = int(past[0]) + 1 if len(past) else len(left)
        source = constants_of(cluster.workload).noise_scale.source
        sentences = [
            f"Gradient noise scale {noise_scale:g} samples, {min_updates:g} updates at an infinite batch: {source}",
            "A delay costs nothing and the learning rate is always right: an upper bound on what delayed methods gain.",
        ]
        if done.averaging:
            sentences.append("A local step of n replicas counts as one update over all their samples.")
        if cluster.training.target_loss is not None:
            sentences.append("training.target_loss is not used: the noise scale knows only the workload's own target.")
        return Curve(
            updates=np.arange(end, dtype=np.int64),
            samples=np.concatenate(([0], np.cumsum(done.samples)))[:end],
            time_s=np.concatenate(([0.0], done.time_s))[:end],
            loss=left[:end],
            assumptions=tuple(sentences),
        )
