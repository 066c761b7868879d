"""A batch cut into passes that fit in memory."""

from __future__ import annotations

from hetsim.errors import UsageError


def passes(samples: int, cap: int | None) -> tuple[int, ...]:
    """`samples` in the fewest parts of at most `cap`, equal within one, the larger ones first; () for no samples.

    Raises UsageError for a cap below one sample and for negative samples.
    """
    if samples < 0:
        raise UsageError(f"a batch of {samples} samples")
    if cap is not None and cap < 1:
        raise UsageError(f"memory for {cap} samples: not one fits")
    if samples == 0:
        return ()
    parts = 1 if cap is None else -(-samples // cap)
    size, larger = divmod(samples, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)
