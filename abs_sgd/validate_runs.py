"""validate for runs made elsewhere: what torchrun or `launch` left in a folder, beside the prediction of the same run.

The profile is the one given or the run's own; algorithm, options, seed and number of updates are the run's. Losses and parameters are
compared by executing both Schedules here, on the CPU, where the workload is one that comes with abs_sgd; a user's own model is never
imported. Whatever is not compared is named.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abs_sgd import agreement
from abs_sgd.agreement import Tolerances
from abs_sgd.run_folder import Facts, read_facts, read_parameters
from abs_sgd.validate import (
    Pair,
    Progress,
    Setup,
    Validation,
    as_trained,
    compared,
    document_of,
    late_passes,
    predict,
)
from hetsim.algorithms import Algorithm, make
from hetsim.errors import MissingExtraError, ScheduleError, UsageError
from hetsim.labels import label_of
from hetsim.schedule import Kind, Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from abs_sgd.workloads import Task
    from hetsim.cluster import Profile
    from hetsim.cluster.spec import Cluster

LEAST_UPDATES = 2  # a period takes as many


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """One run as its folder has it, and the profile that predicts it. `own_model`: a user's, which is not trained here."""

    folder: Path
    schedule: Schedule
    facts: Facts
    algorithm: Algorithm
    profile: Profile
    own_profile: bool
    own_model: bool

    @property
    def seed(self) -> int:
        """Of all its luck."""
        return self.schedule.header.seed

    @property
    def updates(self) -> int:
        """As the simulator counts them: collectives, or updates at the server."""
        reduces = self.schedule.rows(Kind.REDUCE)
        return self.facts.updates if self.schedule.header.server else int((self.schedule.worker[reduces] < 0).sum())


def validate_runs(
    folders: Sequence[str | Path],
    profile: Profile | None = None,
    *,
    overrides: Sequence[str] = (),
    tolerances: Tolerances | None = None,
    losses: bool = True,
    progress: Progress | None = None,
) -> Validation:
    """Compare finished runs with what `profile` (default: the runs' own, with `overrides`) predicts for them.

    Runs of one algorithm with the same options are compared as paired seeds are. `losses`: execute the Schedules on the run's workload,
    which takes as long as training so many samples on this machine, twice. Raises UsageError for a folder that holds no finished run, for
    runs that do not belong together and for a profile of another size; ProfileError.
    """
    runs = [_opened(Path(folder), profile, overrides) for folder in folders]
    _check_together(runs, alike=profile is None)
    allowed = tolerances or Tolerances()
    rows, pairs, said = [], {}, list[str]()
    setups = {id(run): _setup(run, losses, said) for run in runs}
    done = 0
    for label, group in _by_label(runs).items():
        pairs[label], compared_runs = list[Pair](), list[agreement.Run]()
        for run, name in zip(group, _names(group), strict=True):
            if progress is not None:
                progress(done, len(runs), f"{label}, {name}")
            pair, found = _compare(run, setups[id(run)], said)
            pairs[label].append(pair)
            compared_runs.append(dataclasses.replace(found, name=name))
            done += 1
        checks = agreement.checks(compared_runs, allowed, 0)
        options = group[0].algorithm.options.model_dump(mode="json")
        rows.append(agreement.row(label, group[0].algorithm.name, options, compared_runs, checks))
    first, lengths = setups[id(runs[0])].setup, {run.updates for run in runs}
    document = document_of(
        first,
        rows,
        seeds=sorted({run.seed for run in runs}),
        updates=lengths.pop() if len(lengths) == 1 else None,
        shaped=None,
        said=said,
        tolerances=allowed,
        pace_tolerance=None,
        machine=None,
    )
    return Validation(document=document, pairs=pairs, profile_yaml=first.profile_yaml)


# ---- reading -----------------------------------------------------------------------------------------------------------------


