"""Who gets which samples: one cursor shared by all workers."""

from __future__ import annotations


class Dispenser:
    """Hands out sample numbers 0, 1, 2 … once each, up to `budget`; a range never crosses an epoch's end."""

    __slots__ = ("budget", "cursor", "epoch_end", "epoch_samples")

    def __init__(self, epoch_samples: int, budget: int) -> None:
        self.epoch_samples = epoch_samples
        self.budget = budget
        self.cursor = 0
        self.epoch_end = min(epoch_samples, budget)

    @property
    def exhausted(self) -> bool:
        """Nothing is left for anybody."""
        return self.cursor >= self.budget

    def take(self, samples: int) -> int:
        """Take up to `samples` from the cursor on; the range is [cursor - taken, cursor). 0 when exhausted."""
        left = self.epoch_end - self.cursor
        if samples < left:
            self.cursor += samples
            return samples
        if left == 0:
            return 0
        self.cursor += left
        self.epoch_end = min(self.epoch_end + self.epoch_samples, self.budget)
        return left
