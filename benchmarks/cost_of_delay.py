"""What one update of delay costs on the noisy quadratic model, by momentum and compute point.

    python benchmarks/cost_of_delay.py

1,000 directions, h = c = 1/j, loss from 3.743 to .05, 48 nodes, exact second moments, the best of 60 learning rates in every cell. Prints
the largest stable learning rates and the updates to the target. Constant batches, shares that never change; no network is trained here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hetsim.convergence.quadratic import Quadratic, power_law
from hetsim.convergence.stability import best_kappa, largest_stable_at, transition
from hetsim.schedule import PointRule

Floats = NDArray[np.float64]
TARGET = 0.05  # as in the reference table of the model's tests
MOMENTA = (0.0, 0.5, 0.9, 0.95, 0.98)
BATCHES = (32, 128, 512, 2048)
RATES = np.geomspace(0.0003, 4.0, 60)  # times the largest curvature, 1
DOUBLINGS = 17  # 2^18 updates at most
NESTEROV = 2.0  # stands for a scale where there is no delay
Policy = tuple[str, int, PointRule, float | None]  # name, delay, rule, scale (None: best κ)
POLICIES: tuple[Policy, ...] = (
    ("no delay", 0, PointRule.CURRENT, 1.0),
    ("no delay, Nesterov", 0, PointRule.CURRENT, NESTEROV),
    ("current", 1, PointRule.CURRENT, 1.0),
    ("look-ahead, κ = 1", 1, PointRule.LOOK_AHEAD, 1.0),
    ("look-ahead, best κ", 1, PointRule.LOOK_AHEAD, None),
    ("blend, a = 0", 1, PointRule.BLEND, 0.0),
    ("blend, a = .5", 1, PointRule.BLEND, 0.5),
    ("local-prediction", 1, PointRule.LOCAL_PREDICTION, 1.0),
)


def matrix_of(a: float, beta: float, rule: PointRule, delay: int, scale: float) -> Floats:
    """One update on one direction. Nesterov without delay: u' = βu + ax, x' = x - (ax + βu')."""
    if delay == 0 and scale == NESTEROV:
        return np.array([[1.0 - (1.0 + beta) * a, -(beta**2)], [a, beta]])
    return transition(a, beta, delay, rule, scale)


def noise_of(beta: float, rule: PointRule, delay: int, scale: float) -> Floats:
    """How one unit of gradient noise enters the state of `transition`."""
    if rule == PointRule.CURRENT and scale == NESTEROV:
        return np.array([-(1.0 + beta), 1.0])
    if rule == PointRule.CURRENT:
        return np.array([-1.0, *[0.0] * delay, 1.0])
    if rule == PointRule.LOOK_AHEAD:
        return np.array([-1.0, 1.0, 0.0])
    return np.array([-1.0, 1.0, -1.0 if rule == PointRule.LOCAL_PREDICTION else -scale, 1.0])


def updates_to(model: Quadratic, lr: float, beta: float, batch: int, policy: Policy) -> float:
    """Updates until E loss is at most TARGET; inf where unstable or never. Steps by powers of two, so it takes a loss that falls."""
    _, delay, rule, given = policy
    scale = best_kappa(beta) if given is None else given
    m = np.stack([matrix_of(lr * h, beta, rule, delay, scale) for h in model.h])
    if np.abs(np.linalg.eigvals(m)).max() > 1.0 + 1e-9:
        return math.inf
    q = noise_of(beta, rule, delay, scale)
    noise = (lr**2 * model.c / batch)[:, None, None] * np.outer(q, q)
    at = np.ones(len(q))
    for row in {PointRule.CURRENT: [-1], PointRule.LOOK_AHEAD: [1]}.get(rule, [1, 3]):
        at[row] = 0.0  # velocity and last gradient start at zero, older and predicted points at x_0
    s = model.start[:, None, None] * np.outer(at, at)
    maps = [(m, noise)]
    for _ in range(DOUBLINGS):
        a, n = maps[-1]
        maps.append((a @ a, a @ n @ a.transpose(0, 2, 1) + n))
    taken = 0
    for power, (a, n) in reversed(list(enumerate(maps))):
        later = a @ s @ a.transpose(0, 2, 1) + n
        if float(model.weight @ later[:, 0, 0]) > TARGET:
            s, taken = later, taken + 2**power
    return taken + 1 if taken + 1 < 2 ** (DOUBLINGS + 1) else math.inf


def table(title: str, rows: Iterable[tuple[str, list[str]]]) -> Table:
    """Policies down, momenta across."""
    out = Table(title=title)
    out.add_column("compute point")
    for beta in MOMENTA:
        out.add_column(f"β = {beta:g}", justify="right")
    for name, cells in rows:
        out.add_row(name, *cells)
    return out


def bounds() -> Table:
    """Largest stable lr·h."""
    rows = []
    for name, delay, rule, given in POLICIES:
        if given == NESTEROV:
            found = [2.0 * (1.0 + b) / (1.0 + 2.0 * b) for b in MOMENTA]
        else:
            found = [
                largest_stable_at(b, rule, best_kappa(b) if given is None else given, delay=delay) for b in MOMENTA
            ]
        rows.append((name, [f"{bound:.3f}" for bound in found]))
    return table("largest stable lr·h", rows)


def costs(model: Quadratic, batch: int) -> Table:
    """Updates to the target, best learning rate each."""
    rows = []
    for policy in POLICIES:
        best = [min(updates_to(model, float(lr), beta, batch, policy) for lr in RATES) for beta in MOMENTA]
        rows.append((policy[0], [f"{u:.0f}" for u in best]))
    return table(f"updates to the target, B = {batch}", rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    console = Console(width=100)
    console.print(bounds())
    model = power_law(1000).compressed(48)
    for batch in BATCHES:
        console.print(costs(model, batch))


if __name__ == "__main__":
    main()
