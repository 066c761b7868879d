"""Orders played against each other before a process is started: no rank waits for another for ever."""

from __future__ import annotations

from collections import defaultdict

from abs_sgd.replay.operations import Adopt, Arrive, Gradient, Launch, Make, Operation, Orders, made_from
from hetsim.errors import ScheduleError


def verify(orders: Orders, names: list[str]) -> None:
    """Play all orders against each other: a wait ends when every member has launched. Raises ScheduleError."""
    at = [0] * orders.ranks
    launched: dict[int, set[int]] = defaultdict(set)
    ready: list[dict[str, set[int]]] = [{"states": {0}, "slots": set()} for _ in range(orders.ranks)]
    moved = True
    while moved:
        moved = False
        for rank, operations in enumerate(orders.operations):
            while at[rank] < len(operations):
                operation = operations[at[rank]]
                if isinstance(operation, Arrive):
                    wire = orders.transfers[operation.transfer]
                    if launched[operation.transfer] != set(wire.members):
                        break
                _check_ready(operation, orders, rank, ready[rank], names)
                if isinstance(operation, Launch):
                    launched[operation.transfer].add(rank)
                at[rank] += 1
                moved = True
    stuck = []
    for rank, operations in enumerate(orders.operations):
        if at[rank] < len(operations):
            waited: Arrive = operations[at[rank]]  # type: ignore[assignment]
            members = orders.transfers[waited.transfer].members
            missing = [names[m] for m in members if m not in launched[waited.transfer]]
            stuck.append(
                f"{names[rank]} waits for transfer {waited.transfer}, which {', '.join(missing)} cannot join before"
            )
    if stuck:
        raise ScheduleError("this schedule cannot be executed: " + "; ".join(stuck))
    _same_order(orders)  # afterwards: a rank that never comes to a launch is told as what it is, a wait without end


def _check_ready(operation: Operation, orders: Orders, rank: int, ready: dict[str, set[int]], names: list[str]) -> None:
    """What an operation reads is there, and what it makes is noted."""
    needs: set[int] = set()
    match operation:
        case Gradient():
            needs = {operation.state}
            ready["slots"].add(operation.slot)
        case Make():
            needs = set(made_from(operation.action))
            ready["states"].add(operation.action.state)
        case Adopt():
            ready["states"].add(operation.state)
        case Launch():
            wire = orders.transfers[operation.transfer]
            own = {identity for member, identity, _ in wire.parts if member == rank}
            missing = own - ready["slots" if wire.gradients else "states"]
            if missing:
                raise ScheduleError(
                    f"this schedule cannot be executed: transfer {operation.transfer} starts before {names[rank]} has "
                    f"{'the gradient' if wire.gradients else 'the state'} {min(missing)} it contributes"
                )
    if needs - ready["states"]:
        raise ScheduleError(
            f"this schedule cannot be executed: {names[rank]} needs state {min(needs)} before it is made"
        )


def _same_order(orders: Orders) -> None:
    """Members of one group launch its transfers in one order, or two collectives would be taken for each other."""
    seen: dict[tuple[int, ...], list[int]] = {}
    for rank, operations in enumerate(orders.operations):
        mine: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for operation in operations:
            if isinstance(operation, Launch):
                wire = orders.transfers[operation.transfer]
                if wire.direct is None:
                    mine[wire.members].append(operation.transfer)
        for members, order in mine.items():
            if seen.setdefault(members, order) != order:
                raise ScheduleError(
                    f"this schedule cannot be executed: rank {rank} launches collectives in another order"
                )
