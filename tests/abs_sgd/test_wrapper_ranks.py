"""The trainer for one's own loop, on several processes: no step waits, states are saved in flight, all stop together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import wrapper_ranks as ranks
from torch import Tensor

pytestmark = [pytest.mark.torch, pytest.mark.live]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    jobs = [
        ranks.one_ahead,
        ranks.saved_in_flight,
        ranks.diverging,
    ]
    return ranks.run(2, tmp_path_factory.mktemp("two"), *jobs)


def gradient_sum(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w - 1.0)[:, None] * x).sum(0)


def start() -> Tensor:
    return ranks.weights(ranks.quadratic())


def test_a_step_never_waits_for_another_rank(two: Results) -> None:
    first, second = two["one_ahead"]
    assert first["meanwhile"] == 0
    assert first["contributed"] == second["contributed"] == [20, 2]
    assert first["updates"] == second["updates"] == 2
    assert torch.equal(first["weights"], second["weights"])


def test_saved_at_one_update_number_the_flight_is_finished_after_loading(two: Results) -> None:
    first, second = two["saved_in_flight"]
    for result in (first, second):
        assert torch.equal(result["resumed"], first["next"]) and result["updates"] == 4
        assert "of updates 3 to 4" in result["refused"]
    assert "gradients of rank 1 of 2" in first["not_mine"]
    assert torch.equal(first["next"], second["next"])


def test_all_ranks_stop_at_the_same_divergence(two: Results) -> None:
    first, second = two["diverging"]
    assert first["said"] == second["said"]
    assert first["said"].startswith("update 3, 8 samples")
