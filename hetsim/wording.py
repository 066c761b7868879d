"""Numbers as people read them, the same in tables, figures and reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NONE = "–"  # not computed, or does not apply


def seconds(value: float | None) -> str:
    """12.3 ms, 4.56 s, 12 min 05 s, 3 h 20 min."""
    if value is None or not math.isfinite(value):
        return NONE
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    if value < 600:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes:02d} min"


def count(value: float | None) -> str:
    """12 345."""
    return NONE if value is None or not math.isfinite(value) else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Samples per second: whole from 100 on, else three digits."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def percent(share: float | None, digits: int = 0) -> str:
    """42 %; a little is not nothing: <1 %."""
    if share is None or not math.isfinite(share):
        return NONE
    if 0 < share < 0.5 * 10 ** -(digits + 2):
        return f"<{10**-digits:g} %"
    return f"{100 * share:.{digits}f} %"


def size(value: float | None) -> str:
    """Bytes: 44.7 MB."""
    if value is None or not math.isfinite(value):
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def bandwidth(bytes_per_s: float) -> str:
    """9.4 Gbit/s."""
    if not math.isfinite(bytes_per_s):
        return "free"
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def staleness(mean: float | None, most: int | None) -> str:
    """Updates of delay: `1`, or `2.9 (max 5)` where they vary."""
    if mean is None or most is None:
        return NONE
    text = f"{mean:.2g}" if abs(mean - round(mean)) > 0.005 else f"{round(mean)}"
    return text if round(mean) == most else f"{text} (max {most})"


def option_text(options: dict[str, object]) -> str:
    """`trigger=min_samples,min_samples=64`."""
    return ",".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()
    )


# ---- cells of a comparison's rows (plain values, as in its JSON) ---------------------------------------------------------------


def speedup_cell(row: Mapping[str, Any]) -> str:
    """`1.31 (1.27 – 1.33)` times the best baseline."""
    speedup = row.get("speedup_over_best_baseline")
    if not speedup or speedup["value"] is None:
        return NONE
    return ratio_cell(speedup["value"], speedup["low"], speedup["high"])


def ratio_cell(value: float, low: float | None, high: float | None) -> str:
    """`1.31 (1.27 – 1.33)`."""
    return f"{value:.2f}" + _around(low, high, lambda v: f"{v:.2f}")


def _around(low: float | None, high: float | None, say: Callable[[float], str]) -> str:
    """The interval, where there is one, however narrow; an end that is not known stays open."""
    if low == high:  # neither is known, or nothing depends on luck: the best baseline over itself
        return ""
    left, right = ("" if low is None else say(low)), ("never" if high is None else say(high))
    return f" ({left} – {right})"


def cost_cell(row: Mapping[str, Any]) -> str:
    """`$0.42`, of the time to target at the profile's prices."""
    cost = row.get("cost")
    usd = cost.get("usd_to_target") if cost else None
    return NONE if usd is None else f"${usd:,.2f}" if usd >= 0.095 else f"${usd:.2g}"


def energy_cell(row: Mapping[str, Any]) -> str:
    """`0.42 kWh`, of the time to target at rated power."""
    cost = row.get("cost")
    kwh = cost.get("kwh_to_target") if cost else None
    return NONE if kwh is None else f"{kwh:,.1f} kWh" if kwh >= 9.95 else f"{kwh:.2g} kWh"


def rate_cell(row: Mapping[str, Any]) -> str:
    """`0.05, β 0.9`: what tuning chose."""
    if row.get("learning_rate") is None:
        return NONE
    return f"{row['learning_rate']:.3g}" + ("" if row["momentum"] is None else f", β {row['momentum']:g}")


def time_column(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Callable[[Mapping[str, Any]], str]]:
    """Unit for a whole column of times to target, that of the fastest, and the cell in it: `52.1 (50.9 – 53.0)`, `not reached`."""
    times = [row.get("time_to_target_s") or {} for row in rows]
    least = min((t["median"] for t in times if t.get("median")), default=0.0)
    unit, divisor = ("h", 3600.0) if least > 3 * 3600 else ("min", 60.0) if least > 600 else ("s", 1.0)

    def say(value: float) -> str:
        value /= divisor
        decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
        return f"{value:,.{decimals}f}" if value >= 0.995 else f"{value:.3g}"

    def cell(row: Mapping[str, Any]) -> str:
        time = row.get("time_to_target_s")
        if not time:
            return NONE
        if time["median"] is None:
            return "not reached" if not time["reached"] else f"not reached ({time['reached']}/{time['seeds']})"
        return say(time["median"]) + _around(time["low"], time["high"], say)

    return unit, cell
