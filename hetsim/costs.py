"""What a time on a cluster costs: every worker's price per hour and its GPU's rated power, stated or the catalogue's, never guessed.

Where one worker's price (or power) is unknown, the cluster has no cost (or energy): half a bill is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetsim.cluster.spec import Cluster
from hetsim.comparison import Cost, Tariff

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
HOW = (
    "every worker for the whole time, at its price per hour and its GPU's rated power; hosts and network are not in it"
)


def cost(cluster: Cluster, seconds: float | None) -> Cost | None:
    """What that many seconds of the whole cluster cost; None where no worker has a price or a power."""
    prices = [w.price_per_h for w in cluster.workers]
    powers = [w.power_w for w in cluster.workers]
    if all(p is None for p in (*prices, *powers)):
        return None
    usd_per_h, power_w = total(prices), total(powers)
    return Cost(
        usd_to_target=None if usd_per_h is None or seconds is None else usd_per_h * seconds / SECONDS_PER_HOUR,
        kwh_to_target=None if power_w is None or seconds is None else power_w * seconds / JOULES_PER_KWH,
        usd_per_h=usd_per_h,
        power_w=power_w,
    )


def total(values: Sequence[float | None]) -> float | None:
    """The sum, None where one is unknown."""
    known = [v for v in values if v is not None]
    return math.fsum(known) if len(known) == len(values) else None


def tariffs(cluster: Cluster) -> dict[str, Tariff]:
    """Worker -> price and power with their sources."""
    return {
        w.name: Tariff(
            gpu=w.gpu,
            price_per_h=w.price_per_h,
            price_source=w.price_source or None,
            power_w=w.power_w,
            power_source=w.power_source or None,
        )
        for w in cluster.workers
    }


def cost_notes(found: Mapping[str, Any]) -> list[str]:
    """Lines for a reader, of tariffs as plain values: how the figures came about, each source once, and what is missing."""
    notes = []
    for what, unit, key in (
        ("cost", "a price per hour (price_per_h)", "price"),
        ("energy", "a power (power_w)", "power"),
    ):
        value = "price_per_h" if key == "price" else "power_w"
        missing = [name for name, tariff in found.items() if tariff[value] is None]
        if len(missing) == len(found):
            continue
        if missing:
            notes.append(f"no {what}: {_listed(_named(missing, found))} without {unit}, stated or in the catalogue")
            continue
        by_source: dict[str, dict[str, list[str]]] = {}
        for name, tariff in found.items():
            said = f"${tariff[value]:,.2f}/h" if key == "price" else f"{tariff[value]:,.0f} W"
            by_source.setdefault(tariff[f"{key}_source"] or "stated", {}).setdefault(said, []).append(name)
        for source, by_value in by_source.items():
            who = "; ".join(f"{_listed(names)} {said}" for said, names in by_value.items())
            notes.append(f"{what}: {who} ({source})")
    known = any(not note.startswith("no ") for note in notes)
    return [*notes, f"cost and energy: {HOW}"] if known else notes


def _named(names: Iterable[str], found: Mapping[str, Any]) -> list[str]:
    return [f"{name} ({found[name]['gpu']})" if found[name]["gpu"] else name for name in names]


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
