"""Handwritten digits by ABS-SGD: examples/train_ddp.py converted (see docs/convert-your-ddp-script.md).

torchrun --standalone --nproc-per-node 2 examples/train_abs_sgd.py --epochs 5
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from abs_sgd import AbsSgd, OpenBatchSampler

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
    sampler = OpenBatchSampler(len(data), batch_size=16, seed=0)
    loader = DataLoader(data, batch_sampler=sampler)
    trainer = AbsSgd(model, optimizer, sampler=sampler, clip_norm=5.0)
    if args.checkpoint and args.checkpoint.exists():
        trainer.load_state_dict(torch.load(args.checkpoint, weights_only=True))
    for epoch in range(sampler.epoch, args.epochs):
        model.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            trainer.step(len(x), loss=loss)
        with trainer.synchronized(), torch.no_grad():
            model.eval()
            right = (model(test_x).argmax(1) == test_y).double().mean().item()
            if dist.get_rank() == 0:
                if args.checkpoint:
                    save(trainer.state_dict(), args.checkpoint)
                print(f"epoch {epoch + 1}: {right:.1%} of held-out digits right", flush=True)
    trainer.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
