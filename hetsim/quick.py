"""quick: the same comparison as `compare`, of one seed, in a fraction of a second: what a slider moves.

1. every algorithm is simulated until its period is known within a hundredth (`until_known`)
2. the rest follows from its steady state (`hetsim.steady_run`): loss by one linear map, seconds by the mean period
3. learning rate and momentum are the profile's own, given ones, or tuned as in a sweep

What changes while it runs (events, traces, warm-up, noise that depends on the loss, other predictors) has no steady state and is followed
update by update, as `compare` does it. An algorithm without a known steady state on a steady cluster (delays beyond a pattern's length,
replicas with steps of their own) is judged over the simulated updates alone, and `assumptions` say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.compare import assemble, rows_of, task_of
from hetsim.comparison import QUICK, Comparison, Row
from hetsim.contest import Entry, Task, follow
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.predictor import Curve, Predictor, Setting, Target
from hetsim.convergence.registry import get_predictor
from hetsim.convergence.stability import Caution
from hetsim.convergence.steady import PATTERN
from hetsim.errors import RunTooLongError, UsageError
from hetsim.known_period import WITHIN, run_of
from hetsim.labels import Contender, contenders, parse
from hetsim.schedule.table import Schedule
from hetsim.simulate import Result
from hetsim.steady_curve import curve_of
from hetsim.steady_run import STEADY, Short, SteadyRun, is_short
from hetsim.tuning import Tuned, crossing, end_of, takes_target
from hetsim.verdict import fastest, rival_of

BEYOND = 1.1  # curves go on for a tenth after the target, as tuned ones do in `compare`
LEAD = 0.05  # [our choice] what a lead must exceed beside the errors of the periods: what a steady state misses (docs/sweeps.md)

Progress = Callable[[str, int, int], None]


def quick(
    cluster: Any,
    algorithms: Sequence[str] | None = None,
    *,
    predictor: str | Predictor = "nqm",
    seed: int = 0,
    target: float | None = None,
    tuned: bool = False,
    settings: Mapping[str, Setting] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Every algorithm on one cluster, on one seed and by its steady state, at fixed settings: a `Comparison` like that of `compare`.

    `cluster`, `algorithms`, `predictor`, `target`: as for `compare`. Learning rate and momentum are those of the profile; with `tuned` the
    best of the grid; `settings` (label -> Setting) go before both, such as those found for another cluster. There are no intervals, for
    one seed has none: `Row.period_error` is how far the period may be off, and a winner is named only where the lead is beyond that and
    what steady states are known to miss. `progress(label, done, total)` is called as algorithms are complete; what it raises ends it all.
    Raises what `compare` raises, and UsageError for a predictor that trains: its time is that of the training, whatever is simulated.

    >>> from hetsim import load_profile
    >>> c = quick(load_profile("homogeneous-4"), ["s-sgd", "abs-sgd"], tuned=True)
    >>> c.method, c.coverage, c["s-sgd"].period_error < 0.01
    ('quick', None, True)
    """
    chosen = contenders(algorithms)
    _check_no_training(predictor)
    task = task_of(cluster, predictor, target)
    for contender in chosen:
        contender.algorithm(task.cluster.options)
    given = {parse(label).label: setting for label, setting in (settings or {}).items()}
    own = None if tuned else Setting.of(task.cluster.training)
    wanted = [given.get(contender.label, own) for contender in chosen]
    tries = _tries(task, chosen, wanted, seed, progress)
    best_s = min((t.seconds for t in tries), default=math.inf)
    entries = [t.entry(task, best_s) for t in tries]
    rows = tuple(
        one.paced(row)
        for one, row in zip(tries, rows_of(task, chosen, entries, [[e.crossing] for e in entries], 1), strict=True)
    )
    winner = clear_lead(rows)
    long = {c.label: t.to_the_end for c, t in zip(chosen, tries, strict=True) if isinstance(t, _Long)}
    stated = _assumptions(rows, long, own if own in wanted else None)
    return assemble(
        task, chosen, entries, rows, (seed,), winner, method=QUICK, warnings=_warnings(rows), assumptions=stated
    )


