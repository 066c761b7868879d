"""Which points a sweep visits: grids, Latin hypercubes, and both together.

    Span      a range of numbers, even on a linear or a logarithmic scale
    Axis      one field and the values a grid gives it
    Latin     fields that a Latin hypercube fills
    points    every combination of the grid, each with every point of the hypercube

A field is a path of the profile, as `--set` has it (`network.bandwidth_gbit_per_s`, `workers.d.samples_per_s`), or `speed-ratio`, which
stands for the speeds of all workers (`hetsim.sweeps.composed`).
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.sweeps.composed import SPEED_RATIO, clash

MOST_CELLS = 100_000  # a week of two cores at a second and a half each [our choice]
MOST_FIELDS = 64  # [our choice]
_SPAN = re.compile(r"\s*([^.:\s](?:[^.:]|\.(?!\.))*)\.\.([^:]+?)\s*((?::[^:]*)*)")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Numbers from `low` to `high`, both included. `log`: equal ratios instead of equal steps. `whole`: whole numbers only.

    Raises UsageError for a range that has no numbers in it.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise UsageError(f"a range from {self.low:g} to {self.high:g} has no end")
        if not self.low < self.high:
            raise UsageError(
                f"a range must go from the lower to the higher number, not from {self.low:g} to {self.high:g}"
            )
        if self.log and self.low <= 0:
            raise UsageError(f"a logarithmic range must start above 0, not at {self.low:g}")
        if self.log and not math.isfinite(self.high / self.low):
            raise UsageError(f"a logarithmic range from {self.low:g} to {self.high:g} is too wide")
        if self.whole and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise UsageError(
                f"a range of whole numbers must start and end at one, not at {self.low:g} and {self.high:g}"
            )

    def at(self, share: float) -> float | int:
        """The number at a share of the way, 0 the lower end and 1 the upper, both to the bit."""
        if share <= 0.0 or share >= 1.0:
            value = float(self.low if share <= 0.0 else self.high)
        elif self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else float(value)

    def bin(self, share: float) -> float | int:
        """The number for a share in [0, 1) of a hypercube: for whole numbers each of them has the same part of a linear range."""
        if not self.whole or self.log:
            return self.at(share)
        return min(int(self.low) + math.floor(share * (self.high - self.low + 1)), int(self.high))

    def even(self, count: int) -> tuple[float | int, ...]:
        """`count` numbers at even distances; whole ones each once, so that there may be fewer."""
        if count < 2:
            raise UsageError(f"a range needs at least 2 values, not {count}")
        if count > MOST_CELLS:
            raise UsageError(f"{count:,} values are more than {MOST_CELLS:,}, the most a sweep has")
        return tuple(dict.fromkeys(self.at(i / (count - 1)) for i in range(count)))

    def document(self) -> dict[str, Any]:
        """As a specification writes it."""
        out: dict[str, Any] = {"from": self.low, "to": self.high}
        return {**out, **({"scale": "log"} if self.log else {}), **({"whole": True} if self.whole else {})}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One field and the values a grid gives it: plain values as YAML has them."""

    field: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UsageError(f"{self.field}: no values to sweep over")
        if len(self.values) > MOST_CELLS:
            raise UsageError(
                f"{self.field}: {len(self.values):,} values are more than {MOST_CELLS:,}, the most a sweep has"
            )
        texts = [json.dumps(value, sort_keys=True) for value in self.values]
        twice = (
            next((text for i, text in enumerate(texts) if text in set(texts[:i])), None) if _repeats(texts) else None
        )
        if twice is not None:
            raise UsageError(f"{self.field}: the value {twice} is given twice")


def _repeats(texts: Sequence[str]) -> bool:
    return len(set(texts)) < len(texts)


@dataclass(frozen=True, kw_only=True)
class Latin:
    """A Latin hypercube: `samples` points, every field's range cut into as many strata, one point in each (McKay et al. 1979)."""

    fields: tuple[tuple[str, Span], ...]
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.fields:
            raise UsageError("a Latin hypercube needs at least one field")
        if not 1 <= self.samples <= MOST_CELLS:
            raise UsageError(f"a Latin hypercube has from 1 to {MOST_CELLS:,} samples, not {self.samples:,}")
        if self.seed < 0:
            raise UsageError(f"a seed is at least 0, not {self.seed}")

    def points(self) -> list[tuple[Any, ...]]:
        """The points, from scipy.stats.qmc; the same for the same seed."""
        from scipy.stats import qmc

        keyword = (
            "rng" if "rng" in inspect.signature(qmc.LatinHypercube).parameters else "seed"
        )  # scipy 1.15 renamed it
        seeded: Any = {keyword: np.random.default_rng(self.seed)}
        sampler = qmc.LatinHypercube(len(self.fields), **seeded)
        spans = [span for _, span in self.fields]
        return [
            tuple(span.bin(share) for span, share in zip(spans, row, strict=True))
            for row in sampler.random(self.samples).tolist()
        ]


