"""A GPU played by hand: a queue of work with a clock of its own, events in it, and collectives that take the time they are told.

The numbers are computed on the CPU at once; only the times are played. `host_s` is the host's clock and moves where the host works or
waits; `busy_s` is when the device will have done all that was queued.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from typing import Any

import torch
from live_clusters import RULE, two_workers
from torch import Tensor

from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.clock import DeviceStopwatch
from abs_sgd.runtime.pacing import Pace
from abs_sgd.runtime.rank import LiveRank
from abs_sgd.runtime.run import port_of
from abs_sgd.runtime.samples import SampleDispenser, SharedCount
from abs_sgd.runtime.wire import Wire
from abs_sgd.update import Updater
from abs_sgd.workloads.digits import digits_mlp
from hetsim import commands as cmd
from hetsim.algorithms import make

CALL_S = 2.0**-13  # a host that asks for the time has moved on, by more than a launch
LAUNCH_S = 2.0**-14  # from the host to the device
PER_SAMPLE_S = 2.0**-8
MAY_WAIT: set[type] = {cmd.Poll, cmd.Wait, cmd.Count, cmd.Now}


class Device:
    def __init__(self) -> None:
        self.host_s = self.busy_s = 0.0
        self.waits = 0

    def clock(self) -> float:
        self.host_s += CALL_S
        return self.host_s

    def kernel(self, seconds: float) -> None:
        self.busy_s = max(self.busy_s, self.host_s + LAUNCH_S) + seconds

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_s = device, float("nan")

    def record(self) -> None:
        self.device.kernel(0.0)
        self.at_s = self.device.busy_s

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.host_s = max(self.device.host_s, self.at_s)

    def elapsed_time(self, end_event: Event, /) -> float:
        assert max(self.at_s, end_event.at_s) <= self.device.host_s, (
            "an event that the device has not reached has no time"
        )
        return 1e3 * (end_event.at_s - self.at_s)


class Work:
    """An all-reduce begun when the device has done what was queued before it."""

    def __init__(self, device: Device, seconds: float, backend: str) -> None:
        self.device, self.backend = device, backend
        self.done_s = max(device.busy_s, device.host_s) + seconds

    def is_completed(self) -> bool:
        return self.device.host_s >= self.done_s

    def wait(self) -> None:
        if self.backend == "nccl":  # the stream waits, the host does not
            self.device.busy_s = max(self.device.busy_s, self.done_s)
        else:
            self.device.host_s = max(self.device.host_s, self.done_s)


class PlayedWire(Wire):
    """One rank's own sum comes back, in the time that it is said to take."""

    def __init__(self, device: Device, seconds: float, backend: str, *args: Any) -> None:
        super().__init__(*args)
        self.play = device, seconds, backend
        self.sent: list[tuple[int, int]] = []  # number of the transfer, elements

    def send(self, part: Tensor) -> list[Work]:
        self.sent.append((self.launched, len(part)))
        return [Work(*self.play)]

    def exchange(self, row: Tensor) -> tuple[Tensor, Work]:
        self.sent.append((self.launched, len(row)))
        return row, Work(*self.play)


def kernels_of(device: Device, per_sample_s: float) -> Any:
    """A loss whose passes take the device so long."""

    def loss_sum(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        device.kernel(per_sample_s * len(batch[1]))
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    return loss_sum


def lone_rank(
    algorithm: str, backend: str, device: Device, seconds: float, pace: bool = False, budget: int = 1400
) -> LiveRank:
    """A rank alone on the played device."""
    cluster = two_workers(speeds=(64.0,), global_batch_samples=16)
    task = digits_mlp(dtype=torch.float64)
    task = dataclasses.replace(task, loss_sum=kernels_of(device, PER_SAMPLE_S))
    model = FlatModel(task.make_model(0))
    counters: dict[str, int] = {}

    def claim(key: str, amount: int) -> Future[int]:
        counters[key] = counters.get(key, 0) + amount
        future: Future[int] = Future()
        future.set_result(counters[key])
        return future

    live = LiveRank(
        port=port_of(cluster, 0),
        algorithm=make(algorithm, {"local_steps": 4} if algorithm == "local-sgd" else {}),
        task=task,
        seed=0,
        updater=Updater(RULE),
        model=model,
        wire=PlayedWire(device, seconds, backend, 0, 1, model.size, torch.float64),
        dispenser=SampleDispenser(lambda n: claim("samples", n), task.samples, budget),
        counter=SharedCount(claim),
        watch=DeviceStopwatch(device.clock, device.event),
        max_updates=12,
        pace=Pace(cluster.workers[0], 0, 4, 0.1, 2 / 3) if pace else None,
    )
    live.handlers = {kind: watched(kind, handler, device) for kind, handler in live.handlers.items()}
    return live


def watched(kind: type, handler, device: Device):  # type: ignore[no-untyped-def]
    """A handler that must not wait for the device, unless it is one that may."""

    def handle(command):  # type: ignore[no-untyped-def]
        waits = device.waits
        answer = handler(command)
        assert device.waits == waits or kind in MAY_WAIT, f"{kind.__name__} waited for the device"
        return answer

    return handle
