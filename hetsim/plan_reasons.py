"""Why a plan is what it is, in sentences made of the numbers it was chosen by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hetsim import wording
from hetsim.candidates import Candidate, Tried
from hetsim.cluster.spec import Cluster
from hetsim.compare import speedup
from hetsim.split import batch_seconds
from hetsim.verdict import MARGIN

if TYPE_CHECKING:
    from hetsim.marginal import Marginal
    from hetsim.plan import Share

PLAIN = "s-sgd"
GAIN = 0.01  # by which it must be faster without some worker to be said [our choice]
ROOM = 0.5  # of the critical batch: below it a larger batch is worth a look [our choice]


def reasons_of(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried], workers: Sequence[Share]) -> list[str]:
    """One sentence per decision: algorithm, batches, micro-batches, trigger, compute point, learning rate, memory, global batch."""
    parts = (
        _algorithm(cluster, chosen, ranked),
        _batches(cluster, chosen, workers),
        _micro(cluster, chosen, ranked),
        _option(cluster, chosen, ranked, "trigger", "trigger"),
        _option(cluster, chosen, ranked, "compute_point", "compute point"),
        _rate(chosen),
        _memory(workers),
        _batch(cluster, chosen, ranked),
    )
    return [sentence for part in parts for sentence in part]


def _algorithm(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried]) -> Iterator[str]:
    name, reached = chosen.candidate.name(cluster), sum(math.isfinite(one.seconds) for one in ranked)
    time = wording.seconds(chosen.seconds)
    first = f"algorithm: {name} reaches the target in {time}"
    fastest = min(one.seconds for one in ranked)
    if len(ranked) == 1:
        yield f"{first}; nothing else was asked for"
    elif chosen.seconds <= fastest:
        yield f"{first}, the fastest of {len(ranked)} candidates, of which {reached} reach it"
    else:
        best = min(ranked, key=lambda one: one.seconds)
        yield f"{first}; {best.candidate.name(cluster)} is more complicated, and {_apart(best, chosen)}"
    yield from _as_in_the_profile(cluster, chosen, ranked)
    plain = [one for one in ranked if one.candidate.label == PLAIN and one is not chosen]
    if plain:
        yield f"instead of {PLAIN}: {_takes(plain[0], chosen)}; it is limited by {plain[0].row.limited_by}"


def _apart(best: Tried, chosen: Tried) -> str:
    """Why the fastest counts as no faster: `over 5 seeds its 340 s can't be told from that: 0.90 (0.87 – 1.03) times as long`."""
    seeds, time = len(chosen.comparison.seeds), wording.seconds(best.seconds)
    ratio = speedup(chosen.row, best.row, seeds)
    if ratio.value is None or ratio.low == ratio.high:
        return f"its {time} are less by no more than {wording.percent(MARGIN)}, our margin"
    cell = wording.ratio_cell(ratio.value, ratio.low, ratio.high)
    return f"over {seeds} seeds its {time} can't be told from that: {cell} times as long"


def _as_in_the_profile(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried]) -> Iterator[str]:
    """What the same algorithm comes to with the profile's own options and batches, which is what `hetsim compare` shows of it."""
    name = chosen.candidate.algorithm(cluster).name
    own = [one for one in ranked if one.candidate.name(cluster) == name and one is not chosen]
    if own:
        yield f"as the profile has it: {_takes(own[0], chosen)} with the options and batches of the profile, which is what compare shows"


def _takes(one: Tried, chosen: Tried) -> str:
    """`846 s, 2.3 times as long`."""
    if not math.isfinite(one.seconds):
        far = "" if one.row.tried_s is None else f" within {wording.seconds(one.row.tried_s)}"
        return f"it does not reach the target{far}"
    return f"it takes {wording.seconds(one.seconds)}, {one.seconds / chosen.seconds:.2f} times as long"


