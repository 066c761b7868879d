"""What one update of delay costs on the noisy quadratic model, by momentum, batch and compute point.

    python benchmarks/cost_of_delay.py
    python benchmarks/cost_of_delay.py --figure docs/cost-of-delay.svg     (needs kaleido and a Chromium)

1,000 directions, h = c = 1/j, loss from 3.743 to .05, 48 nodes, exact second moments, the best of 60 learning rates in every cell. Prints
the largest stable learning rates and the updates to the target. Constant batches; no network is trained here.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from hetsim.algorithms.base import least_error_blend
from hetsim.convergence.quadratic import Quadratic, power_law
from hetsim.convergence.stability import best_kappa

Floats = NDArray[np.float64]
TARGET = 0.05  # as in the reference table of the model's tests
MOMENTA = (0.0, 0.5, 0.9, 0.95, 0.98)
BATCHES = (32, 128, 512, 2048)
FIGURE_BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048)
RATES = np.geomspace(0.0003, 4.0, 60)  # times the largest curvature, 1
DOUBLINGS = 17  # 2^18 updates at most
JITTER = 0.27  # Σ (w' - w)²/b over 1/B where passes jitter with a coefficient of variation of 1, as measured on simulated clusters
X, U, P, LAST = np.eye(4)  # x_k, u_k = lr·v_k, the point of the next gradient, lr·g_{k-1}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Where the next gradient is taken. `scale`: κ (None: best), or the share of the own gradient; `jump`: what changing shares add to the
    point's variance, over lr²·c/B."""

    name: str
    point: Literal["no delay", "current", "look-ahead", "blend"]
    scale: float | None = 1.0
    nesterov: bool = False
    jump: float = 0.0


POLICIES = (
    Policy(name="no delay", point="no delay"),
    Policy(name="current", point="current"),
    Policy(name="look-ahead, κ = 1", point="look-ahead"),
    Policy(name="look-ahead, best κ", point="look-ahead", scale=None),
    Policy(name="blend, a = 0", point="blend", scale=0.0),
    Policy(name="blend, n = 16 (a = .12)", point="blend", scale=least_error_blend(16)),
    Policy(name="blend, n = 4 (a = .4)", point="blend", scale=least_error_blend(4)),
    Policy(name="local-prediction", point="blend"),
    Policy(name="local-prediction, jittering shares", point="blend", jump=JITTER),
    Policy(name="no delay, Nesterov", point="no delay", nesterov=True),
    Policy(name="blend, n = 16, Nesterov", point="blend", scale=least_error_blend(16), nesterov=True),
)


def moves(beta: float, nesterov: bool, gradient: Floats) -> Floats:
    """What a step with lr·gradient takes off x, as a combination of the state: u' = βu + lr·g; u', or lr·g + βu' (torch's Nesterov)."""
    velocity = beta * U + gradient
    return gradient + beta * velocity if nesterov else velocity


def matrix_of(a: float, beta: float, policy: Policy) -> Floats:
    """One update of the state on one direction, a = lr·h. Without delay the point follows x; `current`: x before the update."""
    gradient = a * P
    x = X - moves(beta, policy.nesterov, gradient)
    if policy.point == "no delay":
        point = x
    elif policy.point == "current":
        point = X
    elif policy.point == "look-ahead":
        point = X - (best_kappa(beta) if policy.scale is None else policy.scale) * U
    else:
        own = 1.0 if policy.scale is None else policy.scale
        point = X - moves(beta, policy.nesterov, own * gradient + (1.0 - own) * LAST)
    return np.stack((x, beta * U + gradient, point, gradient))


def noise_of(beta: float, policy: Policy) -> Floats:
    """How one unit of lr times gradient noise enters the state."""
    size = 1.0 + beta if policy.nesterov else 1.0
    own = {"no delay": 1.0, "blend": 1.0 if policy.scale is None else policy.scale}.get(policy.point, 0.0)
    return np.array([-size, 1.0, -own * size, 1.0])


def spread_of(beta: float, policy: Policy, q: Floats) -> Floats:
    """Second moments of the noise of one update, in lr²·c/B: of the gradient, and of the point where shares change."""
    size = 1.0 + beta if policy.nesterov else 1.0
    return np.outer(q, q) + policy.jump * size**2 * np.outer(P, P)


