"""The share of the own gradient in a blended prediction, where none is stated."""

from __future__ import annotations

import numpy as np
import pytest

from hetsim import load_profile, simulate
from hetsim.algorithms import make
from hetsim.algorithms.base import least_error_blend
from hetsim.schedule import Kind, PointRule


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_no_other_share_predicts_the_next_mean_of_pure_noise_better(workers: int) -> None:
    rng = np.random.default_rng(workers)
    own = rng.normal(size=(workers, 200_000))  # one batch of each worker, and the mean of an earlier one
    following, before = own.mean(axis=0), rng.normal(size=200_000) / np.sqrt(workers)

    def error(share: float) -> float:
        return float(np.mean((share * own[0] + (1.0 - share) * before - following) ** 2))

    best = least_error_blend(workers)
    assert error(best) < min(error(best - 0.05), error(best + 0.05))
    assert error(best) == pytest.approx(2.0 * (workers - 1) / (workers * (workers + 1)), abs=0.01)


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("algorithm", ["abs-sgd", "one-step-delay", "one-step-delay-balanced"])
def test_a_blend_that_is_not_stated_follows_the_number_of_workers(algorithm: str, workers: int) -> None:
    overrides = ["training.max_samples=4096", "training.global_batch_samples=64", f"workers.a.count={workers}"]
    cluster = load_profile("homogeneous-4", overrides=overrides).cluster()
    for stated, scale in ((None, 2.0 / (workers + 1)), (0.25, 0.25)):
        options = {"compute_point": "blend"} | ({} if stated is None else {"blend": stated})
        schedule = simulate(cluster, make(algorithm, options), seed=0).schedule
        rows = schedule.rows(Kind.PREDICT)
        assert len(rows) > 0
        assert set(schedule.code[rows].tolist()) == {int(PointRule.BLEND)}
        assert set(schedule.scale[rows].tolist()) == {scale}
