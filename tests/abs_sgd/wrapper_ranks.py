"""What the ranks of the tests of the training-loop wrapper do; in a module of its own, since spawned processes import it."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abs_sgd
from hetsim.errors import SimulationError, UsageError

LR, MOMENTUM, DIMENSION = 0.05, 0.8, 3
TIMEOUT_S = 120
CURRENT = {"compute_point": "current"}
Result = dict[str, Any]


def quadratic() -> nn.Linear:
    """Loss ½ (w·x - 1)²: gradients by hand are (w·x - 1) x."""
    net = nn.Linear(DIMENSION, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.3, -0.2, 0.1]]))
    return net


def inputs(rank: int, step: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(count, DIMENSION, generator=generator, dtype=torch.float64)


def backward(net: nn.Module, x: Tensor) -> None:
    (0.5 * (net(x) - 1.0) ** 2).mean().backward()


def sgd(net: nn.Module, momentum: float = MOMENTUM) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=LR, momentum=momentum)


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def unequal_batches(rank: int) -> Result:
    """One synchronous update of 6 + 2 samples; the first rank's start is everybody's."""
    net = quadratic()
    with torch.no_grad():
        net.weight.add_(rank)
    trainer = abs_sgd.AbsSgd(net, sgd(net, 0.0), options=CURRENT)
    backward(net, inputs(rank, 0, (6, 2)[rank]))
    trainer.step((6, 2)[rank])
    trainer.finish()
    return {"weights": weights(net), "samples": trainer.samples, "contributed": trainer.contributed}


def tokens(rank: int) -> Result:
    """The same with weights that are not the number of samples."""
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net, 0.0), options=CURRENT)
    backward(net, inputs(rank, 0, 4))
    trainer.step((30, 10)[rank], samples=4)
    trainer.finish()
    return {"weights": weights(net)}


def clipping(rank: int) -> Result:
    """Perpendicular gradients of norm 1.131 on each rank; their mean has norm .8 and is under the limit of 1."""
    net = nn.Linear(DIMENSION, 1, bias=False).double()
    with torch.no_grad():
        net.weight.zero_()
    trainer = abs_sgd.AbsSgd(net, sgd(net, 0.0), options=CURRENT, clip_norm=1.0)
    direction = torch.zeros(DIMENSION, dtype=torch.float64)
    direction[rank] = 0.8 * 2**0.5
    (net(direction).sum()).backward()
    trainer.step(1)
    trainer.finish()
    return {"moved": float(weights(net).norm() / LR)}


def out_of_data(rank: int) -> Result:
    """Unequal speeds, batches and lengths; what each rank did is logged for an independent computation."""
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net), options=CURRENT)
    log, slot = [], 1
    for step in range((40, 5)[rank]):
        count = 1 + (3 * step + rank) % 5
        version = trainer.updates
        backward(net, inputs(rank, step, count))
        time.sleep((0.001, 0.004)[rank])
        if trainer.step(count) or step == 0:  # a launch took this step's gradient along
            log.append((step, count, version, slot))
            slot += 1
        else:
            log.append((step, count, version, slot))
    trainer.finish()
    return {"weights": weights(net), "log": log, "samples": trainer.samples, "contributed": trainer.contributed}


def one_ahead(rank: int) -> Result:
    """The second rank makes no step before the first has made ten: a step that waited would never return."""
    store = dist.distributed_c10d._get_default_store()
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    if rank == 1:
        store.wait(["ten steps made"])
    for step in range((10, 1)[rank]):
        backward(net, inputs(rank, step, 2))
        trainer.step(2)
    meanwhile = trainer.updates
    if rank == 0:
        store.set("ten steps made", "yes")
    trainer.finish()
    return {
        "meanwhile": meanwhile,
        "updates": trainer.updates,
        "contributed": trainer.contributed,
        "weights": weights(net),
    }


def paused(rank: int) -> Result:
    """BatchNorm: 6 + 2 samples seen; then the first rank goes on while the other is finished."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.BatchNorm1d(DIMENSION, momentum=1.0), nn.Linear(DIMENSION, 1)).double()
    trainer = abs_sgd.AbsSgd(net, sgd(net), group=dist.new_group([0, 1]))
    x = inputs(rank, 0, (6, 2)[rank])
    net(x).mean().backward()
    trainer.step(len(x))
    with trainer.synchronized():
        seen = {
            "mean": net[0].running_mean.clone(),
            "weights": weights(net),
            "in_flight": trainer.state_dict()["in_flight"],
        }
    if rank == 0:
        for step in range(1, 4):
            net(inputs(rank, step, 4)).mean().backward()
            trainer.step(4)
        with trainer.synchronized():
            pass
        net(inputs(rank, 9, 4)).mean().backward()
        trainer.step(4)
    trainer.finish()
    return {
        **seen,
        "own": x.mean(0),
        "samples": trainer.samples,
        "last": weights(net),
        "last_mean": net[0].running_mean.clone(),
    }


def saved_in_flight(rank: int) -> Result:
    """Saved by both at update 3 without waiting; a second trainer finishes the flight that was under way."""
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net), options=CURRENT)
    state, next_version, step = None, None, 0
    while next_version is None:
        backward(net, inputs(rank, step, 2 + rank))
        if trainer.step(2 + rank) and trainer.updates == 3:
            state = trainer.state_dict()
        if trainer.updates == 4:
            next_version = weights(net).clone()
        step += 1
        time.sleep(0.001 * (1 + rank))
    trainer.finish()
    other = quadratic()
    resumed = abs_sgd.AbsSgd(other, sgd(other), options=CURRENT)
    assert state is not None
    resumed.load_state_dict(state)
    resumed.finish()
    try:
        foreign = dict(state, rank=1 - rank)
        abs_sgd.AbsSgd(fourth := quadratic(), sgd(fourth)).load_state_dict(foreign)
    except UsageError as error:
        not_mine = str(error)
    parted = dict(state, progress=[3 + rank, *state["progress"][1:]])
    try:
        abs_sgd.AbsSgd(third := quadratic(), sgd(third)).load_state_dict(parted)
    except UsageError as error:
        refused = str(error)
    return {
        "next": next_version,
        "resumed": weights(other),
        "updates": resumed.updates,
        "refused": refused,
        "not_mine": not_mine,
    }


