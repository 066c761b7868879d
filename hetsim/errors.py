"""Every error a user can meet; the command line prints them without a traceback.

HetsimError             anything hetsim refuses to do, with the reason
  ProfileError          a profile is wrong: every problem, each with file:line:column
  UsageError            a request that cannot be met (unknown name, bad option)
  MissingExtraError     a feature needs a package that is not installed
  ScheduleError         a Schedule breaks one of its invariants
    ScheduleFileError   a file holds no Schedule, or a damaged one
  SimulationError       a run failed
    RunTooLongError     a run's log would not fit into memory
    DeadlockError       every worker waits; prints what each one waits for
    ProgramError        an algorithm breaks the contract of hetsim.commands
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class HetsimError(Exception):
    """Anything hetsim refuses to do; the message is written for the user."""

    exit_code = 1


class UsageError(HetsimError):
    """A request that cannot be met: unknown name, bad option, wrong combination."""

    exit_code = 2


class MissingExtraError(UsageError):
    """A feature needs an optional package."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package: pip install 'hetsim[{extra}]'")
        self.extra = extra


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a profile: where (1-based line and column), what, and what to do about it.

    `file` is set where the problem does not stand in the profile itself but in one it extends, a trace, or a `--set`.
    """

    path: str
    message: str
    hint: str = ""
    line: int | None = None
    column: int | None = None
    file: str | None = None

    def render(self, file: str) -> str:
        file = self.file or file
        where = file if self.line is None else f"{file}:{self.line}:{self.column or 1}"
        what = f"{self.path}: {self.message}" if self.path else self.message
        return f"{where}: {what}" + (f" ({self.hint})" if self.hint else "")


class ProfileError(UsageError):
    """A profile is wrong. `problems` lists all that was found, in file order."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(p.render(file) for p in self.problems))


class ScheduleError(HetsimError):
    """A Schedule breaks one of its invariants."""


class ScheduleFileError(ScheduleError):
    """A file holds no Schedule, or a damaged one: bad input, where a ScheduleError of a run is a failure of hetsim's own."""

    exit_code = 2


class SimulationError(HetsimError):
    """A run failed."""


class ProgramError(SimulationError):
    """An algorithm breaks the contract of `hetsim.commands`."""


class RunTooLongError(SimulationError):
    """A run makes more operations than a log holds; `most` is how many that is."""

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(
            f"the run makes more than {most:,} operations, the most a log holds: ask for fewer updates (--updates) or a smaller "
            "training.max_samples, or look for a transfer that takes for ever while workers compute on"
        )


class DeadlockError(SimulationError):
    """Every worker waits and nothing is left that could wake one. `grid` says what each waits for."""

    def __init__(self, now_s: float, grid: Sequence[str]) -> None:
        self.now_s = now_s
        self.grid = tuple(grid)
        super().__init__(f"deadlock at {now_s:.6g} s: nobody can go on\n" + "\n".join(self.grid))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or lists them all when none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(known)
