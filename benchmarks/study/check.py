"""Eighteen cells of the study trained: does training agree on who is faster, and by how much?

    OMP_NUM_THREADS=1 HETSIM_CIFAR10=FOLDER python benchmarks/study/check.py study -o study/trained [--dry-run]

Three kinds of cluster of 4 workers, six algorithms, each with the batch that the study chose for it. What is trained is a small ResNet on
CIFAR-10 (`judged_networks.half_resolution`), true gradients on the simulator's clock. ResNet18's training to 93 % would take days here, and
the small network has a critical batch of its own, so **a sample is made as dear as it must be for batches to keep their ratio to the
critical batch**: with s = (critical batch here) / (critical batch of the study) all batches are s times those of the study and every GPU
computes s times as many samples a second, so that passes, updates and transfers take the time that they take in the study. A changing
cluster is taken as it stays after its last change.

Learning rate and momentum are those that `nqm` advises, with the constants that `hetsim fit` found in short runs of plain S-SGD. Trained
are that learning rate, its neighbours, one step of the coarse grid up and down (a factor of 1.4), and a quarter and an eighth of it, for
the model is known to advise too high ones for this network; the best of them on four more seeds. Medians with the range of the seeds; a
ratio is of times on the same seed. What was trained is kept in the folder.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pieces
import torch
from design import GLOBAL_BATCHES, KINDS, after_changes, contestants, profile_of
from joblib import Parallel, delayed
from judged_networks import Network, network
from predictors_judged import SEED_STRIDE, NotKept, Trainer, fitted, judge, seconds_of
from results import markdown, said, with_range

from hetsim import Schedule, simulate
from hetsim.cluster.spec import Cluster, Convergence, Worker
from hetsim.compute.model import pass_model
from hetsim.convergence.constants import constants_of
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.predictor import Setting
from hetsim.errors import HetsimError
from hetsim.intervals import interval, paired_ratio
from hetsim.labels import parse
from hetsim.sweeps.cell import run_cell
from hetsim.tuning import STEP

SIZE = 4
CHECKED = ("lb-bsp", "local-sgd", "ad-psgd", "dc-s3gd", "one-step-delay-balanced", "abs-sgd")
SEEDS = 5
MAX_SAMPLES = 200_000  # some twice what the slowest cell needs
FACTORS = (1.0, 1.0 / STEP, STEP, 0.25, 0.125)  # of the advised learning rate
MARGIN = 3.0  # a run that takes three times the best of its cell is not followed on


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One cell: seconds by `nqm` (median of the seeds), trained at each learning rate (first seed), and at the best on each seed."""

    kind: str
    label: str
    setting: Setting
    predicted_s: float
    trained_s: tuple[float, ...]
    best_by_seed_s: tuple[float, ...]
    there_s: float
    """By `nqm` at the learning rate that trained best."""

    @property
    def best_s(self) -> float:
        """The median."""
        return interval(self.best_by_seed_s).median


def cheaper(cluster: Cluster, known: Convergence, max_samples: int = MAX_SAMPLES) -> tuple[Cluster, float]:
    """The cluster with samples as dear as the small network's critical batch asks for, and the factor s."""
    assert known.noise_scale_samples is not None
    factor = known.noise_scale_samples / constants_of(cluster.workload).noise_scale.noise_scale_samples
    training = replace(
        cluster.training,
        global_batch_samples=scaled(cluster.training.global_batch_samples, factor),
        micro_batch_samples=scaled(cluster.training.micro_batch_samples, factor),
        max_samples=max_samples,
    )
    workers = tuple(_cheaper(worker, factor) for worker in cluster.workers)
    workload = replace(cluster.workload, convergence=known)
    return replace(cluster, workers=workers, training=training, workload=workload), factor


def scaled(samples: int, factor: float) -> int:
    """At least one sample."""
    return max(1, round(samples * factor))


def _cheaper(worker: Worker, factor: float) -> Worker:
    """The worker whose passes of m samples take as long as those of m/s did, at batches up to the largest of the study's grid."""
    model, most = pass_model(worker), scaled(max(GLOBAL_BATCHES), factor)
    times = tuple((m, model.seconds(scaled(m, 1.0 / factor))) for m in range(1, most + 1))
    cap = None if worker.max_batch_samples is None else scaled(worker.max_batch_samples, factor)
    return replace(worker, step_times_s=times, max_batch_samples=cap)


def cells(
    study: Path, known: Convergence, names: Sequence[str] = CHECKED, kinds: Sequence[str] = tuple(KINDS)
) -> Iterable[tuple[str, str, Cluster]]:
    """Kind, label and cluster of all, with the study's batches. Raises HetsimError where the study lacks one."""
    found = {(each["kind"], each["name"]): each for each in pieces.read(study) if each["size"] == SIZE}
    for kind in kinds:
        for name in names:
            if (kind, name) not in found:
                raise HetsimError(
                    f"{study} lacks {name} ({kind}): run benchmarks/study/run.py -o {study} --sizes {SIZE} first"
                )
            document = found[kind, name]
            best = document["best"]
            if best is None:
                raise HetsimError(
                    f"{name} does not reach the target on the cluster {kind} in {study}: it can't be checked there"
                )
            cluster = after_changes(profile_of(kind, SIZE, document["path"], best["batch"], MAX_SAMPLES).cluster())
            yield kind, best["label"], cheaper(cluster, known)[0]


def schedules_of(cluster: Cluster, label: str) -> list[Schedule]:
    """One per seed."""
    algorithm = parse(label).algorithm(cluster.options)
    seeds = [SEED_STRIDE * i for i in range(SEEDS)]
    return [simulate(cluster, algorithm, seed=seed, verify=False).schedule for seed in seeds]


