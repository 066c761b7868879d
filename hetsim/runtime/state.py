"""What the simulator knows of each worker, each transfer, and an alarm on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy
from simpy.events import Event

from hetsim.commands import Computed, Handle

Program = Generator[Any, Any, None]
BLOCKED = object()  # answer of a handler after which the program waits


class Alarm(Event):
    """An event that is scheduled, fires its callback, and can be scheduled again (a worker has one compute at a time)."""

    __slots__ = ("call", "subject", "version")

    def __init__(self, env: simpy.Environment, call: Callable[[Alarm], None], subject: Any = None) -> None:
        self.env = env
        self._ok = True
        self._value = None
        self._defused = False
        self.call: list[Any] = [call]
        self.callbacks = self.call
        self.subject = subject
        self.version = 0


class Rank:
    """One worker (or the server) while it runs."""

    __slots__ = (
        "after_update",
        "alarm",
        "anchor",
        "answer",
        "computing",
        "finished",
        "group_launches",
        "held",
        "in_flight",
        "job",
        "launches",
        "milestones",
        "name",
        "order",
        "point",
        "polled",
        "program",
        "rank",
        "send",
        "sent",
        "since_s",
        "slot",
        "slowdown",
        "state",
        "streaming",
        "timer",
        "times",
        "update_s",
        "updates",
        "waiting",
        "work_left_s",
    )

    def __init__(self, rank: int, name: str, order: int) -> None:
        self.rank, self.name, self.order = rank, name, order
        self.program: Program
        self.send: Callable[[Any], Any]
        self.timer: Callable[[int], tuple[float, float]]
        self.alarm: Alarm
        self.update_s = 0.0
        self.state = 0  # parameters it holds
        self.point = 0  # parameters its next gradient is taken at
        self.anchor = 0  # parameters of its last merge
        self.slot = -1  # its accumulator; -1 while empty
        self.held = 0  # samples in it
        self.job = (0, 0, 0.0)  # compute in progress: first sample, samples, start
        self.answer = Computed(0, 0.0)  # what a pass at constant speed of these `times` is answered with
        self.times = (0.0, 0.0)  # its nominal seconds, and those of its last pass
        self.polled: Callable[[int], None]  # records the outcome of a poll
        self.sent = (-1, -1, 0)  # what it handed over last: to which transfer, which accumulator, samples
        self.launches = 0  # whole-group collectives started
        self.group_launches: dict[tuple[int, ...], int] = {}
        self.updates = 0
        self.waiting: Transfer | None = None
        self.finished = False
        self.after_update: list[Callable[[], None]] | None = (
            None  # while an operation on parameters takes time: what waits for its end
        )
        # a pass whose speed changes while it runs (hetsim.runtime.computing)
        self.computing = False
        self.work_left_s = 0.0
        self.since_s = 0.0
        self.slowdown = 1.0
        self.in_flight = 0
        self.milestones: list[tuple[float, int]] = []
        self.streaming = False  # its coming collective has been told of every bucket but the last


class Transfer(Handle):
    """A transfer as the simulator sees it: a collective, a push or a pull.

    What most transfers never change is a default of the class, since a run makes very many of them.
    """

    stop = False
    start_s = 0.0
    replied_s = 0.0
    payload = 0
    snapshot = -1
    ready: list[float] | None = None  # streamed: when each bucket is ready everywhere
    ahead: list[int]  # streamed with changing speeds: members still to come, per bucket
    flow = -1  # streamed with changing speeds: buckets through; -1 where it is not
    sending = False
    joined: set[int] | None = None  # ranks that came to a collective that need not wait for all
    asked = 0  # of those with samples
    begun = False
    passed = 0  # ranks that have joined or missed it
    peer = -1  # of an exchange
    fragment = (0, 1)  # which part of the parameters, of how many
    contributors: tuple[int, ...] | None = None  # where not all members are

    def __init__(self, number: int, kind: str, members: tuple[int, ...], worker: int = -1) -> None:
        super().__init__(number)
        self.kind = kind
        self.members = members
        self.worker = worker
        self.missing = len(members)
        self.index = -1  # how many collectives of its group came before
        self.samples = 0
        self.children: dict[Any, int] = {}  # parent state -> state, so that replicas share ids
        self.offered: dict[int, int] = {}  # rank -> state it contributed
        self.gathered: dict[int, tuple[float, ...]] = {}
        self.causes: dict[int, str] = {}  # rank -> what its program puts the waiting down to, where it says
