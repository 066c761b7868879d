"""A transfer in the terms that sharing needs: a latency, then bytes that occupy directed links."""

from __future__ import annotations

from dataclasses import dataclass

LinkId = int
"""One direction of one link of a `Fabric`."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """`latency_s` without occupying anything, then `size_bytes` at the rate r that the crossed links leave.

    `crossings` holds (link, multiplicity): the transfer uses multiplicity · r of that link's bytes/s. `size_bytes` counts what is pushed
    through a link of multiplicity 1 (ring: 2(n-1)/n · M). Alone on constant links it takes latency_s + size_bytes / min(capacity / m).
    `then` follows as soon as this is through (the phases of a hierarchical all-reduce).
    """

    latency_s: float
    size_bytes: float
    crossings: tuple[tuple[LinkId, float], ...] = ()
    then: Transfer | None = None

    def phases(self) -> tuple[Transfer, ...]:
        """This transfer and all that follow it."""
        return (self,) if self.then is None else (self, *self.then.phases())


NOTHING = Transfer(0.0, 0.0)
"""What one worker alone has to send."""
