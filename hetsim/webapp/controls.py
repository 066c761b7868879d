"""Controls: from a view to the values they show, and from their values to the overrides of a view. Pure, without streamlit.

split         a view's overrides: those that the controls stand for, and the others, which stay
values_of     what the controls show for a view
overrides_of  the overrides that turn the profile of departure into one with these values; none where nothing is changed
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster import Profile, catalogue
from hetsim.cluster.checks import workload_of
from hetsim.cluster.profile import WorkerEntry
from hetsim.cluster.spec import Worker
from hetsim.compute.model import pass_model
from hetsim.webapp.view import View

NO_LINK = ""  # no worker has a link of its own
SLOW_GBIT = 1.0  # what a slow link is at first: a port that fell back to 1000BASE-T [our choice]
STRAGGLER_SLOWDOWN = 4.0  # of a pass that is slow, where the profile does not say [our choice]
WORKER_FIELDS = ("gpu", "count", "samples_per_s", "overhead_s", "floor_s", "step_times_s", "jitter_cv", "stragglers")
FIELDS = (
    "network.bandwidth_gbit_per_s",
    "network.latency_us",
    "network.links",
    "training.micro_batch_samples",
    "training.global_batch_samples",
    "training.learning_rate",
)
DIGITS = 6  # of numbers in overrides


@dataclass(frozen=True, kw_only=True)
class Group:
    """The values of one entry of `workers`: its GPU (None where the profile states its speed), how many, and how many times as fast."""

    name: str
    gpu: str | None
    count: int
    speed: float


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of all controls that change the profile."""

    groups: tuple[Group, ...]
    bandwidth_gbit_per_s: float
    latency_us: float
    slow_link: str
    slow_gbit_per_s: float
    jitter_cv: float
    straggler_probability: float
    micro_batch_samples: int
    global_batch_samples: int
    learning_rate: float


def split(view: View) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(those of the controls, the others)."""
    mine = tuple(o for o in view.overrides if _is_mine(o.partition("=")[0].strip()))
    return mine, tuple(o for o in view.overrides if o not in mine)


def departure(view: View) -> View:
    """The view without what its controls have changed: where they start from."""
    return replace(view, overrides=split(view)[1], target=None)


def values_of(profile: Profile, start: Profile) -> Values:
    """What the controls show of a profile whose controls started from `start`. Raises ProfileError where either cannot be resolved."""
    network, training = profile.network, profile.training
    slow = [name for name, link in network.links.items() if link.bandwidth_gbit_per_s is not None]
    linked = network.links[slow[0]].bandwidth_gbit_per_s if slow else None
    stragglers = [entry.stragglers.probability for entry in profile.workers if entry.stragglers]
    before = {entry.name: entry for entry in start.workers}
    return Values(
        groups=tuple(_group(profile, entry, start, before.get(entry.name, entry)) for entry in profile.workers),
        bandwidth_gbit_per_s=network.bandwidth_gbit_per_s,
        latency_us=network.latency_us,
        slow_link=slow[0] if slow else NO_LINK,
        slow_gbit_per_s=SLOW_GBIT if linked is None else linked,
        jitter_cv=max(entry.jitter_cv for entry in profile.workers),
        straggler_probability=max(stragglers, default=0.0),
        micro_batch_samples=training.micro_batch_samples,
        global_batch_samples=training.global_batch_samples,
        learning_rate=training.learning_rate,
    )


def overrides_of(start: Profile, values: Values) -> tuple[str, ...]:
    """What `--set` must say for `values`; only what differs from the profile of departure. Raises ProfileError."""
    before = values_of(start, start)
    out: list[str] = []
    for entry, group, old in zip(start.workers, values.groups, before.groups, strict=True):
        out += _group_overrides(start, entry, group, old)
    scalars = (
        "bandwidth_gbit_per_s",
        "latency_us",
        "micro_batch_samples",
        "global_batch_samples",
        "learning_rate",
    )
    for name in scalars:
        value = getattr(values, name)
        if value != getattr(before, name):
            section = "network" if hasattr(start.network, name) else "training"
            out.append(f"{section}.{name}={_number(value)}")
    out += _links(before, values)
    if values.jitter_cv != before.jitter_cv:
        out += [f"workers.{e.name}.jitter_cv={_number(values.jitter_cv)}" for e in start.workers]
    if values.straggler_probability != before.straggler_probability:
        out += [_stragglers(entry, values.straggler_probability) for entry in start.workers]
    return tuple(out)


def gpu_choices(profile: Profile, entry: WorkerEntry) -> tuple[str, ...]:
    """The GPUs that the catalogue knows a speed of for this workload; none where the profile states the speed itself."""
    if entry.gpu is None or entry.trace is not None or entry.step_times_s or entry.samples_per_s:
        return ()
    workload = workload_of(profile).name
    known = [name for name in catalogue.gpu_names() if catalogue.line(name, workload) is not None]
    own = catalogue.gpu(entry.gpu).name
    return tuple(known if own in known else [own, *known])


def can_scale(entry: WorkerEntry) -> bool:
    """Whether a worker's speed can be changed; recorded steps are replayed as they are."""
    return entry.trace is None


