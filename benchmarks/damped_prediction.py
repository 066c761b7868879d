"""What damping gains on the quadratic model, by sampling: nothing of the models in hetsim is used.

    OMP_NUM_THREADS=1 python benchmarks/damped_prediction.py

1,000 directions, h = c = 1/j, heavy-ball momentum .9, loss from 3.743 to .05, 8 workers whose shares change by e^±s at every update, one
update of delay. The best of 11 learning rates; four sampled runs of each, looked at every fourth update. Some minutes on one core.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
H: Floats = 1.0 / np.arange(1, 1001.0)
WORKERS, RUNS, BETA, TARGET, LONGEST = 8, 4, 0.9, 0.05, 1200
RATES = np.geomspace(0.15, 3.2, 11)
POINTS = {"no delay": None, "local-prediction": 0.0, "damped-prediction, γ = ½": 0.5}
CASES = ((128, 0.5), (512, 0.5), (2048, 0.5), (2048, 0.1))  # samples per update, s


def updates_to(lr: float, damping: float | None, batch: int, spread: float) -> float:
    """Updates until the mean loss of the runs is at the target; inf where it never is. Damping None: no delay."""
    rng = np.random.default_rng(0)
    x = np.random.default_rng(99).choice([-1.0, 1.0], size=(RUNS, len(H)))
    v, points = np.zeros_like(x), np.repeat(x[None], WORKERS, 0)
    before = np.zeros_like(points)
    for k in range(LONGEST):
        size = np.exp(spread * rng.uniform(-1.0, 1.0, WORKERS))
        size = batch * size / size.sum()
        g = H * points + np.sqrt(H / size[:, None, None]) * rng.standard_normal(points.shape)
        mean = np.einsum("n,nrd->rd", size / batch, g)
        ahead = np.repeat((x - lr * (BETA * v + mean))[None], WORKERS, 0)
        points = ahead if damping is None else x - lr * (BETA * v + g + damping * before)
        before = g - mean
        v = BETA * v + mean
        x = x - lr * v
        if k % 4 == 0:
            loss = float(0.5 * (H * x * x).sum() / RUNS)
            if loss <= TARGET:
                return k
            if not loss < 1e3:
                break
    return float("inf")


def main() -> None:
    """Measure and print, in Markdown."""
    print("| updates to the target | " + " | ".join(f"B = {b:,}, e^±{s:g}" for b, s in CASES) + " |")
    print("|---|" + "---|" * len(CASES))
    for name, damping in POINTS.items():
        best = [min(updates_to(float(lr), damping, batch, spread) for lr in RATES) for batch, spread in CASES]
        print(f"| {name} | " + " | ".join(f"{each:g}" for each in best) + " |", flush=True)


if __name__ == "__main__":
    main()
