"""What the restart tests train under torchrun, written as a user would: `elastic_job.py FOLDER EPOCHS KILLS`.

Sample i has the i-th unit vector as its gradient, and an update's rate is its batch: a weight that was used n times ends at -n exactly.
The last rank kills itself KILLS times, some updates after a checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import abs_sgd

SAMPLES, BATCH, SAVE_EVERY = 97, 4, 5


def main(folder: Path, epochs: int, kills: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    (folder / f"started-{os.getpid()}").touch()
    checkpoint = folder / "checkpoint.pt"
    net = nn.Linear(SAMPLES, 1, bias=False).double()
    with torch.no_grad():
        net.weight.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    sampler = abs_sgd.OpenBatchSampler(SAMPLES, BATCH, seed=3)
    trainer = abs_sgd.AbsSgd(
        net,
        optimizer,
        options={"compute_point": "current"},
        sampler=sampler,
        lr_rule="linear",
        reference_batch_samples=1,
        diverged_factor=None,
    )
    resumed = checkpoint.exists()
    if resumed:
        trainer.load_state_dict(torch.load(checkpoint, weights_only=True))
    data = TensorDataset(torch.eye(SAMPLES, dtype=torch.float64))
    for _ in range(sampler.epoch, epochs):
        for (x,) in DataLoader(data, batch_sampler=sampler):
            net(x).mean().backward()
            time.sleep(0.004 * (1 + rank))
            if trainer.step(len(x)) and trainer.updates % SAVE_EVERY == 0:
                save(trainer, checkpoint)
            done = len(list(folder.glob("killed-*")))
            if rank == n - 1 and done < kills and trainer.updates >= (done + 1) * 2 * SAVE_EVERY - 2:
                (folder / f"killed-{trainer.updates}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        with trainer.synchronized():
            pass
    trainer.finish()
    if rank == 0:
        torch.save({"used": -net.weight.detach()[0], "samples": trainer.samples, "resumed": resumed}, folder / "end.pt")
    dist.destroy_process_group()


def save(trainer: abs_sgd.AbsSgd, path: Path) -> None:
    with trainer.synchronized():
        if dist.get_rank() == 0:
            temporary = path.with_suffix(".new")
            torch.save(trainer.state_dict(), temporary)
            os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
