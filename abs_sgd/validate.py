"""validate: predict, run for real on this machine, compare.

One machine plays the profile's cluster: a process per worker, passes paced to the profile's times, gradients padded to its bytes, links
shaped in network namespaces where that can be had. The measured Schedule has the simulator's own format, so both go through the same
metrics; and both are executed in process on the same task with the same rule, so that the losses differ by timing alone.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from abs_sgd import agreement
from abs_sgd.agreement import Tolerances
from hetsim.algorithms import Algorithm
from hetsim.convergence.predictor import Curve, Setting
from hetsim.documents import VALIDATION_VERSION
from hetsim.errors import MissingExtraError, UsageError
from hetsim.labels import Contender, parse
from hetsim.schedule import Kind, Schedule
from hetsim.simulate import Result, simulate, versions

if TYPE_CHECKING:
    from torch import Tensor

    from abs_sgd.launch import LiveRun
    from abs_sgd.netlab import NetLab
    from abs_sgd.update import UpdateRule
    from abs_sgd.workloads import Task
    from hetsim.cluster import Profile
    from hetsim.cluster.spec import Cluster, Workload

UPDATES = 60  # half a minute at half a second each [our choice]
PACE_TOLERANCE = 0.25  # one pass may take this much longer than its profile before the run is given up [our choice]
EVALUATIONS = 100  # per curve: at most every 2 % of the time, twice as often as a 2 % interval asks for [our choice]
MOST_HELD_OUT = 500  # samples of an evaluation [our choice]
MOST_RUNS = 5
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """One run of one algorithm: what was predicted, what was measured, and the loss curves of the two Schedules (none where they were not
    executed)."""

    predicted: Result
    measured: Result
    curves: Mapping[str, Curve]


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """`document`: the JSON document; `pairs`: per label, one Pair per seed; `within`: whether every prediction held."""

    document: dict[str, Any]
    pairs: Mapping[str, Sequence[Pair]]
    profile_yaml: str = ""

    @property
    def within(self) -> bool:
        return bool(self.document["within"])


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all runs have in common; `said`: what differs from the profile, in words. `task`: None where it is not trained here."""

    cluster: Cluster
    workload: str
    task: Task | None
    rule: UpdateRule
    profile_yaml: str
    updates: int
    target: float
    pace_tolerance: float
    unpaced: bool = False
    cpu_shares: tuple[float, ...] = ()
    said: list[str] = field(default_factory=list)


