"""The update of `abs_sgd.update`, taken by an optimizer that somebody else made, parameter groups and all.

Division, clipping, learning-rate rules and prediction are `Updater`'s; only the step itself is the user's. The model stands at the
compute point, the newest version x_k is kept beside it where the two can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from abs_sgd.gradients import FlatModel
from abs_sgd.update import ADAM_BETA2, ADAM_EPS, Compensation, State, Updater, UpdateRule
from hetsim.errors import UsageError
from hetsim.schedule.kinds import PointRule

Held = dict[Tensor, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FactorRule(UpdateRule):
    """A rule whose rate is a factor on every parameter group's own learning rate; `schedule` maps the samples in updates before this
    one to a further factor."""

    learning_rate: float = 1.0
    schedule: Callable[[int], float] | None = None

    def rate(self, samples_before: int, batch_samples: int) -> float:
        factor = 1.0 if self.schedule is None else float(self.schedule(samples_before))
        return super().rate(samples_before, batch_samples) * factor


class UserUpdater(Updater):
    """Steps the user's `optimizer` over `flat`, in place. Any torch optimizer whose `step()` needs no closure.

    `moves`: whether the compute point leaves x_k, which takes a copy of the parameters. Raises UsageError for parameters of the
    optimizer that the model does not train.
    """

    def __init__(
        self, flat: FlatModel, optimizer: torch.optim.Optimizer, rule: FactorRule, *, moves: bool, blends: bool
    ) -> None:
        super().__init__(rule, keep_mean_gradient=blends)
        self._before: State | None = None  # the last damped prediction
        self._older = False  # there was one when it was made
        self.flat, self.optimizer = flat, optimizer
        self.parameters = [p for p in flat.model.parameters() if p.requires_grad]
        known = {id(p) for p in self.parameters}
        groups = optimizer.param_groups
        if any(p.requires_grad and id(p) not in known for group in groups for p in group["params"]):
            raise UsageError("the optimizer holds parameters that are not the model's")
        self.home_P = flat.parameters_P.clone() if moves else flat.parameters_P
        self.base_rates = [float(group["lr"]) for group in groups]
        self._rates = list(self.base_rates)
        self._home = True  # the model stands at x_k
        self._spare: Held = {}  # a second optimizer state, to predict with

    def views(self, flat_P: Tensor) -> list[Tensor]:
        """A flat vector seen as one tensor per parameter."""
        parts = torch.split(flat_P, [p.numel() for p in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def go_home(self) -> None:
        """Move the model to x_k."""
        if not self._home:
            self.flat.parameters_P.copy_(self.home_P)
            self._home = True

    def start_at(self, parameters_P: Tensor) -> None:
        """Make `parameters_P` x_k, and move the model there."""
        self.home_P.copy_(parameters_P)
        self._home = self.home_P is self.flat.parameters_P
        self.go_home()

    def step(
        self,
        state: State,
        gradient_sum_P: Tensor,
        *,
        divisor: float,
        samples: int,
        scale: float = 1.0,
        compensation: Compensation | None = None,
    ) -> State:
        """As `Updater.step`; `gradient_sum_P` is overwritten."""
        made = super().step(
            state, gradient_sum_P, divisor=divisor, samples=samples, scale=scale, compensation=compensation
        )
        if self.home_P is not self.flat.parameters_P:
            self.home_P.copy_(self.flat.parameters_P)
        mean_P = made.mean_gradient_P  # lies where the next gradient will
        return replace(made, parameters_P=self.home_P, mean_gradient_P=None if mean_P is None else mean_P.clone())

    def predict(self, state: State, own_sum_P: Tensor | None, own_samples: float, own_share: float = 1.0) -> Tensor:
        """As `Updater.predict`; `own_sum_P` is overwritten."""
        with self._spared():
            return super().predict(state, own_sum_P, own_samples, own_share)

    def damped(self, state: State, own_mean_P: Tensor | None, before_P: Tensor | None, damping: float) -> Tensor:
        """As `Updater.damped`."""
        with self._spared():
            return super().damped(state, own_mean_P, before_P, damping)

    def own_point(self, state: State, rule: PointRule, amount: float, room_P: Tensor, own_samples: float) -> Tensor:
        """Move the model to the point predicted from the own mean, which lies in `room_P`; returns room for the next one: the same, or
        another where damped prediction keeps this one, which then holds the own mean of before."""
        before = self._before
        self._older = before is not None
        point = self.point(state, rule, amount, room_P, own_samples, before)
        self._before = None if point.own_mean_P is None else point
        if self._before is None:
            return room_P
        return torch.empty_like(room_P) if before is None or before.own_mean_P is None else before.own_mean_P

    def own_before(self, room_P: Tensor | None) -> Tensor | None:
        """The own mean of the last damped prediction, as a checkpoint holds it. With the room that `own_point` returned, that of the one
        before: who goes on makes the last one again."""
        if room_P is not None:
            return room_P.clone() if self._older else None
        return None if self._before is None or self._before.own_mean_P is None else self._before.own_mean_P.clone()

    def load_own_before(self, held_P: Tensor | None) -> None:
        """Go on from it. Raises UsageError for one of another model."""
        if held_P is not None and (not isinstance(held_P, Tensor) or held_P.shape != self.home_P.shape):
            raise UsageError("this checkpoint's last own gradient is not of this model")
        self._before = None if held_P is None else State(parameters_P=self.home_P, own_mean_P=held_P.to(self.home_P))

    @contextmanager
    def _spared(self) -> Iterator[None]:
        """The optimizer steps, and then has its state as it was."""
        kept = self._lend_spare()
        try:
            yield
        finally:
            self._home = False
            held = self.optimizer.state
            for parameter in self.parameters:
                made = held.pop(parameter, None)
                if parameter in kept:
                    self._spare[parameter], held[parameter] = dict(made or {}), kept[parameter]

    def look_ahead(self, state: State, kappa: float) -> Tensor:
        self.go_home()
        self._home = False
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            one = Updater(self._group_rule(group, base))
            for p in group["params"]:
                held = self.optimizer.state.get(p)
                if held:
                    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
                    p.data.copy_(
                        one.look_ahead(State(parameters_P=p.data, optimizer=tensors, progress=state.progress), kappa)
                    )
        return self.flat.parameters_P

    def check_look_ahead(self) -> None:
        """Raise UsageError where the optimizer has no velocity that `look_ahead` knows."""
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            self._group_rule(group, base)

    def _group_rule(self, group: dict[str, Any], base: float) -> UpdateRule:
        if "nesterov" in group and "momentum" in group:  # SGD's
            return replace(self.rule, learning_rate=base, momentum=group["momentum"])
        if (
            "betas" in group
            and (group["betas"][1], group["eps"]) == (ADAM_BETA2, ADAM_EPS)
            and not group.get("amsgrad")
        ):
            return replace(self.rule, learning_rate=base, optimizer="adamw", momentum=group["betas"][0])
        raise UsageError(
            "compute_point look-ahead knows the velocity of SGD, and of Adam and AdamW with torch's default beta2 and eps; "
            "take local-prediction or current"
        )

    def _lend_spare(self) -> Held:
        """Give the optimizer a copy of its state, in tensors that are kept from one time to the next; returns its own."""
        held = self.optimizer.state
        own: Held = {p: held[p] for p in self.parameters if p in held}
        into: list[Tensor] = []
        values: list[Tensor] = []
        for parameter, state in own.items():
            spare, copy = self._spare.get(parameter, {}), {}
            for name, value in state.items():
                there = spare.get(name)
                if not isinstance(value, Tensor):
                    copy[name] = value
                elif isinstance(there, Tensor) and (there.shape, there.dtype) == (value.shape, value.dtype):
                    into.append(there)
                    values.append(value)
                    copy[name] = there
                else:
                    copy[name] = value.clone()
            held[parameter] = copy
        if into:
            torch._foreach_copy_(into, values)
        return own

    def _mean(self, sum_P: Tensor, divisor: float) -> Tensor:
        return sum_P if divisor == 1.0 else sum_P.div_(divisor)

    def _torch_step(self, state: State, gradient_P: Tensor, rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of the user's optimizer, from x_k, in place."""
        self.go_home()
        self._set_rates(rate)
        for parameter, gradient in zip(self.parameters, self.views(gradient_P), strict=True):
            parameter.grad = gradient
        with self._fused():
            self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return self.flat.parameters_P, {}

    @contextmanager
    def _fused(self) -> Iterator[None]:
        """On CPUs torch's one-pass kernels, where the user has not chosen: the plain loops read the parameters two (SGD) to three (AdamW)
        times as often. torch itself takes them for GPUs only."""
        groups = [
            group
            for group in self.optimizer.param_groups
            if self.home_P.device.type == "cpu"
            and group.get("fused", False) is None
            and group.get("foreach") is None
            and not group.get("differentiable")
        ]
        for group in groups:
            group["fused"] = True
        try:
            yield
        finally:
            for group in groups:
                group["fused"] = None

    def _set_rates(self, factor: float) -> None:
        """Rates by samples seen. One that was changed from outside would differ between ranks, since they step at different times."""
        for i, group in enumerate(self.optimizer.param_groups):
            if float(group["lr"]) != self._rates[i]:
                raise UsageError(
                    f"the learning rate of parameter group {i} was changed from outside ({self._rates[i]:g} to {group['lr']:g}); "
                    "replicas would part, because ranks step at different times: give AbsSgd schedule=, a function of samples seen"
                )
            group["lr"] = self._rates[i] = self.base_rates[i] * factor

    def load_rates(self, base_rates: list[float]) -> None:
        """Learning rates as they were when the run began; call it after loading the optimizer's state."""
        self.base_rates = list(base_rates)
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
