"""Closed forms of the algorithms that are not compared by default, where they have one."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetsim import wording as w
from hetsim.algorithms.dropcompute import best_limit
from hetsim.algorithms.omnilearn import OmniLearn, proportional
from hetsim.commands import Computed
from hetsim.compute import passes
from hetsim.errors import UsageError
from hetsim.period_replicas import REPLICAS
from hetsim.runtime.collectives import Counter

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


def omnilearn(p: Period) -> Figures:
    """S-SGD on the batches that the controller comes to."""
    p.batches = list(_settled(p))
    p.step("batches", "b_i := X_i·t̄, until no change exceeds the dead band", ", ".join(map(str, p.batches)))
    return p.synchronous()


def _settled(p: Period) -> tuple[int, ...]:
    """Batches from when the figures begin; UsageError where the controller goes on to change them."""
    batches, speeds = tuple(p.share()), [0.0] * p.cluster.n
    smoothed = OmniLearn(p.options).smoothed
    caps = tuple(worker.max_batch_samples for worker in p.cluster.workers)
    for update in range(2 * MEASURED):
        for rank, batch in enumerate(batches):
            speeds[rank] = smoothed(speeds[rank], Computed(batch, p.seconds_of(rank, batch)[0]))
        after = proportional(batches, tuple(speeds), caps, p.options.dead_band) if all(speeds) else batches
        if after != batches and update >= MEASURED:
            raise UsageError("the controller still changes the batches; no closed form")
        batches = after
    return batches


def ringmaster_asgd(p: Period) -> Figures:
    """ASGD of those whose gradients always come in time, where the others' never do."""
    rounds, threshold = p.rounds(), p.options.threshold or 2 * p.cluster.n
    order = sorted(range(len(rounds)), key=lambda rank: rounds[rank])

    def most(count: int) -> int:
        """Largest delay among so many of the fastest: that of their slowest."""
        return sum(_pushes(rounds[order[count - 1]] / rounds[j])[1] for j in order[: count - 1])

    count = bisect_left(range(1, len(rounds) + 1), threshold, key=most)
    used, late = order[:count], order[count:]
    p.step("largest delay", f"at most Σ_j (⌊round_i/round_j⌋ + 1), R = {threshold}", f"{most(count)} updates")
    if late:
        least = sum(_pushes(rounds[late[0]] / rounds[j])[0] for j in used)
        if least < threshold:
            name = p.cluster.workers[late[0]].name
            raise UsageError(f"{name}'s delays lie about R = {threshold}, in time now and then; no closed form")
        names = ", ".join(p.cluster.workers[rank].name for rank in sorted(late))
        p.step("never in time", f"at least {least} updates in a round", names)
    return p.free(rounds, used)


def _pushes(rounds: float) -> tuple[int, int]:
    """Least and most pushes of another worker while this one makes its round, `rounds` times as long as the other's."""
    return math.ceil(rounds - ALIKE) - 1, math.floor(rounds + ALIKE) + 1


def dssp(p: Period) -> Figures:
    """SSP with s = s_L where no clocks can be granted beyond."""
    rounds = p.rounds()
    if p.options.extra and max(rounds) > min(rounds) * (1 + ALIKE):
        rate = sum(p.batches) / max(rounds)
        raise UsageError(
            "leads swing as clocks are granted; no closed form of a period. In the long run all go at the slowest's pace: "
            f"Σ b_i / slowest round = {w.rate(rate)} samples/s"
        )
    return p.held(rounds, p.options.staleness)


def rennala_sgd(p: Period) -> Figures:
    """The recurrence of collections: each goes on from when the all-reduce is through, or its pass under way is."""
    n, wanted = p.cluster.n, p.options.gradients or p.cluster.n
    p.batches = p.share()
    samples = -(-wanted * sum(p.batches) // n)
    c = p.all_reduce()
    latency = max(link.latency_s for link in p.cluster.network.links) if n > 1 else 0.0
    p.step("collection", f"{wanted} gradients; others' are known {w.seconds(latency)} later", f"{samples} samples")
    times = [p.seconds(rank)[0] for rank in range(n)]
    period, batch = collected(times, p.batches, c, latency, samples, max(p.steady.timing.updates, 2))
    text = "mean of T_{k+1} - T_k, T_k the first end of a pass when all that is known then is enough, and C more"
    return p.finish(period, text, batch, "mean of what is there at T_k")


def collected(
    times: list[float], batches: list[int], c: float, latency: float, wanted: int, updates: int
) -> tuple[float, float]:
    """Mean period and batch of collections of `wanted` samples, over the second half of so many.

    Worker i ends passes of `times[i]` seconds; the first that knows of enough (its own at once, the others' after `latency`) starts an
    all-reduce of c seconds. Passes under way end first, and are of no use. UsageError where it depends on which of two comes first.

    >>> collected([1.0, 0.75], [4, 4], 0.5, 0.0, 8, 100), collected([1.0, 1.0], [4, 4], 0.5, 0.25, 8, 100)
    ((1.5, 8.0), (2.5, 12.0))
    """
    able = [rank for rank, batch in enumerate(batches) if batch]
    ends = [(times[rank], rank) for rank in able]
    heapq.heapify(ends)
    late, last, own, counter = set[int](), dict[int, float](), dict.fromkeys(able, 0), Counter()
    through, sizes = list[float](), list[int]()
    while len(through) < updates:
        at, rank = heapq.heappop(ends)
        last[rank] = at
        own[rank] += 0 if rank in late else batches[rank]
        if rank in late or counter.add(at, at - latency, rank, batches[rank]) < wanted:
            late.discard(rank)
            heapq.heappush(ends, (at + times[rank], rank))
            continue
        met = {i: own[i] for i, end in last.items() if end >= at * (1 - ALIKE)}
        met |= {i: -1 if i in late else own[i] + batches[i] for end, i in ends if end <= at * (1 + ALIKE)}
        if any((times[i], batches[i], done) != (times[rank], batches[rank], own[rank]) for i, done in met.items()):
            raise UsageError("passes of unequal workers end at one instant, and their order decides; no closed form")
        through.append(at + c)
        sizes.append(sum(own.values()))
        late = {i for end, i in ends if end > through[-1]}
        ends = [*((through[-1] + times[i], i) for i in able if i not in late), *(e for e in ends if e[1] in late)]
        heapq.heapify(ends)
        own, counter = dict.fromkeys(able, 0), Counter()
    half = (updates + 1) // 2
    count = updates - half
    return (through[-1] - through[half - 1]) / count, sum(sizes[half:]) / count


FORMS: dict[str, Callable[[Period], Figures]] = {
    "dropcompute": dropcompute,
    "backup-workers": backup_workers,
    "od-sgd": lambda p: p.delayed(),
    "eager-sgd": eager_sgd,
    "dc-asgd": lambda p: p.served(),
    "delay-adaptive-asgd": lambda p: p.served(),
    "dasgd": dasgd,
    "dc-s3gd": dc_s3gd,
    "omnilearn": omnilearn,
    "ringmaster-asgd": ringmaster_asgd,
    "dssp": dssp,
    "rennala-sgd": rennala_sgd,
    **REPLICAS,
}
