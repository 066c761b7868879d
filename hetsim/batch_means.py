"""How well a mean over correlated values is known, by batch means.

The values are cut into ten batches in their order; the means of batches that are long against any correlation are nearly independent, so
that their spread gives the standard error of the whole mean: ± t · s/√10, t the quantile of Student's distribution.
Source: Law, Simulation Modeling and Analysis, section 9.5.3 (the batch-means method).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

BATCHES = 10  # few, so that each is long [our choice]
CONFIDENCE = 0.95
STUDENT = 2.262157  # its quantile (1 + CONFIDENCE)/2 at BATCHES - 1 degrees of freedom


def relative_error(times: NDArray[np.float64]) -> float | None:
    """Half the 95 % interval of the mean step between increasing times, over that mean; None for fewer than two steps a batch.

    Where the steps repeat without luck it is above the true error: a batch may begin and end anywhere in the pattern. Where they drift more
    slowly than the run is long it is below.

    >>> relative_error(np.arange(21.0))
    0.0
    """
    steps = len(times) - 1
    if steps < 2 * BATCHES or not times[-1] > times[0]:
        return None
    size = steps // BATCHES
    means = np.diff(times[len(times) - 1 - size * BATCHES :: size]) / size
    return float(STUDENT * means.std(ddof=1) / math.sqrt(BATCHES) / means.mean())
