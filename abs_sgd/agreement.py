"""Whether a prediction held: the figures of a predicted and a measured Schedule side by side, their errors, and a verdict.

Errors are relative: period |m/p - 1|, shares max over workers |m_i/p_i - 1|, time to target |m/p - 1|. Period and shares have to be within
their tolerance in every run. Of several runs the median period has a tolerance of its own, of a model that is right in the mean; time to
target has to hold in the median of the runs, since one update more or less at a noisy crossing is no miss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.errors import UsageError
from hetsim.metrics import timing
from hetsim.schedule import Schedule

LONGEST_REPLAY = 200  # updates: sums in another order part company later on (2e-15 to 4e-5 in 1,000 updates by learning rate, measured)
REPLAY_TOLERANCE = 1e-5  # ||difference|| / ||parameters|| in float32; float64 leaves 1e-12
# Where rounding errors grow, as many times what one of the initial parameters grows to: live sums round at every update [our choice].
ROUNDING_TIMES = 10.0


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Relative errors up to which a prediction is said to have held."""

    period: float = 0.05
    period_median: float = 0.02
    share: float = 0.05
    time: float = 0.10

    def __post_init__(self) -> None:
        for name in ("period", "period_median", "share", "time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name.replace('_', ' ')} tolerance: {value} is no share")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one Schedule says; over the second half of its updates, but for the time to target (None: not reached)."""

    update_period_s: float
    samples_per_s: float
    mean_batch_samples: float
    utilisation: float
    waiting_share: float
    waiting: Mapping[str, float]
    sample_share: Mapping[str, float]
    time_to_target_s: float | None = None
    final_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed: predicted, measured, how far the live parameters are from those that the measured Schedule gives (None: diverged, or
    `unreplayed` says why they were not compared), and by worker the passes that this machine did not do in time.

    `rounding_deviation`: how far the replay itself ends from where it did when it starts a rounding error away, measured where the live
    parameters are not within `REPLAY_TOLERANCE`: training with a large learning rate makes much of little.
    `unexecuted`: why the Schedules were not executed, so that there are no losses. `folder`: of a run made elsewhere; `name`: what to call
    the run (default: by its seed); `updates`: its number, where not all runs have the one asked for.
    """

    seed: int
    predicted: Figures
    measured: Figures
    replay_deviation: float | None = None
    rounding_deviation: float | None = None
    late_passes: Mapping[str, int] = field(default_factory=dict)
    unexecuted: str = ""
    unreplayed: str = ""
    name: str = ""
    folder: str | None = None
    updates: int | None = None

    @property
    def called(self) -> str:
        """What the run is called in checks and tables."""
        return self.name or f"seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison. `error` None: nothing to compare, `why` says why; such a check neither holds nor fails."""

    name: str
    error: float | None
    tolerance: float
    why: str = ""

    @property
    def within(self) -> bool | None:
        return None if self.error is None else bool(self.error <= self.tolerance)


def figures(schedule: Schedule, cluster: Cluster, time_to_target_s: float | None, final_loss: float | None) -> Figures:
    """The figures of one Schedule."""
    t = timing(schedule, cluster)
    return Figures(
        update_period_s=t.update_period_s,
        samples_per_s=t.samples_per_s,
        mean_batch_samples=t.mean_batch_samples,
        utilisation=t.utilisation,
        waiting_share=t.waiting_share,
        waiting=dict(t.waiting),
        sample_share=dict(zip((w.name for w in cluster.workers), t.sample_share.tolist(), strict=True)),
        time_to_target_s=time_to_target_s,
        final_loss=final_loss,
    )


def relative(measured: float, predicted: float) -> float:
    """|m/p - 1|; two zeros agree, a zero predicted for something is infinitely wrong."""
    if predicted == 0:
        return 0.0 if measured == 0 else math.inf
    return abs(measured / predicted - 1)


def period_error(run: Run) -> float:
    """Of the time per update."""
    return relative(run.measured.update_period_s, run.predicted.update_period_s)


def share_error(run: Run) -> float:
    """Of the worst worker's share of the samples."""
    return max(relative(run.measured.sample_share[name], p) for name, p in run.predicted.sample_share.items())


