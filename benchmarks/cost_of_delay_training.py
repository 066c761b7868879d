"""What one update of delay costs in training, by compute point, workers and how their shares change.

    python benchmarks/cost_of_delay_training.py digits -o kept
    HETSIM_CIFAR10=FOLDER python benchmarks/cost_of_delay_training.py cifar10 -o kept

Real networks trained in virtual time: true gradients, Schedules of simulated clusters whose workers' speeds are as 4 : 3 : 2 : 1.
Methods with one update of delay and fixed shares are one-step-delay-balanced; shares that jitter or wander come from abs-sgd with a
target batch. `digits`: a perceptron, all learning rates on five seeds, the best median counts. `cifar10`: a small GroupNorm ResNet at
half the resolution, two learning rates on one seed, the better one on a second. Samples to the target are compared with those of S-SGD
at its best rate on the same seed, the same optimizer and batch, momentum .9.

What was trained is kept in the folder, a file a cell, by the Schedule's numeric content, so a run that was stopped goes on where it
was. `--dry-run` says what is left and how long it takes; `--kept` prints the tables of what there is.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from delayed_training import Bench, Cell, Method, Trained, half_resolution, schedule_of
from rich import box
from rich.console import Console
from rich.table import Table

from abs_sgd import workloads
from hetsim.convergence.stability import best_kappa
from hetsim.errors import HetsimError

Sections = Mapping[str, Sequence[Method]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is trained, section by section, in order of importance; all rates on the first `tuning_seeds` seeds, the best on the others."""

    bench: Bench
    sections: Sections
    seeds: int
    tuning_seeds: int
    wanted: str = ""
    """Only sections with this in their names are trained."""

    @property
    def methods(self) -> list[Method]:
        return [m for each in self.sections.values() for m in each]

    def tuned(self, method: Method) -> dict[float, list[Trained]]:
        """The rates that are trained on all tuning seeds, and their curves."""
        found = {}
        for rate in method.rates:
            runs = [self.bench.kept(Cell(method=method, rate=rate, seed=s)) for s in range(self.tuning_seeds)]
            known = [run for run in runs if run is not None]
            if len(known) == self.tuning_seeds:
                found[rate] = known
        return found

    def best(self, method: Method) -> float | None:
        """The rate with the fewest samples to the target, median of the tuning seeds, or the lowest loss at the end where all train
        equally long; None until one is trained."""

        def score(runs: list[Trained]) -> float:
            bench = self.bench
            return median(bench.samples_to(r, bench.target) if bench.stop else bench.last_loss(r) for r in runs)

        found = self.tuned(method)
        return min(found, key=lambda rate: score(found[rate]), default=None)

    def synchronous(self, method: Method) -> Method:
        """S-SGD with the same optimizer and batch, the first of them in the study."""
        same = (m for m in self.methods if (m.name, m.optimizer, m.batch) == ("S-SGD", method.optimizer, method.batch))
        return next(same, method)

    def reference(self, method: Method, seed: int) -> Trained | None:
        """The curve of S-SGD at its best rate on that seed."""
        other = self.synchronous(method)
        rate = self.best(other)
        return None if rate is None else self.bench.kept(Cell(method=other, rate=rate, seed=seed))

    def cells(self) -> Iterable[Cell]:
        """In the order in which they are trained: the first rates of a section's methods first. Best rates are known once those are."""
        for title, methods in self.sections.items():
            if self.wanted not in title:
                continue
            for seed in range(self.tuning_seeds):
                for place in range(max(len(m.rates) for m in methods)):
                    for method in methods:
                        yield from (Cell(method=method, rate=r, seed=seed) for r in method.rates[place : place + 1])
            for seed in range(self.tuning_seeds, self.seeds):
                for method in methods:
                    yield Cell(method=method, rate=self.best(method) or method.rates[0], seed=seed)

    def run(self) -> None:
        """Trains what is not kept."""
        for cell in self.cells():
            if self.bench.kept(cell) is None:
                reference = (
                    None if self.synchronous(cell.method) is cell.method else self.reference(cell.method, cell.seed)
                )
                trained = self.bench.train(cell, reference)
                print(
                    f"{cell}: {self.bench.last_loss(trained):.4f} {trained.ended} ({trained.cpu_s:.1f} s)", flush=True
                )


