"""Closed forms of the algorithms that are not compared by default, where they have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetsim import wording as w
from hetsim.algorithms.dropcompute import best_limit
from hetsim.compute import passes
from hetsim.errors import UsageError

if TYPE_CHECKING:
    from hetsim.period import Figures, Period

MEASURED = 200  # updates after which figures are taken; a limit must be known by then [hetsim.period.UPDATES / 2]
ALIKE = 1e-9  # relative difference of two passes that end at one instant


def dropcompute(p: Period) -> Figures:
    """max_i T_i(τ) + C, T_i(τ) the first boundary of micro-batches at or past the limit."""
    o, c = p.options, p.all_reduce()
    if o.limit == "automatic" and o.measured_updates >= MEASURED:
        raise UsageError("the limit is not chosen yet when the figures begin")
    ends = [_boundaries(p, rank, batch) for rank, batch in enumerate(p.share())]
    limit_s = math.inf if o.limit == "none" else o.limit_s
    if o.limit == "automatic":
        whole = tuple(mine[-1][0] if mine else 0.0 for mine in ends)
        limit_s = best_limit((whole,), tuple(len(mine) for mine in ends), c)
    p.step("limit τ", o.limit, w.seconds(limit_s) if limit_s < math.inf else "none")
    stops = [next((e for e in mine if e[0] >= limit_s), mine[-1] if mine else (0.0, 0)) for mine in ends]
    slow = max(seconds for seconds, _ in stops)
    text = f"max T_i(τ) + C = {w.seconds(slow)} + {w.seconds(c)}"
    return p.finish(slow + c, text, sum(done for _, done in stops), "samples done by then")


def _boundaries(p: Period, rank: int, batch: int) -> list[tuple[float, int]]:
    """When each micro-batch of a worker's share ends, and how many samples are done."""
    out, at, done = list[tuple[float, int]](), 0.0, 0
    cap, micro = p.cluster.workers[rank].max_batch_samples, p.cluster.training.micro_batch_samples
    while done < batch:
        size = min(micro, batch - done)
        at, done = at + math.fsum(p.models[rank].seconds(m) for m in passes(size, cap)), done + size
        out.append((at, done))
    return out


def backup_workers(p: Period) -> Figures:
    """The (n - k)-th fastest and C; who ties with it is in."""
    share = p.share()
    times = [p.seconds_of(rank, batch)[0] for rank, batch in enumerate(share)]
    kept = max(len(times) - p.options.backups, 1)
    last = sorted(times)[kept - 1]
    p.step("last to be waited for", f"t_({kept}), number {kept} of {len(times)} by speed", w.seconds(last))
    c = p.all_reduce()
    batch = sum(b for b, t in zip(share, times, strict=True) if t <= last * (1 + ALIKE))
    return p.finish(last + c, f"t_({kept}) + C = {w.seconds(last)} + {w.seconds(c)}", batch, "Σ b_i of those")


def eager_sgd(p: Period) -> Figures:
    """t + C where all take equally long."""
    times = [p.seconds_of(rank, batch)[0] for rank, batch in enumerate(p.share())]
    if max(times) > min(times) * (1 + ALIKE):
        raise UsageError(
            "who starts an all-reduce, and with how many, follows from how unequal workers drift; no closed form"
        )
    c = p.all_reduce()
    return p.finish(times[0] + c, f"t + C = {w.seconds(times[0])} + {w.seconds(c)}", sum(p.share()))


def dasgd(p: Period) -> Figures:
    """H·max t_i where the network keeps up; else what d steps do not cover is waited for."""
    steps, delay = p.options.local_steps, p.options.delay_steps
    slow, _ = p.slowest()
    c = p.all_reduce()
    text = f"(H-d)·max t_i + max(d·max t_i, C) = {steps - delay}·{w.seconds(slow)} + max({delay}·{w.seconds(slow)}, {w.seconds(c)})"
    batch = sum(p.batches)
    return p.finish((steps - delay) * slow + max(delay * slow, c), text, steps * batch, f"H·Σ b_i = {steps}·{batch}")


def dc_s3gd(p: Period) -> Figures:
    """max(max t_i, C): a step is averaged while the next gradient is computed."""
    slow, _ = p.slowest()
    c = p.all_reduce()
    return p.finish(max(slow, c), f"max(max t_i, C) = max({w.seconds(slow)}, {w.seconds(c)})", sum(p.batches))


FORMS: dict[str, Callable[[Period], Figures]] = {
    "dropcompute": dropcompute,
    "backup-workers": backup_workers,
    "od-sgd": lambda p: p.delayed(),
    "eager-sgd": eager_sgd,
    "dc-asgd": lambda p: p.served(),
    "delay-adaptive-asgd": lambda p: p.served(),
    "dasgd": dasgd,
    "dc-s3gd": dc_s3gd,
}
