"""The operations on parameters, velocities and gradients that a log comes down to: each linear in what it reads, plus independent noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hetsim.schedule.kinds import StepRule

Weights = tuple[tuple[int, float], ...]
ZERO = 1  # the velocity every replica starts with
START = 0  # x_0


class Gradient(NamedTuple):
    """A mean gradient: h Σ weight·x over `points` plus Σ weight·g over `gradients` plus noise of `noise`·c."""

    points: Weights = ()
    gradients: Weights = ()
    noise: float = 0.0


class Evaluate(NamedTuple):
    """variable := the gradient."""

    out: int
    gradient: Gradient


class Step(NamedTuple):
    """(x, v) -> (x_out, v_out): an optimizer step. `factor` multiplies the setting's learning rate.

    `chained` (set by `allocate`): the gradient is taken at x itself and x, v are needed by nothing else, so steps can be composed."""

    x_out: int
    v_out: int
    x: int
    v: int
    gradient: Gradient
    factor: float
    chained: bool = False


class Average(NamedTuple):
    """x_out := Σ weight·x."""

    out: int
    points: Weights


class Ahead(NamedTuple):
    """out := x - kappa·factor·lr·v."""

    out: int
    x: int
    v: int
    kappa: float
    factor: float


class Forecast(NamedTuple):
    """out := where a step from (x, v) with this gradient would lead."""

    out: int
    x: int
    v: int
    gradient: Gradient
    factor: float


class Local(NamedTuple):
    """out := x - factor·lr·gradient."""

    out: int
    x: int
    gradient: Gradient
    factor: float


class Compensate(NamedTuple):
    """out := gradient + strength·E[gradient²]·(x - backup), the square replaced by its expectation [our choice]. Adaptive: strength over
    the root of the running mean of E[gradient²]; relative: times the norm of the gradient over that of what it multiplies, both as the
    root of the expectation of their squares over all directions."""

    out: int
    gradient: int
    x: int
    backup: int
    strength: float
    rule: StepRule


class Outer(NamedTuple):
    """(x, g, u) -> (x_out, g_out, u_out) on one fragment of the directions, every `fragments`-th from number `fragment` on: the outer
    optimizer's Nesterov step of g, its velocity u, against the average of `points`, then x mixed with g by `share`."""

    x_out: int
    g_out: int
    u_out: int
    x: int
    g: int
    u: int
    points: Weights
    fragment: int
    fragments: int
    rate: float
    momentum: float
    share: float


class Read(NamedTuple):
    """The loss at x is point number `point` of the curve."""

    x: int
    point: int


Operation = Evaluate | Step | Average | Ahead | Forecast | Local | Compensate | Outer | Read


@dataclass(frozen=True, eq=False)
class Program:
    """Operations on rows (variables replaced by rows), and the number of rows. `replicas`: that step on their own. `newest`: share of the
    newest reading in the curve, 1 where readings do not swing."""

    operations: tuple[Operation, ...]
    rows: int
    points: int
    replicas: int = 1
    newest: float = 1.0


def inputs(operation: Operation) -> set[int]:
    """Variables an operation reads."""
    match operation:
        case Evaluate(gradient=g):
            return _of(g)
        case Step(x=x, v=v, gradient=g) | Forecast(x=x, v=v, gradient=g):
            return {x, v} | _of(g)
        case Average(points=points):
            return {j for j, _ in points}
        case Ahead(x=x, v=v):
            return {x, v}
        case Local(x=x, gradient=g):
            return {x} | _of(g)
        case Compensate(gradient=gradient, x=x, backup=backup):
            return {gradient, x, backup}
        case Outer(x=x, g=outer_x, u=outer_v, points=points):
            return {x, outer_x, outer_v} | {j for j, _ in points}
        case Read(x=x):
            return {x}


def _of(gradient: Gradient) -> set[int]:
    return {j for j, _ in gradient.points} | {j for j, _ in gradient.gradients}
