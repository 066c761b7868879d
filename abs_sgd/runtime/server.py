"""The parameter server of a live run: rank n drives the algorithm's server program.

The commands mean what they mean in `hetsim.runtime.server`: a message is a gradient that has arrived or a request for parameters, in
order of arrival; an answer carries the parameters as they are when it is given. Answers leave on threads, so the program never waits for
a link; many at once share the server's link as TCP shares it. What the program is told is recorded as the simulator records it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from abs_sgd.runtime.causes import discard_reason
from abs_sgd.runtime.noise import NoiseLog
from abs_sgd.runtime.post import Letter, Mail, Post
from abs_sgd.runtime.rank import Version
from abs_sgd.runtime.record import RankLog
from abs_sgd.runtime.wire import PeerLostError
from abs_sgd.update import Compensation, Progress, State, Updater
from hetsim import commands as cmd
from hetsim.algorithms import Algorithm
from hetsim.errors import ProgramError
from hetsim.runtime.driver import step_rule
from hetsim.schedule.kinds import Kind


class Arrival(cmd.Handle):
    """A push or a pull as the server sees it."""

    __slots__ = ("mail", "samples", "turn")

    def __init__(self, mail: Mail, turn: int) -> None:
        super().__init__(mail.number)
        self.mail, self.turn, self.done = mail, turn, True
        self.samples = round(mail.values[0]) if mail.letter == Letter.PUSH else 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What rides along with parameters: `state`, the server's number for them; `held`: the program looked at other messages before it
    answered, at `replied_s`."""

    stop: bool
    state: int
    replied_s: float
    held: bool
    updates: int
    samples: int

    def pack(self) -> tuple[float, ...]:
        """As a header's values."""
        return (self.stop, self.state, self.replied_s, self.held, self.updates, self.samples)

    @staticmethod
    def unpack(values: tuple[float, ...]) -> Answer:
        """What `pack` made."""
        stop, state, replied_s, held, updates, samples = values[:6]
        return Answer(
            stop=bool(stop),
            state=round(state),
            replied_s=replied_s,
            held=bool(held),
            updates=round(updates),
            samples=round(samples),
        )


class Inbox:
    """Complete messages of all workers, in order of arrival."""

    def __init__(self, log: RankLog, clock: Callable[[], float]) -> None:
        self._mail: SimpleQueue[tuple[Mail, float] | PeerLostError] = SimpleQueue()
        self._log, self._clock = log, clock
        self._order = threading.Lock()  # rows have the order, by the clock, of the messages

    def put(self, mail: Mail) -> None:
        """A message is complete; called by the thread that received it."""
        with self._order:
            now = self._clock()
            if mail.letter == Letter.PUSH:
                samples, sent_s = mail.values[:2]
                self._log.add(
                    Kind.REDUCE, min(sent_s, now), now, worker=mail.peer, source=mail.number, samples=round(samples)
                )
            self._mail.put((mail, now))

    def fail(self, error: PeerLostError) -> None:
        """A worker is gone."""
        self._mail.put(error)

    def get(self) -> tuple[Mail, float]:
        """The next message and when it was complete; blocks. Raises PeerLostError."""
        mail = self._mail.get()
        if isinstance(mail, PeerLostError):
            raise mail
        return mail


