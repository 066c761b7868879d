"""Do the cheap predictors tell what training does? Time to target by `nqm` and `noise-scale` beside training in virtual time.

    OMP_NUM_THREADS=1 HETSIM_CIFAR10=FOLDER python benchmarks/predictors_judged.py -o judged [--dry-run] [NETWORK ...]

Real networks, true gradients, the simulator's clock: digits-mlp, digits-cnn, and cifar10, a small ResNet on CIFAR-10 at half the resolution
(left out, and said so, without the data). A pair is a profile and an algorithm. Both sides tune learning rate and momentum for themselves,
over the same settings, on the same Schedules. Training: every setting on the first seed, those near the best on all; the best median wins.
The predictors' constants come from runs of plain S-SGD of other batches and seeds (`hetsim fit`); nothing that is judged was fitted to.

What was trained is kept in the folder, a file per Schedule, by its numeric content, and so are the fits: a run that was stopped goes on
where it was. About an hour on one core, most of it for CIFAR-10.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from judged_networks import NETWORKS, OPTIONS, Network, network, profile_of
from scipy.stats import spearmanr

from abs_sgd import curvature, fitting
from abs_sgd.predictor import Race, rule_of
from abs_sgd.replay.inprocess import InProcess
from hetsim import Schedule, simulate, writing
from hetsim.algorithms import make
from hetsim.cluster.spec import Cluster, Convergence, Training
from hetsim.convergence import training_fit
from hetsim.convergence.noise_scale import NoiseScale
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.predictor import Curve, Setting
from hetsim.errors import HetsimError
from hetsim.tuning import end_of

RANK, ERROR = 0.9, 0.2  # goals: rank correlation at least, median error at most
SEED_STRIDE = 1_000_003  # between the seeds of the Schedules
COLUMNS = ("kind", "worker", "end_s", "state", "parent", "source", "slot", "samples", "first", "scale", "code")


class NotKept(Exception):
    """A training that a dry run would have to do."""


# ---- training in virtual time, kept --------------------------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """24 hexadecimal digits of what the parts say."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def content(schedule: Schedule) -> str:
    """A digest of what training depends on: every column of the log, to the bit."""
    found = hashlib.sha256()
    for name in COLUMNS:
        found.update(getattr(schedule, name).tobytes())
    return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trains Schedules, or reads what an earlier run has trained; a `dry` one raises NotKept instead of training."""

    folder: Path
    judged: Network
    training: Training
    dry: bool = False

    def times(self, schedule: Schedule, settings: Sequence[Setting], seed: int) -> list[float]:
        """Seconds to the target per setting; infinite where it is not reached, or where the race had been lost before."""
        judged = self.judged
        rates = [[s.learning_rate, s.momentum] for s in settings]
        asked = [judged.task.name, judged.target, seed, rates, judged.margin]
        place = self.folder / f"{judged.task.name}-{digest(content(schedule), asked)}.json"
        if place.exists():
            found = json.loads(place.read_text(encoding="utf-8"))
            return [math.inf if each is None else each for each in found["seconds"]]
        if self.dry:
            raise NotKept
        begun = time.process_time()
        seconds = [seconds_of(each, judged.target, schedule) for each in self._train(schedule, settings, seed)]
        kept = {
            "asked": asked,
            "seconds": [s if math.isfinite(s) else None for s in seconds],
            "processor_s": round(time.process_time() - begun, 1),
        }
        writing.write_file(place, json.dumps(kept) + "\n")
        return seconds

    def _train(self, schedule: Schedule, settings: Sequence[Setting], seed: int) -> list[Curve]:
        trainer = InProcess(schedule, self.judged.task, seed=seed)
        race = Race(self.judged.target, self.judged.margin)  # who is that far behind does not have the best median
        curves = []
        for setting in settings:
            rule = rule_of(self.training, setting)
            curves.append(trainer.train(rule, stop_at=self.judged.target, give_up=race.give_up))
            race.finish(curves[-1])
        return curves


def seconds_of(curve: Curve, target: float, schedule: Schedule) -> float:
    """Seconds to the target, infinite where it is not reached before the run's last, incomplete batch."""
    met = curve.crossing(target)
    return math.inf if met is None or met[0] >= end_of(schedule) else met[1]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The setting that was best, and the median over the seeds of its seconds to the target."""

    setting: Setting | None
    seconds: float


def trained(trainer: Trainer, schedules: Sequence[Schedule]) -> Reached:
    """Every setting on the first seed; those that come within the race's margin there on all. The best median counts."""
    settings = trainer.judged.settings
    first = trainer.times(schedules[0], settings, 0)
    limit = trainer.judged.margin * min(first)
    finalists = [i for i, seconds in enumerate(first) if math.isfinite(seconds) and seconds <= limit]
    if not finalists:
        return Reached(setting=None, seconds=math.inf)
    rows: dict[int, tuple[float, ...]] = {i: (first[i],) for i in finalists}
    for seed, schedule in enumerate(schedules[1:], start=1):
        found = trainer.times(schedule, [settings[i] for i in finalists], seed)
        rows = {i: (*rows[i], seconds) for i, seconds in zip(finalists, found, strict=True)}
    best = min(rows, key=lambda i: (median(rows[i]), i))
    return Reached(setting=settings[best], seconds=median(rows[best]))