def fields_of(axes: Sequence[Axis], latin: Latin | None) -> tuple[str, ...]:
    """The swept fields, those of the grid first. Raises UsageError where one stands twice, or inside another, or nothing does."""
    fields = [axis.field for axis in axes] + ([] if latin is None else [name for name, _ in latin.fields])
    if not fields:
        raise UsageError("nothing to sweep over: name at least one field (--over path=a,b,c or --latin path=low..high)")
    if len(fields) > MOST_FIELDS:
        raise UsageError(f"{len(fields)} fields are more than {MOST_FIELDS}, the most a sweep has")
    for one, other in itertools.combinations(fields, 2):
        short, long = sorted((one, other), key=len)
        if f"{long}.".startswith(f"{short}."):
            raise UsageError(f"{long} is swept twice" if one == other else f"{long} is swept twice, also by {short}")
    twice = clash(fields)
    if twice is not None:
        raise UsageError(f"{twice} is swept twice, also by {SPEED_RATIO}")
    return tuple(fields)


def cell_count(axes: Sequence[Axis], latin: Latin | None) -> int:
    """How many points there are. Raises UsageError where that is too many."""
    count = math.prod(len(axis.values) for axis in axes) * (1 if latin is None else latin.samples)
    if count > MOST_CELLS:
        raise UsageError(f"{count:,} cells are more than {MOST_CELLS:,}, the most a sweep has")
    return count


def points(axes: Sequence[Axis], latin: Latin | None) -> Iterator[tuple[Any, ...]]:
    """Every point, its values in the order of `fields_of`; the last axis changes fastest, the hypercube faster still."""
    inner = [()] if latin is None else latin.points()
    for outer in itertools.product(*(axis.values for axis in axes)):
        for rest in inner:
            yield (*outer, *rest)


def split_flag(text: str, flag: str) -> tuple[str, str]:
    """(field, values) of `path=values`."""
    field, equals, values = text.partition("=")
    if not equals or not field.strip() or not values.strip():
        raise UsageError(f"{flag} {text}: must read path=a,b,c, path=low..high:count or path=low..high:count:log")
    return ".".join(part.strip() for part in field.split(".")), values.strip()


def read_axis(text: str) -> Axis:
    """An axis as typed: `path=a,b,c` or `path=low..high:count[:log][:whole]`.

    >>> read_axis("network.bandwidth_gbit_per_s=1..100:3:log").values
    (1.0, 10.0, 100.0)
    """
    from hetsim.cluster.document import parse_document

    field, values = split_flag(text, "--over")
    found = read_span(values, f"--over {text}")
    if found is not None:
        span, count = found
        if count is None:
            raise UsageError(f"--over {text}: how many values? write {values}:5 for five")
        return Axis(field=field, values=span.even(count))
    return Axis(field=field, values=tuple(parse_document(v, f"--over {text}").plain() for v in values.split(",")))


def read_latin(texts: Sequence[str], samples: int, seed: int) -> Latin | None:
    """A hypercube as typed: each text is `path=low..high[:log][:whole]`; None where there are none."""
    fields = []
    for text in texts:
        field, values = split_flag(text, "--latin")
        found = read_span(values, f"--latin {text}")
        if found is None or found[1] is not None:
            raise UsageError(
                f"--latin {text}: must read path=low..high or path=low..high:log; --samples says how many points"
            )
        fields.append((field, found[0]))
    return Latin(fields=tuple(fields), samples=samples, seed=seed) if fields else None


def read_span(text: str, flag: str) -> tuple[Span, int | None] | None:
    """`low..high[:count][:log][:whole]` as a range and its count; None where the text has no `..`."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    words = [word.strip() for word in match[3].split(":")[1:]]
    counts = [word for word in words if word.isdecimal() and len(word) < 10]
    unknown = [word for word in words if word not in ("log", "whole", *counts)]
    if unknown or len(set(words)) < len(words) or len(counts) > 1:
        raise UsageError(f"{flag}: after low..high come a count, log and whole, each once, not {':'.join(words)!r}")
    try:
        low, high = float(match[1]), float(match[2])
    except ValueError:
        raise UsageError(f"{flag}: {match[1]}..{match[2]} is no range of numbers") from None
    try:
        span = Span(low=low, high=high, log="log" in words, whole="whole" in words)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None
    return span, int(counts[0]) if counts else None
