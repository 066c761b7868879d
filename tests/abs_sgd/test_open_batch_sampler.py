"""Samples of one process: once per epoch, and prefetched is not consumed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import abs_sgd
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch
DATA = TensorDataset(torch.arange(23))


def loader(sampler: abs_sgd.OpenBatchSampler) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(DATA, batch_sampler=sampler, num_workers=2)


def test_every_sample_once_per_epoch_in_another_order_each() -> None:
    sampler = abs_sgd.OpenBatchSampler(23, 4, seed=1)
    epochs = [[int(i) for batch in sampler for i in batch] for _ in range(3)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and sampler.epoch == 3
    again = abs_sgd.OpenBatchSampler(23, 4, seed=1)
    assert [i for batch in again for i in batch] == epochs[0]
    plain = abs_sgd.OpenBatchSampler(23, 4, shuffle=False)
    assert [i for batch in plain for i in batch] == list(range(23))


def test_prefetched_samples_come_again_after_a_break_and_after_loading() -> None:
    sampler = abs_sgd.OpenBatchSampler(23, 2, seed=1)
    sampler.track()
    used: list[int] = []
    for (batch,) in loader(sampler):
        used += batch.tolist()
        sampler.consumed(len(batch))
        if len(used) == 6:
            break
    state = sampler.state_dict()
    assert int(state["done"][0].sum()) == 6  # though the loader holds several batches more
    fresh = abs_sgd.OpenBatchSampler(23, 5, seed=1)  # other batches, the same samples
    fresh.track()
    fresh.load_state_dict(state)
    for one in (sampler, fresh):
        rest = [i for (batch,) in loader(one) for i in batch.tolist()]
        assert sorted(used + rest) == list(range(23))
        one.consumed(len(rest))
        one.share()
        assert one.epoch == 1 and one.state_dict()["epoch"] == 1 and not one.state_dict()["done"]


def test_part_of_a_batch_can_be_consumed() -> None:
    sampler = abs_sgd.OpenBatchSampler(23, 8, shuffle=False)
    sampler.track()
    next(iter(sampler))
    sampler.consumed(3)
    assert sampler.state_dict()["done"][0].nonzero().flatten().tolist() == [0, 1, 2]
    assert next(iter(sampler)) == [3, 4, 5, 6, 7]


def test_what_cannot_be_is_refused() -> None:
    sampler = abs_sgd.OpenBatchSampler(23, 8)
    sampler.track()
    next(iter(sampler))
    with pytest.raises(UsageError, match=r"512 samples trained on, but 504 .*step\(tokens, samples=8\)"):
        sampler.consumed(512)
    with pytest.raises(UsageError, match="dataset_size 23, this sampler 24"):
        abs_sgd.OpenBatchSampler(24, 8).load_state_dict(sampler.state_dict())
    with pytest.raises(UsageError, match="at least 1"):
        abs_sgd.OpenBatchSampler(24, 0)