# ---- the predictors ------------------------------------------------------------------------------------------------------------------


def fitted(folder: Path, judged: Network, *, dry: bool = False) -> Convergence:
    """The constants that `hetsim fit` finds, kept by what was asked and by the text of the code that fits."""
    asked = replace(judged.fit, target_loss=judged.target)
    code = [Path(str(each.__file__)).read_text(encoding="utf-8") for each in (fitting, curvature, training_fit)]
    place = folder / f"fit-{judged.task.name}-{digest(asdict(asked), judged.task.reference_batch_samples, code)}.json"
    if place.exists():
        return Convergence(**json.loads(place.read_text(encoding="utf-8")))
    if dry:
        raise NotKept
    found = fitting.fit(judged.task, asked).convergence(judged.task.name)
    writing.write_file(place, json.dumps(asdict(found)) + "\n")
    return found


def predicted(cluster: Cluster, judged: Network, schedules: Sequence[Schedule]) -> tuple[Reached, float]:
    """`nqm`, tuned on the first seed, medians over all; seconds by `noise-scale`."""
    model, settings = NoisyQuadratic(), judged.settings

    def seconds(schedule: Schedule, tried: Sequence[Setting]) -> list[float]:
        curves = model.curves(schedule, cluster, tried, target=judged.target, slack=1.1)
        return [seconds_of(curve, judged.target, schedule) for curve in curves]

    first = seconds(schedules[0], settings)
    best = min(range(len(settings)), key=lambda i: (first[i], i))
    every = [first[best], *(seconds(schedule, [settings[best]])[0] for schedule in schedules[1:])]
    by_noise = [
        seconds_of(NoiseScale().curves(schedule, cluster, settings[:1])[0], 0.0, schedule) for schedule in schedules
    ]
    chosen = settings[best] if math.isfinite(first[best]) else None
    return Reached(setting=chosen, seconds=median(every)), median(by_noise)


# ---- the judgement -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Seconds to the target of one algorithm on one profile, trained and predicted."""

    network: str
    profile: str
    algorithm: str
    trained: Reached
    nqm: Reached
    noise_scale_s: float


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How well one predictor did on one network: Spearman's rank correlation of the times, median and largest relative error."""

    pairs: int
    rank: float
    median_error: float
    largest_error: float

    @property
    def held(self) -> bool:
        """Whether both goals are met."""
        return self.rank >= RANK and self.median_error <= ERROR


def error(predicted_s: float, trained_s: float) -> float:
    """Relative to the training; infinite where one side alone reaches the target, nothing where neither does."""
    if math.isinf(trained_s):
        return 0.0 if math.isinf(predicted_s) else -math.inf
    return predicted_s / trained_s - 1.0


def judge(predicted_s: Sequence[float], trained_s: Sequence[float]) -> Judgement:
    """Over at least two pairs. A target that is not reached counts as the latest of all."""
    errors = [abs(error(p, t)) for p, t in zip(predicted_s, trained_s, strict=True)]
    rank = float(spearmanr(predicted_s, trained_s).statistic)
    return Judgement(pairs=len(errors), rank=rank, median_error=median(errors), largest_error=max(errors))


