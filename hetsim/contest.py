"""One algorithm's part in a comparison, as pieces of work that run in any process and any order with the same result.

`attempt` simulates the first seed over some samples and tunes on it; `next_length` says how far to follow an algorithm that has not
reached the target, from what all have shown so far; `repeat` does another seed at the setting found.

How far is a matter of time, not of samples: a method with larger batches needs more samples and may still be the fastest. Once some method
has reached the target, the others are followed until PATIENCE times its time or training.max_samples, whichever comes first, but in any
case until FAIR times its time, so that none is cut off while it is ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.convergence import get_predictor
from hetsim.convergence.predictor import Predictor, Setting, Target
from hetsim.convergence.progress import progress_of
from hetsim.labels import Contender
from hetsim.simulate import Result, simulate
from hetsim.tuning import Crossing, Tuned, crossing, end_of, predict, tune

FIRST_BATCHES = 1000  # global batches of the first try [our choice]: enough to see how the loss falls
GROWTH = (1.5, 10.0)  # the next try is at least and at most this many times as long [our choice]
BEYOND = 1.2  # ... and this much beyond what the last one lets expect [our choice]
NEARLY = 0.7  # a try of more than this share of what is allowed may as well be the last [our choice]
PROMISING = 4.0  # times the soonest's expected time: who is expected later waits until somebody is there [our choice]
PATIENCE = 6.0  # times the fastest's time after which a slower one is followed no further [our choice]
FAIR = 1.5  # times the fastest's time until which everybody is followed [our choice]
HOPELESS = 16.0  # times the fastest's time: who is expected later is followed no longer than is fair; trends overestimate up to 8 times
MOST = 16  # times training.max_samples that this may take at most [our choice]
SPARE = 1.1  # other seeds run for this many times the samples that the first one took


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every piece of work needs. `cluster` is a Profile where there is one, so that schedules carry it."""

    source: Any
    cluster: Cluster
    predictor: str | Predictor
    target: Target

    def model(self) -> Predictor:
        """The predictor, made where it is used."""
        return get_predictor(self.predictor) if isinstance(self.predictor, str) else self.predictor


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the first seed gave, and over how many samples and seconds it was tried."""

    result: Result
    tuned: Tuned
    crossing: Crossing | None
    tried_samples: int
    tried_s: float


def first_length(task: Task) -> int:
    """Samples of the first try."""
    training = task.cluster.training
    return min(training.max_samples, FIRST_BATCHES * training.global_batch_samples)


def attempt(task: Task, contender: Contender, seed: int, samples: int, last: bool) -> Entry:
    """Simulate and tune over so many samples; the `last` try searches the grid to the end.

    What ends a run early would end it at the same update of a longer run: a Schedule is a prefix of the longer one, but for its last
    batch.
    """
    result = simulate(task.source, contender.algorithm(task.cluster.options), seed=seed, max_samples=samples)
    tuned = tune(task.model(), result.schedule, task.cluster, task.target, seed=seed, last=last)
    times = progress_of(result.schedule).time_s
    return Entry(
        result=result,
        tuned=tuned,
        crossing=tuned.crossing,
        tried_samples=samples,
        tried_s=float(times[-1]) if len(times) else 0.0,
    )


def next_length(task: Task, entry: Entry, best_s: float | None) -> tuple[int, bool] | None:
    """(samples, last) of the next try of an algorithm, where the fastest so far takes `best_s`; None where it is followed no further."""
    if entry.crossing is not None:
        return None
    limit, tried = task.cluster.training.max_samples, entry.tried_samples
    allowed: float = limit
    if best_s is not None and entry.tried_s > 0.0:
        best_samples = tried * best_s / entry.tried_s
        hopeless = entry.tried_s * needed(entry.tuned, task.target.value) > HOPELESS * best_s
        patience = FAIR if hopeless else PATIENCE
        allowed = min(max(FAIR * best_samples, min(patience * best_samples, limit)), MOST * limit)
    if tried >= (allowed if allowed >= limit else NEARLY * allowed):  # followed to a time: a little less will do
        return None
    least, most = GROWTH
    samples = min(max(BEYOND * tried * needed(entry.tuned, task.target.value), least * tried), most * tried)
    last = samples > NEARLY * allowed
    return math.ceil(allowed if last else samples), last


def is_promising(task: Task, index: int, entries: Mapping[int, Entry]) -> bool:
    """Whether an algorithm is among the soonest by the trends so far, while none has reached the target."""
    target = task.target.value
    expected = {i: e.tried_s * needed(e.tuned, target) for i, e in entries.items()}
    return expected[index] <= PROMISING * min(expected.values())


def needed(tuned: Tuned, target: float) -> float:
    """How many times as long a run would take to the target, by the power law through half-way and end of the lowest losses."""
    end = float(tuned.curve.loss[-1])
    if tuned.fall <= 1.0 or target <= 0.0:
        return math.inf
    return math.exp(min(math.log(2.0) * math.log(end / target) / math.log(tuned.fall), 700.0))


def repeat(task: Task, contender: Contender, seed: int, setting: Setting, expected_samples: float) -> Crossing | None:
    """Another seed at the setting of the first, over its samples and some more; over all of them where that was not enough."""
    training = task.cluster.training
    spare = 4 * training.global_batch_samples
    enough = math.ceil(SPARE * expected_samples) + spare
    lengths = [enough, max(2 * enough, training.max_samples)]
    model = task.model()
    met = None
    for samples in lengths:
        algorithm = contender.algorithm(task.cluster.options)
        schedule = simulate(task.cluster, algorithm, seed=seed, max_samples=samples, verify=False).schedule
        (curve,) = predict(model, schedule, task.cluster, [setting], task.target, seed=seed)
        met = crossing(curve, task.target, end_of(schedule))
        if met is not None:
            break
    return met


def follow(task: Task, contender: Contender, seed: int, best_s: float | None) -> Entry:
    """One algorithm followed to the target, or as far as it is where the fastest takes `best_s`."""
    length = first_length(task), first_length(task) >= task.cluster.training.max_samples
    while True:
        entry = attempt(task, contender, seed, *length)
        further = next_length(task, entry, best_s)
        if further is None:
            return entry
        length = further


def lighter(entry: Entry) -> Entry:
    """The same without what can be computed again, to travel between processes."""
    schedule = entry.result.schedule
    bare = replace(schedule)  # a copy has none of the cached views
    result = Result(bare, entry.result.cluster, entry.result.algorithm, entry.result.seed)
    return replace(entry, result=result)
