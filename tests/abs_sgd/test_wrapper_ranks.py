"""The trainer for one's own loop, on several processes: right weights, equal replicas, no rank hangs, no sample lost or used twice."""

from __future__ import annotations

from pathlib import Path
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
        ranks.unequal_batches,
        ranks.tokens,
        ranks.clipping,
        ranks.out_of_data,
        ranks.one_ahead,
        ranks.paused,
        ranks.saved_in_flight,
        ranks.sampling_resumed,
        ranks.diverging,
    ]
    return ranks.run(2, tmp_path_factory.mktemp("two"), *jobs)


def gradient_sum(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w - 1.0)[:, None] * x).sum(0)


def start() -> Tensor:
    return ranks.weights(ranks.quadratic())


def test_unequal_batches_weigh_as_one_batch_of_all_samples(two: Results) -> None:
    first, second = two["unequal_batches"]
    x = torch.cat([ranks.inputs(0, 0, 6), ranks.inputs(1, 0, 2)])
    expected = start() - ranks.LR * gradient_sum(x, start()) / 8
    wrong = start() - ranks.LR * sum(gradient_sum(p, start()) / len(p) for p in (x[:6], x[6:])) / 2
    assert torch.allclose(first["weights"], expected, rtol=0, atol=1e-14)
    assert not torch.allclose(first["weights"], wrong, rtol=0, atol=1e-3)
    assert torch.equal(first["weights"], second["weights"])
    assert first["samples"] == 8 and first["contributed"] == [6, 2]


def test_weights_may_be_tokens(two: Results) -> None:
    means = [gradient_sum(ranks.inputs(rank, 0, 4), start()) / 4 for rank in range(2)]
    expected = start() - ranks.LR * (30 * means[0] + 10 * means[1]) / 40
    for result in two["tokens"]:
        assert torch.allclose(result["weights"], expected, rtol=0, atol=1e-14)


def test_norms_are_clipped_once_after_aggregation(two: Results) -> None:
    for result in two["clipping"]:
        assert result["moved"] == pytest.approx(0.8, abs=1e-12)  # .707 where each rank clips as well


def test_ranks_that_run_out_of_data_hang_nobody_and_the_run_is_delayed_sgd(two: Results) -> None:
    first, second = two["out_of_data"]
    assert torch.equal(first["weights"], second["weights"])
    totals = [sum(count for _, count, _, _ in result["log"]) for result in (first, second)]
    assert first["contributed"] == second["contributed"] == totals
    assert first["samples"] == sum(totals)
    versions, velocity = [start()], torch.zeros(ranks.DIMENSION, dtype=torch.float64)
    slots = [[row for row in result["log"]] for result in (first, second)]
    for k in range(1, max(row[3] for log in slots for row in log) + 1):
        total, samples = torch.zeros_like(velocity), 0
        for rank, log in enumerate(slots):
            for step, count, version, slot in log:
                if slot == k:
                    assert version == max(k - 2, 0), "every gradient is exactly one update old"
                    total += gradient_sum(ranks.inputs(rank, step, count), versions[version])
                    samples += count
        velocity = ranks.MOMENTUM * velocity + total / samples
        versions.append(versions[-1] - ranks.LR * velocity)
    assert torch.allclose(first["weights"], versions[-1], rtol=0, atol=1e-12)
    assert len(versions) > 5


def test_a_step_never_waits_for_another_rank(two: Results) -> None:
    first, second = two["one_ahead"]
    assert first["meanwhile"] == 0
    assert first["contributed"] == second["contributed"] == [20, 2]
    assert first["updates"] == second["updates"] == 2
    assert torch.equal(first["weights"], second["weights"])


def test_batchnorm_is_averaged_by_samples_and_a_finished_rank_sits_through_pauses(two: Results) -> None:
    first, second = two["paused"]
    expected = (6 * first["own"] + 2 * second["own"]) / 8
    for result in (first, second):
        assert torch.allclose(result["mean"], expected, rtol=0, atol=1e-12)
        assert result["in_flight"] is None
        assert result["samples"] == 6 + 2 + 3 * 4 + 4
    for name in ("mean", "weights", "last", "last_mean"):
        assert torch.equal(first[name], second[name])
    assert not torch.equal(first["weights"], first["last"])


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


def test_resuming_neither_repeats_nor_skips_a_sample(two: Results) -> None:
    results = two["sampling_resumed"]
    before = sorted(i for result in results for i in result["before"])
    after = sorted(i for result in results for i in result["after"])
    assert len(before) == 4 and all(result["saved"] == 4 for result in results)
    assert sorted(before + after) == list(range(40))
    assert all(result["epoch"] == 1 for result in results)


def test_ten_samples_on_four_ranks_come_once_per_epoch(tmp_path: Path) -> None:
    results = ranks.run(4, tmp_path, ranks.sampling)["sampling"]
    for epoch in range(2):
        assert sorted(i for result in results for i in result["epochs"][epoch]) == list(range(10))


def test_a_rank_that_is_gone_is_an_error_of_the_other(tmp_path: Path) -> None:
    (left,) = ranks.run(2, tmp_path, ranks.dying)["dying"]
    assert "a rank is gone" in left["said"] and left["said"].startswith("synchronization ")