def schedules_of(cluster: Cluster, algorithm: str, seeds: int) -> list[Schedule]:
    """One per seed."""
    numbers = [SEED_STRIDE * i for i in range(seeds)]
    return [simulate(cluster, make(algorithm, OPTIONS.get(algorithm)), seed=s, verify=False).schedule for s in numbers]


def pairs_of(
    judged: Network, folder: Path, pairs: Iterable[tuple[str, str]] | None = None, *, dry: bool = False
) -> Iterable[Pair | tuple[str, str]]:
    """Every pair as it is ready; its names alone where a dry run lacks it."""
    known: Convergence | None = None
    for profile, algorithm in judged.pairs if pairs is None else pairs:
        cluster = profile_of(profile, judged).cluster()
        schedules = schedules_of(cluster, algorithm, judged.seeds)
        trainer = Trainer(folder=folder, judged=judged, training=cluster.training, dry=dry)
        try:
            known = fitted(folder, judged, dry=dry) if known is None else known
            by_training = trained(trainer, schedules)
        except NotKept:
            yield profile, algorithm
            continue
        cluster = replace(cluster, workload=replace(cluster.workload, convergence=known))
        nqm, noise_scale_s = predicted(cluster, judged, schedules)
        yield Pair(
            network=judged.task.name,
            profile=profile,
            algorithm=algorithm,
            trained=by_training,
            nqm=nqm,
            noise_scale_s=noise_scale_s,
        )


# ---- the tables ----------------------------------------------------------------------------------------------------------------------

HEAD = """| network | profile | algorithm | trained | at | nqm | at | error | noise-scale | error |
|---|---|---|---|---|---|---|---|---|---|"""
SUMMARY = """
| network | predictor | pairs | rank correlation | median error | largest | goal |
|---|---|---|---|---|---|---|"""


def row(pair: Pair) -> str:
    """A line of the table."""
    t, n = pair.trained, pair.nqm
    cells = [pair.network, pair.profile, pair.algorithm, _seconds(t.seconds), _at(t.setting)]
    cells += [_seconds(n.seconds), _at(n.setting), _percent(error(n.seconds, t.seconds))]
    cells += [_seconds(pair.noise_scale_s), _percent(error(pair.noise_scale_s, t.seconds))]
    return f"| {' | '.join(cells)} |"


def summary(pairs: Sequence[Pair]) -> dict[str, Judgement]:
    """One network's judgements by predictor."""
    times = [pair.trained.seconds for pair in pairs]
    by_noise = [pair.noise_scale_s for pair in pairs]
    return {"nqm": judge([pair.nqm.seconds for pair in pairs], times), "noise-scale": judge(by_noise, times)}


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if math.isfinite(value) else "never"


def _at(setting: Setting | None) -> str:
    return "–" if setting is None else f"{setting.learning_rate:g}, {setting.momentum:g}"


def _percent(value: float) -> str:
    return f"{value:+.0%}".replace("%", " %") if math.isfinite(value) else "∞"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; default: all")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for what was trained")
    parser.add_argument("--dry-run", action="store_true", help="show what is kept and what would have to be trained")
    arguments = parser.parse_args()
    if unknown := set(arguments.networks) - set(NETWORKS):
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    lines, missing = [SUMMARY], 0
    print(HEAD, flush=True)
    for name in arguments.networks or NETWORKS:
        try:
            judged = network(name)
        except HetsimError as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        found = []
        for pair in pairs_of(judged, arguments.output, dry=arguments.dry_run):
            if isinstance(pair, Pair):
                found.append(pair)
                print(row(pair), flush=True)
            else:
                missing += 1
                print(f"| {judged.task.name} | {pair[0]} | {pair[1]} | to be trained |" + " |" * 6, flush=True)
        for predictor, said in summary(found).items() if len(found) > 1 else ():
            cells = [
                judged.task.name,
                predictor,
                str(said.pairs),
                f"{said.rank:.2f}",
                _percent(said.median_error).lstrip("+"),
            ]
            cells += [_percent(said.largest_error).lstrip("+"), "met" if said.held else "missed"]
            lines.append(f"| {' | '.join(cells)} |")
    print("\n".join(lines))
    if missing:
        print(f"\n{missing} pairs or their fit are not kept in {arguments.output}: run again without --dry-run")


if __name__ == "__main__":
    try:
        main()
    except HetsimError as error:
        sys.exit(f"error: {error}")