def largest_stable(beta: float, policy: Policy) -> float:
    """Largest a at which no eigenvalue leaves the unit circle, going up from 0."""

    def stable(a: float) -> bool:
        return float(np.abs(np.linalg.eigvals(matrix_of(a, beta, policy))).max()) <= 1.0 + 1e-9

    grid = np.linspace(0.0, 4.2, 2000)[1:].tolist()
    high: float = next(a for a in grid if not stable(a))
    low = high - (grid[1] - grid[0])
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if stable(middle) else (low, middle)
    return float(low)


def updates_to(model: Quadratic, lr: float, beta: float, batch: int, policy: Policy) -> float:
    """Updates until E loss is at most TARGET; inf where unstable or never. Steps by powers of two, so it takes a loss that falls."""
    m = np.stack([matrix_of(lr * h, beta, policy) for h in model.h])
    if np.abs(np.linalg.eigvals(m)).max() > 1.0 + 1e-9:
        return math.inf
    noise = (lr**2 * model.c / batch)[:, None, None] * spread_of(beta, policy, noise_of(beta, policy))
    start = X + P  # velocity and last gradient are zero, the first gradient is taken at x_0
    s = model.start[:, None, None] * np.outer(start, start)
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


@functools.cache
def fewest(policy: Policy, beta: float, batch: int) -> float:
    """Updates to the target at the best learning rate."""
    model = power_law(1000).compressed(48)
    return min(updates_to(model, float(lr), beta, batch, policy) for lr in RATES)


# ---- output -----------------------------------------------------------------------------------------------------------


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, list[str]]]) -> Table:
    """Policies down."""
    out = Table(title=title, box=box.MARKDOWN, title_justify="left")
    out.add_column("compute point")
    for column in columns:
        out.add_column(column, justify="right")
    for name, cells in rows:
        out.add_row(name, *cells)
    return out


def bounds() -> Table:
    """Largest stable lr·h; noise, and so jittering shares, do not move it here."""
    rows = [
        (policy.name, [f"{largest_stable(b, policy):.3f}" for b in MOMENTA]) for policy in POLICIES if not policy.jump
    ]
    return table("largest stable lr·h", [f"β = {b:g}" for b in MOMENTA], rows)


def costs(batch: int) -> Table:
    """Updates to the target, best learning rate each, and with the best momentum as well."""
    rows = []
    for policy in POLICIES:
        best = [fewest(policy, beta, batch) for beta in MOMENTA]
        rows.append((policy.name, [f"{u:.0f}" for u in (*best, min(best))]))
    return table(f"updates to the target, B = {batch}", [*(f"β = {b:g}" for b in MOMENTA), "best"], rows)


def draw(path: Path) -> None:
    """Updates over those without delay, against the batch, all at their best learning rate: at momentum .9, and at their best momenta."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, subplot_titles=("momentum .9", "best momentum each"), shared_yaxes=True)
    shown = [p for p in POLICIES if p.name not in ("no delay", "look-ahead, κ = 1", "blend, n = 4 (a = .4)")]
    colours = ("#d62728", "#ff7f0e", "#2ca02c", "#17becf", "#1f4fd8", "#7aa6ff", "#888888", "#9467bd")
    for column, momenta in ((1, (0.9,)), (2, MOMENTA)):
        for policy, colour in zip(shown, colours, strict=True):
            over = [
                min(fewest(policy, b, batch) for b in momenta) / min(fewest(POLICIES[0], b, batch) for b in momenta)
                for batch in FIGURE_BATCHES
            ]
            line = {"color": colour, "dash": "dot" if policy.nesterov else "solid", "width": 2}
            figure.add_scatter(
                x=list(FIGURE_BATCHES), y=over, name=policy.name, line=line, mode="lines+markers", marker={"size": 4},
                showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    ticks = [0.7, 1, 1.5, 2, 3, 5, 10, 20]
    figure.update_xaxes(type="log", title="samples per update", tickvals=list(FIGURE_BATCHES), tickangle=0)
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    figure.update_yaxes(title="updates over those of S-SGD", row=1, col=1)
    figure.update_layout(
        template="plotly_white",
        width=960,
        height=420,
        legend={"orientation": "h", "y": -0.25},
        font={"size": 13},
        margin={"t": 40, "r": 30},
    )
    figure.write_image(path)


def main() -> None:
    """Measure and print, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="draw instead, into this file")
    arguments = parser.parse_args()
    if arguments.figure:
        draw(arguments.figure)
        return
    console = Console(width=110)
    console.print(bounds())
    for batch in BATCHES:
        console.print(costs(batch))


if __name__ == "__main__":
    main()
