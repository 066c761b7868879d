"""First rows while a comparison still learns: on a terminal, the timing of every algorithm at once, then a bar.

The preview is a short simulation without prediction, so it stands within a second; where stderr is no terminal there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from hetsim import wording
from hetsim.cli.terminal import err, progress_bar

if TYPE_CHECKING:
    from hetsim.cluster import Profile

UPDATES = 100  # enough for two digits [our choice]
MOST_WORKERS = 64  # on larger clusters the preview would itself take long [our choice]


class Preview:
    """Shows timing first, then progress; `done` is a comparison's progress callback."""

    def __init__(self, profile: Profile, algorithms: Sequence[str] | None, seed: int) -> None:
        self._profile, self._algorithms, self._seed = profile, algorithms, seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if err().is_terminal:
            self._first_rows()
        self._advance = self._stack.enter_context(progress_bar("tuning and predicting"))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def done(self, label: str, finished: int, total: int) -> None:
        """One more algorithm is complete."""
        self._advance(finished, total, f"tuning and predicting ({label} done)" if finished < total else "writing")

    def _first_rows(self) -> None:
        from hetsim.labels import contenders
        from hetsim.simulate import simulate

        chosen = contenders(self._algorithms)
        cluster = self._profile.cluster()
        for one in chosen:
            one.algorithm(cluster.options)
        if cluster.n > MOST_WORKERS:
            return
        console = err()
        console.print("[bold]timing first[/bold], over a few updates; what it means for learning follows")
        for one in chosen:
            t = simulate(cluster, one.algorithm(cluster.options), seed=self._seed, updates=UPDATES).timing
            rate, period = wording.rate(t.samples_per_s), wording.seconds(t.update_period_s)
            console.print(f"  {one.label:<46} {rate:>9} samples/s  {period:>8} per update", soft_wrap=True)
