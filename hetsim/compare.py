"""compare: every algorithm on one cluster, each at its own best setting, over the same seeds.

1. each algorithm is simulated on the first seed and tuned there (`hetsim.tuning`), all on the same grid
2. its time to target is predicted on the other seeds at that setting; all algorithms meet the same luck on the same seed
3. medians and intervals over seeds (`hetsim.intervals`); speed-ups from ratios on the same seed, over the best of all baselines
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetsim.cautions import cautions_of_cluster, cautions_of_run, comparison_cautions, target_cautions, unique
from hetsim.cluster.spec import Cluster
from hetsim.comparison import FULL, Comparison, Cost, Row, Speedup, TimeToTarget, Yardsticks
from hetsim.contest import Entry, Task, attempt, first_length, is_promising, lighter, next_length, repeat
from hetsim.convergence.predictor import Predictor, Setting, Target
from hetsim.convergence.registry import get_predictor
from hetsim.convergence.stability import Caution
from hetsim.costs import tariffs
from hetsim.errors import UsageError
from hetsim.intervals import coverage, paired_ratio
from hetsim.labels import Contender, contenders
from hetsim.parallel import job_count, run_pieces
from hetsim.rows import finite, learning_columns, timing_row
from hetsim.simulate import versions
from hetsim.tuning import Crossing, takes_target
from hetsim.verdict import BASELINE, clear_winner, fastest, seconds_by_seed
from hetsim.yardsticks import of_own_target, on_model_scale, yardsticks

__all__ = ["Comparison", "Cost", "Progress", "Row", "Speedup", "TimeToTarget", "compare", "timing_row"]

Progress = Callable[[str, int, int], None]
SEED_STRIDE = 1_000_003  # the seeds of a comparison: seed, seed + stride, ...; a prime, so that comparisons with near seeds share none


def compare(
    cluster: Any,
    algorithms: Sequence[str] | None = None,
    *,
    predictor: str | Predictor = "nqm",
    seeds: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    target: float | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Every algorithm on one cluster, each tuned, with intervals.

    `cluster`: a Profile or a Cluster. `algorithms`: labels, `name` or `name:option=value,option=value`; None for all. `seeds`: how many
    (the profile's training.seeds). `jobs`: processes (one per CPU); the result does not depend on it. `target`: instead of
    training.target_loss, on the predictor's scale. `progress(label, done, total)` is called as algorithms are complete.
    Raises UsageError, MissingExtraError where the predictor is not installed, SimulationError where a run fails.

    >>> from hetsim import compare, load_profile
    >>> profile = load_profile("homogeneous-4")
    >>> c = compare(profile, ["s-sgd", "abs-sgd"], predictor="noise-scale", seeds=2, jobs=1)
    >>> [row.name for row in c.algorithms], c.best_baseline
    (['s-sgd', 'abs-sgd'], 's-sgd')
    """
    chosen = contenders(algorithms)
    task = task_of(cluster, predictor, target)
    for contender in chosen:
        contender.algorithm(task.cluster.options)  # a bad combination of options is told before anything runs
    numbers = seed_numbers(task.cluster.training.seeds if seeds is None else seeds, seed)
    entries, crossings = _run(task, chosen, numbers, job_count(jobs), progress)
    rows = rows_of(task, chosen, entries, crossings, len(numbers))
    winner = clear_winner(rows, len(numbers))
    return assemble(task, chosen, entries, rows, numbers, winner)


def assemble(
    task: Task,
    chosen: Sequence[Contender],
    entries: Sequence[Entry],
    rows: tuple[Row, ...],
    seeds: tuple[int, ...],
    winner: Row | None,
    *,
    method: str = FULL,
    warnings: Sequence[Caution] = (),
    assumptions: Sequence[str] = (),
) -> Comparison:
    """The comparison of these rows, with what there is to warn of; further warnings come first, further assumptions last."""
    return Comparison(
        profile=task.cluster.name,
        seed=seeds[0],
        seeds=seeds,
        method=method,
        predictor=task.model().name,
        target=task.target,
        best_baseline=_best_baseline(rows),
        winner=None if winner is None else winner.name,
        coverage=coverage(len(seeds)),
        warnings=unique([*warnings, *_warnings(chosen, entries, rows)]),
        assumptions=tuple(dict.fromkeys([*_assumptions(entries), *assumptions])),
        algorithms=rows,
        speeds={w.name: w.speed_source for w in task.cluster.workers},
        tariffs=tariffs(task.cluster),
        versions=versions(),
        cluster=task.cluster,
        runs={c.label: e.result for c, e in zip(chosen, entries, strict=True)},
        curves={c.label: e.tuned.curve for c, e in zip(chosen, entries, strict=True)},
    )


def task_of(cluster: Any, predictor: str | Predictor, target: float | None) -> Task:
    """What every piece of a comparison needs. Raises UsageError for a target that cannot be."""
    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    if target is not None:
        if not target > 0:
            raise UsageError(f"a target of {target:g} cannot be reached; it must be above 0")
        resolved = replace(resolved, training=replace(resolved.training, target_loss=target))
    model = get_predictor(predictor) if isinstance(predictor, str) else predictor
    wanted: Target = model.target(resolved)
    if target is not None and wanted.value != target:
        if takes_target(model):
            return Task(source=cluster, cluster=resolved, predictor=predictor, target=replace(wanted, value=target))
        raise UsageError(
            f"predictor {model.name} has a target of its own ({wanted.metric}, {wanted.value:g}); leave out the target"
        )
    return Task(source=cluster, cluster=resolved, predictor=predictor, target=wanted)


