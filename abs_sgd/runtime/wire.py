"""Collectives of a live run: one flat vector, and beside it what must arrive exact.

Every collective is two on the wire, launched together: the payload in the model's own dtype, and of every rank a float64 row

    [flag, data left, weight, samples since the last average, updates, own samples, |own sum|², values of `gather`]

because counts in a low-precision payload come out wrong. It is complete when both are. Errors come out in `wait`, whatever `done` said.
Rows go from each rank to each at once (all-to-all): the steps of a ring would queue one after the other behind the payload. Measured with
four hosts on shaped links: a payload's 132 ms became 136.8 with an all-reduce beside it, 134.5 with an all-to-all.
Buffers in flight are never touched: an accumulator is handed over whole, the next one is another buffer.

Both are on the model's device: gloo copies CUDA tensors through the host by itself, nccl reduces them in place, each on streams of its
own, after what the current stream was asked before the launch and beside what it is asked afterwards. Their `wait` makes the
current stream wait, not the host: the values are read after that, and reading waits. Nothing before it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd.runtime.noise import squared_norm
from abs_sgd.workloads.task import to_device
from hetsim import commands as cmd
from hetsim.errors import ProgramError, SimulationError

MOST_GATHERED = 8  # values that one rank may let ride along; every algorithm so far has at most two [our choice]
FIXED = 7  # flag, data left, weight, samples since the last average, updates, own samples, squared norm of the own sum
SQUARE = FIXED - 1
# gloo works at two collectives at a time, and a ring of which one rank is late stands still for half a chunk at each of its steps: pieces
# fill that. Measured back to back among four hosts, one of them behind 100 Mbit/s: 176 ms whole, 163 in halves, 161 in quarters, which is
# the ring formula's time.
PIECES, LEAST_PIECES_BYTES = 4, 256 * 1024  # smaller ones take longer to announce than to send [our choice]


class PeerLostError(SimulationError):
    """A collective failed, mostly because another rank is gone."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank contributes besides the payload."""

    samples: int
    has_more: bool
    weight: float = 0.0
    samples_since: int = 0
    updates: int = 0
    square: Tensor | float = 0.0
    gather: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """What came back, the same on every rank; `weight` and `samples_since` are sums, `updates` the most of any rank; `counts` and `squares`
    are each rank's samples and the squared norm of its gradient sum, `square` that of the sum of all: the gradient noise follows from
    them."""

    samples: int
    has_more: bool
    gathered: dict[int, tuple[float, ...]] = field(default_factory=dict)
    weight: float
    samples_since: int
    updates: int
    counts: tuple[int, ...] = ()
    squares: tuple[float, ...] = ()
    square: float = 0.0


class LiveTransfer(cmd.Handle):
    """A collective in flight."""

    __slots__ = ("arrived", "buffer_P", "side", "works")

    def __init__(self, number: int, buffer_P: Tensor, side: Tensor, works: list[Any]) -> None:
        super().__init__(number)
        self.buffer_P, self.side, self.works = buffer_P, side, works
        self.arrived: Arrived


