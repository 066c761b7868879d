"""The transfers of a replay on torch.distributed: launched without waiting, waited for where their result is needed.

Gradient sums of a collective are gathered and added in rank order (`exact`), so that the result has the very bits of one process,
or summed by the backend's all-reduce, which costs less and differs in the last bits. A transfer of parameters carries
what an average needs to know besides: updates and samples so far. Where training goes on from copied parameters, the
optimizer's state travels with them. Over gloo everything travels through the CPU's memory, wherever it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd.replay.operations import Orders, Transfer
from abs_sgd.runtime.wire import PeerLostError
from abs_sgd.update import Progress, State, UpdateRule

FACTS = (
    8  # updates, samples, averaged samples, last batch, last clip, optimizer state there, mean gradient there, weight
)


@dataclass
class _Flight:
    """A transfer under way, its buffers kept alive."""

    works: list[Any]
    sent: list[Tensor]
    got: list[Tensor]
    facts: list[Tensor]


class Exchange:
    """One rank's end of every transfer. Errors of a transfer are raised as PeerLostError where it is waited for."""

    def __init__(self, orders: Orders, rank: int, like_P: Tensor, rule: UpdateRule, *, exact: bool, mean: bool) -> None:
        self.orders = orders
        self.rank = rank
        self.exact = exact
        self.like_P = like_P
        self.wire = like_P.device if dist.get_backend() == "nccl" else torch.device("cpu")
        self.layout = _Layout(like_P, rule, mean)
        self.flights: dict[int, _Flight] = {}
        everybody = tuple(range(orders.ranks))
        self.groups = {m: None if m == everybody else dist.new_group(list(m)) for m in orders.groups}

    def launch(self, identity: int, gradient_P: Tensor | None, state: State | None, weight: float) -> None:
        """Start a transfer with what this rank has for it (None: nothing)."""
        wire = self.orders.transfers[identity]
        flight = _Flight([], [], [], [])
        self.flights[identity] = flight
        vector_V = self._vector(wire, gradient_P, state, weight).to(self.wire)
        facts = self.layout.facts(state, weight).to(self.wire)
        with _naming_the_transfer(identity):
            if wire.direct is not None:
                self._direct(flight, identity, wire.direct, vector_V, facts, wire.gradients)
            else:
                self._collective(flight, wire, vector_V, facts)

    def arrive(self, identity: int) -> _Flight:
        """Wait until a transfer is complete."""
        flight = self.flights[identity]
        with _naming_the_transfer(identity):
            for work in flight.works:
                work.wait()
        if flight.works:
            flight.got = [part.to(self.like_P.device) for part in flight.got]
        flight.works.clear()
        flight.sent.clear()
        return flight

    def settle(self) -> dict[int, dict[str, list[Tensor]]]:
        """Wait for all that is in flight; what it brought, by transfer."""
        return {i: {"got": (done := self.arrive(i)).got, "facts": done.facts} for i in list(self.flights)}

    def restore(self, settled: dict[int, dict[str, list[Tensor]]]) -> None:
        """The opposite of `settle`: these have arrived."""
        here = self.like_P.device
        self.flights = {
            i: _Flight([], [], [part.to(here) for part in held["got"]], held["facts"]) for i, held in settled.items()
        }

    def drop(self, identity: int) -> None:
        """Forget what a transfer brought."""
        self.flights.pop(identity, None)

    def total(self, identity: int) -> Tensor | None:
        """Sum of the gradients of a transfer that has arrived; None where nobody had any."""
        wire, got = self.orders.transfers[identity], self.flights[identity].got
        if not self.exact or wire.direct is not None:
            return got[0]
        senders = {rank for rank, _, _ in wire.parts}
        total_P: Tensor | None = None
        for rank, part_P in zip(wire.members, got, strict=True):
            if rank in senders:
                total_P = part_P if total_P is None else total_P + part_P
        return total_P

    def states(self, identity: int) -> list[tuple[float, State]]:
        """Weights and states of a transfer of parameters, in rank order; one mean state where they were summed on the way."""
        wire, flight = self.orders.transfers[identity], self.flights[identity]
        if wire.direct is not None:
            return [self.layout.state(flight.got[0], flight.facts[0])]
        senders = {rank for rank, _, _ in wire.parts}
        members = [i for i, rank in enumerate(wire.members) if rank in senders]
        if self.exact:
            return [self.layout.state(flight.got[i], flight.facts[i]) for i in members]
        parts = [self.layout.state(self.like_P, flight.facts[i]) for i in members]
        weight = sum(w for w, _ in parts)
        progress = Progress(
            updates=max(p.progress.updates for _, p in parts),
            samples=sum(p.progress.samples - p.progress.averaged_samples for _, p in parts),
        )
        return [(weight, State(parameters_P=flight.got[0] / weight, progress=progress))]

    def _vector(self, wire: Transfer, gradient_P: Tensor | None, state: State | None, weight: float) -> Tensor:
        if wire.gradients:
            return torch.zeros_like(self.like_P) if gradient_P is None else gradient_P
        if wire.whole:
            return self.layout.pack(state)
        own_P = torch.zeros_like(self.like_P) if state is None else state.parameters_P
        summed = not self.exact and wire.direct is None
        return own_P * weight if summed else own_P

    def _direct(
        self, flight: _Flight, identity: int, pair: tuple[int, int], vector_V: Tensor, facts: Tensor, gradients: bool
    ) -> None:
        sender, receiver = pair
        move: Callable[..., Any] = dist.isend if self.rank == sender else dist.irecv
        other = receiver if self.rank == sender else sender
        if self.rank == receiver:
            vector_V, facts = torch.empty_like(vector_V), torch.empty_like(facts)
            flight.got.append(vector_V)
            flight.facts.append(facts)
        else:
            flight.sent += [vector_V, facts]
        flight.works.append(move(vector_V, other, tag=2 * identity))
        if not gradients:
            flight.works.append(move(facts, other, tag=2 * identity + 1))

    def _collective(self, flight: _Flight, wire: Transfer, vector_V: Tensor, facts: Tensor) -> None:
        group = self.groups[wire.members]
        if self.exact or wire.whole:
            flight.got = [torch.empty_like(vector_V) for _ in wire.members]
            flight.works.append(dist.all_gather(flight.got, vector_V, group=group, async_op=True))
        else:
            flight.got = [vector_V.clone()]
            flight.works.append(dist.all_reduce(flight.got[0], group=group, async_op=True))
        flight.sent.append(vector_V)
        if not wire.gradients:
            flight.facts = [torch.empty_like(facts) for _ in wire.members]
            flight.works.append(dist.all_gather(flight.facts, facts, group=group, async_op=True))
            flight.sent.append(facts)