def seed_numbers(count: int, first: int) -> tuple[int, ...]:
    """The seeds of a comparison. Raises UsageError below one."""
    if count < 1:
        raise UsageError(f"{count} seeds: at least one is needed")
    return tuple(first + SEED_STRIDE * i for i in range(count))


def _run(
    task: Task, chosen: Sequence[Contender], seeds: Sequence[int], jobs: int, progress: Progress | None
) -> tuple[list[Entry], list[list[Crossing | None]]]:
    """All entries, then all other seeds; per contender the crossing on every seed that was tried.

    An algorithm that misses the target at every setting on the first seed is not tried on the others.
    """
    total, finished = len(chosen), 0

    def complete(index: int) -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(chosen[index].label, finished, total)

    entries: dict[int, Entry] = {}
    best_s: float | None = None
    first = first_length(task)
    lengths = {i: (first, first >= task.cluster.training.max_samples) for i in range(total)}
    still_open = set(lengths)
    while lengths:  # in rounds, so that how far one is followed depends on all the others and not on who came first
        pieces = [(_attempt, (task, chosen[i], seeds[0], *length)) for i, length in lengths.items()]
        entries |= dict(zip(lengths, run_pieces(pieces, jobs), strict=True))
        best_s = min((e.crossing.seconds for e in entries.values() if e.crossing is not None), default=None)
        going_on = {i: n for i in sorted(still_open) if (n := next_length(task, entries[i], best_s)) is not None}
        for i in still_open - going_on.keys():
            if entries[i].crossing is None or len(seeds) == 1:
                complete(i)
        still_open = set(going_on)
        promising = {i for i in going_on if best_s is not None or is_promising(task, i, entries)}
        lengths = {i: n for i, n in going_on.items() if i in promising}
    crossings: list[list[Crossing | None]] = [[entries[i].crossing] for i in range(total)]
    again = [(i, s) for i, e in sorted(entries.items()) if e.crossing is not None for s in seeds[1:]]
    missing = {i: len(seeds) - 1 for i, _ in again}

    def repeated(piece: int, _: Crossing | None) -> None:
        index = again[piece][0]
        missing[index] -= 1
        if not missing[index]:
            complete(index)

    seeds_left = [(repeat, (task, chosen[i], s, _setting(task, entries[i]), _samples(entries[i]))) for i, s in again]
    for (index, _), crossing in zip(again, run_pieces(seeds_left, jobs, repeated), strict=True):
        crossings[index].append(crossing)
    return [entries[i] for i in range(total)], crossings


def _attempt(task: Task, contender: Contender, seed: int, samples: int, last: bool) -> Entry:
    return lighter(attempt(task, contender, seed, samples, last))


def _setting(task: Task, entry: Entry) -> Setting:
    training = task.cluster.training
    return entry.tuned.setting or Setting.of(training)


def _samples(entry: Entry) -> float:
    assert entry.crossing is not None
    return entry.crossing.samples


def rows_of(
    task: Task,
    chosen: Sequence[Contender],
    entries: Sequence[Entry],
    crossings: Sequence[Sequence[Crossing | None]],
    seeds: int,
) -> tuple[Row, ...]:
    """The rows, with the speed-ups over the best baseline; `crossings` of every seed that was tried, per contender."""
    rows = []
    for contender, entry, met in zip(chosen, entries, crossings, strict=True):
        columns: Mapping[str, Any] = learning_columns(task.cluster, entry.tuned.setting, met)
        tried: Mapping[str, Any] = {"tried_samples": entry.tried_samples, "tried_s": entry.tried_s}
        row = replace(timing_row(entry.result, label=contender.label), **tried, **columns)
        rows.append(replace(row, yardsticks=_yardsticks(task, entry, row)))
    best = _best_baseline(rows)
    baseline = next((row for row in rows if row.name == best), None)
    return tuple(replace(row, speedup_over_best_baseline=speedup(row, baseline, seeds)) for row in rows)


def _yardsticks(task: Task, entry: Entry, row: Row) -> Yardsticks:
    name = task.model().name
    seconds = finite(row.seconds)
    return yardsticks(
        entry.result,
        setting=on_model_scale(name, entry.tuned.setting),
        seconds=of_own_target(name, task.cluster, seconds),
    )


def _best_baseline(rows: Sequence[Row]) -> str | None:
    best = fastest([row for row in rows if row.role == BASELINE])
    return None if best is None else best.name


def speedup(row: Row, baseline: Row | None, seeds: int) -> Speedup:
    """Median and interval of baseline_s / own_s over the seeds s; nothing where either did not reach the target."""
    if baseline is None or row.seconds == float("inf"):
        return Speedup(value=None, low=None, high=None)
    ratio = paired_ratio(seconds_by_seed(baseline, seeds), seconds_by_seed(row, seeds))
    if ratio is None:
        return Speedup(value=None, low=None, high=None)
    return Speedup(value=finite(ratio.median), low=finite(ratio.low), high=finite(ratio.high))


def _warnings(chosen: Sequence[Contender], entries: Sequence[Entry], rows: Sequence[Row]) -> list[Caution]:
    found: list[Caution] = []
    for entry, row in zip(entries, rows, strict=True):
        found += target_cautions(row, entry.tuned.at_edge)
        found += cautions_of_run(row, entry.result)
    runs = {c.label: e.result for c, e in zip(chosen, entries, strict=True)}
    return [*comparison_cautions(rows, entries[0].result.cluster), *cautions_of_cluster(runs), *found]


def _assumptions(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentence for entry in entries for sentence in entry.tuned.curve.assumptions))