def advised(cluster: Cluster, label: str) -> Setting:
    """Learning rate and momentum by the quadratic model."""
    (row,) = run_cell(cluster, [label], "nqm", "auto", 1, 0)
    assert row["learning_rate"] is not None, f"{label}: the model does not reach the target"
    return Setting(learning_rate=row["learning_rate"], momentum=row["momentum"])


def checked(kind: str, label: str, cluster: Cluster, trainer: Trainer) -> Checked:
    """One cell, trained or read. Raises NotKept in a dry run that lacks it."""
    schedules, setting, target = schedules_of(cluster, label), advised(cluster, label), trainer.judged.target
    tried = [replace(setting, learning_rate=factor * setting.learning_rate) for factor in FACTORS]
    first, *others = schedules
    times = trainer.times(first, tried, 0)
    best = tried[times.index(min(times))]
    again = [trainer.times(schedule, [best], seed)[0] for seed, schedule in enumerate(others, start=1)]

    def predicted(at: Setting) -> float:  # one by one: beside a faster setting a slower one is not followed to the end
        curves = [NoisyQuadratic().curves(s, cluster, [at], target=target)[0] for s in schedules]
        return interval([seconds_of(curve, target, s) for curve, s in zip(curves, schedules, strict=True)]).median

    return Checked(
        kind=kind,
        label=label,
        setting=setting,
        predicted_s=predicted(setting),
        trained_s=tuple(times),
        best_by_seed_s=(min(times), *again),
        there_s=predicted(best),
    )


def cell(folder: Path, kind: str, label: str, cluster: Cluster, dry: bool) -> Checked | tuple[str, str]:
    """As `checked`, in any process; kind and label where a dry run lacks it."""
    torch.set_num_threads(1)
    trainer = Trainer(folder=folder, judged=judged_network(), training=cluster.training, dry=dry)
    try:
        return checked(kind, label, cluster, trainer)
    except NotKept:
        return kind, label


def judged_network() -> Network:
    """The small ResNet on CIFAR-10."""
    return replace(network("cifar10"), margin=MARGIN)


def tables(found: Sequence[Checked]) -> str:
    """Every cell; then the ratios that the study is about, predicted and trained."""
    tried = [f"at {factor:.3g} lr" for factor in FACTORS]
    head = [
        "cluster",
        "algorithm",
        "lr, β",
        "predicted, s",
        *tried,
        "best, s",
        "predicted / best",
        "predicted at the best lr, s",
    ]
    rows = []
    for c in found:
        best = with_range(interval(c.best_by_seed_s), 1) if math.isfinite(c.best_s) else "not reached"
        rows.append(
            [c.kind, f"`{c.label}`", f"{c.setting.learning_rate:.3g}, {c.setting.momentum:g}", seconds(c.predicted_s)]
            + [seconds(each) for each in c.trained_s] + [best, f"{c.predicted_s / c.best_s:.2f}", seconds(c.there_s)]
        )  # fmt: skip
    judged = judge([c.predicted_s for c in found], [c.best_s for c in found])
    line = f"Rank correlation {judged.rank:.2f}, median error {judged.median_error:.0%}, largest {judged.largest_error:.0%}."
    line = line.replace("%", " %")
    return "\n\n".join([markdown(head, rows), line, markdown(*ratios(found))])


def ratios(found: Sequence[Checked]) -> tuple[list[str], list[list[str]]]:
    """How many times as fast as the others ABS-SGD is, kind by kind."""
    head = ["abs-sgd over", "cluster", "predicted", "trained"]
    rows = []
    for name in dict.fromkeys(c.label.partition(":")[0] for c in found if not c.label.startswith("abs-sgd")):
        for kind in KINDS:
            there = {c.label.partition(":")[0]: c for c in found if c.kind == kind}
            if {name, "abs-sgd"} <= set(there):
                own, other = there["abs-sgd"], there[name]
                trained = paired_ratio(other.best_by_seed_s, own.best_by_seed_s)
                rows.append([f"`{name}`", kind, f"{other.predicted_s / own.predicted_s:.2f}", said(trained)])
    return head, rows


def seconds(value: float) -> str:
    """As in the other tables."""
    return f"{value:.1f}" if math.isfinite(value) else "not reached"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path, help="folder of run.py, or found.jsonl")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="a file for every Schedule trained"
    )
    parser.add_argument("--algorithms", default=",".join(CHECKED), help="any of the study; default: %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing")
    asked = parser.parse_args(arguments)
    names, kinds = asked.algorithms.split(","), asked.kinds.split(",")
    known_names = [each.name for each in contestants()]
    for option, given, there in (("--algorithms", names, known_names), ("--kinds", kinds, list(KINDS))):
        if odd := [each for each in given if each not in there]:
            parser.error(f"{option}: {', '.join(odd)}: not one of {', '.join(there)}")
    asked.output.mkdir(parents=True, exist_ok=True)
    known = fitted(asked.output, judged_network())
    todo = [delayed(cell)(asked.output, *each, asked.dry_run) for each in cells(asked.study, known, names, kinds)]
    found = []
    for each in Parallel(n_jobs=asked.jobs, return_as="generator", batch_size=1)(todo):
        if not isinstance(each, Checked):
            print(f"{' '.join(each)}: to be trained", file=sys.stderr)
            continue
        found.append(each)
        line = f"{each.kind} {each.label}: {each.predicted_s:.1f} s, trained {each.best_s:.1f} s"
        print(line, file=sys.stderr, flush=True)
    if found:
        print(tables(found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HetsimError as error:
        sys.exit(f"error: {error}")
