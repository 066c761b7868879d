"""What every algorithm is: options, a program per worker, and the promise it makes about staleness.

Defining a subclass registers it under its name; the command line, the explorer, the documentation and the contract tests iterate the
registry, so a new algorithm is one file and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetsim.commands import Port, ServerPort
from hetsim.errors import ScheduleError, UsageError, nearest
from hetsim.schedule.kinds import PointRule
from hetsim.schedule.table import Schedule

Program = Generator[Any, Any, None]
Role = Literal["baseline", "ours"]
Split = Literal["equal", "balanced", "open"]


class Options(BaseModel):
    """Options of an algorithm: frozen, named as in the profile's `algorithms:` section, nothing extra."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Algorithm:
    """One distributed training algorithm.

    `name` as in its paper; `source` where it is described; `role`; `live`: True, or the reason why it only replays;
    `split`: batches the same for all, by speed so that all finish together, or open, as many samples as there was time for.
    `counts_rounds`: whether an update is a round of local steps, after which parameters are averaged.
    `by_default`: whether a comparison that names no algorithms runs it; the others are run by name, or all with `all`.
    """

    name: ClassVar[str]
    source: ClassVar[str] = ""
    role: ClassVar[Role] = "baseline"
    live: ClassVar[bool | str] = True
    has_server: ClassVar[bool] = False
    by_default: ClassVar[bool] = True
    counts_rounds: ClassVar[bool] = False
    split: ClassVar[Split] = "equal"
    Options: ClassVar[Any] = Options

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is None:  # a base class for others
            return
        if name in _REGISTRY:
            raise TypeError(f"algorithm {name!r} is defined twice: {_REGISTRY[name]} and {cls}")
        cls.name = name
        _REGISTRY[name] = cls

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options if options is not None else self.Options()

    def worker(self, w: Port) -> Program:
        """The program every worker runs."""
        raise NotImplementedError

    def server(self, s: ServerPort) -> Program:
        """The program of the parameter server, where there is one."""
        raise NotImplementedError

    def point_rule(self, workers: int) -> tuple[PointRule, float]:
        """Where `predict` moves the compute point among so many workers, and the number that goes with it (kappa or the blend)."""
        return PointRule.CURRENT, 1.0

    def outer(self) -> dict[str, float]:
        """learning_rate, momentum and fragments of the outer optimizer (`merge` with `outer`), where there is one."""
        return {}

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """Buffers as large as the parameters that a worker holds at once, by what they hold.

        `optimizer_states`: 1 for momentum, 2 for Adam, 0 for plain SGD. Weights, the gradient (its accumulator, reduced in place) and the
        optimizer's state; what else is needed is the algorithm's own.
        """
        return {"parameters": 1, "gradients": 1, "optimizer": optimizer_states}

    def parameter_buffers(self, optimizer_states: int) -> int:
        """How many there are in all."""
        return sum(self.buffers(optimizer_states).values())

    def check(self, schedule: Schedule) -> None:
        """Raise ScheduleError where the log breaks what the algorithm promises."""

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]


_REGISTRY: dict[str, type[Algorithm]] = {}


def registry() -> Mapping[str, type[Algorithm]]:
    """All algorithms by name, in the order in which they were defined."""
    return dict(_REGISTRY)


def get(name: str) -> type[Algorithm]:
    """The algorithm of that name; UsageError with the nearest match where there is none."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise UsageError(f"unknown algorithm {name!r} ({nearest(name, _REGISTRY)})") from None


def option_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with an algorithm's name or options, one sentence each; empty where all is well."""
    if name not in _REGISTRY:
        return [f"unknown algorithm ({nearest(name, _REGISTRY)})"]
    known = _REGISTRY[name].Options
    try:
        known(**options)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"]) or "options"
            if item["type"] == "extra_forbidden":
                problems.append(f"{key}: unknown option ({nearest(key, known.model_fields)})")
            else:
                text = item["msg"].removeprefix("Value error, ")
                problems.append(f"{key}: {text[0].lower()}{text[1:]}")
        return problems
    return []


