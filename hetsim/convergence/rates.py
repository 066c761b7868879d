"""The learning rate of every update as a multiple of the setting's: batch rule, warm-up and the schedule's own scale.

rate_k = learning_rate · rule(B_k / global_batch) · warm-up(samples before k) · scale_k, where rule is 1 (none), linear or square root
(Goyal et al. 2017, Krizhevsky 2014) and warm-up grows linearly to 1 over `warmup_updates` global batches of samples, so that every
worker knows it before the update.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Training

Floats = NDArray[np.float64]


def batch_rule(samples: NDArray[np.int64], training: Training) -> Floats:
    """The factor for a batch of that many samples, relative to the profile's global batch."""
    ratio = np.maximum(samples, 0) / training.global_batch_samples
    if training.lr_rule == "linear":
        return np.asarray(ratio, np.float64)
    return np.sqrt(ratio) if training.lr_rule == "sqrt" else np.ones(len(samples))


def warm_up(samples_before: NDArray[np.int64], training: Training) -> Floats:
    """min(1, (1 + samples before / global batch) / warmup_updates): 1/W, 2/W, ... for constant global batches."""
    if training.warmup_updates <= 0:
        return np.ones(len(samples_before))
    return np.minimum(1.0, (1.0 + samples_before / training.global_batch_samples) / training.warmup_updates)


def rate_factors(samples: NDArray[np.int64], scale: Floats, training: Training) -> tuple[Floats, Floats]:
    """(factor of each update, factor a worker assumes when it predicts that update).

    The second goes by the size of the batch before; the first update by its own."""
    before = np.concatenate(([0], np.cumsum(samples)[:-1])).astype(np.int64)
    common = warm_up(before, training) * scale
    known = np.concatenate((samples[:1], samples[:-1]))
    return common * batch_rule(samples, training), common * batch_rule(known, training)
