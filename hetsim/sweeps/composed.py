"""Fields of a sweep that stand for several of the profile's: `speed-ratio`.

`speed-ratio=4`: the fastest worker is four times as fast as the slowest. Speed is that of one pass over an equal share of the global batch,
what S-SGD waits for; the fastest worker stays as it is. The others keep their places between the two on a logarithmic scale,

    s_i' = s_max (s_i / s_max)^(log ratio / log ratio now)

so that at the profile's own ratio nothing changes; where all are equal, each entry of `workers` is slower than the one before by the same
factor. A worker's passes of every size take the same number of times as long: overhead, floor and measured tables go with its speed;
memory, price, power and luck stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hetsim.cluster import Profile
from hetsim.cluster.spec import Worker
from hetsim.errors import UsageError

SPEED_RATIO = "speed-ratio"
COMPOSED = (SPEED_RATIO,)
SPEEDS = ("samples_per_s", "overhead_s", "floor_s", "step_times_s", "trace", "gpu")  # what says how fast a worker is
EQUAL = 1e-6  # relative; speeds nearer than this are one [our choice]
DIGITS = 6  # of the numbers it sets, so that a command can be read [our choice]


def overrides_of(profile: Profile, field: str, value: Any) -> tuple[str, ...]:
    """What a composed field sets, as `--set` takes it. Raises UsageError for a value or a profile with which it means nothing.

    >>> from hetsim.cluster import load_profile
    >>> overrides_of(load_profile("emulated-4"), SPEED_RATIO, 8)
    ('workers.b.samples_per_s=1079.46', 'workers.c.samples_per_s=525.764', 'workers.d.samples_per_s=200.0')
    """
    if field != SPEED_RATIO:
        raise UsageError(f"{field} is no field that stands for others (known: {', '.join(COMPOSED)})")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1.0 <= value <= 1e6:
        raise UsageError(
            f"{SPEED_RATIO}={value}: the fastest worker's speed over the slowest's, a number from 1 to 1,000,000"
        )
    workers = entries(profile)
    out: list[str] = []
    for worker, factor in zip(workers, slowdowns(speeds(profile), float(value)), strict=True):
        if abs(factor - 1.0) > EQUAL:
            out += _slower(worker, factor)
    return tuple(out)


def ratio_of(profile: Profile) -> float:
    """The speed ratio that a profile has. Raises UsageError where it has none."""
    known = speeds(profile)
    return max(known) / min(known)


def entries(profile: Profile) -> tuple[Worker, ...]:
    """The first worker of every entry of `workers`. Raises UsageError where their speeds cannot be set."""
    if len(profile.workers) < 2:
        raise UsageError(
            f"{SPEED_RATIO}: {profile.name} has one entry of workers; a ratio needs two (write its members one by one)"
        )
    first = {worker.group: worker for worker in reversed(profile.cluster().workers)}
    found = tuple(first[entry.name] for entry in profile.workers)
    traced = next((worker for worker in found if worker.trace), None)
    if traced is not None:
        raise UsageError(f"{SPEED_RATIO}: {traced.group} replays recorded steps, which have no speed to set")
    return found


def speeds(profile: Profile) -> tuple[float, ...]:
    """Samples per second of every entry's workers in passes over an equal share of the global batch."""
    from hetsim.split import batch_seconds

    total = sum(entry.count or 1 for entry in profile.workers)
    share = max(1, round(profile.training.global_batch_samples / total))
    taken = [batch_seconds(worker)(share) for worker in entries(profile)]
    if not all(taken):
        raise UsageError(f"{SPEED_RATIO}: {profile.name} has a worker that takes no time")
    return tuple(share / seconds for seconds in taken)


def slowdowns(known: Sequence[float], ratio: float) -> tuple[float, ...]:
    """How many times as long each takes, for the fastest to be `ratio` times as fast as the slowest."""
    best = max(known)
    spread = math.log(best / min(known))
    if spread <= EQUAL:
        return tuple(ratio ** (i / (len(known) - 1)) for i in range(len(known)))
    power = math.log(ratio) / spread
    return tuple((speed / best) / (speed / best) ** power for speed in known)


def _slower(worker: Worker, factor: float) -> list[str]:
    def slow(seconds: float) -> float:
        return float(f"{seconds * factor:.{DIGITS}g}")

    if worker.step_times_s:
        table = ", ".join(f"{samples}: {slow(seconds)!r}" for samples, seconds in worker.step_times_s)
        return [f"workers.{worker.group}.step_times_s={{{table}}}"]
    line = [f"workers.{worker.group}.samples_per_s={float(f'{worker.samples_per_s / factor:.{DIGITS}g}')!r}"]
    line += [f"workers.{worker.group}.overhead_s={slow(worker.overhead_s)!r}"] if worker.overhead_s else []
    return line + ([f"workers.{worker.group}.floor_s={slow(worker.floor_s)!r}"] if worker.floor_s else [])


def clash(fields: Sequence[str]) -> str | None:
    """A field that a composed one of these sets as well; None where there is none."""
    if SPEED_RATIO not in fields:
        return None
    for field in fields:
        first, _, rest = field.partition(".")
        if first == "workers" and (rest.count(".") == 0 or rest.split(".")[1] in SPEEDS):
            return field
    return None