class LiveServer:
    """The server while it runs. `run()` drives its program until every worker has left; `version` is where it ended.

    `connect`: opens a worker's post. `handed_out`: asks for the samples that have been handed out, in due course.
    """

    def __init__(
        self,
        *,
        port: cmd.ServerPort,
        algorithm: Algorithm,
        updater: Updater,
        initial_P: Tensor,
        connect: Callable[..., Post],
        handed_out: Callable[[], Future[int]],
        budget: int,
        clock: Callable[[], float],
        max_updates: int,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.port, self.algorithm, self.updater, self.clock = port, algorithm, updater, clock
        self.max_updates, self.budget, self.progress = max_updates, budget, progress
        self.log = RankLog(port.n)
        self.noise = NoiseLog()  # stays empty: no update has gradients of two workers
        self.version = Version(0, State(parameters_P=initial_P))
        self.given: dict[int, Version] = {}  # what each worker pulled last
        self.updates = 0
        self.received = 0  # messages that the program has been given
        self.dry = False  # all samples were handed out when it was given the last one
        self._handed_out = handed_out
        self._asked = handed_out()
        self.inbox = Inbox(self.log, clock)
        self.posts = {
            worker: connect(
                worker, size=len(initial_P), payload=Letter.PUSH, delivered=self._arrived, failed=self.inbox.fail
            )
            for worker in range(port.n)
        }
        self.handlers: dict[type, Callable[[Any], Any]] = {
            cmd.Apply: self.apply,
            cmd.Reply: self.reply,
            cmd.Discard: self.discard,
        }

    def run(self) -> None:
        """Drive the program until all workers have left. Raises ProgramError, PeerLostError."""
        program = self.algorithm.server(self.port)
        answer: Any = None
        while True:
            try:
                command = program.send(answer)
            except StopIteration:
                raise ProgramError(f"{self.algorithm.name}: the server's program ended before its workers'") from None
            if isinstance(command, cmd.Receive):
                answer = self.receive()
                if answer is None:
                    break
                continue
            handler = self.handlers.get(type(command))
            if handler is None:
                raise ProgramError(f"{self.algorithm.name} yielded {command!r}, which no live server can do")
            answer = handler(command)
        program.close()
        self.log.sort()

    def _arrived(self, mail: Mail) -> None:
        """In the thread that received it: a push is complete for its worker once it is here."""
        self.inbox.put(mail)
        if mail.letter == Letter.PUSH:
            self.posts[mail.peer].send(Letter.ARRIVED, mail.number)

    # ---- commands --------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """The budget of updates or samples is used up."""
        return self.dry or self.updates >= self.max_updates

    def receive(self) -> cmd.Message | None:
        """The next message; None once all workers have left. Recorded is its transfer t, as -1 - t once the run is over."""
        while self.posts:
            mail, arrived_s = self.inbox.get()
            if mail.letter == Letter.LEFT:
                self.posts.pop(mail.peer).close()
                continue
            self._look()
            arrival = Arrival(mail, self.received)
            self.received += 1
            over = self.over
            self.log.outcomes.append(-1 - mail.number if over else mail.number)
            kind: Any = "push" if mail.letter == Letter.PUSH else "pull"
            return cmd.Message(kind, mail.peer, arrival.samples, arrival, over, arrived_s)
        return None

    def _look(self) -> None:
        """Whether all samples are handed out, as the store said last: asking takes a moment, and nobody waits for it. It is looked up for
        each message and not in between, so that who is told to stop is told so when the program knows."""
        if self._asked.done():
            self.dry = self.dry or self._asked.result() >= self.budget
            if not self.dry:
                self._asked = self._handed_out()

    def apply(self, command: cmd.Apply) -> int:
        """Optimizer step on a pushed gradient; nothing happens where it holds no samples."""
        arrival: Arrival = command.handle  # type: ignore[assignment]
        samples, sum_P = arrival.samples, arrival.mail.payload_P
        if samples and sum_P is not None:
            start_s, parent, divisor = self.clock(), self.version, command.divisor or samples
            sum_P = sum_P.to(parent.state.parameters_P.device)
            rule, scale = step_rule(command)
            made = self.updater.step(
                parent.state,
                sum_P,
                divisor=divisor,
                samples=samples,
                scale=command.scale,
                compensation=self._compensation(command, arrival.mail.peer),
            )
            self.version = Version(parent.number + 1, made)
            self.log.add(
                Kind.STEP, start_s, self.clock(), state=self.version.number, parent=parent.number, source=arrival.id,
                samples=samples, first=divisor, scale=scale, code=rule,
            )  # fmt: skip
            self.updates += 1
            if self.progress is not None:
                self.progress(made.progress)
        return self.updates

    def _compensation(self, command: cmd.Apply, worker: int) -> Compensation | None:
        """By the parameters that the worker was last given."""
        if not command.compensation:
            return None
        taken_at_P = self.given[worker].state.parameters_P
        return Compensation(strength=command.compensation, taken_at_P=taken_at_P, rule=step_rule(command)[0])

    def reply(self, command: cmd.Reply) -> None:
        """Answer a pull with the parameters as they are now."""
        arrival: Arrival = command.message.handle  # type: ignore[assignment]
        state = self.version.state
        answer = Answer(
            stop=self.over,
            state=self.version.number,
            replied_s=self.clock(),
            held=self.received > arrival.turn + 1,
            updates=state.progress.updates,
            samples=state.progress.samples,
        )
        self.given[arrival.mail.peer] = self.version
        self.posts[arrival.mail.peer].send(Letter.ANSWER, arrival.id, answer.pack(), state.parameters_P)

    def discard(self, command: cmd.Discard) -> int:
        """Never use a pushed gradient."""
        arrival: Arrival | None = command.handle  # type: ignore[assignment]
        if arrival is None:
            return 0
        now = self.clock()
        reason = discard_reason(self.algorithm.name, command.reason)
        self.log.add(Kind.DISCARD, now, now, source=arrival.id, samples=arrival.samples, code=reason)
        return arrival.samples
