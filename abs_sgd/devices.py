"""Which device a rank computes on, refused before a process group is made where it cannot work.

    device = device_of(rank, world, "nccl", "cuda")       # ranks of this machine that all see the same GPUs
    refuse_shared_gpus(store, rank, world, identity(device))      # ranks that may each see other ones

CPU tensors and GPU tensors both travel over gloo, where ranks may share a GPU; nccl moves GPU tensors only and wants a GPU for each
rank ("Duplicate GPU detected" out of the middle of the first collective otherwise).

torch.distributed.nn.functional is imported here, before there is a group: its functions have the default group as a default argument. An
optimizer imports it too, and if that is the first time, the group outlives destroy_process_group with gloo's threads, one of which
may want the interpreter's lock when the interpreter is gone ("terminate called without an active exception", one exit in ten).
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional

from hetsim.errors import UsageError, nearest

BACKENDS = ("gloo", "nccl")
DEVICES = ("cpu", "cuda")
FOREVER = timedelta(days=7)  # of a collective: a slow rank is not an error; a dead one breaks its connections at once
PATIENCE = timedelta(minutes=10)  # for the slowest rank to come up, as torchrun's own rendezvous [our choice]


def device_of(rank: int, world: int, backend: str, wanted: str) -> torch.device:
    """The device of the `rank`-th of `world` ranks **on this machine** (torchrun: LOCAL_RANK, LOCAL_WORLD_SIZE).

    `wanted`: cpu or cuda. On cuda ranks take the GPUs in turn; CUDA_VISIBLE_DEVICES chooses among them. Where every rank sees a GPU of its
    own (Slurm's --gpus-per-task), rank 0 of 1 is meant. Raises UsageError.
    """
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r} ({nearest(backend, BACKENDS)})")
    if wanted not in DEVICES:
        raise UsageError(f"unknown device {wanted!r} ({nearest(wanted, DEVICES)})")
    if wanted == "cpu":
        if backend == "nccl":
            raise UsageError("nccl moves tensors between GPUs only: take --device cuda with it, or --backend gloo")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU here"
        raise UsageError(f"--device cuda: {why}; --device cpu --backend gloo needs none")
    if backend == "nccl" and not dist.is_nccl_available():
        raise UsageError("--backend nccl: this torch is built without it; gloo carries GPU tensors too")
    gpus = torch.cuda.device_count()
    if backend == "nccl" and world > gpus:
        raise UsageError(_shared(f"{world} ranks and {gpus} GPU{'s'[: gpus > 1]} on this machine"))
    return torch.device("cuda", rank % gpus)


def join(backend: str, device: str, **group: Any) -> None:
    """Make `device` the current one and init_process_group: with nccl the hosts' own numbers still travel over gloo."""
    if device == "cpu":
        dist.init_process_group("gloo", **group)
        return
    torch.cuda.set_device(device)
    if backend == "nccl":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device(device), **group)
    else:
        dist.init_process_group("gloo", **group)


def identity(device: torch.device) -> str:
    """Machine and GPU, the same text for the same GPU whatever a rank calls it."""
    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(device).uuid}"


def refuse_shared_gpus(store: Any, rank: int, world: int, mine: str) -> None:
    """Compare `identity` over a store that all `world` ranks are connected to, before init_process_group.

    Raises UsageError, on all of them.
    """
    key = "hetsim/gpu/{}"
    store.set(key.format(rank), mine)
    names = [key.format(other) for other in range(world)]
    store.wait(names, PATIENCE)
    users: dict[str, list[int]] = {}
    for other, name in enumerate(names):
        users.setdefault(store.get(name).decode(), []).append(other)
    shared = [f"ranks {', '.join(map(str, ranks))} on {gpu}" for gpu, ranks in users.items() if len(ranks) > 1]
    if shared:
        raise UsageError(_shared("; ".join(shared)))


def _shared(where: str) -> str:
    return (
        f"{where}: nccl refuses two ranks on one GPU (Duplicate GPU). Take --backend gloo, where ranks may share one, start no more "
        "ranks on a machine than it has GPUs, or give every rank its own with CUDA_VISIBLE_DEVICES"
    )