# ---- what is studied --------------------------------------------------------------------------------------------------


def point(name: str, **options: float) -> tuple[tuple[str, float | str], ...]:
    """Options of a method with one update of delay."""
    return (("compute_point", name), *options.items())


def share(workers: int) -> float:
    """The blend whose prediction has the least error where gradients are noise: 2/(n+1)."""
    return 2.0 / (workers + 1)


def none(**keys: Any) -> Method:
    """The reference."""
    return Method(**{"name": "S-SGD", "synchronous": True, **keys})


def local(workers: int = 4, **keys: Any) -> Method:
    """Each worker predicts with its own gradient."""
    return Method(**{"name": "local-prediction", "options": point("local-prediction"), "workers": workers, **keys})


def damped(workers: int, gamma: float | None = None, **keys: Any) -> Method:
    """Each worker predicts with its own gradient, corrected by how far its last one was from the group's; γ = ½ unless given."""
    name = "damped-prediction" + ("" if gamma is None else f", γ = {gamma:g}")
    options = point("damped-prediction", **({} if gamma is None else {"damping": gamma}))
    return Method(**{"name": name, "options": options, "workers": workers, **keys})


def blend(workers: int, **keys: Any) -> Method:
    """Each worker predicts with its own gradient and the last mean."""
    options = point("blend", blend=share(workers))
    return Method(**{"name": "blend, a = 2/(n+1)", "options": options, "workers": workers, **keys})


def last(**keys: Any) -> Method:
    """All predict with the last mean gradient: the same point for all, whatever their number."""
    return Method(**{"name": "blend, a = 0", "options": point("blend", blend=0.0), "workers": 1, **keys})


def ahead(kappa: float | None = None, **keys: Any) -> Method:
    """All look ahead along the velocity: the same point for all. Best κ unless given."""
    best = best_kappa(keys.get("momentum", 0.9))
    name = "look-ahead, best κ" if kappa is None else f"look-ahead, κ = {kappa:g}"
    return Method(**{"name": name, "options": point("look-ahead", kappa=best if kappa is None else kappa), **keys})


def current(**keys: Any) -> Method:
    """Gradients at the current parameters."""
    return Method(**{"name": "current", "options": point("current"), **keys})


def warm(method: Method, updates: int) -> Method:
    """The same after synchronous updates."""
    options = (*method.options, ("synchronous_updates", updates))
    return replace(method, name=f"{method.name}, {updates} synchronous updates", options=options)


def cifar10() -> Sections:
    """Rates around the quadratic model's best, which is S-SGD's for every predicted point at B = 128."""
    r, low, adam, large = (0.05, 0.1), (0.0125, 0.025), (0.001, 0.003), (0.1, 0.2)
    high, small = (0.4, 0.8), (0.025, 0.05)
    return {
        "SGD, β = .9, B = 128": (
            none(rates=r), local(16, rates=r), blend(16, rates=r), current(rates=low), last(rates=r), ahead(rates=r), local(4, rates=r),
            damped(16, rates=r), damped(4, rates=r),
        ),
        "AdamW, β1 = .9, B = 128": tuple(
            replace(m, optimizer="adamw", rates=adam)
            for m in (
                none(rates=r), local(16, rates=r), current(rates=r), last(rates=r), blend(16, rates=r), ahead(1.0, rates=r),
                damped(16, rates=r),
            )
        ),
        "SGD, β = .9, B = 512": (
            none(batch=512, rates=large), local(16, batch=512, rates=large), damped(16, batch=512, rates=large),
            warm(local(16, batch=512, rates=large), 20), warm(damped(16, batch=512, rates=large), 20),
            blend(16, batch=512, rates=large), ahead(batch=512, rates=r), last(batch=512, rates=large),
            local(4, batch=512, rates=large), damped(4, batch=512, rates=large),
        ),
        "SGD, β = .9, B = 128, shares that change": (
            local(16, rates=r, shares="jittering"), local(16, rates=r, shares="wandering"), blend(16, rates=r, shares="jittering"),
        ),
        "SGD, other momenta, B = 128": (
            current(momentum=0.0, rates=(0.2, 0.4)), none(momentum=0.0, rates=high), local(16, momentum=0.0, rates=high),
            ahead(momentum=0.95, rates=small), last(momentum=0.95, rates=small), none(momentum=0.95, rates=small),
        ),
        "the rest": (
            none(rates=r, name="S-SGD, Nesterov", nesterov=True), local(8, rates=r), warm(local(16, rates=r), 100),
            warm(current(rates=low), 100),
        ),
    }  # fmt: skip