def _opened(folder: Path, profile: Profile | None, overrides: Sequence[str]) -> Finished:
    """Raises UsageError, ProfileError."""
    from hetsim.cluster import load_profile
    from hetsim.schedule.store import load

    try:
        facts = read_facts(folder)
        schedule = load(folder / "schedule.parquet")
    except ImportError as error:
        raise MissingExtraError("comparing real runs", "train") from error
    except ScheduleError as error:
        raise UsageError(str(error)) from None
    header = schedule.header
    if header.origin != "measured":
        raise UsageError(f"{folder}: its schedule.parquet is a prediction, not the record of a run")
    own = None
    if header.profile_yaml:
        name = str(folder / "profile.yaml")
        own = load_profile(header.profile_yaml + "\n", overrides=() if profile else overrides, name=name)
    used = profile or own
    if used is None:
        raise UsageError(f"{folder}: its run was of no profile: name the one to predict with")
    cluster = used.cluster()
    if cluster.n != schedule.n:
        raise UsageError(f"{folder}: its run has {schedule.n} workers, {cluster.name} has {cluster.n}")
    try:
        algorithm = make(header.algorithm, header.options)
    except UsageError as error:
        raise UsageError(f"{folder}: {error}") from None
    run = Finished(
        folder=folder,
        schedule=schedule,
        facts=facts,
        algorithm=algorithm,
        profile=used,
        own_profile=profile is None,
        own_model=_is_own_model(facts.workload, own.cluster() if own else None),
    )
    if run.updates < LEAST_UPDATES:
        raise UsageError(
            f"{folder}: its run ended after {run.updates} updates: a period takes at least {LEAST_UPDATES}"
        )
    return run


def _is_own_model(workload: str, own: Cluster | None) -> bool:
    """Whether what was trained is a user's `module:function`, also where that goes by a known name."""
    from abs_sgd.workloads import BUILDERS

    named = own is not None and own.workload.name == workload and bool(own.workload.model and own.workload.dataset)
    return named or workload not in BUILDERS


def _check_together(runs: Sequence[Finished], *, alike: bool) -> None:
    """Raises UsageError for no runs, one given twice, and runs of different workloads or (`alike`) profiles."""
    if not runs:
        raise UsageError("name a run's folder: --from-run DIR")
    first = runs[0]
    for place, run in enumerate(runs):
        if any(run.folder.resolve() == other.folder.resolve() for other in runs[:place]):
            raise UsageError(f"{run.folder}: is given twice")
        if run.facts.workload != first.facts.workload:
            raise UsageError(
                f"{run.folder}: trained {run.facts.workload}, the run in {first.folder} {first.facts.workload}: compare them apart"
            )
        if alike and run.profile.to_yaml() != first.profile.to_yaml():
            raise UsageError(
                f"{run.folder}: is of another profile than the run in {first.folder}: name the one to predict with, or compare them apart"
            )


def _by_label(runs: Sequence[Finished]) -> Mapping[str, list[Finished]]:
    """Runs of one algorithm and its options, in the order given; labels state what the profile's own options do not."""
    out: dict[str, list[Finished]] = {}
    for run in runs:
        options = run.algorithm.options.model_dump(mode="json")
        name = run.algorithm.name
        usual = make(name, run.profile.cluster().options.get(name, {})).options.model_dump(mode="json")
        label = label_of(name, {key: value for key, value in options.items() if value != usual.get(key)})
        out.setdefault(label, []).append(run)
    return out


def _names(group: Sequence[Finished]) -> list[str]:
    """What each run is called: by its seed, and by its folder where seeds come twice."""
    seeds, folders = (Counter(each) for each in ([r.seed for r in group], [r.folder.name for r in group]))
    out = []
    for run in group:
        folder = run.folder.name if folders[run.folder.name] == 1 else str(run.folder)
        out.append(f"seed {run.seed}" + (f" in {folder}" if seeds[run.seed] > 1 else ""))
    return out


# ---- comparing ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The setup, and why there are no losses and no parameters to compare (nothing: there are)."""

    setup: Setup
    parameters_P: Tensor | None
    unexecuted: str
    unreplayed: str


