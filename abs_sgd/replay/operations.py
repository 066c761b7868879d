"""What a rank does in a replay, one operation after the other.

Gradient   a gradient sum at a state over a range of samples, into an accumulator
Launch     a transfer starts: all its members launch it, in the same order on all of them; nobody waits
Arrive     a transfer is waited for
Adopt      a state comes from a transfer
Make       a step, an average or a predicted point, from what the rank holds
"""

from __future__ import annotations

from dataclasses import dataclass

from abs_sgd.replay.plan import Mix, Point, Step


@dataclass(frozen=True, slots=True)
class Gradient:
    """Gradient sum at `state` over [first, first+count), added to `slot`."""

    slot: int
    state: int
    first: int
    count: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Transfer `transfer` starts."""

    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Arrive:
    """Wait for `transfer`."""

    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Adopt:
    """`state` is what `transfer` brought."""

    state: int
    transfer: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Make:
    """`action` is made from what the rank holds; `transfer` -1: from its own accumulator or states alone."""

    action: Step | Mix | Point
    transfer: int
    due_s: float


Operation = Gradient | Launch | Arrive | Adopt | Make


@dataclass(frozen=True, slots=True)
class Transfer:
    """`parts`: (rank, accumulator or state, weight) in rank order. `whole`: a state with its optimizer's, not parameters alone."""

    members: tuple[int, ...]
    parts: tuple[tuple[int, int, float], ...]
    gradients: bool
    whole: bool

    @property
    def direct(self) -> tuple[int, int] | None:
        """(sender, receiver) where one rank sends to one other; None: a collective."""
        senders = {rank for rank, _, _ in self.parts}
        receivers = set(self.members) - senders
        return (senders.pop(), receivers.pop()) if len(senders) == len(receivers) == 1 else None


@dataclass(frozen=True)
class Orders:
    """Operations of every rank, the transfers by id, the state each rank ends with, and the row of the log that each operation is of."""

    operations: tuple[tuple[Operation, ...], ...]
    transfers: dict[int, Transfer]
    final: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()

    @property
    def ranks(self) -> int:
        """Workers, and the server where there is one."""
        return len(self.operations)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Members of the collectives, every set once, in an order that is the same everywhere."""
        return sorted({t.members for t in self.transfers.values() if t.direct is None})


def made_from(action: Step | Mix | Point) -> tuple[int, ...]:
    """States that an action needs on its own rank."""
    if isinstance(action, Mix) and action.anchor >= 0:
        return action.parent, action.anchor
    if isinstance(action, Step) and action.taken_at >= 0:
        return action.parent, action.taken_at
    return (action.parent,)