class _Layout:
    """A state as one vector of fixed length and FACTS numbers in float64, which hold every count exactly."""

    def __init__(self, like_P: Tensor, rule: UpdateRule, mean: bool) -> None:
        self.like_P = like_P
        self.mean = mean
        self.entries: dict[str, tuple[int, ...]] = {}
        if rule.optimizer == "adamw":
            self.entries = {"step": (), "exp_avg": like_P.shape, "exp_avg_sq": like_P.shape}
        elif rule.momentum > 0.0:
            self.entries = {"momentum_buffer": like_P.shape}

    def facts(self, state: State | None, weight: float) -> Tensor:
        if state is None:
            return torch.zeros(FACTS, dtype=torch.float64)
        p = state.progress
        batch = -1 if p.last_batch_samples is None else p.last_batch_samples
        there = [float(bool(state.optimizer)), float(state.mean_gradient_P is not None)]
        said = [p.updates, p.samples, p.averaged_samples, batch, p.last_clip, *there, weight]
        return torch.tensor(said, dtype=torch.float64)

    def pack(self, state: State | None) -> Tensor:
        zeros = State(parameters_P=torch.zeros_like(self.like_P))
        state = zeros if state is None else state
        parts = [state.parameters_P]
        for name, shape in self.entries.items():
            held = state.optimizer.get(name)
            parts.append(self.like_P.new_zeros(shape).reshape(-1) if held is None else held.to(self.like_P).reshape(-1))
        if self.mean:
            mean_P = state.mean_gradient_P
            parts.append(torch.zeros_like(self.like_P) if mean_P is None else mean_P)
        return torch.cat(parts)

    def state(self, vector_V: Tensor, facts: Tensor) -> tuple[float, State]:
        updates, samples, averaged, batch, clip, optimizer_there, mean_there, weight = facts.tolist()
        size = self.like_P.numel()
        optimizer: dict[str, Tensor] = {}
        mean_P: Tensor | None = None
        if vector_V.numel() > size:
            at = size
            for name, shape in self.entries.items():
                count = size if shape else 1
                value = vector_V[at : at + count].reshape(shape)
                if optimizer_there:
                    optimizer[name] = value if shape else value.to(torch.float32)  # as torch.optim keeps its count
                at += count
            mean_P = vector_V[at : at + size] if self.mean and mean_there else None
        progress = Progress(
            updates=int(updates),
            samples=int(samples),
            averaged_samples=int(averaged),
            last_batch_samples=None if batch < 0 else int(batch),
            last_clip=clip,
        )
        held = State(parameters_P=vector_V[:size], optimizer=optimizer, progress=progress, mean_gradient_P=mean_P)
        return weight, held


class _naming_the_transfer:
    """A broken connection becomes an error that says which transfer it broke."""

    def __init__(self, identity: int) -> None:
        self.identity = identity

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise PeerLostError(f"transfer {self.identity} failed: {error}") from error


def weighted_sum(parts: Sequence[tuple[float, Tensor | None]]) -> Tensor | None:
    """Sum of weight times gradient over those that are there."""
    total_P: Tensor | None = None
    for weight, gradient_P in parts:
        if gradient_P is None:
            continue
        part_P = gradient_P if weight == 1.0 else weight * gradient_P
        total_P = part_P if total_P is None else total_P + part_P
    return total_P