def make(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """An algorithm with its options. Raises UsageError for an unknown name or a bad option."""
    cls = get(name)
    problems = option_problems(name, options or {})
    if problems:
        raise UsageError("\n".join(f"{name}: {p}" for p in problems))
    return cls(cls.Options(**(options or {})))


ComputePoint = Literal["current", "look-ahead", "local-prediction", "blend", "damped-prediction"]


class DelayedOptions(Options):
    """Options of every method with one update of delay, the same for all so that comparisons are fair."""

    compute_point: ComputePoint = Field(
        "damped-prediction", description="where the next gradient is taken while an update is under way"
    )
    kappa: float = Field(1.0, ge=0, le=10, description="look-ahead: how many velocities ahead")
    blend: float | None = Field(
        None,
        ge=0,
        le=1,
        description="blend: share of the own gradient in the prediction; where not stated 2/(workers + 1)",
    )
    damping: float = Field(
        0.5,
        ge=0,
        le=1,
        description="damped-prediction: weight of how far the own gradient of before was from the group's",
    )
    synchronous_updates: int = Field(0, ge=0, description="first updates done without delay, as a warm-up")


def least_error_blend(workers: int) -> float:
    """The a with which a·own + (1-a)·last mean predicts the next mean with the least error where gradients are noise [derived here].

    Workers of equal shares, noise σ² a sample: the own mean is off by σ²(n-1)/B, the last one by 2σ²/B, and the two errors are
    uncorrelated, so a = 2/(n+1).
    """
    return 2.0 / (workers + 1)


class OneUpdateDelay(Algorithm):
    """Base of the methods whose gradients are exactly one update old."""

    Options: ClassVar[Any] = DelayedOptions

    def point_rule(self, workers: int) -> tuple[PointRule, float]:
        """From the option `compute_point`."""
        point, blend = self.options.compute_point, self.options.blend
        rule = PointRule[point.upper().replace("-", "_")]
        own, kappa = least_error_blend(workers) if blend is None else blend, self.options.kappa
        scales = {"look-ahead": kappa, "local-step": kappa, "blend": own, "damped-prediction": self.options.damping}
        return rule, float(scales.get(point, 1.0))

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """The gradient in flight beside the one being summed; a predicted point, and for the predictions that take a step with the own
        gradient the optimizer's state saved around it; `blend` keeps the last mean gradient as well, `damped-prediction` also
        the own gradient of before."""
        point = self.options.compute_point
        own_step = 1 + optimizer_states
        steps = {"look-ahead": 1, "local-step": 1, "local-prediction": own_step, "blend": own_step + 1}
        prediction = {**steps, "damped-prediction": own_step + 2}.get(point, 0)
        held = super().buffers(optimizer_states)
        return {**held, "gradients": held["gradients"] + 1, "prediction": prediction}

    def check(self, schedule: Schedule) -> None:
        """Update k uses version max(k-1, 0): staleness 0 for the first (and for synchronous updates), then exactly 1."""
        updates = schedule.updates
        if not len(updates):
            return
        if not updates.is_sequence:
            raise ScheduleError(f"{self.name}: updates do not form one sequence of parameters")
        number = updates.owner
        promised = (number > self.options.synchronous_updates).astype(int)
        wrong = np.flatnonzero(updates.staleness != promised)
        if len(wrong):
            k = int(number[wrong[0]])
            raise ScheduleError(
                f"{self.name}: update {k} uses a gradient {int(updates.staleness[wrong[0]])} updates old, promised {promised[wrong[0]]}"
            )


def check_synchronous(name: str, schedule: Schedule) -> None:
    """Promise of a synchronous method: every gradient is taken at the parameters it updates."""
    updates = schedule.updates
    if len(updates) and (not updates.is_sequence or updates.staleness.any()):
        raise ScheduleError(f"{name}: a synchronous update uses a stale gradient")