def _check_no_training(predictor: str | Predictor) -> None:
    model = get_predictor(predictor) if isinstance(predictor, str) else predictor
    if getattr(model, "trains", False):
        raise UsageError(
            f"predictor {model.name} trains every algorithm with torch, and there is no quick way to that: compare without quick "
            "(with --set training.seeds=1 for one seed), or quickly by nqm or noise-scale"
        )


@dataclass(frozen=True, eq=False)
class _Steady:
    """An algorithm extended from its steady state."""

    run: SteadyRun
    found: Short

    @property
    def seconds(self) -> float:
        return math.inf if self.found.crossing is None else self.found.crossing.seconds

    def further(self, setting: Setting | None, seed: int, best_s: float) -> _Steady:
        """Followed again where the fastest is so slow that this one is followed further than it was."""
        if self.found.crossing is not None or self.run.most(best_s) <= self.run.most(math.inf):
            return self
        return replace(self, found=self.run.follow(seed, setting, best_s) or self.found)

    def paced(self, row: Row) -> Row:
        """The row with the pace by which its seconds are found."""
        line = self.run.line
        return replace(
            row,
            update_period_s=line.s_per_point,
            mean_batch_samples=line.samples_per_point,
            samples_per_s=line.samples_per_point / line.s_per_point,
            period_error=line.error,
        )

    def entry(self, task: Task, best_s: float) -> Entry:
        """Followed as far as `compare` would."""
        run, found = self.run, self.found
        most, line = run.most(best_s), run.line
        met = found.crossing
        if met is not None and found.method == STEADY and met.samples > most * line.samples_per_point:
            met = None
        found = replace(found, crossing=met)
        until = most if met is None else min(BEYOND * met.updates, max(most, met.updates))
        curve = curve_of(run, found, found.setting or Setting.of(task.cluster.training), until)
        tuned = Tuned(setting=found.setting, curve=curve, crossing=met, at_edge=found.at_edge)
        end = line.crossing(max(most, float(line.point)))
        return Entry(
            result=run.result, tuned=tuned, crossing=met, tried_samples=math.ceil(end.samples), tried_s=end.seconds
        )


@dataclass(frozen=True, eq=False)
class _Long:
    """An algorithm followed update by update; not `to_the_end` where only what was simulated to know its period is judged."""

    followed: Entry
    to_the_end: bool = True

    @property
    def seconds(self) -> float:
        return math.inf if self.followed.crossing is None else self.followed.crossing.seconds

    def paced(self, row: Row) -> Row:
        return row

    def entry(self, task: Task, best_s: float) -> Entry:
        return self.followed


def _tries(
    task: Task,
    chosen: Sequence[Contender],
    wanted: Sequence[Setting | None],
    seed: int,
    progress: Progress | None,
) -> list[_Steady | _Long]:
    """All of them, those with a steady state first, so that the others need not be followed far."""
    found: dict[int, _Steady | _Long] = {}

    def complete(index: int, one: _Steady | _Long) -> None:
        found[index] = one
        if progress is not None:
            progress(chosen[index].label, len(found), len(chosen))

    if is_short(task.cluster, task.model().name):
        text = "" if isinstance(task.source, Cluster) else task.source.to_yaml()
        for i, contender in enumerate(chosen):
            try:
                result = run_of(task.cluster, contender, seed, text)
            except RunTooLongError:
                continue  # followed below, over as many samples as `compare` does
            run = SteadyRun.of(task, result) if _fits(result.schedule) else None
            short = None if run is None else run.follow(seed, wanted[i])
            if run is not None and short is not None:
                complete(i, _Steady(run, short))
            else:
                complete(i, _begun(task, result, wanted[i], seed))
        best_s = min((one.seconds for one in found.values()), default=math.inf)
        found |= {i: one.further(wanted[i], seed, best_s) for i, one in found.items() if isinstance(one, _Steady)}
    for i, contender in enumerate(chosen):
        if i not in found:
            best_s = min((one.seconds for one in found.values()), default=math.inf)
            complete(i, _long(task, contender, wanted[i], seed, best_s))
    return [found[i] for i in range(len(chosen))]


