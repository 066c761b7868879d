"""Which device a rank computes on, and what is refused before a process group is made. CUDA is played by hand here."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from abs_sgd.devices import device_of, refuse_shared_gpus
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


def test_cpu_needs_no_gpu() -> None:
    assert device_of(3, 4, "gloo", "cpu") == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_ranks_take_the_gpus_in_turn() -> None:
    assert [device_of(r, 5, "gloo", "cuda").index for r in range(5)] == [0, 1, 0, 1, 0]
    assert [device_of(r, 2, "nccl", "cuda") for r in (0, 1)] == [torch.device("cuda", 0), torch.device("cuda", 1)]


@pytest.mark.usefixtures("two_gpus")
def test_two_ranks_on_one_gpu_are_refused_with_nccl() -> None:
    """torchtitan#1224: "Duplicate GPU detected" out of the middle of the first collective."""
    for rank in range(3):
        with pytest.raises(UsageError, match=r"3 ranks and 2 GPUs .* \(Duplicate GPU\)\. Take --backend gloo"):
            device_of(rank, 3, "nccl", "cuda")


@pytest.mark.parametrize(
    ("backend", "wanted", "said"),
    [
        ("nccl", "cpu", "nccl moves tensors between GPUs only"),
        ("ncl", "cuda", "did you mean nccl"),
        ("gloo", "cud", "did you mean cuda"),
    ],
)
def test_what_cannot_be_is_said(backend: str, wanted: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        device_of(0, 1, backend, wanted)


@pytest.mark.parametrize(("built", "said"), [(None, "built without CUDA"), ("12.8", "finds no GPU")])
def test_without_a_gpu_it_says_why(monkeypatch: pytest.MonkeyPatch, built: str | None, said: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(UsageError, match=said):
        device_of(0, 1, "gloo", "cuda")


def refused(gpus: list[str]) -> list[str]:
    """What each rank is told, the ranks being threads on one store."""
    store = dist.HashStore()
    told = [""] * len(gpus)

    def rank(number: int) -> None:
        try:
            refuse_shared_gpus(store, number, len(gpus), gpus[number])
        except UsageError as error:
            told[number] = str(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return told


def test_gpus_are_compared_over_the_store_whatever_ranks_call_them() -> None:
    assert refused(["a/1", "b/1", "a/2"]) == ["", "", ""]
    told = refused(["a/1", "b/1", "a/1"])
    assert len(set(told)) == 1 and told[0].startswith("ranks 0, 2 on a/1: nccl refuses two ranks on one GPU")