def validate(
    profile: Profile,
    algorithms: Sequence[str],
    *,
    runs: int = 1,
    updates: int = UPDATES,
    seed: int = 0,
    tolerances: Tolerances | None = None,
    shape: bool | None = None,
    pace_tolerance: float = PACE_TOLERANCE,
    unpaced: bool = False,
    cpu_shares: Sequence[float] = (),
    progress: Progress | None = None,
) -> Validation:
    """Predict, run live and compare, `runs` paired seeds from `seed` on, for every label of `algorithms`.

    `unpaced`: nothing is emulated, passes and collectives take what they take here; the profile is this machine's own, calibrated with the
    same `cpu_shares` (of a core for each rank). `progress(done, of, what)` counts the updates of all runs.

    `shape`: True shapes links or raises NetLabError, False does not, None does where root and tc allow. Raises UsageError (an algorithm
    that does not run live), RankFailedError (a worker that cannot keep its profile's time among them).
    """
    if not 1 <= runs <= MOST_RUNS:
        raise UsageError(f"runs: 1 to {MOST_RUNS}, not {runs}")
    if not algorithms:
        raise UsageError("name an algorithm: -a abs-sgd")
    allowed = tolerances or Tolerances()
    if cpu_shares and not unpaced:
        raise UsageError("CPU shares are for unpaced runs: a paced one takes the profile's times")
    if unpaced and shape:
        raise UsageError("an unpaced run is on this machine's own network: nothing is shaped")
    setup = prepare(profile, updates, pace_tolerance, unpaced=unpaced)
    if unpaced:
        setup = dataclasses.replace(setup, cpu_shares=tuple(cpu_shares))
        setup.said.append(_unpaced(cpu_shares))
    chosen = [_as_live(parse(text), setup) for text in dict.fromkeys(algorithms)]
    rows, pairs = [], {}
    with _network(setup, shape, server=any(algorithm.has_server for _, algorithm in chosen)) as lab:
        for index, (label, algorithm) in enumerate(chosen):
            done = []
            for number in range(runs):
                before, of = (index * runs + number) * updates, len(chosen) * runs * updates
                tell = _counted(progress, before, of, f"{label}, seed {seed + number}")
                tell(0)
                done.append(_pair(setup, algorithm, seed + number, lab, tell))
            pairs[label] = [pair for pair, _ in done]
            compared = [run for _, run in done]
            found = agreement.checks(compared, allowed, updates)
            options = algorithm.options.model_dump(mode="json")
            rows.append(agreement.row(label, algorithm.name, options, compared, found))
        shaped = lab is not None
    document = document_of(
        setup,
        rows,
        seeds=[seed + number for number in range(runs)],
        updates=updates,
        shaped=shaped,
        said=setup.said,
        tolerances=allowed,
        pace_tolerance=None if unpaced else pace_tolerance,
        machine={"cpus": os.cpu_count(), "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None},
    )
    return Validation(document=document, pairs=pairs, profile_yaml=setup.profile_yaml)


def document_of(
    setup: Setup,
    rows: Sequence[dict[str, Any]],
    *,
    seeds: Sequence[int],
    updates: int | None,
    shaped: bool | None,
    said: Sequence[str],
    tolerances: Tolerances,
    pace_tolerance: float | None,
    machine: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The JSON document; what is not known of runs made elsewhere is null."""
    return {
        "schema_version": VALIDATION_VERSION,
        "profile": setup.cluster.name,
        "workload": setup.workload,
        "seeds": list(seeds),
        "updates": updates,
        "target_loss": agreement.finite(setup.target),
        "shaped": shaped,
        "said": list(dict.fromkeys(said)),
        "tolerances": {**dataclasses.asdict(tolerances), "pace": pace_tolerance},
        "within": all(row["within"] for row in rows),
        "verdict": "; ".join(f"{row['name']}: {row['verdict']}" for row in rows),
        "algorithms": list(rows),
        "machine": machine,
        "command": None,
        "versions": _versions(),
    }


def _unpaced(cpu_shares: Sequence[float]) -> str:
    given = f"; shares of a core: {', '.join(f'{share:g}' for share in cpu_shares)}" if cpu_shares else ""
    return f"not paced: passes and collectives take what they take on this machine{given}"


def prepare(profile: Profile, updates: int, pace_tolerance: float = PACE_TOLERANCE, *, unpaced: bool = False) -> Setup:
    """The cluster as it can be run here. Raises UsageError for a workload that cannot be trained, MissingExtraError."""
    try:
        from abs_sgd import workloads
    except ImportError as error:
        raise MissingExtraError("running for real", "train") from error
    from abs_sgd.predictor import rule_of

    if updates < 2:
        raise UsageError("updates: a period takes at least two")
    cluster = profile.cluster()
    said: list[str] = []
    task = _quick_to_evaluate(workloads.get(cluster.workload), said)
    workload = as_trained(cluster.workload, task, said, pad=not unpaced)
    if any(link.changes for link in cluster.network.links):
        said.append(
            "links do not change while a live run lasts: the profile's events of links are in the prediction only"
        )
    training = cluster.training
    stated = training.target_loss
    return Setup(
        cluster=dataclasses.replace(cluster, workload=workload),
        workload=task.name,
        task=task,
        rule=rule_of(training, Setting.of(training)),
        profile_yaml=profile.to_yaml(),
        updates=updates,
        target=task.target_loss if stated is None else stated,
        pace_tolerance=pace_tolerance,
        unpaced=unpaced,
        said=said,
    )


def _quick_to_evaluate(task: Task, said: list[str]) -> Task:
    """The task evaluated on not too many held-out samples, the same on both sides: a hundred evaluations a curve are to take no longer than
    training does."""
    from abs_sgd.workloads.task import HeldOut

    whole = task.evaluate
    if not isinstance(whole, HeldOut) or whole.samples() <= MOST_HELD_OUT:
        return task
    said.append(f"losses are of the first {MOST_HELD_OUT:,} held-out samples")
    return dataclasses.replace(task, evaluate=whole.first(MOST_HELD_OUT))


def as_trained(workload: Workload, task: Task, said: list[str], *, pad: bool = True) -> Workload:
    """The profile's workload with the bytes that travel and the samples there are; what differs is added to `said`.

    `pad`: gradients that are smaller than the profile's are padded to its bytes.
    """
    from abs_sgd.gradients import FlatModel

    own_bytes = FlatModel(task.make_model(0)).size * task.dtype.itemsize
    if own_bytes > workload.gradient_bytes or (own_bytes < workload.gradient_bytes and not pad):
        said.append(f"gradients have the model's {own_bytes:,} bytes, not the profile's {workload.gradient_bytes:,.0f}")
        workload = dataclasses.replace(workload, gradient_bytes=float(own_bytes))
    elif own_bytes < workload.gradient_bytes:
        said.append(f"gradients of {own_bytes:,} bytes are padded to the profile's {workload.gradient_bytes:,.0f}")
    if workload.dataset_samples != task.samples:
        said.append(f"the data have {task.samples:,} samples, not the profile's {workload.dataset_samples:,}")
        workload = dataclasses.replace(workload, dataset_samples=task.samples)
    return workload


def _as_live(contender: Contender, setup: Setup) -> tuple[str, Algorithm]:
    """The algorithm as the live runtime does it. Raises UsageError where it does not."""
    from abs_sgd.runtime.run import check_live

    algorithm = contender.algorithm(setup.cluster.options)
    check_live(algorithm)
    return contender.label, algorithm


@contextmanager
def _network(setup: Setup, shape: bool | None, *, server: bool = False) -> Iterator[NetLab | None]:
    """The shaped network, or None and a word about it."""
    from abs_sgd.netlab import NetLab

    if setup.unpaced:
        yield None
        return
    probe = NetLab.probe()
    if shape is False or (shape is None and not probe.ok):
        why = "as asked for" if shape is False else probe.reason
        setup.said.append(f"links are not shaped to the profile's ({why}): transfers are faster than predicted")
        yield None
        return
    with NetLab(setup.cluster, server=server) as lab:
        setup.said.extend(f"not emulated: {text}" for text in lab.skipped)
        yield lab


def _counted(progress: Progress | None, before: int, of: int, what: str) -> Callable[[int], None]:
    """Tells of the updates of one run among those of all."""
    return lambda made: progress(before + made, of, what) if progress else None


def _pair(
    setup: Setup, algorithm: Algorithm, seed: int, lab: NetLab | None, tell: Callable[[int], None]
) -> tuple[Pair, agreement.Run]:
    predicted = predict(setup, algorithm, seed)
    live = _run_live(setup, algorithm, seed, lab, tell)
    pair, run = compared(setup, predicted, live.schedule, live.parameters_P)
    late = {} if setup.unpaced else late_passes(setup, live.schedule)
    return pair, dataclasses.replace(run, late_passes=late)


def predict(setup: Setup, algorithm: Algorithm, seed: int) -> Result:
    """What the simulator says of one run."""
    made = simulate(setup.cluster, algorithm, seed=seed, updates=setup.updates)
    return _named(made.schedule, setup, algorithm, seed)


def compared(
    setup: Setup, predicted: Result, live: Schedule, parameters_P: Tensor | None
) -> tuple[Pair, agreement.Run]:
    """One run beside its prediction; losses and parameters where there is a task to execute both Schedules on."""
    from abs_sgd.replay.inprocess import rounding_alone

    seed = predicted.seed
    measured = _named(live, setup, predicted.algorithm, seed)
    curves: dict[str, Curve] = {}
    deviation = rounding = None
    if setup.task is not None:
        curves["predicted"], _ = execute(setup, predicted.schedule, seed)
        curves["measured"], deviation = execute(setup, measured.schedule, seed, parameters_P)
        if deviation is not None and deviation > agreement.REPLAY_TOLERANCE:
            rounding = rounding_alone(measured.schedule, setup.task, setup.rule, seed=seed)
    run = agreement.Run(
        seed=seed,
        predicted=_figures(setup, predicted.schedule, curves.get("predicted")),
        measured=_figures(setup, measured.schedule, curves.get("measured")),
        replay_deviation=deviation,
        rounding_deviation=rounding,
    )
    return Pair(predicted=predicted, measured=measured, curves=curves), run


def late_passes(setup: Setup, schedule: Schedule) -> dict[str, int]:
    """Passes that took longer than the profile allows; a word where there were any."""
    from abs_sgd.runtime.pacing import lateness

    found = lateness(schedule, setup.cluster, setup.pace_tolerance)
    late = {name: each for name, each in found.items() if each.late}
    if late:
        named = ", ".join(f"{each.late} of {each.passes} of {name}" for name, each in late.items())
        worst_s = max(each.worst_s for each in late.values())
        setup.said.append(
            f"{schedule.header.algorithm}, seed {schedule.header.seed}: the machine was late with passes ({named}; at worst by "
            f"{1000 * worst_s:.0f} ms more than allowed)"
        )
    return {name: each.late for name, each in found.items()}


def _named(schedule: Schedule, setup: Setup, algorithm: Algorithm, seed: int) -> Result:
    header = dataclasses.replace(schedule.header, profile_yaml=setup.profile_yaml)
    return Result(dataclasses.replace(schedule, header=header), setup.cluster, algorithm, seed)


def _figures(setup: Setup, schedule: Schedule, curve: Curve | None) -> agreement.Figures:
    if curve is None:
        return agreement.figures(schedule, setup.cluster, None, None)
    met = curve.crossing(setup.target)
    return agreement.figures(schedule, setup.cluster, met[1] if met else None, agreement.finite(float(curve.loss[-1])))


def _run_live(
    setup: Setup, algorithm: Algorithm, seed: int, lab: NetLab | None, progress: Callable[[int], None]
) -> LiveRun:
    """One paced run, its links shaped where there is a lab."""
    from abs_sgd.launch import launch
    from abs_sgd.runtime.run import Pacing, ranks_of

    return launch(
        setup.cluster,
        algorithm.name,
        options=algorithm.options.model_dump(),
        rule=setup.rule,
        seed=seed,
        updates=setup.updates,
        pacing=Pacing() if setup.unpaced else Pacing(profile=True, pad=True, tolerance=setup.pace_tolerance),
        cpu_shares=setup.cpu_shares,
        hosts=[lab.namespace(rank) for rank in range(ranks_of(setup.cluster, algorithm))] if lab else (),
        progress=progress,
    )


def execute(
    setup: Setup, schedule: Schedule, seed: int, parameters_P: Tensor | None = None
) -> tuple[Curve, float | None]:
    """A Schedule as training in process: its loss curve, and the distance of a live run's parameters from where it ends, over their
    norm."""
    from abs_sgd.replay.inprocess import retrace

    assert setup.task is not None
    samples = int(schedule.samples[schedule.rows(Kind.GRAD)].sum())
    return retrace(
        schedule,
        setup.task,
        setup.rule,
        seed=seed,
        evaluate_every_samples=max(1, samples // EVALUATIONS),
        parameters_P=parameters_P,
    )


def _versions() -> dict[str, str]:
    import torch

    return {**versions(), "torch": str(torch.__version__)}
