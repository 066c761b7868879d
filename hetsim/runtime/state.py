"""What the simulator knows of each worker, each transfer, and an alarm on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy
from simpy.events import Event

from hetsim.commands import Handle
from hetsim.compute import WorkTimer

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

    def __init__(self, rank: int, name: str, order: int) -> None:
        self.rank, self.name, self.order = rank, name, order
        self.program: Program
        self.send: Callable[[Any], Any]
        self.timer: WorkTimer
        self.alarm: Alarm
        self.update_s = 0.0
        self.state = 0  # parameters it holds
        self.point = 0  # parameters its next gradient is taken at
        self.anchor = 0  # parameters of its last merge
        self.slot = -1  # its accumulator; -1 while empty
        self.held = 0  # samples in it
        self.start_s = 0.0  # of the compute in progress
        self.first = 0
        self.taken = 0
        self.last_pass_s = 0.0
        self.launches = 0  # whole-group collectives started
        self.group_launches: dict[tuple[int, ...], int] = {}
        self.updates = 0
        self.waits_for: Transfer | None = None
        self.cause = ""
        self.finished = False
        # a pass whose speed changes while it runs (hetsim.runtime.computing)
        self.computing = False
        self.work_left_s = 0.0
        self.since_s = 0.0
        self.slowdown = 1.0
        self.in_flight = 0
        self.milestones: list[tuple[float, int]] = []
        self.streaming = False  # its coming collective has been told of every bucket but the last


class Transfer(Handle):
    """A transfer as the simulator sees it: a collective, a push or a pull."""

    __slots__ = (
        "ahead",
        "children",
        "finished",
        "flow",
        "gathered",
        "joined",
        "kind",
        "members",
        "missing",
        "payload",
        "ready",
        "replied_s",
        "samples",
        "sending",
        "slots",
        "snapshot",
        "start_s",
        "stop",
        "worker",
    )

    def __init__(self, number: int, kind: str, members: tuple[int, ...], worker: int = -1) -> None:
        super().__init__(number)
        self.kind = kind
        self.members = members
        self.worker = worker
        self.missing = len(members)
        self.joined: list[int] = []
        self.gathered: dict[int, tuple[float, ...]] = {}
        self.samples = 0
        self.slots: dict[int, tuple[int, int]] = {}  # rank -> (slot, samples), for predict
        self.children: dict[Any, int] = {}  # parent state -> state, so that replicas share ids
        self.stop = False
        self.finished = 0
        self.start_s = 0.0
        self.replied_s = 0.0
        self.payload = 0
        self.snapshot = -1
        self.ready: list[float] | None = None  # streamed: when each bucket is ready everywhere
        self.ahead: list[int] = []  # streamed with changing speeds: members still to come, per bucket
        self.flow = -1  # streamed with changing speeds: buckets through; -1 where it is not
        self.sending = False