def digits() -> Sections:
    """Two to four rates a method, around the best of S-SGD."""
    r, low, fast, adam, high = (0.05, 0.1, 0.2), (0.0125, 0.025, 0.05), (0.1, 0.2, 0.4), (0.003, 0.01), (0.8, 1.6)
    sections: dict[str, tuple[Method, ...]] = {}
    for batch, rates in ((64, (*r, 0.4)), (256, (*fast, 0.8))):
        sections[f"SGD, β = .9, B = {batch}"] = tuple(
            replace(m, batch=batch) for m in (
                none(rates=rates), current(rates=low), ahead(1.0, rates=r), ahead(rates=r), last(rates=rates),
                *(local(n, rates=rates) for n in (4, 8, 16)), *(blend(n, rates=rates) for n in (4, 8, 16)),
                warm(local(16, rates=rates), 50), warm(current(rates=low), 50), *(damped(n, rates=rates) for n in (4, 8, 16)),
                damped(16, 0.25, rates=rates), damped(16, 0.75, rates=rates),
                warm(local(16, rates=rates), 20), warm(damped(16, rates=rates), 20),
            )
        )  # fmt: skip
        sections[f"SGD with Nesterov's momentum, β = .9, B = {batch}"] = tuple(
            replace(m, batch=batch, nesterov=True)
            for m in (none(rates=fast), local(16, rates=fast), blend(16, rates=fast), last(rates=fast))
        )  # fmt: skip
        sections[f"SGD, β = .9, B = {batch}, shares that change"] = tuple(
            replace(m, batch=batch, shares=shares)
            for shares in ("jittering", "wandering")
            for m in (local(4, rates=rates[2:]), blend(4, rates=rates[2:]), damped(4, rates=rates[2:]))
        )  # fmt: skip
        sections[f"AdamW, β1 = .9, B = {batch}"] = tuple(
            replace(m, batch=batch, optimizer="adamw", rates=adam) for m in (
                none(rates=r), current(rates=r), ahead(1.0, rates=r), last(rates=r), local(4, rates=r), local(16, rates=r),
                blend(16, rates=r), damped(4, rates=r), damped(16, rates=r),
            )
        )  # fmt: skip
        sections[f"SGD, other momenta, B = {batch}"] = tuple(
            replace(m, batch=batch) for m in (
                none(momentum=0.0, rates=high), current(momentum=0.0, rates=(0.2, 0.4)), local(16, momentum=0.0, rates=fast),
                current(momentum=0.5, rates=r[1:]), none(momentum=0.95, rates=r[:2]), last(momentum=0.95, rates=r[:2]),
                blend(16, momentum=0.95, rates=r[:2]), local(16, momentum=0.95, rates=r[:2]),
            )
        )  # fmt: skip
    return sections


def study(name: str, folder: Path) -> Study:
    """By name."""
    if name == "cifar10":
        bench = Bench(
            task=half_resolution(), folder=folder, target=1.6, max_samples=100_000, every=512, window=32, stop=False,
            margin=0.15, far_from=40_000,
        )  # fmt: skip
        return Study(bench=bench, sections=cifar10(), seeds=2, tuning_seeds=1)
    bench = Bench(
        task=workloads.get("digits-mlp"), folder=folder, target=0.1, max_samples=20_000, every=256, window=4, stop=True,
        margin=math.inf, far_from=0,
    )  # fmt: skip
    return Study(bench=bench, sections=digits(), seeds=5, tuning_seeds=5)