def _fits(schedule: Schedule) -> bool:
    """Whether a pattern holds the pushes of every worker: one that comes after more updates may be missing from it altogether."""
    stale = schedule.updates.staleness
    return not schedule.header.server or int(stale[len(stale) // 2 :].max(initial=0)) + 2 <= PATTERN


def _begun(task: Task, result: Result, setting: Setting | None, seed: int) -> _Long:
    """What was simulated alone, at the given setting or the profile's own."""
    model, schedule = task.model(), result.schedule
    setting = setting or Setting.of(task.cluster.training)
    (curve,) = model.curves(schedule, task.cluster, [setting], seed=seed)
    met = crossing(curve, task.target, end_of(schedule))
    tuned = Tuned(setting=setting, curve=curve, crossing=met)
    end_s = float(curve.time_s[-1])
    return _Long(
        Entry(result=result, tuned=tuned, crossing=met, tried_samples=end_of(schedule), tried_s=end_s), to_the_end=False
    )


def _long(task: Task, contender: Contender, setting: Setting | None, seed: int, best_s: float) -> _Long:
    model = task.model()
    if setting is None:
        return _Long(follow(task, contender, seed, best_s if math.isfinite(best_s) else None))
    fixed = replace(task, predictor=_At(model, setting))
    entry = follow(fixed, contender, seed, best_s if math.isfinite(best_s) else None)
    stated = setting if model.name == NoisyQuadratic.name else None
    return _Long(replace(entry, tuned=replace(entry.tuned, setting=stated)))


class _At:
    """A predictor whose grid is one setting."""

    def __init__(self, model: Predictor, setting: Setting) -> None:
        self.model, self.setting, self.name = model, setting, model.name

    def settings(self, cluster: Cluster) -> list[Setting]:
        return [self.setting]

    def target(self, cluster: Cluster) -> Target:
        return self.model.target(cluster)

    def curves(
        self,
        schedule: Schedule,
        cluster: Cluster,
        settings: Sequence[Setting],
        *,
        seed: int = 0,
        target: float | None = None,
        slack: float | None = None,
    ) -> list[Curve]:
        early = {"target": target, "slack": slack} if target is not None and takes_target(self.model) else {}
        return self.model.curves(schedule, cluster, settings, seed=seed, **early)


def clear_lead(rows: Sequence[Row]) -> Row | None:
    """The fastest, where it leads its rival by more than `LEAD` and the errors of both periods; None where it does not."""
    leader = fastest(rows)
    rival = None if leader is None else rival_of(leader, rows)
    if leader is None or rival is None:
        return leader
    unsure = sum(row.period_error or 0.0 for row in (leader, rival))
    return leader if rival.seconds > leader.seconds * (1.0 + LEAD + unsure) else None


def _warnings(rows: Sequence[Row]) -> list[Caution]:
    """Periods that are not known well enough."""
    return [
        Caution(
            "period-uncertain",
            f"{row.name}: its period is known within ±{100 * row.period_error:.1f} % only, and so are its seconds.",
        )
        for row in rows
        if row.period_error is not None and row.period_error > WITHIN
    ]


def _assumptions(rows: Sequence[Row], long: Mapping[str, bool], own: Setting | None) -> list[str]:
    """What a reader must know beside what the predictor says."""
    steady = [row for row in rows if row.name not in long]
    out = []
    if steady:
        out.append(
            "One seed; runs are simulated until their period is known and extended from their steady state, so that a lead of "
            f"less than {100 * LEAD:.0f} % says nothing."
        )
    errors = [(row.period_error, row.name) for row in steady if row.period_error is not None]
    if errors:
        worst, name = max(errors)
        out.append(f"Periods are known within ±{100 * worst:.2g} % or better (95 %, by batch means; {name} the least).")
    if own is not None:
        out.append(
            f"Learning rate {own.learning_rate:g} and momentum {own.momentum:g} are the profile's own and not tuned."
        )
    for to_the_end, how in ((True, "update by update"), (False, "over a few hundred updates only")):
        labels = [label for label, whole in long.items() if whole == to_the_end]
        if labels:
            out.append(f"Without a known steady state, and so followed {how}: {', '.join(labels)}.")
    return out