def _setup(run: Finished, losses: bool, said: list[str]) -> _Prepared:
    """The cluster as the run had it; what differs from the profile is added to `said`."""
    cluster, facts = run.profile.cluster(), run.facts
    task, unexecuted = _task(run)
    workload = dataclasses.replace(cluster.workload, dataset_samples=run.schedule.header.dataset_samples)
    if task is not None:
        workload = as_trained(workload, task, said, pad=facts.pacing.pad)
    parameters_P, unreplayed = _parameters(run, task)
    stated = cluster.training.target_loss if cluster.workload.name == facts.workload else None
    own_target = task.target_loss if task is not None else math.nan
    if not losses:
        task, unexecuted = None, "timing only"
    said += _differences(run, cluster)
    setup = Setup(
        cluster=dataclasses.replace(cluster, workload=workload),
        workload=facts.workload,
        task=task,
        rule=facts.rule,
        profile_yaml=run.profile.to_yaml(),
        updates=run.updates,
        target=own_target if stated is None else stated,
        pace_tolerance=facts.pacing.tolerance,
    )
    return _Prepared(setup=setup, parameters_P=parameters_P, unexecuted=unexecuted, unreplayed=unreplayed)


def _task(run: Finished) -> tuple[Task | None, str]:
    """What was trained, on this machine's CPU, or why it cannot be trained here."""
    from abs_sgd import workloads

    if run.own_model:
        return None, f"{run.facts.workload} does not come with abs_sgd"
    options = {name: _plain(text) for name, text in run.facts.task_options.items() if name != "device"}
    if "data" in options and not Path(str(options["data"])).is_dir():
        del options["data"]  # a folder of the machine it ran on: the environment may name one here
    try:
        return workloads.get(run.facts.workload, **workloads.options_of(options)), ""
    except (UsageError, TypeError, ImportError) as error:
        return None, f"{run.facts.workload} cannot be trained here ({error})"


def _plain(text: str) -> Any:
    """An option from its text: a number or truth value, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _parameters(run: Finished, task: Task | None) -> tuple[Tensor | None, str]:
    """Where the run ended, or why that is not compared."""
    from abs_sgd.gradients import FlatModel

    found = read_parameters(run.folder)
    if found is None:
        return None, "parameters.pt is missing"
    if run.facts.device != "cpu":
        return None, f"the run was on {run.facts.device}, whose arithmetic is not the CPU's"
    if task is not None:
        own_P = FlatModel(task.make_model(run.seed)).parameters_P
        if (found.numel(), found.dtype) != (own_P.numel(), own_P.dtype):
            return None, f"parameters.pt is not of {task.name}"
    return found, ""


def _differences(run: Finished, cluster: Cluster) -> list[str]:
    """What to know of a run that was not made by this command."""
    out = []
    header, facts = run.schedule.header, run.facts
    if cluster.workload.name != facts.workload:
        out.append(f"the run trained {facts.workload}, the profile's workload is {cluster.workload.name}")
    names = tuple(w.name for w in cluster.workers)
    if names != header.workers:
        out.append(f"workers in order: the profile's {', '.join(names)} are the run's {', '.join(header.workers)}")
    out.append(
        "passes were paced to the profile" if facts.pacing.profile else "passes took the time they took, unpaced"
    )
    out.append("links were as they were where it ran")
    if facts.resumed:
        updates = ", ".join(map(str, facts.resumed))
        out.append(f"{run.folder}: went on from checkpoints of updates {updates}; the time between is not in it")
    return out


def _compare(run: Finished, prepared: _Prepared, said: list[str]) -> tuple[Pair, agreement.Run]:
    setup = prepared.setup
    pair, found = compared(setup, predict(setup, run.algorithm, run.seed), run.schedule, prepared.parameters_P)
    paced = run.facts.pacing.profile and run.own_profile
    late = late_passes(setup, run.schedule) if paced else {}
    said += setup.said
    return pair, dataclasses.replace(
        found,
        late_passes=late,
        unexecuted=prepared.unexecuted,
        unreplayed=prepared.unreplayed,
        folder=str(run.folder),
        updates=run.updates,
    )
