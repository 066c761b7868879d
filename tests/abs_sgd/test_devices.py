"""Which device a rank computes on, and what is refused before a process group is made. CUDA is played by hand here."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from live_clusters import two_workers

from abs_sgd.devices import device_of, join, refuse_shared_gpus
from abs_sgd.launch import launch
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


def test_a_live_run_on_a_device_that_is_not_there_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("abs_sgd.launch._run_all", lambda job: pytest.fail("ranks were started"))
    for backend in ("gloo", "nccl"):
        with pytest.raises(UsageError, match="--device cuda"):
            launch(two_workers(), "s-sgd", updates=1, backend=backend, device="cuda")
    with pytest.raises(UsageError, match="nccl moves tensors between GPUs only"):
        launch(two_workers(), "s-sgd", updates=1, backend="nccl")


@pytest.mark.usefixtures("two_gpus")
def test_ranks_are_told_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def run(job: object, _progress: object) -> None:
        jobs.append(job)
        raise RuntimeError("seen")

    monkeypatch.setattr("abs_sgd.launch._run_all", run)
    with pytest.raises(RuntimeError, match="seen"):
        launch(two_workers((1.0, 1.0, 1.0)), "s-sgd", updates=1, device="cuda")
    assert (jobs[0].backend, jobs[0].devices) == ("gloo", ("cuda:0", "cuda:1", "cuda:0"))


def test_groups_are_made_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setattr(dist, "init_process_group", lambda name, **options: made.append((name, options)))
    join("gloo", "cpu", rank=0)
    join("gloo", "cuda:1", rank=1)
    join("nccl", "cuda:1", rank=2)
    assert made == [
        ("gloo", {"rank": 0}),
        "cuda:1",
        ("gloo", {"rank": 1}),
        "cuda:1",
        ("cpu:gloo,cuda:nccl", {"device_id": torch.device("cuda", 1), "rank": 2}),
    ]