def time_error(run: Run) -> float | None:
    """Of the time to target; infinite where one of the two got there, None where neither did."""
    m, p = run.measured.time_to_target_s, run.predicted.time_to_target_s
    if m is None and p is None:
        return None
    return math.inf if m is None or p is None else relative(m, p)


def checks(runs: Sequence[Run], tolerances: Tolerances, updates: int) -> list[Check]:
    """Everything that has to hold for the verdict."""
    out = []
    for run in runs:
        out.append(Check(name=f"period, {run.called}", error=period_error(run), tolerance=tolerances.period))
        out.append(Check(name=f"shares, {run.called}", error=share_error(run), tolerance=tolerances.share))
        why = _unreplayed(run, updates)
        error = None if why else run.replay_deviation
        allowed = max(REPLAY_TOLERANCE, ROUNDING_TIMES * (run.rounding_deviation or 0.0))
        out.append(Check(name=f"replay, {run.called}", error=error, tolerance=allowed, why=why))
    if len(runs) > 1:  # the median of one run is that run
        off = relative(
            median(run.measured.update_period_s for run in runs), median(run.predicted.update_period_s for run in runs)
        )
        out.append(Check(name="period, median", error=off, tolerance=tolerances.period_median))
    times = [error for run in runs if (error := time_error(run)) is not None]
    why = "" if times else runs[0].unexecuted or "target reached neither in the prediction nor in the run"
    error = median(times) if times else None
    out.append(Check(name="time to target, median", error=error, tolerance=tolerances.time, why=why))
    return out


def _unreplayed(run: Run, updates: int) -> str:
    """Why a run's parameters are not compared; nothing where they are."""
    if (run.updates or updates) > LONGEST_REPLAY:
        return f"more than {LONGEST_REPLAY} updates"
    return run.unexecuted or run.unreplayed or ("the run diverged" if run.replay_deviation is None else "")


def verdict(found: Sequence[Check]) -> tuple[bool, str]:
    """Whether all that could be compared is within tolerance, and a sentence."""
    made = [check for check in found if check.within is not None]
    missed = [check for check in made if not check.within]
    if missed:
        named = "; ".join(f"{c.name}: {_percent(c.error)} off, tolerance {_percent(c.tolerance)}" for c in missed)
        return False, f"outside tolerance ({named})"
    left = [f"{c.name} not compared: {c.why}" for c in found if c.within is None]
    return True, "within tolerance" + (f" ({'; '.join(left)})" if left else "")


def _percent(value: float | None) -> str:
    return "infinitely" if value is None or math.isinf(value) else f"{100 * value:.3g} %"


def row(
    name: str, algorithm: str, options: Mapping[str, Any], runs: Sequence[Run], found: Sequence[Check]
) -> dict[str, Any]:
    """One algorithm as JSON; what was not computed is null."""
    holds, sentence = verdict(found)
    times = [error for run in runs if (error := time_error(run)) is not None]
    return {
        "name": name,
        "algorithm": algorithm,
        "options": dict(options),
        "within": holds,
        "verdict": sentence,
        "errors": {
            "period_median": median(map(period_error, runs)),
            "share_median": finite(median(map(share_error, runs))),
            "time_to_target_median": finite(median(times)) if times else None,
        },
        "checks": [
            {
                "name": c.name,
                "error": finite(c.error),
                "tolerance": c.tolerance,
                "within": c.within,
                "why": c.why or None,
            }
            for c in found
        ],
        "runs": [
            {
                "name": run.called,
                "seed": run.seed,
                "updates": run.updates,
                "folder": run.folder,
                "predicted": _figures(run.predicted),
                "measured": _figures(run.measured),
                "replay_deviation": run.replay_deviation,
                "rounding_deviation": run.rounding_deviation,
                "late_passes": dict(run.late_passes),
                "period_error": finite(period_error(run)),
                "share_error": finite(share_error(run)),
                "time_error": finite(time_error(run)),
            }
            for run in runs
        ],
    }


def finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _figures(f: Figures) -> dict[str, Any]:
    out = {name: getattr(f, name) for name in Figures.__dataclass_fields__}
    return {**out, "waiting": dict(f.waiting), "sample_share": dict(f.sample_share)}
