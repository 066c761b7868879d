"""A GPU played by hand: a queue of work with a clock of its own, events in it, and collectives that take the time they are told.

The numbers are computed on the CPU at once; only the times are played. `host_s` is the host's clock and moves where the host works or
waits; `busy_s` is when the device will have done all that was queued.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abs_sgd.runtime.wire import LiveTransfer, Share, Wire

CALL_S = 2.0**-13  # a host that asks for the time has moved on, by more than a launch
LAUNCH_S = 2.0**-14  # from the host to the device


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

    def start(self, buffer_P: Tensor, share: Share) -> LiveTransfer:
        number, self.launched = self.launched, self.launched + 1
        return LiveTransfer(number, buffer_P, self._side(share), [Work(*self.play), Work(*self.play)])


def kernels_of(device: Device, per_sample_s: float) -> Any:
    """A loss whose passes take the device so long."""

    def loss_sum(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        device.kernel(per_sample_s * len(batch[1]))
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    return loss_sum
