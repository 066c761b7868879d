"""simulate: one algorithm on one cluster, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property
from importlib import metadata
from typing import Any

from hetsim.algorithms import Algorithm, make
from hetsim.cluster.spec import Cluster
from hetsim.errors import RunTooLongError, UsageError
from hetsim.metrics import Timing, timing
from hetsim.runtime import Simulation
from hetsim.schedule.check import SampleAccount, check
from hetsim.schedule.log import MOST_ROWS
from hetsim.schedule.table import Header, Schedule


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    return dict(_versions())


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Read once: looking for a package's metadata takes a millisecond."""
    out = []
    for package in ("hetsim", "simpy", "numpy"):
        try:
            out.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:  # run from a checkout
            out.append((package, "0+unknown"))
    return tuple(out)


class Result:
    """What a simulation found: the Schedule, and what it says.

    `schedule`, `cluster`, `algorithm` (with its options), `seed`; `timing` (samples/s, period, utilisation, waiting by cause, all over the
    second half of the updates) and `samples` (where they went) are computed when first asked for.
    """

    def __init__(self, schedule: Schedule, cluster: Cluster, algorithm: Algorithm, seed: int) -> None:
        self.schedule, self.cluster, self.algorithm, self.seed = schedule, cluster, algorithm, seed

    @cached_property
    def samples(self) -> SampleAccount:
        """Where the samples went; raises ScheduleError where an invariant is broken."""
        return check(self.schedule)

    @cached_property
    def timing(self) -> Timing:
        """Figures over the second half of the updates."""
        return timing(self.schedule, self.cluster)

    def table(self) -> Any:
        """The figures as a Rich table: prints in a terminal, shows in a notebook."""
        from hetsim.notebook import result_table

        return result_table(self)

    def plot(self) -> Any:
        """The timeline of a few updates as a plotly figure."""
        from hetsim.plots import result_plot

        return result_plot(self)

    def _repr_html_(self) -> str:
        from hetsim.notebook import result_html

        return result_html(self)

    def __repr__(self) -> str:
        t = self.timing
        return f"Result({self.schedule.header.algorithm} on {self.cluster.name}: {t.samples_per_s:.6g} samples/s, {t.updates} updates)"


def simulate(
    cluster: Any,
    algorithm: str | Algorithm,
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    updates: int | None = None,
    max_samples: int | None = None,
    verify: bool = True,
    most_rows: int | None = None,
) -> Result:
    """Run one algorithm on a cluster on the virtual clock and return its Schedule.

    `cluster`: a Profile or a Cluster. `options` go over the profile's for this algorithm. The run ends after `updates` updates or
    `max_samples` samples (default: the profile's training.max_samples), whichever is given. Same seed, same Schedule, to the byte.
    Raises UsageError for an unknown algorithm or option, RunTooLongError where the log gets longer than `most_rows` (default: than memory
    should hold), DeadlockError, ScheduleError where `verify` finds a broken promise.

    >>> from hetsim import load_profile, simulate
    >>> simulate(load_profile("mixed-gpu-4"), "s-sgd", updates=10).timing.updates
    10
    """
    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    if (updates or 1) < 1 or (max_samples or 1) < 1 or updates == 0 or max_samples == 0:
        raise UsageError("a run needs at least one update and one sample")
    _refuse_what_cannot_fit(resolved, updates, max_samples)
    if isinstance(algorithm, str):
        algorithm = make(algorithm, {**resolved.options.get(algorithm, {}), **(options or {})})
    run = Simulation(resolved, algorithm, seed=seed, max_updates=updates, max_samples=max_samples, most_rows=most_rows)
    log = run.run()
    header = Header(
        algorithm=algorithm.name,
        options=algorithm.options.model_dump(mode="json"),
        seed=seed,
        workers=tuple(w.name for w in resolved.workers),
        dataset_samples=resolved.workload.dataset_samples,
        profile_yaml="" if isinstance(cluster, Cluster) else cluster.to_yaml(),
        server=algorithm.has_server,
        outer=algorithm.outer(),
        versions=versions(),
    )
    schedule = Schedule(
        header=header, polls=tuple(bytes(p) for p in log.polls), outcomes=tuple(log.outcomes), **log.columns()
    )
    result = Result(schedule, resolved, algorithm, seed)
    if verify:
        _ = result.samples
        algorithm.check(schedule)
    return result


def _refuse_what_cannot_fit(cluster: Cluster, updates: int | None, max_samples: int | None) -> None:
    """Now rather than after a minute: an update leaves a row at least, and no pass crosses the end of an epoch."""
    budget = cluster.training.max_samples if max_samples is None and updates is None else max_samples
    by_updates = math.inf if updates is None else updates
    by_samples = math.inf if budget is None else budget / cluster.workload.dataset_samples
    if min(by_updates, by_samples) > MOST_ROWS:
        raise UsageError(str(RunTooLongError(MOST_ROWS)))