class Wire:
    """The group's collectives. `size`: elements of the payload; `least_bytes`: payloads are padded to at least that."""

    def __init__(
        self, rank: int, world: int, size: int, dtype: torch.dtype, least_bytes: float = 0.0, device: str = "cpu"
    ) -> None:
        self.rank, self.world, self.size, self.dtype, self.device = rank, world, size, dtype, device
        self.elements = max(size, -(-int(least_bytes) // dtype.itemsize))
        self.launched = 0
        self.waiting: tuple[int, float] | None = None  # transfer that this rank is blocked on, since when
        self._free: list[Tensor] = []

    def buffer(self) -> Tensor:
        """A vector of zeros to sum into, padding included."""
        if self._free:
            return self._free.pop().zero_()
        return torch.zeros(self.elements, dtype=self.dtype, device=self.device)

    def release(self, buffer_P: Tensor) -> None:
        """Give a buffer back that no collective uses any more."""
        self._free.append(buffer_P)

    def start(self, buffer_P: Tensor, share: Share, sent: Sequence[Sequence[Any]] = ()) -> LiveTransfer:
        """Sum `buffer_P` over all ranks, in place and in the background. `sent`: the collectives that carry it, where they are begun."""
        side, exchanged = self.exchange(self._row(share))
        works = [exchanged, *chain.from_iterable(sent or [self.send(buffer_P)])]
        transfer = LiveTransfer(self.launched, buffer_P, side, works)
        self.launched += 1
        return transfer

    def send(self, part: Tensor) -> list[Any]:
        """Begin to sum one tensor of the next transfer over all ranks, in pieces. Raises PeerLostError."""
        count = PIECES if dist.get_backend() == "gloo" and part.nbytes >= LEAST_PIECES_BYTES else 1
        return [self._begin(dist.all_reduce, piece) for piece in part.chunk(count)]

    def exchange(self, row: Tensor) -> tuple[Tensor, Any]:
        """Begin to send a row to all ranks; everybody's, in the order of ranks. Raises PeerLostError."""
        rows = torch.empty(self.world * len(row), dtype=row.dtype, device=row.device)
        return rows, self._begin(dist.all_to_all_single, rows, row.repeat(self.world))

    def _begin(self, collective: Callable[..., Any], *tensors: Tensor) -> Any:
        try:
            return collective(*tensors, async_op=True)
        except RuntimeError as error:
            raise self._lost(self.launched, error) from error

    def complete(self, transfer: LiveTransfer) -> bool:
        """Whether `wait` would return at once. nccl: an event asked without waiting, so settle the own stream first."""
        return all(work.is_completed() for work in transfer.works)

    def wait(self, transfer: LiveTransfer) -> Arrived:
        """Block until complete. Raises PeerLostError."""
        self.waiting = transfer.id, time.monotonic()
        try:
            for work in transfer.works:
                work.wait()
        except RuntimeError as error:
            raise self._lost(transfer.id, error) from error
        transfer.works = []
        transfer.arrived = self._read(transfer.side, transfer.buffer_P[: self.size])  # where the host waits with nccl
        self.waiting = None
        return transfer.arrived

    def _lost(self, number: int, error: Exception) -> PeerLostError:
        return PeerLostError(f"all-reduce {number} failed on rank {self.rank}: {str(error).splitlines()[0]}")

    def _row(self, share: Share) -> Tensor:
        if len(share.gather) > MOST_GATHERED:
            raise ProgramError(f"{len(share.gather)} values ride along with a collective, at most {MOST_GATHERED} can")
        fixed = 1.0 + len(share.gather), share.has_more, share.weight, share.samples_since, share.updates, share.samples
        spare = MOST_GATHERED - len(share.gather)
        row = to_device(torch.tensor([*fixed, 0.0, *share.gather, *[0.0] * spare], dtype=torch.float64), self.device)
        row[SQUARE] = share.square  # from device to device
        return row

    def _read(self, side: Tensor, sum_P: Tensor) -> Arrived:
        rows = side.view(self.world, -1).tolist()
        lengths = [round(row[0]) - 1 for row in rows]
        if min(lengths) < 0:
            missing = [r for r, length in enumerate(lengths) if length < 0]
            raise SimulationError(f"ranks {missing} contributed nothing to a collective: ranks are out of step")
        counts = tuple(round(row[5]) for row in rows)
        samples = sum(counts)
        return Arrived(
            samples=samples,
            has_more=any(row[1] for row in rows),
            gathered={
                r: tuple(row[FIXED : FIXED + n]) for r, (row, n) in enumerate(zip(rows, lengths, strict=True)) if n
            },
            weight=sum(row[2] for row in rows),
            samples_since=round(sum(row[3] for row in rows)),
            updates=round(max(row[4] for row in rows)),
            counts=counts,
            squares=tuple(row[SQUARE] for row in rows),
            square=float(squared_norm(sum_P)) if samples else 0.0,
        )