def _batches(cluster: Cluster, chosen: Tried, workers: Sequence[Share]) -> Iterator[str]:
    split = chosen.candidate.algorithm(cluster).split
    if split == "open":
        yield (
            "batches: open, as many micro-batches as a worker finishes until the last update's gradients have arrived; "
            f"nobody waits, and an update sums {wording.count(chosen.row.mean_batch_samples)} samples on average"
        )
        return
    own = chosen.candidate.on(cluster)
    if own.n == 1:
        return
    total = round(sum(share.batch_samples for share in workers))
    slow = max(workers, key=lambda share: share.seconds)
    if split == "balanced":
        share, rest = divmod(total, own.n)
        equal = [batch_seconds(worker)(share + (i < rest)) for i, worker in enumerate(own.workers)]
        last = own.workers[max(range(own.n), key=lambda i: equal[i])].name
        yield (
            f"batches: the whole samples by which the last worker finishes earliest, after {wording.seconds(slow.seconds)}; with "
            f"{share} each {last} would take {wording.seconds(max(equal))}"
        )
        return
    fast = min(workers, key=lambda share: share.seconds)
    yield (
        f"batches: equal, as this algorithm has them; {slow.worker} computes for {wording.seconds(slow.seconds)}, "
        f"{fast.worker} for {wording.seconds(fast.seconds)}"
    )


def _micro(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried]) -> Iterator[str]:
    if chosen.candidate.algorithm(cluster).split != "open":
        return
    same = [one for one in ranked if _but(one.candidate, micro=True) == _but(chosen.candidate, micro=True)]
    others = [one for one in same if one is not chosen]
    listed = ", ".join(
        f"{one.candidate.micro}: {_time(one)}" for one in sorted(others, key=lambda one: one.candidate.micro)
    )
    beside = f" ({listed})" if listed else ""
    yield f"micro-batch: {chosen.candidate.micro} samples on the slowest worker{beside}"


def _but(candidate: Candidate, *, micro: bool = False) -> tuple[object, ...]:
    """A candidate without its micro-batch, to find those that differ in nothing else."""
    return (candidate.label, candidate.batch, None if micro else candidate.micro)


def _time(one: Tried) -> str:
    return wording.seconds(one.seconds) if math.isfinite(one.seconds) else "not reached"


def _option(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried], option: str, name: str) -> Iterator[str]:
    """Beside the same algorithm with another value of one option and all else equal."""
    own = chosen.candidate.algorithm(cluster)
    options = own.options.model_dump(mode="json")
    if option not in options:
        return
    others = []
    for one in ranked:
        other = one.candidate.algorithm(cluster)
        theirs = other.options.model_dump(mode="json")
        alone = other.name == own.name and {**theirs, option: options[option]} == options
        if alone and theirs[option] != options[option] and _but(one.candidate)[1:] == _but(chosen.candidate)[1:]:
            others.append(f"{theirs[option]}: {_time(one)}")
    yield f"{name}: {options[option]}" + (f" ({', '.join(others)})" if others else "")


def _rate(chosen: Tried) -> Iterator[str]:
    if chosen.row.learning_rate is not None:
        cell = wording.rate_cell({"learning_rate": chosen.row.learning_rate, "momentum": chosen.row.momentum})
        yield f"learning rate: {cell} is the best on the predictor's model; every candidate had its own, so tune yours for this one"


def _memory(workers: Sequence[Share]) -> Iterator[str]:
    known = [share.memory for share in workers if share.memory.has is not None]
    if not known:
        yield "memory: not looked at, the profile states none (memory_bytes, activation_bytes_per_sample)"
        return
    tight = max(known, key=lambda use: use.needs / (use.has or math.inf))
    silent = "" if "activations" in tight.parts else " without activations, whose size the profile does not say"
    yield f"memory: fullest on {tight.worker}, {wording.size(tight.needs)} of {wording.size(tight.has)}{silent}"


def _batch(cluster: Cluster, chosen: Tried, ranked: Sequence[Tried]) -> Iterator[str]:
    over = chosen.row.yardsticks.batch_over_critical
    label, batch = chosen.candidate.label, chosen.candidate.batch
    others = [one for one in ranked if one.candidate.label == label and one.candidate.batch != batch]
    if others:
        listed = ", ".join(f"{one.candidate.batch}: {_time(one)}" for one in others)
        yield f"global batch: {batch} samples ({listed})"
    elif over is not None and over < ROOM:
        yield (
            f"global batch: the profile's, {wording.percent(over)} of the critical batch; larger ones may be faster: "
            f"--batches {batch},{2 * batch},{4 * batch} tries them"
        )
    elif over is not None and over > 1:
        yield f"global batch: {over:.1f} times the critical batch, where more samples hardly save updates; a smaller one may be as fast"


def better_without(worth: Sequence[Marginal]) -> list[str]:
    """Where the training would be faster without some of the workers: which, and by how much."""
    best = min(worth, key=lambda one: one.seconds_ratio, default=None)
    if best is None or best.seconds_ratio > 1 - GAIN:
        return []
    return [f"workers: the same would be better off {best.text}"]
