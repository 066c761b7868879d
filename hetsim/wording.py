"""Numbers as people read them, the same in tables, figures and reports."""

from __future__ import annotations

import math

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
