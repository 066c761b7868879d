"""One algorithm's part in a comparison, as pieces of work that run in any process and any order with the same result.

`enter` simulates the first seed for as long as the target takes, and tunes on it. `repeat` does another seed at the setting found.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.convergence import get_predictor
from hetsim.convergence.predictor import Predictor, Setting, Target
from hetsim.labels import Contender
from hetsim.simulate import Result, simulate
from hetsim.tuning import Crossing, Tuned, crossing, end_of, predict, tune

FIRST_BATCHES = 1000  # global batches of the first try [our choice]: enough to see how the loss falls
GROWTH = (1.5, 4.0)  # the next try is at least and at most this many times as long [our choice]
BEYOND = 1.2  # ... and this much beyond what the last one lets expect [our choice]
NEARLY = 0.7  # a try of more than this share of training.max_samples may as well be the last [our choice]
HOPELESS = (
    4.0  # a trend that needs this many times training.max_samples is not followed to their end [our choice]: seen
)
# at about half the way, such trends overestimate what is needed at most 1.6 times on the shipped profiles
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
    """What the first seed gave, and over how many samples it was tried."""

    result: Result
    tuned: Tuned
    crossing: Crossing | None
    tried_samples: int = 0


def enter(task: Task, contender: Contender, seed: int) -> Entry:
    """Simulate and tune, longer and longer until the target is reached or training.max_samples are spent.

    After the second try a run whose trend is HOPELESS is given up. What ends a run early would end it at the same update of
    a longer run: a Schedule is a prefix of the longer one, but for its last batch.
    """
    training = task.cluster.training
    limit = training.max_samples
    samples = min(limit, FIRST_BATCHES * training.global_batch_samples)
    model = task.model()
    for tries in itertools.count(1):
        algorithm = contender.algorithm(task.cluster.options)
        result = simulate(task.source, algorithm, seed=seed, max_samples=samples)
        tuned = tune(model, result.schedule, task.cluster, task.target, seed=seed, last=samples >= limit)
        if samples >= limit or tuned.crossing is not None:
            break
        wanted = samples * needed(tuned, task.target.value)
        if tries > 1 and wanted > HOPELESS * limit:
            break
        least, most = GROWTH
        samples = math.ceil(min(max(BEYOND * wanted, least * samples), most * samples))
        samples = limit if samples > NEARLY * limit else samples
    return Entry(result=result, tuned=tuned, crossing=tuned.crossing, tried_samples=samples)


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
    lengths = sorted({min(training.max_samples, math.ceil(SPARE * expected_samples) + spare), training.max_samples})
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


def lighter(entry: Entry) -> Entry:
    """The same without what can be computed again, to travel between processes."""
    schedule = entry.result.schedule
    bare = replace(schedule)  # a copy has none of the cached views
    result = Result(bare, entry.result.cluster, entry.result.algorithm, entry.result.seed)
    return replace(entry, result=result)
