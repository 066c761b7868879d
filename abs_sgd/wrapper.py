"""ABS-SGD for your own training loop.

    trainer = abs_sgd.AbsSgd(model, optimizer, sampler=sampler)
    for x, y in loader:
        loss_fn(model(x), y).backward()
        trainer.step(len(x))             # never waits for the other ranks
    with trainer.synchronized():         # replicas equal, nothing in flight
        evaluate(model)
    trainer.finish()

It drives the same generator as the simulator and the live runtime: `step(n)` answers the program's pending `compute`, everything that
the program does until its next `compute` (poll, apply, launch, predict) happens inside that call. A pause and the end are the program's
`stop`: ranks that are through contribute zero samples until all are, agreed in the payload, so that nobody hangs.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from abs_sgd.flight import Flight, Group
from abs_sgd.gradient_sum import GradientSum
from abs_sgd.gradients import FlatModel
from abs_sgd.monitor import Monitor
from abs_sgd.open_batch import OpenBatchSampler
from abs_sgd.replay.inprocess import DIVERGED_FACTOR
from abs_sgd.update import LAST_MEAN, Progress, State
from abs_sgd.user_optimizer import FactorRule, UserUpdater
from abs_sgd.wrapper_checks import (
    check_asked,
    check_gradients,
    check_places,
    check_state,
    places,
    warn_of_untrained,
    whole,
)
from hetsim.algorithms import make
from hetsim.commands import AllReduce, Apply, Compute, Computed, Handle, Now, Poll, Port, Predict, Reduced, Wait
from hetsim.errors import ProgramError, UsageError
from hetsim.schedule import PointRule

VERSION = 1
NO_LIMIT = 2**62  # the program's micro-batch: how many samples a step has is the loop's choice


class AbsSgd:
    """Trains `model` by ABS-SGD, stepping your `optimizer`, over the ranks of a process group (or this process alone).

    `options`           of the algorithm `abs-sgd`, as in a profile: compute_point, synchronous_updates, min_samples, ...
    `loss_reduction`    "mean": step(n) multiplies the gradient by n; "sum": it is one already
    `clip_norm`         once, after the sum over ranks was divided by the samples
    `lr_rule`           learning rate times B/B_ref or its root, B_ref = `reference_batch_samples`
    `warmup_samples`    the rate grows linearly over so many samples
    `schedule`          samples in the updates before -> factor on every group's learning rate; takes an lr scheduler's place
    `sampler`           an OpenBatchSampler, to be told what was trained on and saved with the rest
    `wire_dtype`        e.g. torch.bfloat16: gradients are rounded to it and summed in it, counts are not
    `diverged_factor`   Diverged where the mean loss of three updates running is over this times the first's, if step() is given the
                        loss, or where a gradient is not finite; None looks at neither

    One `backward()` per `step`: accumulating more means first would weigh them wrongly, and a step costs no synchronization.
    Parameters and buffers start as the first rank's. Raises UsageError for what cannot work.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        options: Mapping[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
        sampler: OpenBatchSampler | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        clip_norm: float | None = None,
        lr_rule: Literal["none", "linear", "sqrt"] = "none",
        reference_batch_samples: int | None = None,
        warmup_samples: int = 0,
        schedule: Callable[[int], float] | None = None,
        wire_dtype: torch.dtype | None = None,
        diverged_factor: float | None = DIVERGED_FACTOR,
    ) -> None:
        self._algorithm = make("abs-sgd", options)
        check_asked(
            self._algorithm.options,
            model,
            optimizer,
            reduction=loss_reduction,
            lr_rule=lr_rule,
            reference=reference_batch_samples,
            wire_dtype=wire_dtype,
            diverged_factor=diverged_factor,
        )
        try:
            rule = FactorRule(
                lr_rule=lr_rule,
                reference_batch_samples=reference_batch_samples or 1,
                warmup_samples=warmup_samples,
                clip_norm=clip_norm,
                schedule=schedule,
            )
            flat = FlatModel(model)
        except ValueError as error:
            raise UsageError(str(error)) from None
        optimizer.zero_grad(set_to_none=True)
        self.group = Group(group, flat.parameters_P.device)
        self._point, self._amount = self._algorithm.point_rule(self.group.n)
        self.group.from_first(flat.parameters_P)
        for buffer in model.buffers():
            self.group.from_first(buffer)
        self.model, self.sampler = model, sampler
        self._updater = UserUpdater(
            flat, optimizer, rule, moves=self._point != PointRule.CURRENT, blends=self._point in LAST_MEAN
        )
        self._places = places(self._updater.parameters)
        if self._point == PointRule.LOOK_AHEAD:
            self._updater.check_look_ahead()
        if sampler is not None:
            sampler.track()
        self._state = State(parameters_P=self._updater.home_P)
        self._mean_loss = loss_reduction == "mean"
        self._monitor = Monitor(diverged_factor)
        # What is being summed, what this rank contributed last, what travels, and room to compute in.
        self._sum, self._own = GradientSum(self._mean_loss), GradientSum(self._mean_loss)
        self._sent_P = torch.empty_like(flat.parameters_P, dtype=wire_dtype or flat.parameters_P.dtype)
        self._room_P = torch.empty_like(flat.parameters_P)
        self._program: Generator[Any, Any, None] | None = None
        self._flight: Flight | None = None  # launched, not yet applied
        self._launched = 0
        self._flag = (0.0, 0.0)  # this rank pauses, is finished
        self._finished = self._draining = self._all_finished = False
        self._seen = 0  # samples since the buffers were last averaged
        self._start_s = self._resumed_s = time.perf_counter()
        self.waited_s = 0.0
        self.contributed = [0] * self.group.n  # samples in applied updates, by rank
        n = self.group.n
        one: dict[str, Any] = {
            "rank": self.group.rank,
            "name": str(self.group.rank),
            "n": n,
            "batch": 1,
            "micro_batch": NO_LIMIT,
        }
        self._port = Port(**one, batches=(1,) * n, speeds=(1.0,) * n, max_pass=(None,) * n)

    @property
    def updates(self) -> int:
        """Updates applied so far; the same parameters on every rank that is at this number."""
        return self._state.progress.updates

    @property
    def samples(self) -> int:
        """Samples (or whatever step() was given) in the updates applied so far, over all ranks."""
        return self._state.progress.samples

    @property
    def losses(self) -> list[float]:
        """Mean loss of each update over all ranks, where step() was given it."""
        return self._monitor.losses

    def step(self, count: int, *, samples: int | None = None, loss: Tensor | float | None = None) -> bool:
        """After `backward()`: count this rank's gradient with weight `count`; True where an update was applied meanwhile.

        `count` is the number of samples, or of tokens where the loss is a mean over those; then `samples` tells the sampler how many
        samples they are. `loss`, as given to backward, is for the divergence monitor. Clears the gradients. Waits for nobody, except a
        rank at its `max_local_batch`.
        """
        if self._finished or self._draining:
            raise UsageError("step() inside synchronized() or after finish()")
        if count := whole(count):
            check_gradients(self._updater.parameters)
        if self.sampler is not None:
            self.sampler.consumed(count if samples is None else samples)
        if self._program is None:
            self._begin()
        self._sum.take(self._updater.parameters, count, loss)
        self._seen += count
        if not count:  # nothing to add; a program would take it for the end of the data
            return False
        before = self.updates
        self._advance(Computed(count, time.perf_counter() - self._resumed_s))
        self._resumed_s = time.perf_counter()
        return self.updates > before

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """Collective: waits until all ranks are here and everything sent was applied; replicas and buffers are equal inside.

        For evaluating and saving. The first update after it has no delay.
        """
        if self._finished:
            raise UsageError("synchronized() after finish(): the replicas are equal already")
        self._drain((1.0, 0.0))
        self._draining = True
        try:
            yield
        finally:
            self._draining = False

    def finish(self) -> None:
        """Collective: applies what is left and returns when all ranks are here. Until then this rank contributes zero samples, also
        while others pause in `synchronized()`."""
        while not self._finished:
            self._drain((0.0, 1.0))
            self._finished = self._all_finished

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values (torch.load with weights_only=True): parameters, optimizer, gradients summed and in flight, sampler.

        Inside `synchronized()` one rank's state is everybody's. Elsewhere each rank saves its own, all at the same update number, e.g.
        `if trainer.step(n) and trainer.updates % 1000 == 0`: nobody waits, and the gradient in flight is in it.
        """
        progress = self._state.progress
        mean_P = self._state.mean_gradient_P
        flying = self._flight is not None
        return {
            "version": VERSION,
            "rank": self.group.rank,
            "progress": [progress.updates, progress.samples, progress.last_batch_samples, progress.last_clip],
            "parameters": self._updater.home_P.clone(),
            "buffers": [buffer.detach().clone() for buffer in self.model.buffers()],
            "seen": self._seen,
            "optimizer": copy.deepcopy(self._updater.optimizer.state_dict()),
            "learning_rates": list(self._updater.base_rates),
            "mean_gradient": None if mean_P is None else mean_P.clone(),
            "own_before": self._updater.own_before(self._room_P if flying else None),
            "summed": self._sum.state() if self._sum.samples else None,
            "in_flight": self._own.state() if flying else None,
            "losses": list(self._monitor.losses),
            "contributed": list(self.contributed),
            "sampler": None if self.sampler is None else self.sampler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: go on where `state_dict` was taken, before the first step or inside `synchronized()`.

        Raises UsageError where the ranks' states are of different updates, or another rank's gradients are in it.
        """
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            version = state.get("version") if isinstance(state, Mapping) else None
            raise UsageError(f"checkpoint of version {version}, this is version {VERSION}")
        updater = self._updater
        check_state(state, updater.home_P, list(self.model.buffers()), len(updater.base_rates))
        if self._program is not None:
            raise UsageError(
                "load_state_dict() with training under way: call it before the first step or inside synchronized()"
            )
        own = (self.group.rank, self.group.n) == (state["rank"], len(state["contributed"]))
        if (state["in_flight"] or state["summed"]) and not own:
            raise UsageError(
                f"this checkpoint holds gradients of rank {state['rank']} of {len(state['contributed'])}: only that rank can go on with "
                "it; one saved inside synchronized() is for any rank"
            )
        updates, samples, last_batch, last_clip = state["progress"]
        span = self.group.total(torch.tensor([updates, -updates]), "max").tolist()
        if span[0] != -span[1]:
            raise UsageError(
                f"the ranks' checkpoints are of updates {-span[1]} to {span[0]}: save inside synchronized(), or on every rank at the "
                "same update number"
            )
        updater.start_at(state["parameters"])
        for buffer, value in zip(self.model.buffers(), state["buffers"], strict=True):
            buffer.copy_(value)
        updater.optimizer.load_state_dict(state["optimizer"])
        updater.load_rates(state["learning_rates"])
        updater.load_own_before(state.get("own_before"))
        progress = Progress(updates=updates, samples=samples, last_batch_samples=last_batch, last_clip=last_clip)
        self._state = State(parameters_P=updater.home_P, progress=progress, mean_gradient_P=state["mean_gradient"])
        self._seen, self._monitor.losses = state["seen"], list(state["losses"])
        if len(state["contributed"]) == self.group.n:
            self.contributed = list(state["contributed"])
        if self.sampler is not None and state["sampler"] is not None:
            self.sampler.load_state_dict(state["sampler"])
        for part in (state["in_flight"], state["summed"]):
            if part is not None:
                self._resume(part)

    def _resume(self, part: list[Any]) -> None:
        """Hand the program a gradient sum that was computed before the checkpoint."""
        self._sum.load(part)
        if self._program is None:
            self._begin()
        self._advance(Computed(self._sum.samples, 0.0))

    def _begin(self) -> None:
        """Start the program, or start it again after a pause; its warm-up is over once so many updates were applied."""
        options = self._algorithm.options
        if self.updates >= options.synchronous_updates:
            options = options.model_copy(update={"synchronous_updates": 0})
        self._program = type(self._algorithm)(options).worker(self._port)
        self._advance(None)

    def _advance(self, answer: Any) -> None:
        """Run the program up to its next `compute`, or its end."""
        program = self._program
        assert program is not None
        while True:
            try:
                command = program.send(answer)
            except StopIteration:
                self._program = None
                return
            if isinstance(command, Compute):
                return
            answer = self._answer(command)

    def _answer(self, command: Any) -> Any:
        match command:
            case Poll(handle):
                return handle.result.completed()
            case Wait(handle):
                return self._wait(handle.result)
            case Apply(handle, scale, divisor):
                return self._apply(handle.result, scale, divisor)
            case AllReduce():
                return self._launch(command.gather)
            case Predict():
                return self._predict()
            case Now():
                return time.perf_counter() - self._start_s
        raise ProgramError(f"the wrapper of training loops cannot answer {type(command).__name__}")

    def _launch(self, gather: tuple[float, ...]) -> Handle:
        """Hand over the sum; it stays here as this rank's own part while a copy travels."""
        check_places(self._updater.parameters, self._places)
        own = self._own = self._sum
        self._sum = GradientSum(self._mean_loss)
        own.write(self._updater.views(self._sent_P))
        self._launched += 1
        self._flight = self.group.start(
            self._launched, self._sent_P, (*own.loss, *self._flag), (float(own.samples), *gather)
        )
        handle = Handle(self._launched)
        handle.result = self._flight
        return handle

    def _wait(self, flight: Flight) -> Reduced:
        began_s = time.perf_counter()
        values = flight.wait()
        self.waited_s += time.perf_counter() - began_s
        n = self.group.n
        slots = {rank: flight.slot(rank) for rank in range(n)}
        samples = int(sum(slot[0] for slot in slots.values()))
        self._all_finished = values[3] == n
        gathered = {rank: tuple(slot[1:]) for rank, slot in slots.items()}
        return Reduced(samples, gathered, tuple(range(n)), values[2] + values[3] == n)

    def _apply(self, flight: Flight, scale: float, divisor: int) -> int:
        """Step on the sum over all ranks; without samples there is no step."""
        counts = [int(flight.slot(rank)[0]) for rank in range(self.group.n)]
        self._flight = None
        if not (samples := sum(counts)):
            self._updater.go_home()
            return self.updates
        total_P = flight.sent_P
        if total_P.dtype != self._room_P.dtype:
            total_P = self._room_P.copy_(total_P)
        self._monitor.watch(f"update {self.updates + 1}, {self.samples} samples", total_P, *flight.wait()[:2])
        self._state = self._updater.step(self._state, total_P, divisor=divisor or samples, samples=samples, scale=scale)
        self.contributed = [a + b for a, b in zip(self.contributed, counts, strict=True)]
        return self.updates

    def _predict(self) -> None:
        if self._point == PointRule.LOOK_AHEAD:
            self._updater.look_ahead(self._state, self._amount)
        elif self._point != PointRule.CURRENT:
            samples = self._own.samples
            if samples:
                self._own.write(self._updater.views(self._room_P), mean=True)
            own = float(samples > 0)
            self._room_P = self._updater.own_point(self._state, self._point, self._amount, self._room_P, own)

    def _drain(self, flag: tuple[float, float]) -> None:
        """Contribute what is left, then zero samples, until every rank does; then all know the same."""
        self._flag = flag
        if self._program is None:
            self._begin()
        while self._program is not None:
            self._advance(Computed(0, 0.0))
        self._flag = (0.0, 0.0)
        self.group.average(list(self.model.buffers()), self._seen)
        self._seen = 0
        if self.sampler is not None:
            self.sampler.share()
        self._tell_idle()
        warn_of_untrained(self.model, self._updater.parameters)
        self._resumed_s = time.perf_counter()

    def _tell_idle(self) -> None:
        idle = [str(rank) for rank, samples in enumerate(self.contributed) if not samples]
        if self.updates and idle:
            who = f"rank {idle[0]} has" if len(idle) == 1 else f"ranks {', '.join(idle)} have"
            warnings.warn(f"{who} contributed no sample to {self.updates} updates", stacklevel=4)
