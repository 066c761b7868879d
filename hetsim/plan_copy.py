"""A plan as lines to copy, into one's own script and into a shell; and the batches to choose from, as they are typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hetsim.algorithms import get
from hetsim.errors import UsageError
from hetsim.plan import Plan

DIGITS = 4  # of a loss weight: off by less than a sample in a thousand


def command_words(profile: str, overrides: Sequence[str] | None) -> str:
    """What was planned for, to be typed again."""
    words = [profile]
    for override in overrides or ():
        words += ["--set", override]
    return shlex.join(words)


def copy(p: Plan, given: str) -> list[str]:
    """Lines for a script and for a shell; never wrapped."""
    lines = []
    if p.split != "open":
        batches = [round(share.batch_samples) for share in p.workers]
        lines = [
            f"batch = {batches}  # samples of each rank and update",
            f"accumulate = {[round(share.passes) for share in p.workers]}  # passes of a rank's batch",
        ]
        if len(set(batches)) > 1:
            weights = [round(share.loss_weight, DIGITS) for share in p.workers]
            lines.append(f"loss_weight = {weights}  # × a rank's mean loss under DDP")
    else:
        lines = [f"micro_batch = {[share.pass_samples for share in p.workers]}  # samples of each rank's pass"]
    words = [given, "-a", shlex.quote(p.label), *(f"--set {path}={value}" for path, value in p.overrides.items())]
    arguments = " ".join(words)
    lines.append(f"hetsim simulate {arguments}")
    kind = get(p.algorithm)
    if kind.live is True and not kind.has_server:
        lines.append(f"torchrun --nproc-per-node {len(p.workers)} -m abs_sgd {arguments} -o run")
    return lines


def read_batches(text: str | None) -> list[int] | None:
    """`512,1024` as numbers; None where nothing is said. Raises UsageError."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 10**9 for part in parts):
        raise UsageError(f"--batches {text}: whole numbers of samples, at least 1, with commas between them")
    return [int(part) for part in parts]
