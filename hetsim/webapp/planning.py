"""What a plan is asked for, and a plan as figures and rows; without streamlit.

PlanOrder    a view, which algorithms, which batches: everything a plan depends on
compute      the work of the job
figures, workers, others, worth    a plan as what the page shows
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetsim import wording
from hetsim.comparison import plain
from hetsim.errors import UsageError
from hetsim.marginal import named
from hetsim.memory import MemoryUse
from hetsim.plan import Plan, plan
from hetsim.plan_copy import command_words, copy
from hetsim.webapp.metrics import Figure
from hetsim.webapp.view import View

MOST_BATCHES = 8  # [our choice] each is as long as the first
NOT_REACHED = "not reached"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlanOrder:
    """Everything a plan depends on. `every`: choose from all algorithms that hetsim plans with, not from those of the view alone.

    `batches`: global batches to choose from; () is the profile's own. Raises UsageError for what is too much.
    """

    view: View
    every: bool = True
    batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.batches) > MOST_BATCHES:
            raise UsageError(f"{len(self.batches)} batches; the explorer tries up to {MOST_BATCHES}, hetsim plan more")

    def check(self) -> None:
        """What can be seen before anything is computed. Raises HetsimError."""
        cluster = self.view.profile().cluster()
        if self.batches and min(self.batches) < cluster.n:
            raise UsageError(f"a global batch of {min(self.batches)} samples is smaller than the {cluster.n} workers")

    def given(self) -> str:
        """Profile and overrides, to be typed."""
        target = self.view.target
        stated = () if target is None else (f"training.target_loss={target!r}",)
        return command_words(self.view.file_name(), (*self.view.overrides, *stated))

    def command(self) -> str:
        """The `hetsim plan` that gives the same."""
        words: list[str] = []
        for label in () if self.every else self.view.algorithms:
            words += ["-a", label]
        words += ["--batches", ",".join(map(str, self.batches))] if self.batches else []
        words += ["--seed", str(self.view.seed)] if self.view.seed else []
        return " ".join(filter(None, ("hetsim plan", self.given(), shlex.join(words))))


def compute(order: PlanOrder, report: Callable[..., None]) -> Plan:
    """The work of the job."""
    return plan(
        order.view.profile(),
        None if order.every else list(order.view.algorithms),
        batches=order.batches or None,
        seed=order.view.seed,
        jobs=1,
        progress=lambda label, done, total: report(done, total, f"{done} of {total} candidates of this round: {label}"),
    )


# ---- a plan on the page ------------------------------------------------------------------------------------------------------------------


def headline(p: Plan) -> str:
    """What to do, in a line."""
    changes = [f"{path}={value}" for path, value in p.overrides.items()]
    return f"Train with {p.label}" + (f" and {', '.join(changes)}" if changes else "")


def figures(p: Plan) -> list[Figure]:
    """The row of figures; cost and energy where they are known."""
    row = {"time_to_target_s": plain(p.time_to_target_s), "cost": plain(p.cost)}
    time = p.time_to_target_s
    median = None if time is None else time.median
    out = [
        Figure(
            label="Time to target",
            value=NOT_REACHED if median is None else wording.seconds(median),
            means=f"Until {p.target.metric} is {p.target.value:.4g}; median over {len(p.seeds)} seeds." + _interval(p),
        ),
        Figure(label="Samples/s", value=wording.rate(p.samples_per_s), means="Over all workers."),
        Figure(
            label="Batch, samples",
            value=wording.count(p.mean_batch_samples),
            means=f"Samples of an update, mean; an update takes {wording.seconds(p.update_period_s)}.",
        ),
    ]
    known = (
        ("Cost", wording.cost_cell(row), "Of the time to target, at the prices of all workers; hosts and network are not in it."),
        ("Energy", wording.energy_cell(row), "Of the time to target, every GPU at its rated power; hosts and network are not in it."),
    )  # fmt: skip
    return [
        *out,
        *(Figure(label=label, value=value, means=means) for label, value, means in known if value != wording.NONE),
    ]


def _interval(p: Plan) -> str:
    time = p.time_to_target_s
    if time is None or time.low is None or time.high is None or time.low == time.high:
        return ""
    return f" Interval {wording.seconds(time.low)} to {wording.seconds(time.high)}."


WORKER_MEANS = {
    "rank": "Its number in the group.",
    "worker": "Its name in the profile.",
    "GPU": "Empty where the profile states the speed alone.",
    "batch, samples": "Its part of an update; of an open batch the mean over updates.",
    "share, %": "Of the samples of an update.",
    "passes": "In how many parts it computes its batch, and how large each is at most.",
    "computes, ms": "Time of its passes in an update.",
    "memory, GB": "What it keeps, an estimate from below: framework and work space come on top.",
    "of, GB": "The GPU's memory; empty where it is not known.",
    "full, %": "Of the GPU's memory.",
    "loss weight": "What a mean loss over its batch is multiplied by where gradients are then averaged over workers, as DDP does.",
}


def workers(p: Plan) -> list[Row]:
    """A row per worker."""
    total = sum(share.batch_samples for share in p.workers)
    open_batch = p.split == "open"
    out = []
    for share in p.workers:
        many = f"{share.passes:.1f}" if open_batch else f"{share.passes:.0f}"
        out.append(
            {
                "rank": share.rank,
                "worker": share.worker,
                "GPU": share.gpu,
                "batch, samples": share.batch_samples,
                "share, %": 100 * share.batch_samples / total,
                "passes": f"{many} × {share.pass_samples:,}",
                "computes, ms": 1e3 * share.seconds,
                "memory, GB": share.memory.needs / 1e9,
                "of, GB": None if share.memory.has is None else share.memory.has / 1e9,
                "full, %": None if share.memory.has is None else 100 * share.memory.needs / share.memory.has,
                "loss weight": None if open_batch else share.loss_weight,
            }
        )
    return out


def tight(p: Plan) -> list[MemoryUse]:
    """Workers whose memory does not hold it, as far as is known."""
    return [share.memory for share in p.workers if not share.memory.fits]


OTHER_MEANS = {
    "also tried": "Algorithm, options, and what it changes in the profile.",
    "to target": "Median time to the target.",
    "× as long": "Its time over the plan's, on the seeds that both were tried on.",
    "from": "Lower end of the interval over seeds; empty where it was tried on one.",
    "up to": "Upper end of the interval over seeds.",
    "limited by": "What keeps it from being faster.",
}


def others(p: Plan) -> list[Row]:
    """What else was tried, fastest first; not reached is said, and has no number."""
    return [
        {
            "also tried": one.name,
            "to target": NOT_REACHED if one.seconds is None else wording.seconds(one.seconds),
            "× as long": one.slower.value,
            "from": one.slower.low,
            "up to": one.slower.high,
            "limited by": one.limited_by,
        }
        for one in p.alternatives
    ]


WORTH_MEANS = {
    "without": "Workers that are left out; those alike are taken together.",
    "time, %": "Change of the time to target without them; above 0 is slower.",
    "cost, %": "Change of the cost to target without them; below 0 is cheaper.",
    "energy, %": "Change of the energy to target without them.",
    "samples/s": "Over all workers, without them.",
    "in words": "The same.",
}


def worth(p: Plan) -> list[Row]:
    """What each worker is worth; columns of which nothing is known are left out."""
    rows = [
        {
            "without": named(one.without),
            "time, %": _change(one.seconds_ratio),
            "cost, %": _change(one.cost_ratio),
            "energy, %": _change(one.energy_ratio),
            "samples/s": one.samples_per_s,
            "in words": one.text,
        }
        for one in p.marginal
    ]
    known = {head for row in rows for head, value in row.items() if value is not None}
    return [{head: value for head, value in row.items() if head in known} for row in rows]


def _change(ratio: float | None) -> float | None:
    """In per cent, to a tenth, without a minus before nothing."""
    return None if ratio is None else round(100 * (ratio - 1), 1) + 0.0


def reasons(p: Plan) -> list[tuple[str, str]]:
    """(what was decided, why), in the order of the plan."""
    return [(head, rest) for head, _, rest in (reason.partition(": ") for reason in p.reasons)]


def to_copy(p: Plan, order: PlanOrder) -> tuple[list[str], list[str]]:
    """Lines for one's own script, and for a shell."""
    lines = copy(p, order.given())
    shell = [line for line in lines if line.startswith(("hetsim ", "torchrun "))]
    return [line for line in lines if line not in shell], shell


def document(p: Plan) -> str:
    """What `hetsim plan --json` prints."""
    return json.dumps(p.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
