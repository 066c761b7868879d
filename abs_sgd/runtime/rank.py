"""One rank of a live run: drives a worker's program on torch.distributed and the wall clock.

The commands mean what they mean in `hetsim.runtime`; here a compute is true gradients, a wait blocks, a poll asks the collective. The
update is `abs_sgd.update`'s, and every timing-dependent outcome is recorded, so that the log alone reproduces the parameters.

On a GPU a compute returns when its work is queued. The host waits for the device where an answer depends on how far that is: at a poll, a
wait, a count, a look at the clock, a paced pass, and where an algorithm reads how long a pass took (`abs_sgd.runtime.clock`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.causes import discard_reason, wait_cause
from abs_sgd.runtime.clock import Stopwatch, Time
from abs_sgd.runtime.computing import Passes, spread
from abs_sgd.runtime.noise import NoiseLog, squared_norm
from abs_sgd.runtime.pacing import Pace
from abs_sgd.runtime.record import RankLog
from abs_sgd.runtime.samples import SampleDispenser, SharedCount
from abs_sgd.runtime.streaming import Stream
from abs_sgd.runtime.wire import LiveTransfer, Share, Wire
from abs_sgd.update import Compensation, Progress, State, Updater
from abs_sgd.workloads.task import Task
from hetsim import commands as cmd
from hetsim.algorithms import Algorithm
from hetsim.errors import ProgramError
from hetsim.runtime.driver import step_rule, uniform
from hetsim.schedule.kinds import DiscardReason, Kind, MixRule, PointRule, StepRule, WaitCause

if TYPE_CHECKING:
    from abs_sgd.runtime.keeper import Keeper

PREDICTED_FROM_OWN = (PointRule.LOCAL_PREDICTION, PointRule.BLEND, PointRule.LOCAL_STEP, PointRule.DAMPED_PREDICTION)


@dataclass(frozen=True)
class Version:
    """A state with the number this rank gave it."""

    number: int
    state: State


class LiveRank:
    """One worker while it runs. `run()` drives its program to the end; `log` is what it recorded, `version` where it ended."""

    def __init__(
        self,
        *,
        port: cmd.Port,
        algorithm: Algorithm,
        task: Task,
        seed: int,
        updater: Updater,
        model: FlatModel,
        wire: Wire,
        dispenser: SampleDispenser,
        counter: SharedCount,
        watch: Stopwatch,
        max_updates: int,
        pace: Pace | None = None,
        progress: Callable[[Progress], None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.port, self.algorithm, self.task, self.seed = port, algorithm, task, seed
        self.updater, self.model, self.wire = updater, model, wire
        self.passes = Passes(task, model, seed, port.max_pass[port.rank])
        self.dispenser, self.counter, self.watch = dispenser, counter, watch
        self.max_updates, self.pace, self.progress, self.keeper = max_updates, pace, progress, keeper
        self.rule, self.rule_scale = algorithm.point_rule(port.n)
        self.log = RankLog(port.rank)
        self.noise = NoiseLog()
        self.version = self.point = self.anchor = Version(0, State(parameters_P=model.parameters_P.clone()))
        self.taken = self.point  # where the accumulator's last gradient was taken
        self.predicted = -1, self.version  # the last damped prediction: its transfer and point
        self.made = 0  # states numbered so far
        self.slots = 0  # accumulators numbered so far
        self.slot, self.held = -1, 0
        self.sum_P: Tensor | None = None  # the accumulator: a buffer of the wire
        self.stream: Stream | None = None  # the all-reduce that the pass under way feeds
        self.sent: tuple[int, int, int, Tensor | None] = (-1, -1, 0, None)  # transfer, slot, samples, own sum
        self.updates = 0
        self.draws: dict[str, int] = {}
        self.handlers: dict[type, Callable[[Any], Any]] = {
            cmd.Compute: self.compute,
            cmd.AllReduce: self.all_reduce,
            cmd.Poll: self.poll,
            cmd.Wait: self.wait,
            cmd.Apply: self.apply,
            cmd.Step: self.step,
            cmd.Predict: self.predict,
            cmd.Merge: self.merge,
            cmd.Discard: self.discard,
            cmd.Count: self.count,
            cmd.Draw: self.draw,
            cmd.Now: self.now,
        }

    def run(self) -> None:
        """Drive the program to its end. Raises ProgramError, PeerLostError, TooSlowError."""
        program, keeper = self.algorithm.worker(self.port), self.keeper
        answer: Any = keeper.feed(program) if keeper else None
        while True:
            try:
                command = program.send(answer)
            except StopIteration:
                break
            handler = self.handlers.get(type(command))
            if handler is None:
                raise ProgramError(f"{self.algorithm.name} yielded {command!r}, which no live worker can do")
            answer = handler(command)
            if keeper is not None:
                keeper.note(self, command, answer)
        if self.slot >= 0:
            self._drop(DiscardReason.RUN_ENDED)
        self.watch.settle()  # the last rows have their times

    # ---- gradients -------------------------------------------------------------------------------------------------------

    def compute(self, command: cmd.Compute) -> cmd.Computed:
        """True gradients of the next samples, added to the accumulator. With `stream` they leave while they are computed, bucket by bucket;
        in a paced pass, at the times at which the profile's pass would have them."""
        ranges = self.dispenser.take(command.samples)
        self.dispenser.ahead(command.samples)
        total = sum(count for _, count in ranges)
        if not total:
            return cmd.Computed(0, 0.0)
        if self.slot < 0:
            self.slot, self.slots = self.slots, self.slots + 1
            self.sum_P = self.wire.buffer()
        assert self.sum_P is not None
        self.taken = self.point
        self.model.load(self.point.state.parameters_P)
        if command.stream:
            self.stream = self._stream(self.sum_P, while_computing=self.pace is None)
        start = begun = self.watch.mark()
        ends = self.passes.all(ranges, self.sum_P[: self.wire.size], self.stream, self.watch.mark)
        if self.pace is not None:
            now_s = self.watch.settle()
            if self.stream is None:
                self.pace.keep(total, float(start), now_s)
            else:
                self.pace.keep(total, float(start), now_s, self.stream.left[:-1], self.stream.send)
            ends[-1] = self.watch.mark()
        point, slot = self.point.number, self.slot
        for (first, count), until in zip(ranges, spread(start, ends, ranges), strict=True):
            self.log.add(Kind.GRAD, begun, until, state=point, slot=slot, samples=count, first=first)
            begun = until
        self.held += total
        return self.watch.computed(total, start, ends[-1])

    def _stream(self, buffer_P: Tensor, *, while_computing: bool) -> Stream:
        if self.rule in PREDICTED_FROM_OWN:
            raise ProgramError(f"{self.algorithm.name} predicts from a sum of its own that is streamed away")
        if self.keeper is not None and self.keeper.open:
            raise ProgramError(f"{self.algorithm.name} streams beside an earlier transfer: its runs cannot be saved")
        return Stream(self.wire, buffer_P, self.model.gradient_P if while_computing else None)

    def _drop(self, reason: DiscardReason) -> int:
        if self.stream is not None:
            raise ProgramError(f"{self.algorithm.name} drops a gradient that it has begun to send")
        now, samples = self.watch.mark(), self.held
        self.log.add(Kind.DISCARD, now, now, slot=self.slot, samples=samples, code=reason)
        if self.sum_P is not None:
            self.wire.release(self.sum_P)
        self.slot, self.held, self.sum_P = -1, 0, None
        return samples

    # ---- transfers -------------------------------------------------------------------------------------------------------

    def all_reduce(self, command: cmd.AllReduce) -> LiveTransfer:
        """Hand over the accumulator or the parameters, and start."""
        if command.group is not None or command.quorum or command.trigger >= 0:
            raise ProgramError(f"{self.algorithm.name}: collectives of part of the group do not run live yet")
        more = self.dispenser.has_more()
        now, number, weight = self.watch.mark(), self.wire.launched, command.weight
        progress = self.version.state.progress
        square: Tensor | float = 0.0
        sent: list[Any] = []
        since = progress.samples - progress.averaged_samples
        buffer_P = self.wire.buffer() if self.sum_P is None or command.what == "parameters" else self.sum_P
        if command.what == "parameters":
            torch.mul(self.version.state.parameters_P, weight, out=buffer_P[: self.wire.size])
            self.log.add(Kind.JOIN, now, now, state=self.version.number, source=number, scale=weight)
            samples = 0
        else:
            samples = self.held
            own_P = None
            if self.rule in PREDICTED_FROM_OWN and samples:
                own_P = buffer_P[: self.wire.size].clone()  # the buffer will hold everybody's sum
            self.log.add(Kind.JOIN, now, now, source=number, slot=self.slot, samples=samples, scale=weight)
            if command.stream or self.stream is not None:
                stream = self._rest(command, buffer_P)
                square, sent = stream.square, stream.works
            else:
                square = squared_norm(buffer_P[: self.wire.size])
            if weight != 1.0:
                buffer_P.mul_(weight)
            self.sent = number, self.slot, samples, own_P
            self.slot, self.held, self.sum_P = -1, 0, None
        share = Share(
            samples=samples,
            has_more=more,
            weight=weight,
            samples_since=since,
            updates=progress.updates,
            square=square,
            gather=tuple(command.gather),
        )
        if self.keeper is not None:
            self.keeper.launching(number, buffer_P[: self.wire.size], share)
        return self.wire.start(buffer_P, share, sent)

    def _rest(self, command: cmd.AllReduce, buffer_P: Tensor) -> Stream:
        """The streamed all-reduce, all of it sent; a rank without samples begins it here."""
        if not command.stream or command.weight != 1.0:
            raise ProgramError(f"{self.algorithm.name}: what was computed with stream is sent with stream and weight 1")
        stream, self.stream = self.stream or self._stream(buffer_P, while_computing=False), None
        stream.finish()
        return stream

    def poll(self, command: cmd.Poll) -> bool:
        """Complete yet?"""
        transfer: LiveTransfer = command.handle  # type: ignore[assignment]
        if not transfer.done:
            self.watch.settle()  # a host that has run ahead of its device would poll too early
            if self.wire.complete(transfer):
                self._finish(transfer)
        self.log.polls.append(transfer.done)
        return transfer.done

    def wait(self, command: cmd.Wait) -> cmd.Reduced:
        """Block until complete; what is complete is answered at once."""
        transfer: LiveTransfer = command.handle  # type: ignore[assignment]
        if not transfer.done:
            cause = wait_cause(self.algorithm.name, command.cause, WaitCause.COLLECTIVE)
            start_s = self.watch.settle()
            self._finish(transfer)
            self._waited(start_s, self.log.seen_s[transfer.id], transfer.id, cause)
        result: cmd.Reduced = transfer.result
        return result

    def _waited(self, start_s: float, end_s: float, transfer: int, cause: WaitCause) -> None:
        self.log.add(Kind.WAIT, start_s, end_s, source=transfer, code=cause)
        if self.pace is not None:
            self.pace.waited()

    def _finish(self, transfer: LiveTransfer) -> None:
        self.arrive(transfer)
        self.log.seen_s[transfer.id] = self.watch.settle()

    def arrive(self, transfer: LiveTransfer) -> None:
        """Wait for what the transfer brings."""
        arrived = self.wire.wait(transfer)
        stop = transfer.id + 1 >= self.max_updates or not arrived.has_more
        everybody = tuple(range(self.wire.world))
        transfer.done, transfer.result = True, cmd.Reduced(arrived.samples, arrived.gathered, everybody, stop)

    # ---- what changes parameters -----------------------------------------------------------------------------------------

    def apply(self, command: cmd.Apply) -> int:
        """Optimizer step on a transfer's gradient sum; nothing happens where it holds no samples."""
        transfer: LiveTransfer = command.handle  # type: ignore[assignment]
        self._complete(transfer, "applies")
        samples = transfer.arrived.samples
        if samples:
            start, parent, divisor = self.watch.mark(), self.version, command.divisor or samples
            sum_P = transfer.buffer_P[: self.wire.size]
            self.noise.add(transfer.arrived.squares, transfer.arrived.counts, transfer.arrived.square)
            made = self.updater.step(parent.state, sum_P, divisor=divisor, samples=samples, scale=command.scale)
            self._move(made)
            self.log.add(
                Kind.STEP, start, self._updated(start), state=self.version.number, parent=parent.number, source=transfer.id,
                samples=samples, first=divisor, scale=command.scale,
            )  # fmt: skip
            self.updates += 1
        self.wire.release(transfer.buffer_P)
        return self.updates

    def step(self, command: cmd.Step) -> int:
        """Optimizer step on the own accumulator."""
        if self.sum_P is None or not self.held:
            return self.updates
        start, parent, samples, slot = self.watch.mark(), self.version, self.held, self.slot
        rule, scale = step_rule(command)
        compensation = None
        if rule != StepRule.PLAIN:
            compensation = Compensation(strength=scale, taken_at_P=self.taken.state.parameters_P, rule=rule)
        made = self.updater.step(
            parent.state,
            self.sum_P[: self.wire.size],
            divisor=samples,
            samples=samples,
            scale=command.scale,
            compensation=compensation,
        )
        self._move(made)
        self.wire.release(self.sum_P)
        self.slot, self.held, self.sum_P = -1, 0, None
        self.log.add(
            Kind.STEP, start, self._updated(start), state=self.version.number, parent=parent.number, slot=slot,
            samples=samples, first=samples, scale=scale, code=rule,
        )  # fmt: skip
        self.updates += 1
        return self.updates

    def predict(self, command: cmd.Predict) -> None:
        """Move the compute point where the algorithm's `compute_point` says."""
        if self.rule == PointRule.CURRENT:
            return
        number, slot, samples, own_P = self.sent
        if number != command.handle.id:
            raise ProgramError(f"{self.algorithm.name} predicts from a transfer that was not its last")
        start, parent = self.watch.mark(), self.version.state
        before = self.predicted[1].state if self.predicted[0] == number - 1 else None
        point = self.updater.point(parent, self.rule, self.rule_scale, own_P, samples, before)
        self.made += 1
        self.point = Version(self.made, point)
        self.predicted = self.predicted if point.own_mean_P is None else (number, self.point)
        self.log.add(
            Kind.PREDICT, start, self._updated(start), state=self.made, parent=self.version.number, source=number, slot=slot,
            samples=samples, scale=self.rule_scale, code=self.rule,
        )  # fmt: skip

    def merge(self, command: cmd.Merge) -> None:
        """Mix the reduced parameters into the replica; its optimizer state stays its own."""
        transfer: LiveTransfer = command.handle  # type: ignore[assignment]
        self._complete(transfer, "merges")
        arrived, parent = transfer.arrived, self.version
        if arrived.weight:  # else nobody had anything to say
            start = self.watch.mark()
            since = Progress(updates=arrived.updates, samples=arrived.samples_since)
            mean = State(parameters_P=transfer.buffer_P[: self.wire.size] / arrived.weight, progress=since)
            anchor = self.anchor if command.anchored else None
            made = self.updater.average(
                parent.state,
                [(arrived.weight, mean)],
                anchor=anchor.state if anchor else None,
                weight=command.weight,
            )
            self._move(made)
            self.log.add(
                Kind.MIX, start, self._updated(start), state=self.version.number, parent=parent.number, source=transfer.id,
                slot=anchor.number if anchor else -1, scale=command.weight, code=MixRule.KEEP,
            )  # fmt: skip
            self.anchor = self.version
        self.wire.release(transfer.buffer_P)

    def _updated(self, start: Time) -> Time:
        """The end of an operation on parameters, paced."""
        if self.pace is not None:
            now_s = self.watch.settle()  # before the start is read, which it makes known
            self.pace.keep_update(float(start), now_s)
        return self.watch.mark()

    def _complete(self, transfer: LiveTransfer, does: str) -> None:
        if not transfer.done:
            raise ProgramError(f"{self.algorithm.name} {does} transfer {transfer.id} before it is complete")

    def _move(self, state: State) -> None:
        self.made += 1
        self.version = self.point = Version(self.made, state)
        if self.progress is not None:
            self.progress(state.progress)

    # ---- small answers ---------------------------------------------------------------------------------------------------

    def discard(self, command: cmd.Discard) -> int:
        """Drop the own accumulator."""
        reason = discard_reason(self.algorithm.name, command.reason)
        return self._drop(reason) if self.slot >= 0 else 0

    def count(self, command: cmd.Count) -> int:
        """Samples so far in the synchronization this worker joins next, as far as is known here."""
        self.watch.settle()  # as for a poll
        total = self.counter.count(self.wire.launched, command.samples)
        self.log.outcomes.append(total)
        return total

    def draw(self, command: cmd.Draw) -> float:
        """Uniform in [0, 1), keyed by (seed, purpose, name or nobody's, how many were drawn): the simulator's draws."""
        index = self.draws[command.purpose] = self.draws.get(command.purpose, -1) + 1
        return uniform(self.seed, command.purpose, "" if command.shared else self.port.name, index)

    def now(self, command: cmd.Now) -> float:
        """The clock; recorded, since it is an outcome."""
        now = self.watch.settle()
        self.log.outcomes.append(now)
        return now
