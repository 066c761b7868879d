"""Handwritten digits under PyTorch's DDP: the script to convert (see docs/convert-your-ddp-script.md).

torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --epochs 5
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, by the optimizer, it would keep the group
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HELD_OUT = 297  # of 1,797 pictures


def pictures() -> tuple[TensorDataset, Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    return TensorDataset(x[HELD_OUT:], y[HELD_OUT:]), x[:HELD_OUT], y[:HELD_OUT]


def save(state: dict[str, Any], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.new")
    torch.save(state, temporary)
    os.replace(temporary, path)  # never half a file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, help="saved every epoch; training goes on from it if it exists")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data, test_x, test_y = pictures()
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    first = 0
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(test_x).argmax(1) == test_y).double().mean().item()
        if dist.get_rank() == 0:
            if args.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                save(state, args.checkpoint)
            print(f"epoch {epoch + 1}: {right:.1%} of held-out digits right", flush=True)
    del ddp  # it keeps the group too, whose threads must end before the interpreter does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
