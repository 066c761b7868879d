"""A worker of a parameter server while it runs: pushes gradient sums, pulls parameters, and computes as any other live worker does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from abs_sgd.runtime.causes import wait_cause
from abs_sgd.runtime.post import Letter, Mail, Post
from abs_sgd.runtime.rank import LiveRank, Version
from abs_sgd.runtime.samples import PromptDispenser
from abs_sgd.runtime.server import Answer
from abs_sgd.runtime.wire import PeerLostError
from abs_sgd.update import Progress, State
from hetsim import commands as cmd
from hetsim.errors import ProgramError
from hetsim.schedule.kinds import Kind, Payload, WaitCause


class Parcel(cmd.Handle):
    """A push or a pull in flight; `complete` and `announced` (its header is there) are set by the receiving thread."""

    __slots__ = ("announced", "answer", "arrived_s", "buffer_P", "complete", "parameters_P", "samples", "stop")

    def __init__(self, number: int, samples: int = 0, buffer_P: Tensor | None = None) -> None:
        super().__init__(number)
        self.samples, self.buffer_P = samples, buffer_P
        self.announced, self.complete = threading.Event(), threading.Event()
        self.answer: Answer | None = None
        self.parameters_P: Tensor | None = None
        self.arrived_s = 0.0


class ServedRank(LiveRank):
    """One worker of a parameter server. States have the server's numbers; transfers are numbered k·n + rank, so that no two workers' meet.

    `connect`: opens the post to the server. Samples are claimed when an answer is announced and not ahead: who has claimed some is not
    told to stop before it has used them, and the server may tell a worker to stop once all are claimed.
    """

    def __init__(self, *, connect: Callable[..., Post], dispenser: PromptDispenser, **settings: Any) -> None:
        super().__init__(dispenser=dispenser, **settings)
        self.prompt = dispenser
        self.last_samples = 0  # of the last compute: what the next one will most likely ask for
        common = (cmd.Compute, cmd.Poll, cmd.Wait, cmd.Discard, cmd.Draw, cmd.Now)
        self.handlers = {kind: self.handlers[kind] for kind in common}
        own: dict[type, Callable[[Any], Any]] = {cmd.Push: self.push, cmd.Pull: self.pull}
        self.handlers |= own
        self.sent_parcels = 0
        self.parcels: dict[int, Parcel] = {}
        self.lost: PeerLostError | None = None
        self.post = connect(
            self.port.n,
            size=self.wire.size,
            payload=Letter.ANSWER,
            announced=self._announced,
            delivered=self._delivered,
            failed=self._failed,
        )

    def run(self) -> None:
        """Drive the program to its end, then take leave of the server. Raises ProgramError, PeerLostError, TooSlowError."""
        super().run()
        self.post.close()
        if self.lost is not None:
            raise self.lost
        self.log.sort()

    # ---- in the receiving thread -----------------------------------------------------------------------------------------

    def _announced(self, mail: Mail) -> None:
        parcel = self.parcels.get(mail.number)
        if parcel is not None and mail.letter == Letter.ANSWER:
            parcel.answer = Answer.unpack(mail.values)
            parcel.announced.set()

    def _delivered(self, mail: Mail) -> None:
        if mail.letter == Letter.LEFT:
            return
        parcel = self.parcels.pop(mail.number)
        parcel.parameters_P, parcel.arrived_s = mail.payload_P, self.watch.settle()
        parcel.announced.set()
        parcel.complete.set()

    def _failed(self, error: PeerLostError) -> None:
        self.lost = error
        for parcel in list(self.parcels.values()):
            parcel.announced.set()
            parcel.complete.set()

    # ---- commands --------------------------------------------------------------------------------------------------------

    def _new(self, samples: int = 0, buffer_P: Tensor | None = None) -> Parcel:
        parcel = Parcel(self.sent_parcels * self.port.n + self.port.rank, samples, buffer_P)
        self.sent_parcels += 1
        self.parcels[parcel.id] = parcel
        if self.lost is not None:
            raise self.lost
        return parcel

    def compute(self, command: cmd.Compute) -> cmd.Computed:
        """True gradients of the next samples, added to the accumulator; a push sends it whole, so `stream` says nothing."""
        self.last_samples = command.samples
        return super().compute(cmd.Compute(command.samples, False))

    def push(self, command: cmd.Push) -> Parcel:
        """Send the accumulator; zeros where it is empty."""
        parcel = self._new(self.held, self.wire.buffer() if self.sum_P is None else self.sum_P)
        now = self.watch.settle()
        self.log.add(Kind.JOIN, now, now, source=parcel.id, slot=self.slot, samples=self.held)
        self.slot, self.held, self.sum_P = -1, 0, None
        self.post.send(Letter.PUSH, parcel.id, (parcel.samples, now), parcel.buffer_P)
        return parcel

    def pull(self, command: cmd.Pull) -> Parcel:
        """Ask for parameters."""
        parcel = self._new()
        self.post.send(Letter.PULL, parcel.id)
        return parcel

    def poll(self, command: cmd.Poll) -> bool:
        """Arrived yet?"""
        parcel: Parcel = command.handle  # type: ignore[assignment]
        complete = parcel.complete.is_set()
        self.log.polls.append(complete)
        return complete

    def wait(self, command: cmd.Wait) -> cmd.Reduced:
        """Block until a push has arrived or parameters have, and take these over."""
        parcel: Parcel = command.handle  # type: ignore[assignment]
        if not parcel.complete.is_set():
            start_s = self.watch.settle()
            self._await(parcel)
            self._waited_for(parcel, start_s, command.cause)
        if not parcel.done:
            if self.lost is not None and parcel.id in self.parcels:
                raise self.lost
            parcel.done = True
            parcel.result = self._arrived(parcel) if parcel.buffer_P is not None else self._adopt(parcel)
        result: cmd.Reduced = parcel.result
        return result

    def _await(self, parcel: Parcel) -> None:
        """Block until complete; where samples will be needed they are claimed while the parameters travel."""
        parcel.announced.wait()
        if parcel.answer is not None and not parcel.answer.stop:
            self.prompt.soon(self.last_samples)
        parcel.complete.wait()

    def _waited_for(self, parcel: Parcel, start_s: float, cause: str) -> None:
        """Log the wait. One for an answer is put down to the gate while the server held it back, then to the pull."""
        end_s, answer = self.watch.settle(), parcel.answer
        of_transfer = WaitCause.PUSH if parcel.buffer_P is not None else WaitCause.PULL
        code = wait_cause(self.algorithm.name, cause, of_transfer)
        if not cause and answer is not None and answer.held and start_s < answer.replied_s < end_s:
            self._waited(start_s, answer.replied_s, parcel.id, WaitCause.GATE)
            start_s = answer.replied_s
        self._waited(start_s, end_s, parcel.id, code)

    def _arrived(self, parcel: Parcel) -> cmd.Reduced:
        if parcel.buffer_P is not None:
            self.wire.release(parcel.buffer_P)
        return cmd.Reduced(parcel.samples, {}, (self.port.rank,), False)

    def _adopt(self, parcel: Parcel) -> cmd.Reduced:
        """Take over the parameters that a pull brought."""
        answer, parameters_P = parcel.answer, parcel.parameters_P
        if answer is None or parameters_P is None:
            raise ProgramError(f"transfer {parcel.id} brought no parameters")
        state = State(
            parameters_P=parameters_P.to(self.model.parameters_P.device),
            progress=Progress(updates=answer.updates, samples=answer.samples),
        )
        now = self.watch.settle()
        self.log.add(
            Kind.REDUCE, min(answer.replied_s, parcel.arrived_s), parcel.arrived_s, source=parcel.id,
            code=Payload.PARAMETERS,
        )  # fmt: skip
        self.log.add(Kind.COPY, now, now, state=answer.state, source=parcel.id)
        self.version = self.point = Version(answer.state, state)
        if self.progress is not None:
            self.progress(state.progress)
        return cmd.Reduced(0, {}, (), answer.stop)
