"""What the training-loop wrapper adds to a step, against DDP, on two equal ranks.

    python benchmarks/wrapper_overhead.py

For each size a stack of linear layers whose passes also sleep, together 50 ms (a third forward, the rest backward, spread over the
layers, so that DDP can send behind its backward pass): sleeping leaves the processor to what is measured, and to the collectives. The
last rows are a CNN that really computes. In one process pair the loops take turns, a round of each at a time; printed are medians over
rounds, and the median of the paired differences to DDP as a share of the step. Under 3 % is the aim; below zero the wrapper is quicker,
since DDP waits for its all-reduce. `in 4 passes` is local prediction with a synchronization every fourth pass at the earliest. SGD with
momentum, gloo over the loopback interface, one thread per rank. Use a machine with two cores to spare.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import abs_sgd

PASS_S = 0.05
SIZES = (10_000, 100_000, 1_000_000, 5_000_000, 11_000_000)
LAYERS = 8
BATCH = 4
AIM = 0.03
PASSES = 4
LOOPS: dict[str, dict[str, Any]] = {
    "damped-prediction": {},
    "local-prediction": {"compute_point": "local-prediction"},
    "in 4 passes": {"compute_point": "local-prediction", "trigger": "min_samples", "min_samples": PASSES * BATCH},
    "current": {"compute_point": "current"},
}
Step = Callable[[], None]


class Pause(torch.autograd.Function):
    """Sleeps forward and backward, and changes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(ctx.seconds * 2 / 3)
        return gradients[0], None


class Slept(nn.Module):
    """A linear layer whose share of the 50 ms is slept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return Pause.apply(self.linear(x), PASS_S / LAYERS)  # type: ignore[no-any-return,no-untyped-call]


def slept(parameters: int) -> tuple[nn.Module, Tensor]:
    width = round((parameters / LAYERS) ** 0.5)
    return nn.Sequential(*[Slept(width) for _ in range(LAYERS)]), torch.randn(BATCH, width)


def cnn(width: int, images: int) -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(4):
        layers += [nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 10)), torch.randn(
        images, 3, 32, 32
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def with_ddp(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[Step, Step]:
    model, x = make()
    ddp, optimizer = DistributedDataParallel(model), sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()

    return step, lambda: None


def with_wrapper(make: Callable[[], tuple[nn.Module, Tensor]], options: dict[str, Any]) -> tuple[Step, Step]:
    model, x = make()
    trainer = abs_sgd.AbsSgd(model, sgd(model), options=options)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        trainer.step(BATCH, loss=loss)

    def pause() -> None:
        with trainer.synchronized():
            pass

    return step, pause


def alone(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[Step, Step]:
    """One rank's forward and backward pass and optimizer step, without any communication."""
    model, x = make()
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step, lambda: None


def compare(make: Callable[[], tuple[nn.Module, Tensor]], rounds: int, steps: int) -> list[list[float]]:
    """Seconds per step by loop and round: alone, DDP, the wrapper's."""
    loops = [alone(make), with_ddp(make), *(with_wrapper(make, options) for options in LOOPS.values())]
    times: list[list[float]] = [[] for _ in loops]
    for count in range(rounds + 1):
        for at, (step, pause) in enumerate(loops):
            dist.barrier()
            step()  # the first after a pause differs: nothing is in flight yet
            began_s = time.perf_counter()
            for _ in range(steps):
                step()
            if count:  # the first round warms up
                times[at].append((time.perf_counter() - began_s) / steps)
            pause()
    return times


def rank(number: int, folder: str, sizes: tuple[int, ...], rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    cases: list[tuple[str, Callable[[], tuple[nn.Module, Tensor]]]] = [
        (f"slept {size / 1e6:g} M", lambda size=size: slept(size)) for size in sizes
    ]
    cases.append(("CNN, computed", lambda: cnn(32, 20)))
    if number == 0:
        print(f"{'model':16s} {'alone ms':>9s} {'DDP ms':>9s}", *(f"{p + ' ms':>20s} {'- DDP':>8s}" for p in LOOPS))
    for name, make in cases:
        torch.manual_seed(0)
        times = compare(make, rounds, steps)
        if number == 0:
            bare, base = (statistics.median(t) for t in times[:2])
            shown = []
            for t in times[2:]:
                more = statistics.median((mine - theirs) / PASS_S for mine, theirs in zip(t, times[1], strict=True))
                shown.append(f"{statistics.median(t) * 1e3:20.1f} {more:+8.1%}{' ' if more < AIM else '!'}")
            print(f"{name:16s} {bare * 1e3:9.1f} {base * 1e3:9.1f}", *shown, flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="per round")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank, (folder, tuple(args.sizes), args.rounds, args.steps), nprocs=2, start_method="spawn")


if __name__ == "__main__":
    main()
