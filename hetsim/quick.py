"""quick: the same comparison as `compare`, of one seed, in a fraction of a second: what a slider moves.

1. every algorithm is simulated until its period is known within a hundredth (`until_known`)
2. the rest follows from its steady state (`hetsim.steady_run`): loss by one linear map, seconds by the mean period
3. learning rate and momentum are the profile's own, given ones, or tuned as in a sweep

What changes while it runs (events, traces, warm-up, noise that depends on the loss, other predictors) has no steady state and is followed
update by update, as `compare` does it.
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
from hetsim.convergence.stability import Caution
from hetsim.labels import Contender, contenders, parse
from hetsim.schedule.table import Schedule
from hetsim.simulate import Result, simulate
from hetsim.steady_curve import curve_of
from hetsim.steady_run import STEADY, Short, SteadyRun, first_updates, is_short
from hetsim.tuning import Tuned, takes_target
from hetsim.verdict import fastest, rival_of

WITHIN = 0.01  # ± share of the period that is good enough
BEYOND = 1.1  # curves go on for a tenth after the target, as tuned ones do in `compare`
WORK = (
    8_000  # updates times workers that are simulated at most, unless the first try has more [our choice]: half a second
)
GROWTH = (1.5, 8.0)  # the next try is at least and at most this many times as long [our choice]
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
    Raises what `compare` raises.

    >>> from hetsim import load_profile
    >>> c = quick(load_profile("homogeneous-4"), ["s-sgd", "abs-sgd"], tuned=True)
    >>> c.method, c.coverage, c["s-sgd"].period_error < 0.01
    ('quick', None, True)
    """
    chosen = contenders(algorithms)
    task = task_of(cluster, predictor, target)
    for contender in chosen:
        contender.algorithm(task.cluster.options)
    given = {parse(label).label: setting for label, setting in (settings or {}).items()}
    own = None if tuned else Setting.of(task.cluster.training)
    wanted = [given.get(contender.label, own) for contender in chosen]
    tries = _tries(task, chosen, wanted, seed, progress)
    best_s = min((t.seconds for t in tries), default=math.inf)
    entries = [t.entry(task, best_s) for t in tries]
    rows = rows_of(task, chosen, entries, [[entry.crossing] for entry in entries], 1)
    winner = clear_lead(rows)
    long = [c.label for c, t in zip(chosen, tries, strict=True) if isinstance(t, _Long)]
    stated = _assumptions(rows, long, own if own in wanted else None)
    return assemble(
        task, chosen, entries, rows, (seed,), winner, method=QUICK, warnings=_warnings(rows), assumptions=stated
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
    """An algorithm followed update by update."""

    followed: Entry

    @property
    def seconds(self) -> float:
        return math.inf if self.followed.crossing is None else self.followed.crossing.seconds

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
            run = SteadyRun.of(task, until_known(task.cluster, contender, seed, text))
            short = None if run is None else run.follow(seed, wanted[i])
            if run is not None and short is not None:
                complete(i, _Steady(run, short))
        best_s = min((one.seconds for one in found.values()), default=math.inf)
        found |= {i: one.further(wanted[i], seed, best_s) for i, one in found.items() if isinstance(one, _Steady)}
    for i, contender in enumerate(chosen):
        if i not in found:
            best_s = min((one.seconds for one in found.values()), default=math.inf)
            complete(i, _long(task, contender, wanted[i], seed, best_s))
    return [found[i] for i in range(len(chosen))]


def until_known(cluster: Cluster, contender: Contender, seed: int, profile_yaml: str = "") -> Result:
    """One algorithm simulated until its period is known within `WITHIN`, or as far as `WORK` goes; its Schedule carries the profile."""
    algorithm = contender.algorithm(cluster.options)
    updates = first_updates(algorithm)
    most = max(updates, WORK // cluster.n)
    while True:
        result = simulate(cluster, algorithm, seed=seed, updates=updates, verify=False)
        header = replace(result.schedule.header, profile_yaml=profile_yaml)
        result = Result(replace(result.schedule, header=header), cluster, algorithm, seed)
        error = result.timing.period_error
        if error is None or error <= WITHIN or updates >= most:
            return result
        least, largest = GROWTH
        updates = min(most, math.ceil(updates * min(max(1.2 * (error / WITHIN) ** 2, least), largest)))


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


def _assumptions(rows: Sequence[Row], long: Sequence[str], own: Setting | None) -> list[str]:
    """What a reader must know beside what the predictor says."""
    steady = [row for row in rows if row.name not in long]
    out = []
    if steady:
        out.append(
            "Quick: one seed; runs are simulated until their period is known and extended from their steady state, so that a lead of "
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
    if long:
        out.append(f"Without a known steady state, and so followed update by update: {', '.join(long)}.")
    return out
