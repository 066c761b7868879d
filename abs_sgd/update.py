"""The one place for the update: what a gradient sum does to parameters, wherever the sum came from.

In-process training, training on torch.distributed and the loop wrapper all call this, so that they cannot disagree.
It knows nothing of schedules, clocks or communication: states go in, a new state comes out.

    step              x, v  ->  torch.optim's step on  clip(sum / divisor)
    learning rate     lr · rule(B / B_ref) · warm-up(samples in updates before) · scale
    look-ahead        x - κ · lr · v
    local step        x - κ · lr · own mean
    local prediction  x after a step on  a · own mean + (1-a) · last applied mean
    compensation      g + λ g⊙g⊙(x - x̄) before it is clipped
    damped prediction x after a step on  own mean + γ · (own mean before - last applied mean)
    average           (1-w) · own + w · (Σ w_i x_i + (1 - Σ w_i) · anchor)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from hetsim.schedule.kinds import MEAN_SQUARE_DECAY, MEAN_SQUARE_EPS, PointRule, StepRule

ADAM_BETA2 = 0.999  # Kingma & Ba 2015, torch's default
ADAM_EPS = 1e-8  # the same
APART_EPS = 8.0  # parameters this many units of rounding apart are the same [our choice]
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_
LAST_MEAN = (
    PointRule.BLEND,
    PointRule.DAMPED_PREDICTION,
)  # rules that predict with the last applied mean gradient as well


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """How parameters are updated. For AdamW, `momentum` is beta_1.

    `reference_batch_samples` is the batch `learning_rate` was chosen for; `lr_rule` scales the rate with B over it.
    During the first `warmup_samples` the rate grows linearly: with W = warm-up over reference batch, the first update
    has 1/W of it, the W-th all. Raises ValueError for numbers outside a profile's ranges.
    """

    learning_rate: float
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    lr_rule: Literal["none", "linear", "sqrt"] = "none"
    reference_batch_samples: int = 1
    warmup_samples: int = 0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        most = {"learning_rate": 1e6, "weight_decay": 1e3}  # hetsim.cluster.profile.Training's
        for name, largest in most.items():
            if not 0 <= (value := getattr(self, name)) <= largest:
                raise ValueError(f"{name} must be between 0 and {largest:g}, not {value}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {self.momentum}")
        if self.reference_batch_samples < 1 or self.warmup_samples < 0:
            raise ValueError("reference_batch_samples must be at least 1, warmup_samples at least 0")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be a positive number, not {self.clip_norm}")

    def rate(self, samples_before: int, batch_samples: int) -> float:
        """Learning rate of an update of `batch_samples`, given the samples in all updates before it."""
        ratio = batch_samples / self.reference_batch_samples
        factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.lr_rule]
        if self.warmup_samples > 0:
            factor *= min(1.0, (samples_before + self.reference_batch_samples) / self.warmup_samples)
        return self.learning_rate * factor


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a state stands: updates and samples before it, and what the last update was like.

    `averaged_samples` is the count at the last average (0 before), so that local steps of several replicas add up.
    """

    updates: int = 0
    samples: int = 0
    averaged_samples: int = 0
    last_batch_samples: int | None = None
    last_clip: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Parameters and torch.optim's state for them at one version; never changed in place."""

    parameters_P: Tensor
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    progress: Progress = Progress()
    outer_P: Tensor | None = None  # the outer optimizer's parameters; None where there is none
    outer_velocity_P: Tensor | None = None  # and its momentum; None before its first step
    mean_square_P: Tensor | None = None  # running mean of squared gradients; None where no step adapts to it
    mean_gradient_P: Tensor | None = None  # of the last update, before clipping; None where nobody predicts with it
    own_mean_P: Tensor | None = None  # of a point of damped prediction: the own gradient it was predicted with


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """First-order correction of a late gradient: g + λ g⊙g⊙(x - x̄), x̄ the parameters it was taken at (Zheng et al. 2017).

    Adaptive: λ over the root of the running mean of g⊙g. Relative: times ‖g‖/‖g⊙g⊙(x - x̄)‖, so that the correction's norm is λ of the
    gradient's (Rigazzi 2019).
    """

    strength: float
    taken_at_P: Tensor
    rule: StepRule = StepRule.DELAY_COMPENSATED


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A step of an outer optimizer on one of `fragments` stretches of the parameters, and the share of it that a replica takes."""

    fragment: int
    fragments: int
    learning_rate: float
    momentum: float
    share: float


class Updater:
    """Applies one `UpdateRule` through torch.optim. `keep_mean_gradient` is needed by points of the rules in LAST_MEAN only."""

    def __init__(self, rule: UpdateRule, *, keep_mean_gradient: bool = False) -> None:
        self.rule = rule
        self.keep_mean_gradient = keep_mean_gradient
        self._parameter: torch.nn.Parameter | None = None
        self._optimizer: torch.optim.Optimizer | None = None

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
        """The next version: a step on gradient_sum / divisor, compensated, then clipped once, counted as an update of `samples`."""
        before = state.progress
        mean_P, square_P = self._mean(gradient_sum_P, divisor), state.mean_square_P
        if compensation is not None:
            mean_P, square_P = self._compensated(state, mean_P, compensation)
        clip = self._clip_factor(mean_P)
        used_P = mean_P if clip == 1.0 else mean_P * clip
        if used_P is mean_P and self.keep_mean_gradient:
            used_P = mean_P.clone()  # torch's foreach Nesterov adds to the gradient in place
        parameters_P, optimizer = self._torch_step(state, used_P, scale * self.rule.rate(before.samples, samples))
        return State(
            parameters_P=parameters_P,
            optimizer=optimizer,
            progress=replace(
                before,
                updates=before.updates + 1,
                samples=before.samples + samples,
                last_batch_samples=samples,
                last_clip=clip,
            ),
            mean_gradient_P=mean_P if self.keep_mean_gradient else None,
            mean_square_P=square_P,
            outer_P=state.outer_P,
            outer_velocity_P=state.outer_velocity_P,
        )

    def _compensated(self, state: State, mean_P: Tensor, c: Compensation) -> tuple[Tensor, Tensor | None]:
        """The corrected mean gradient, and the running mean square where λ adapts to it."""
        square_P, factor_P = mean_P * mean_P, state.parameters_P - c.taken_at_P
        if c.rule == StepRule.DELAY_COMPENSATED_RELATIVE:
            correction_P, size = square_P * factor_P, float(state.parameters_P.norm())
            norm, least = float(correction_P.norm()), APART_EPS * torch.finfo(mean_P.dtype).eps * size
            if not norm > 0 or float(factor_P.norm()) <= least:  # rounding alone has no direction
                return mean_P, state.mean_square_P
            return mean_P + c.strength * float(mean_P.norm()) / norm * correction_P, state.mean_square_P
        if c.rule == StepRule.DELAY_COMPENSATED:
            return mean_P + c.strength * square_P * factor_P, state.mean_square_P
        kept_P = (1.0 - MEAN_SQUARE_DECAY) * square_P
        if state.mean_square_P is not None:
            kept_P = MEAN_SQUARE_DECAY * state.mean_square_P + kept_P
        return mean_P + c.strength / (kept_P + MEAN_SQUARE_EPS).sqrt() * square_P * factor_P, kept_P

    def point(
        self,
        state: State,
        rule: PointRule,
        amount: float,
        own_sum_P: Tensor | None,
        own_samples: float,
        before: State | None = None,
    ) -> State:
        """Where the next gradient is taken while an update is under way; `amount` is κ, the own share or γ. `before`: the point of the
        synchronization before, where damped prediction made one."""
        own_mean_P = None
        match rule:
            case PointRule.CURRENT:
                return state
            case PointRule.LOOK_AHEAD:
                parameters_P = self.look_ahead(state, amount)
            case PointRule.LOCAL_STEP:
                parameters_P = self.local_step(state, own_sum_P, own_samples, amount)
            case PointRule.LOCAL_PREDICTION | PointRule.BLEND:
                parameters_P = self.predict(state, own_sum_P, own_samples, amount if rule == PointRule.BLEND else 1.0)
            case PointRule.DAMPED_PREDICTION:
                if own_sum_P is not None and own_samples > 0:
                    own_mean_P = self._mean(own_sum_P, own_samples)
                parameters_P = self.damped(state, own_mean_P, None if before is None else before.own_mean_P, amount)
        return State(parameters_P=parameters_P, progress=state.progress, own_mean_P=own_mean_P)

    def local_step(self, state: State, own_sum_P: Tensor | None, own_samples: float, kappa: float) -> Tensor:
        """x - κ · lr · own mean: a step of SGD without momentum or decay, at the next update's rate and the last one's clip factor."""
        if own_sum_P is None or own_samples <= 0:
            return state.parameters_P
        rate = kappa * self._next_rate(state) * state.progress.last_clip
        return torch.sub(state.parameters_P, self._mean(own_sum_P, own_samples), alpha=rate)

    def look_ahead(self, state: State, kappa: float) -> Tensor:
        """x - κ · lr · v, where momentum alone would carry x. v is SGD's momentum buffer or AdamW's m̂ / (sqrt(v̂) +
        eps) [our choice]."""
        held = state.optimizer
        if self.rule.optimizer == "adamw":
            if "exp_avg" not in held:
                return state.parameters_P
            count = float(held["step"])
            second_P = held["exp_avg_sq"] / (1.0 - ADAM_BETA2**count)
            direction_P = held["exp_avg"] / (1.0 - self.rule.momentum**count) / (second_P.sqrt() + ADAM_EPS)
        elif "momentum_buffer" in held:
            direction_P = held["momentum_buffer"]
        else:
            return state.parameters_P
        return torch.sub(state.parameters_P, direction_P, alpha=kappa * self._next_rate(state))

    def predict(self, state: State, own_sum_P: Tensor | None, own_samples: float, own_share: float = 1.0) -> Tensor:
        """Parameters after the step that a worker's own gradient predicts; `state` is untouched.

        The gradient is own_share · own mean + (1 - own_share) · last applied mean, not clipped but scaled by the last
        applied clip factor; the rate is that of the next update with the last B. No samples: own mean 0. No update
        yet: the own mean alone.
        """
        if own_sum_P is None or own_samples <= 0:
            gradient_P = torch.zeros_like(state.parameters_P)
        else:
            gradient_P = self._mean(own_sum_P, own_samples)
        if own_share < 1.0 and state.mean_gradient_P is not None:
            gradient_P = own_share * gradient_P + (1.0 - own_share) * state.mean_gradient_P
        if state.progress.last_clip != 1.0:
            gradient_P = gradient_P * state.progress.last_clip
        return self._torch_step(state, gradient_P, self._next_rate(state))[0]

    def damped(self, state: State, own_mean_P: Tensor | None, before_P: Tensor | None, damping: float) -> Tensor:
        """Parameters after the step on own mean + γ · (own mean before - last applied mean); `state` is untouched.

        Each worker's points deviate from the group's by what its gradients deviate: δ' = -a(δ + γδ_before) with a = lr·h, which stays
        bounded up to a = 1/max(γ, 1-γ) instead of 1; the group's mean is predicted as well as by `predict` [derived here]. No samples: the
        last applied mean stands for the own one. Clip factor and rate as in `predict`.
        """
        last_P = state.mean_gradient_P
        gradient_P = last_P if own_mean_P is None else own_mean_P
        if gradient_P is None:
            gradient_P = torch.zeros_like(state.parameters_P)
        elif own_mean_P is not None and before_P is not None and last_P is not None:
            gradient_P = gradient_P + damping * (before_P - last_P)
        else:
            gradient_P = gradient_P.clone()  # torch's foreach Nesterov adds to the gradient in place
        if state.progress.last_clip != 1.0:
            gradient_P = gradient_P * state.progress.last_clip
        return self._torch_step(state, gradient_P, self._next_rate(state))[0]

    def average(
        self,
        own: State,
        parts: Sequence[tuple[float, State]],
        *,
        anchor: State | None = None,
        weight: float = 1.0,
        reset: bool = False,
        shift: bool = False,
        heard: int = -1,
    ) -> State:
        """(1-weight) · own + weight · (Σ w_i x_i + (1 - Σ w_i) · anchor); without an anchor the w_i are normalised to
        sum to 1.

        With w_i = (Σ_j p_j H_j) p_i / H_i and the anchor the last average this is FedNova (Wang et al. 2020) for plain local SGD.
        `shift`: own + weight · (mean - anchor), the anchor being what the own replica was among the parts.
        The optimizer state is the own one, or empty if `reset`. `heard`: the samples to count from here on, -1 for the sum of the parts'.
        """
        total = sum(w for w, _ in parts)
        norm = total if anchor is None or shift else 1.0
        mixed_P = torch.zeros_like(own.parameters_P)
        for share, part in parts:
            mixed_P.add_(part.parameters_P, alpha=share / norm)
        if shift and anchor is not None:
            mixed_P.sub_(anchor.parameters_P).add_(own.parameters_P)
        elif anchor is not None:
            mixed_P.add_(anchor.parameters_P, alpha=1.0 - total)
        parameters_P = mixed_P if weight == 1.0 else (1.0 - weight) * own.parameters_P + weight * mixed_P
        samples = own.progress.averaged_samples + sum(
            p.progress.samples - p.progress.averaged_samples for _, p in parts
        )
        samples = samples if heard < 0 else heard
        progress = replace(
            own.progress,
            updates=max([own.progress.updates, *(p.progress.updates for _, p in parts)]),
            samples=samples,
            averaged_samples=samples,
        )
        kept = {} if reset else own.optimizer
        return State(
            parameters_P=parameters_P,
            optimizer=kept,
            progress=progress,
            mean_gradient_P=own.mean_gradient_P,
            mean_square_P=own.mean_square_P,
            outer_P=own.outer_P,
            outer_velocity_P=own.outer_velocity_P,
        )

    def outer_average(self, own: State, parts: Sequence[tuple[float, State]], outer: Outer, *, heard: int) -> State:
        """Of one fragment: u := μu + (g - mean), g := g - lr(g - mean + μu), the replica (1-share) · own + share · g (Douillard et al.
        2025).

        g and u are the outer optimizer's parameters and momentum. `heard`: the samples to count from here on.
        """
        size = len(own.parameters_P)
        here = slice(size * outer.fragment // outer.fragments, size * (outer.fragment + 1) // outer.fragments)
        total = sum(w for w, _ in parts)
        mean_F = torch.zeros_like(own.parameters_P[here])
        for weight, part in parts:
            mean_F.add_(part.parameters_P[here], alpha=weight / total)
        assert own.outer_P is not None
        outer_P, parameters_P = own.outer_P.clone(), own.parameters_P.clone()
        held_P = own.outer_velocity_P
        velocity_P = torch.zeros_like(outer_P) if held_P is None else held_P.clone()
        moved_F = outer_P[here] - mean_F
        velocity_P[here] = outer.momentum * velocity_P[here] + moved_F
        outer_P[here] -= outer.learning_rate * (moved_F + outer.momentum * velocity_P[here])
        parameters_P[here] = (1.0 - outer.share) * parameters_P[here] + outer.share * outer_P[here]
        updates = max([own.progress.updates, *(p.progress.updates for _, p in parts)])
        progress = replace(own.progress, updates=updates, samples=heard, averaged_samples=heard)
        return replace(own, parameters_P=parameters_P, progress=progress, outer_P=outer_P, outer_velocity_P=velocity_P)

    def _mean(self, sum_P: Tensor, divisor: float) -> Tensor:
        return sum_P / divisor

    def _next_rate(self, state: State) -> float:
        batch = state.progress.last_batch_samples or self.rule.reference_batch_samples
        return self.rule.rate(state.progress.samples, batch)

    def _clip_factor(self, mean_P: Tensor) -> float:
        if self.rule.clip_norm is None:
            return 1.0
        return min(1.0, self.rule.clip_norm / (float(mean_P.norm()) + CLIP_EPS))

    def _torch_step(self, state: State, gradient_P: Tensor, rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        """One torch.optim step from `state`, whose optimizer state is put in before and taken out after."""
        if self._parameter is None or self._optimizer is None:
            self._parameter = torch.nn.Parameter(torch.empty_like(state.parameters_P))
            self._optimizer = self._make(self._parameter)
        parameter, optimizer = self._parameter, self._optimizer
        parameter.data = state.parameters_P.clone()
        parameter.grad = gradient_P
        optimizer.state[parameter] = {name: value.clone() for name, value in state.optimizer.items()}
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        held = optimizer.state.pop(parameter)
        return parameter.data, {k: v for k, v in held.items() if isinstance(v, Tensor)}

    def _make(self, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        rule = self.rule
        if rule.optimizer == "adamw":
            return torch.optim.AdamW(
                [parameter],
                lr=rule.learning_rate,
                betas=(rule.momentum, ADAM_BETA2),
                eps=ADAM_EPS,
                weight_decay=rule.weight_decay,
                foreach=False,
            )
        return torch.optim.SGD(
            [parameter],
            lr=rule.learning_rate,
            momentum=rule.momentum,
            nesterov=rule.nesterov and rule.momentum > 0.0,  # torch refuses Nesterov without momentum
            weight_decay=rule.weight_decay,
            foreach=False,
        )
