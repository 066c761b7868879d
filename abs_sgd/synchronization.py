"""A synchronization as a live run makes it, on its own, to be measured: the pieces of the gradient, and the counts beside them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from abs_sgd.runtime.wire import LiveTransfer, Share, Wire

LATE_S = 2.0  # by which a callback may come after the collective it is of [our choice]


class Synchronization:
    """What a live run sends for an update of a gradient of `size_bytes`: its pieces, and the counts beside them."""

    def __init__(self, size_bytes: int, device: str) -> None:
        elements = max(1, size_bytes // 4)
        self.wire = Wire(dist.get_rank(), dist.get_world_size(), elements, torch.float32, device=device)

    def start(self) -> OnTheWay:
        return OnTheWay(self.wire, self.wire.start(self.wire.buffer(), Share(samples=1, has_more=True)))


class OnTheWay:
    """A synchronization in flight."""

    def __init__(self, wire: Wire, transfer: LiveTransfer) -> None:
        self.wire, self.transfer = wire, transfer
        self.ends_s: list[float] = []
        self.parts = len(transfer.works)
        if dist.get_backend() == "gloo":
            for work in transfer.works:
                work.get_future().then(lambda _: self.ends_s.append(time.perf_counter()))

    def is_completed(self) -> bool:
        return self.wire.complete(self.transfer)

    def completed_s(self) -> float:
        """When the last part was there; called after `wait`. The last callback may still be on its way."""
        until = time.perf_counter() + LATE_S
        while len(self.ends_s) < self.parts and time.perf_counter() < until:
            time.sleep(1e-4)
        return max(self.ends_s)

    def wait(self) -> None:
        self.wire.wait(self.transfer)
        self.wire.release(self.transfer.buffer_P)
