"""One synchronization in flight: a flat gradient sum, and beside it the few numbers that must stay exact.

    all-reduce 1   sent_P    gradient sums, in the model's dtype or in a shorter one
    all-reduce 2   side      float64: loss, its weight, how many ranks pause and are finished, then a slot per rank with its samples
                             and what its program gathers (a count in bf16 comes out wrong: 505 becomes 506)

Both start at once and a flight is complete when both are. The host never blocks except in `wait`, which must always follow: it is where
errors come out.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: see abs_sgd.devices
from torch import Tensor

from abs_sgd.roll_call import ANSWER_S, LONG_S, RollCall
from hetsim.errors import SimulationError

HEAD = 4  # loss sum, loss weight, pausing, finished
LONGEST_PAUSE_S = 2e-3  # between two looks at a collective that is waited for [our choice]


@dataclass(eq=False)
class Flight:
    """Contribution and result of one synchronization."""

    number: int
    sent_P: Tensor
    side: Tensor
    slots: int
    works: tuple[dist.Work, ...]
    group: Group
    _values: list[float] | None = field(default=None, init=False)
    _started_s: float = field(default_factory=time.monotonic, init=False)

    def completed(self) -> bool:
        """Have both collectives ended, or can they no more? (never blocks)"""
        if self._ended():
            return True
        return time.monotonic() - self._started_s > LONG_S and self.group.roll_call.broken()

    def wait(self) -> list[float]:
        """The side's numbers, summed over ranks. Raises SimulationError where a collective failed."""
        if self._values is None:
            began_s = time.monotonic()
            while not self.completed():
                time.sleep(min(LONGEST_PAUSE_S, 1e-5 + 0.02 * (time.monotonic() - began_s)))
            if not self._ended():
                raise self.group.lost(self.number, "another rank saw it fail")
            try:
                for work in self.works:
                    work.wait()
            except RuntimeError as error:
                raise self.group.lost(self.number, str(error)) from error
            self._values = self.side.tolist()
        return self._values

    def _ended(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def slot(self, rank: int) -> list[float]:
        """What one rank put in its slot: samples, then what its program gathers."""
        width = (len(self.side) - HEAD) // self.slots
        at = HEAD + rank * width
        return self.wait()[at : at + width]


class Group:
    """The ranks that train together: a process group, the default one, or this process alone. Collective: all of them make one."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.together = dist.is_available() and dist.is_initialized()
        if group is not None and not self.together:
            raise SimulationError("a process group was given, but torch.distributed is not initialised")
        self.group = group  # None: the default one, which nobody here keeps beyond destroy_process_group
        self.rank = dist.get_rank(self.group) if self.together else 0
        self.n = dist.get_world_size(self.group) if self.together else 1
        if self.rank < 0:
            raise SimulationError("this process is not a member of the process group given")
        nccl = self.together and dist.get_backend(self.group) == "nccl"
        self.device = device if nccl else torch.device("cpu")
        # torchrun may keep the store, and what a broken run left on it, when it starts the ranks again.
        token = torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(secrets.randbits(60)))
        token = token.to(self.device)
        self.from_first(token)
        self.token = int(token)
        if self.n > 1:
            self.roll_call = RollCall(self.store("roll-call"), self.rank, self.n)

    def start(
        self, number: int, sent_P: Tensor, head: tuple[float, float, float, float], own: tuple[float, ...]
    ) -> Flight:
        """Start both collectives; returns at once. `sent_P` must be left alone until the flight was waited for."""
        side = torch.zeros(HEAD + self.n * len(own), dtype=torch.float64)
        side[:HEAD] = torch.tensor(head, dtype=torch.float64)
        at = HEAD + self.rank * len(own)
        side[at : at + len(own)] = torch.tensor(own, dtype=torch.float64)
        side = side.to(self.device)
        works: list[dist.Work] = []
        if self.n > 1:
            for tensor in (sent_P, side):
                try:
                    work = dist.all_reduce(tensor, group=self.group, async_op=True)
                except RuntimeError as error:
                    raise self.lost(number, str(error)) from error
                assert work is not None
                works.append(work)
        return Flight(number, sent_P, side, self.n, tuple(works), self)

    def lost(self, number: int, why: str) -> SimulationError:
        """The error of a synchronization that failed; names the ranks that do not answer."""
        try:
            silent = self.roll_call.silent()
        except RuntimeError:
            who = "the job's store is gone too, most likely with the rank that served it (rank 0 without torchrun)"
        else:
            names = ", ".join(map(str, silent))
            who = (
                f"no answer from rank{'s'[: len(silent) > 1]} {names} of {self.n} (dead, or busy for more than {ANSWER_S:g} s)"
                if silent
                else "all ranks still answer: they are out of step, or the network failed"
            )
        return SimulationError(
            f"synchronization {number} failed: a rank is gone or out of step: {who}; all took part in number {number - 1}, the last to "
            f"succeed; go on from the newest checkpoint ({why.splitlines()[0]})"
        )

    def store(self, purpose: str) -> Any:
        """The store that the ranks met on, with keys of this purpose and this object's counterparts alone."""
        default = dist.distributed_c10d._get_default_store()
        return dist.distributed_c10d.PrefixStore(f"abs_sgd/{purpose}/{self.token}", default)

    def total(self, values: Tensor, op: str = "sum") -> Tensor:
        """Blocking: values reduced over the ranks (sum, min or max)."""
        if self.n == 1:
            return values
        there = values.to(self.device)
        dist.all_reduce(
            there,
            op={"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[op],
            group=self.group,
        )
        return there.to(values.device)

    def average(self, buffers: list[Tensor], weight: float) -> None:
        """Blocking: floating-point buffers averaged over the ranks by weight, the others as the first rank's; as they are where all
        weights are 0."""
        floating = [b for b in buffers if b.is_floating_point()]
        if self.n == 1 or not buffers:
            return
        parts = [(b.detach().double() * weight).reshape(-1) for b in floating]
        total = self.total(torch.cat([*parts, torch.tensor([weight], dtype=torch.float64, device=buffers[0].device)]))
        if total[-1] > 0:
            sizes = [b.numel() for b in floating]
            for buffer, mean in zip(floating, torch.split(total[:-1] / total[-1], sizes), strict=True):
                buffer.copy_(mean.view_as(buffer))
        for buffer in buffers:
            if not buffer.is_floating_point():
                self.from_first(buffer)

    def from_first(self, tensor: Tensor) -> None:
        """Blocking: the first rank's values in place of this rank's."""
        if self.n > 1:
            dist.broadcast(tensor, group=self.group, group_src=0)