def sampling(rank: int) -> Result:
    """Two epochs of 10 samples through DataLoader workers, with a checkpoint of every rank in the middle of the first."""
    data = TensorDataset(torch.arange(10))
    sampler = abs_sgd.OpenBatchSampler(10, 1, seed=5)
    seen: list[list[int]] = []
    for _ in range(2):
        loader = DataLoader(data, batch_sampler=sampler, num_workers=2, multiprocessing_context="fork")
        seen.append([int(i) for (batch,) in loader for i in batch])
    return {"epochs": seen}


def sampling_resumed(rank: int) -> Result:
    """Each rank trains on two of 40 samples, while its loader prefetches more; a fresh sampler hands out the other ones."""
    data = TensorDataset(torch.arange(40, dtype=torch.float64))
    net = nn.Linear(1, 1).double()
    sampler = abs_sgd.OpenBatchSampler(40, 1, seed=5)
    trainer = abs_sgd.AbsSgd(net, sgd(net), sampler=sampler)
    before = []
    for (x,) in DataLoader(data, batch_sampler=sampler, num_workers=2, multiprocessing_context="fork"):
        net(x[:, None]).mean().backward()
        trainer.step(1)
        before.append(int(x))
        if len(before) == 2:
            break
    with trainer.synchronized():
        state = trainer.state_dict()
    trainer.finish()
    again = abs_sgd.OpenBatchSampler(40, 1, seed=5)
    resumed = abs_sgd.AbsSgd(net, sgd(net), sampler=again)
    resumed.load_state_dict(state)
    after = []
    for (x,) in DataLoader(data, batch_sampler=again, num_workers=2, multiprocessing_context="fork"):
        net(x[:, None]).mean().backward()
        resumed.step(1)
        after.append(int(x))
    resumed.finish()
    return {"before": before, "after": after, "epoch": again.epoch, "saved": state["sampler"]["done"][0].sum().item()}


def diverging(rank: int) -> Result:
    """One rank's loss is no number: both raise, at the same update."""
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net), options={**CURRENT, "synchronous_updates": 100})
    try:
        for step in range(4):
            backward(net, inputs(rank, step, 2))
            trainer.step(2, loss=float("nan") if rank == 1 and step == 2 else 1.0)
    except abs_sgd.Diverged as error:
        return {"said": str(error)}
    return {"said": ""}


def differing(rank: int) -> Result:
    """Gradients of 4 and 7: where the one weight stands after each of three updates."""
    net = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    trainer = abs_sgd.AbsSgd(net, optimizer, options={**CURRENT, "synchronous_updates": 100})
    moved = []
    for _ in range(3):
        net(torch.tensor([[(4.0, 7.0)[rank]]], dtype=torch.float64)).sum().backward()
        trainer.step(1)
        moved.append(net.weight.item())
    trainer.finish()
    return {"moved": moved}


def scheduled(rank: int) -> Result:
    """Five updates of 4 + 4 samples, the rate halved every 8 samples; what the schedule was asked."""
    net, asked = quadratic(), []

    def halved(samples: int) -> float:
        asked.append(samples)
        return float(0.5 ** (samples // 8))

    optimizer = sgd(net)
    trainer = abs_sgd.AbsSgd(net, optimizer, options={**CURRENT, "synchronous_updates": 100}, schedule=halved)
    for step in range(5):
        backward(net, inputs(rank, step, 4))
        trainer.step(4)
    trainer.finish()
    return {"asked": asked, "rate": optimizer.param_groups[0]["lr"]}


def dying(rank: int) -> Result:
    """Rank 1 is gone after its third step, without a word."""
    store = dist.distributed_c10d._get_default_store()
    net = quadratic()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    try:
        for step in range(3 if rank == 1 else 10_000):
            backward(net, inputs(rank, step, 2))
            trainer.step(2)
            time.sleep(0.001)
        if rank == 1:
            store.set("gone at", str(time.time()))
            os._exit(0)
        trainer.finish()
    except SimulationError as error:
        return {"said": str(error), "after_s": time.time() - float(store.get("gone at"))}
    return {"said": ""}


def _rank(rank: int, n: int, folder: str, jobs: list[Callable[[int], Result]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=n, timeout=timedelta(seconds=60))
    results: dict[str, Result] = {}
    for job in jobs:
        try:
            results[job.__name__] = job(rank)
        except BaseException:
            print(traceback.format_exc())
            raise
    torch.save(results, f"{folder}/{rank}.pt")
    if dying not in jobs:
        dist.barrier()
        dist.destroy_process_group()


def run(n: int, folder: Path, *jobs: Callable[[int], Result]) -> dict[str, list[Result]]:
    """Do the jobs one after another on n ranks; what each returned, by job and rank. No process outlives the call."""
    mp.get_context("forkserver").set_forkserver_preload(
        ["abs_sgd.wrapper", "torch.utils.data"]
    )  # imported once, not by every rank
    context = mp.start_processes(_rank, (n, str(folder), list(jobs)), nprocs=n, join=False, start_method="forkserver")
    assert context is not None
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"ranks did not end within {TIMEOUT_S} s")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
    files = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
    return {job.__name__: [results[job.__name__] for results in files] for job in jobs}