def seconds_of(bench: Bench, method: Method) -> float:
    """Processor seconds of a cell, estimated from what samples and passes took on one core [measured: CIFAR-10 3,300 samples a second in
    batches, 2.5 ms a further pass; digits 30,000 and .25 ms]; digits end about half-way."""
    each, a_pass, share = (1 / 30_000, 0.00025, 0.5) if bench.stop else (1 / 3300, 0.0025, 1.0)
    passes = (
        method.workers
        if dict(method.options).get("compute_point") in ("local-prediction", "damped-prediction", "blend")
        else 1
    )
    return share * bench.max_samples * (each + a_pass * (passes - 1) / method.batch)


# ---- tables -----------------------------------------------------------------------------------------------------------


def ratios(study: Study, method: Method) -> list[float]:
    """Samples to the target over S-SGD's at its best rate, per seed, at the method's best rate. Empty until both are trained."""
    rate = study.best(method)
    out = []
    for seed in range(study.seeds):
        own = None if rate is None else study.bench.kept(Cell(method=method, rate=rate, seed=seed))
        other = study.reference(method, seed)
        if own is not None and other is not None:
            bench = study.bench
            base = bench.samples_to(other, bench.target)
            if math.isfinite(base):
                out.append(bench.samples_to(own, bench.target) / base)
    return out


def number(value: float, digits: int = 2) -> str:
    """A figure; "never" where infinite."""
    return "never" if math.isinf(value) else f"{value:,.{digits}f}"


def row(study: Study, method: Method) -> list[str] | None:
    """One method; None where it is not trained yet."""
    rate, bench = study.best(method), study.bench
    if rate is None:
        return None
    batch = float(schedule_of(method, 0, bench.max_samples).updates.samples.mean())
    runs = [bench.kept(Cell(method=method, rate=rate, seed=s)) for s in range(study.seeds)]
    known = [run for run in runs if run is not None]
    taken = [bench.samples_to(run, bench.target) for run in known]
    over = ratios(study, method)
    cells = [
        method.name,
        f"{method.momentum:g}",
        str(method.workers),
        method.shares,
        f"{batch:.0f}",
        f"{rate:g}",
        number(median(taken), 0),
    ]
    cells.append(f"{number(median(over))} ({number(min(over))} to {number(max(over))})" if over else "-")
    if not bench.stop:
        cells.append(", ".join(number(bench.last_loss(run), 3) for run in known))
    return [*cells, str(len(known))]


COLUMNS = ("compute point", "β", "n", "shares", "mean batch", "best lr", "samples", "over S-SGD: median (range)")


def tables(study: Study) -> Iterable[Table]:
    """One per section: what was trained."""
    ends = [] if study.bench.stop else ["loss at the end"]
    for title, methods in study.sections.items():
        out = Table(title=f"{title}, target {study.bench.target:g}", box=box.MARKDOWN, title_justify="left")
        for name in (*COLUMNS, *ends, "seeds"):
            out.add_column(name, justify="left" if name in ("compute point", "shares") else "right")
        for method in methods:
            cells = row(study, method)
            if cells is not None:
                out.add_row(*cells)
        if out.row_count:
            yield out


def main() -> None:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("digits", "cifar10"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder that keeps what was trained")
    parser.add_argument("--dry-run", action="store_true", help="list what is left to train and how long it takes")
    parser.add_argument("--kept", action="store_true", help="train nothing, print the tables of what is kept")
    parser.add_argument("--section", help="only sections with this in their names")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    whole = study(arguments.study, arguments.output)
    if arguments.dry_run:
        left = [cell for cell in whole.cells() if whole.bench.kept(cell) is None]
        seconds = [seconds_of(whole.bench, cell.method) for cell in left]
        print(*(f"{cell}: {s:.0f} s" for cell, s in zip(left, seconds, strict=True)), sep="\n")
        print(f"{len(left)} cells, {sum(seconds) / 60:.0f} minutes of one core")
        return
    if not arguments.kept:
        replace(whole, wanted=arguments.section or "").run()
    console = Console(width=140)
    for each in tables(whole):
        console.print(each)


if __name__ == "__main__":
    try:
        main()
    except HetsimError as error:
        sys.exit(f"error: {error}")
