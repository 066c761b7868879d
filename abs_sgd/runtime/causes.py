"""What a program gives as the cause of its waiting or the reason of a discard, from its words to the Schedule's."""

from __future__ import annotations

from hetsim.errors import ProgramError
from hetsim.schedule.kinds import DiscardReason, WaitCause


def discard_reason(algorithm: str, text: str) -> DiscardReason:
    """The reason a program gives. Raises ProgramError for one that is not known."""
    try:
        return DiscardReason[text.upper().replace("-", "_")]
    except KeyError:
        raise ProgramError(f"{algorithm} discards for the unknown reason {text!r}") from None


def wait_cause(algorithm: str, text: str, otherwise: WaitCause) -> WaitCause:
    """What a program puts its waiting down to. Raises ProgramError for a cause that is not known."""
    try:
        return WaitCause[text.upper()] if text else otherwise
    except KeyError:
        raise ProgramError(f"{algorithm} waits for the unknown cause {text!r}") from None
