"""What a map is of, in the explorer's terms; without streamlit.

choices      fields to choose from for a profile, with ranges that suit it
MapOrder     a view, two axes, an algorithm: everything a map depends on
compute      the work of the job
cell_view    the view of one cell
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim.cluster import Profile
from hetsim.errors import HetsimError, UsageError
from hetsim.speedup_map import LABEL, MapCell, SpeedupMap, command, map_spec, overrides_at, speedup_map
from hetsim.sweeps.composed import SPEED_RATIO, ratio_of
from hetsim.sweeps.design import Axis, read_axis
from hetsim.webapp.view import View

BANDWIDTH = "network.bandwidth_gbit_per_s"
MOST_VALUES = 20  # of an axis [our choice]: more cells than one can tell apart
SHOW_EVERY_S = 0.5  # the map as it is so far [our choice]
MOST_GROUPS = 8  # whose own fields stand in the menu [our choice]; any other is reached by its path
SPACINGS = ("equal ratios", "equal steps", "whole numbers, equal ratios", "whole numbers, equal steps")
_MARKS = {
    "equal ratios": ":log",
    "equal steps": "",
    "whole numbers, equal ratios": ":log:whole",
    "whole numbers, equal steps": ":whole",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A field of the menu: its path, what it is called, its unit, what it means, and the range it starts with."""

    field: str
    name: str
    unit: str
    means: str
    low: float
    high: float
    count: int
    spacing: str = SPACINGS[0]

    @property
    def title(self) -> str:
        """Name and unit, for an axis."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


def choices(profile: Profile) -> tuple[Choice, ...]:
    """The fields of the menu for a profile, those that are asked for most first."""
    network, training = profile.network, profile.training
    gbit, whole = network.bandwidth_gbit_per_s, SPACINGS[2]
    batch, micro = training.global_batch_samples, training.micro_batch_samples
    workers = sum(entry.count or 1 for entry in profile.workers)
    found = [
        Choice(
            field=BANDWIDTH,
            name="bandwidth",
            unit="Gbit/s",
            means="Wire rate of every link that has none of its own.",
            low=gbit / 10,
            high=gbit * 10,
            count=7,
        ),
        Choice(
            field="network.latency_us",
            name="latency",
            unit="µs",
            means="One-way latency of every link that has none of its own.",
            low=10.0,
            high=10_000.0,
            count=4,
        ),
        Choice(
            field="training.global_batch_samples",
            name="global batch",
            unit="samples",
            means="Samples per update, where the algorithm fixes them.",
            low=max(workers, micro, batch // 4),
            high=4 * batch,
            count=5,
            spacing=whole,
        ),
        Choice(
            field="training.micro_batch_samples",
            name="micro-batch",
            unit="samples",
            means="Samples of one pass where a batch is taken in passes.",
            low=max(1, micro // 4),
            high=max(2, min(4 * micro, batch)),
            count=5,
            spacing=whole,
        ),
        Choice(
            field="network.overlap_slowdown",
            name="overlap slow-down",
            unit="",
            means="Compute takes this many times as long while a collective is in flight.",
            low=1.0,
            high=2.0,
            count=5,
            spacing=SPACINGS[1],
        ),
    ]
    for entry in profile.workers[:MOST_GROUPS]:
        link = network.links.get(entry.name)
        own = gbit if link is None or link.bandwidth_gbit_per_s is None else link.bandwidth_gbit_per_s
        found += [
            Choice(
                field=f"network.links.{entry.name}.bandwidth_gbit_per_s",
                name=f"bandwidth of {entry.name}",
                unit="Gbit/s",
                means=f"Wire rate of the link of {entry.name} alone.",
                low=own / 10,
                high=own * 10,
                count=7,
            ),
            Choice(
                field=f"workers.{entry.name}.jitter_cv",
                name=f"jitter of {entry.name}",
                unit="",
                means="Standard deviation of its step times over their mean.",
                low=0.0,
                high=0.5,
                count=6,
                spacing=SPACINGS[1],
            ),
        ]
    ratio = _ratio(profile)
    if ratio is None:
        return tuple(found)
    means = (
        "Speed of the fastest worker over that of the slowest, in passes over an equal share of the global batch. The fastest stays as it "
        "is; the others keep their places in between on a logarithmic scale, and all their passes slow down alike. "
        f"This profile has {ratio:.3g}."
    )
    return (Choice(field=SPEED_RATIO, name="speed ratio", unit="", means=means, low=1.0, high=16.0, count=5), *found)


def _ratio(profile: Profile) -> float | None:
    try:
        return ratio_of(profile)
    except HetsimError:
        return None


def axis_text(field: str, low: float, high: float, count: int, spacing: str = SPACINGS[0]) -> str:
    """A range as `--over` takes it.

    >>> axis_text("training.global_batch_samples", 128, 2048, 5, "whole numbers, equal ratios")
    'training.global_batch_samples=128..2048:5:log:whole'
    """
    return f"{field}={_number(low)}..{_number(high)}:{count}{_MARKS[spacing]}"


def _number(value: float) -> str:
    return f"{value:.9g}"


@dataclass(frozen=True, kw_only=True)
class MapOrder:
    """Everything a map depends on; `x` and `y` as `hetsim sweep --over` takes them."""

    view: View
    x: str
    y: str
    label: str = LABEL

    def axes(self) -> tuple[Axis, Axis]:
        """Both axes. Raises UsageError for what is none or too long."""
        found = read_axis(self.x), read_axis(self.y)
        for axis in found:
            if len(axis.values) > MOST_VALUES:
                raise UsageError(f"{axis.field}: {len(axis.values)} values; a map has up to {MOST_VALUES}")
        return found

    def check(self) -> tuple[str, ...]:
        """The labels that will be compared. Raises HetsimError for what can be seen at once: fields, values, algorithms.

        Every value of an axis is tried as an untrusted profile: paths come from a person whom this machine's files are none of.
        """
        axes = self.axes()
        profile = self.view.profile()
        spec = map_spec(profile, *axes, self.view.algorithms, label=self.label, seed=self.view.seed)
        for axis in axes:
            for value in axis.values:
                _with(self.view, overrides_at(profile, {axis.field: value})).profile()
        return spec.labels

    def command(self, labels: Sequence[str]) -> str:
        """The `hetsim sweep` with the same cells."""
        target = self.view.target
        stated = () if target is None else (f"training.target_loss={target!r}",)
        overrides = (*self.view.overrides, *stated)
        return command(self.view.file_name(), overrides, (self.x, self.y), labels, self.view.seed)


def compute(order: MapOrder, report: Callable[..., None]) -> SpeedupMap:
    """The work of the job: every cell is looked at as untrusted, then computed."""
    axes = order.axes()
    profile = order.view.profile()
    for x in axes[0].values:
        for y in axes[1].values:
            _with(order.view, overrides_at(profile, {axes[0].field: x, axes[1].field: y})).profile()
    shown_s, so_far = -math.inf, (0, 0)

    def progress(done: int, total: int) -> None:
        nonlocal so_far
        so_far = done, total
        report(done, total, f"{done} of {total} cells")

    def watch(partly: Callable[[], SpeedupMap]) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= SHOW_EVERY_S:
            shown_s = time.monotonic()
            report(*so_far, f"{so_far[0]} of {so_far[1]} cells", partly())

    return speedup_map(
        profile,
        *axes,
        order.view.algorithms,
        label=order.label,
        seed=order.view.seed,
        progress=progress,
        watch=watch,
    )


def cell_view(view: View, cell: MapCell) -> View:
    """The view of one cell: that of the map with what makes the cell."""
    return _with(view, cell.overrides)


def _with(view: View, overrides: Sequence[str]) -> View:
    """The view with other overrides of these paths."""
    paths = {_path(override) for override in overrides}
    kept = tuple(override for override in view.overrides if _path(override) not in paths)
    target = None if "training.target_loss" in paths else view.target
    return replace(view, overrides=(*kept, *overrides), target=target)


def _path(override: str) -> str:
    return ".".join(part.strip() for part in override.partition("=")[0].split("."))


def said(value: Any) -> str:
    """A value of an axis, short."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def clicked_cell(state: Any) -> tuple[int, int] | None:
    """(i, j) of the last point in what a chart says of its selection; None where no cell is in it."""
    for point in reversed(state["selection"]["points"] if state else []):
        carried = list(point.get("customdata") or ())
        if len(carried) >= 2:
            return int(carried[0]), int(carried[1])
    return None