def link_choices(profile: Profile, values: Values) -> tuple[str, ...]:
    """Who may have a link of its own: nobody, each group; and the one that has it."""
    names = [NO_LINK, *(entry.name for entry in profile.workers)]
    return tuple(names if values.slow_link in names else [*names, values.slow_link])


def _group(profile: Profile, entry: WorkerEntry, start: Profile, before: WorkerEntry) -> Group:
    gpu = catalogue.gpu(entry.gpu).name if gpu_choices(start, before) and entry.gpu else None
    own = _worker(profile, entry)
    unscaled = _worker(start, before if gpu is None else before.model_copy(update={"gpu": gpu}))
    size = max((m for m, _ in unscaled.step_times_s), default=1)
    ratio = pass_model(unscaled).seconds(size) / pass_model(own).seconds(size)
    return Group(name=entry.name, gpu=gpu, count=entry.count or 1, speed=float(f"{ratio:.4g}"))


def _worker(profile: Profile, entry: WorkerEntry) -> Worker:
    """The first worker of an entry, resolved on its own."""
    alone = profile.model_copy(
        update={
            "workers": (entry.model_copy(update={"count": None}),),
            "events": (),
            "network": type(profile.network)(),
            "training": type(profile.training)(),
            "algorithms": {},
        }
    )
    return alone.cluster().workers[0]


def _group_overrides(start: Profile, entry: WorkerEntry, group: Group, old: Group) -> list[str]:
    at = f"workers.{entry.name}"
    out = []
    chosen = entry
    if group.gpu != old.gpu and group.gpu is not None:
        out.append(f"{at}.gpu={group.gpu}")
        chosen = entry.model_copy(update={"gpu": group.gpu})
    if group.count != old.count:
        out.append(f"{at}.count={group.count}")
    if group.speed == 1.0 or not can_scale(entry):
        return out
    worker = _worker(start, chosen)
    if worker.step_times_s:
        times = ", ".join(f"{m}: {_number(t / group.speed)}" for m, t in worker.step_times_s)
        return [*out, f"{at}.step_times_s={{{times}}}"]
    out.append(f"{at}.samples_per_s={_number(worker.samples_per_s * group.speed)}")
    for name in ("overhead_s", "floor_s"):
        if getattr(worker, name):
            out.append(f"{at}.{name}={_number(getattr(worker, name) / group.speed)}")
    return out


def _links(before: Values, values: Values) -> list[str]:
    same = values.slow_link == before.slow_link
    if same and (values.slow_link == NO_LINK or values.slow_gbit_per_s == before.slow_gbit_per_s):
        return []
    rate = _number(values.slow_gbit_per_s)
    if same:
        return [f"network.links.{values.slow_link}.bandwidth_gbit_per_s={rate}"]
    if values.slow_link == NO_LINK:
        return ["network.links={}"]
    return [f"network.links={{{values.slow_link}: {{bandwidth_gbit_per_s: {rate}}}}}"]


def _stragglers(entry: WorkerEntry, probability: float) -> str:
    slowdown = entry.stragglers.slowdown if entry.stragglers else STRAGGLER_SLOWDOWN
    return f"workers.{entry.name}.stragglers={{probability: {_number(probability)}, slowdown: {_number(slowdown)}}}"


def _is_mine(path: str) -> bool:
    parts = [part.strip() for part in path.split(".")]
    if parts[0] == "workers":
        return len(parts) > 2 and parts[2] in WORKER_FIELDS
    return any(parts[:2] == field.split(".") for field in FIELDS)


def _number(value: Any) -> str:
    return json.dumps(float(f"{value:.{DIGITS}g}")) if isinstance(value, float) else str(value)


def ladder(steps: Sequence[float], *also: float) -> list[float]:
    """The steps of a slider, with values between them that it must be able to show."""
    return sorted({*steps, *also})
