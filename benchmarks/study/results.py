"""What the study found, from the pieces in its folder: tables in Markdown.

    python benchmarks/study/results.py study                                        # the folder of run.py
    python benchmarks/study/results.py study --keep benchmarks/study/found.jsonl    # and all of it in one file
    python benchmarks/study/results.py benchmarks/study/found.jsonl                 # what docs/study.md shows

Ratios are of times to target on the same seed (`hetsim.intervals.paired_ratio`): median, and the range over five seeds, which holds the
median in 93.8 % of cases. Luck is all that varies in it; other clusters vary more (`drawn.py`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pieces as kept
from design import (
    ABLATION,
    ABLATION_LITERAL,
    KINDS,
    LITERAL,
    OWN,
    SIZES,
    published,
    published_gradient,
    published_plain,
)

from hetsim.intervals import Interval, interval, paired_ratio

# What each part is worth: how many times faster the second is than the first.
PARTS = (
    ("the delay (balanced batches, literal point)", "lb-bsp", ABLATION_LITERAL),
    ("the compute point, on balanced batches", ABLATION_LITERAL, ABLATION),
    ("the open batch, at the literal point", ABLATION_LITERAL, LITERAL),
    ("the compute point, on the open batch", LITERAL, OWN),
    ("the open batch, at the better point", ABLATION, OWN),
)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One algorithm on one cluster at its best batch. `seconds`: by seed, infinite where the target was not reached; one seed where runs
    are long."""

    kind: str
    size: int
    name: str
    seconds: tuple[float, ...]
    best: dict[str, Any] | None

    @property
    def median(self) -> float:
        return interval(self.seconds).median


def read(place: Path) -> list[Piece]:
    """All pieces there are, in a folder or in one file."""
    return [_piece(document) for document in kept.read(place)]


def _piece(document: dict[str, Any]) -> Piece:
    best = document["best"]
    seeds, found = (1, []) if best is None else (best["seeds"], best["seconds_by_seed"])
    seconds = [math.inf if s is None else float(s) for s in found]  # one alone where the first seed did not reach it
    whole = seconds if len(seconds) == seeds else [math.inf] * seeds
    return Piece(kind=document["kind"], size=document["size"], name=document["name"], seconds=tuple(whole), best=best)


def cluster(pieces: Sequence[Piece], kind: str, size: int) -> list[Piece]:
    """The algorithms on one cluster, soonest first."""
    return sorted((p for p in pieces if (p.kind, p.size) == (kind, size)), key=lambda p: (p.median, p.name))


def best_of(pieces: Iterable[Piece], which: Callable[[Piece], bool]) -> Piece | None:
    """The soonest of some, of those that reached the target on every seed."""
    return min(
        (p for p in pieces if which(p) and all(map(math.isfinite, p.seconds))),
        key=lambda p: (p.median, p.name),
        default=None,
    )


def ratio(pieces: Sequence[Piece], than: Piece | None, name: str) -> Interval | None:
    """How many times faster `name` is than another, on the seeds that both have; None where neither reached."""
    own = next((p for p in pieces if p.name == name), None)
    if own is None or than is None or own.best is None or than.best is None:
        return None
    both = min(len(own.seconds), len(than.seconds))
    return paired_ratio(than.seconds[:both], own.seconds[:both])


def over_kinds(pieces: Sequence[Piece], size: int, name: str, which: Callable[[Piece], bool]) -> Interval | None:
    """The geometric mean over the three kinds of cluster of `name` over the best of some baselines, seed by seed.

    None where on some cluster either is missing or did not reach the target.
    """
    logs = []
    for kind in KINDS:
        those = cluster(pieces, kind, size)
        own, than = next((p for p in those if p.name == name), None), best_of(those, which)
        if own is None or than is None or not all(map(math.isfinite, (*own.seconds, *than.seconds))):
            return None
        logs.append([math.log(b / a) for a, b in zip(own.seconds, than.seconds, strict=False)])
    return interval([math.exp(sum(each) / len(each)) for each in zip(*logs, strict=False)])


def published_baseline(piece: Piece) -> bool:
    """Methods as somebody has published them."""
    return published(piece.name)


def gradient_baseline(piece: Piece) -> bool:
    """Published methods that sum gradients; without those that average parameters."""
    return published_gradient(piece.name)


def plain_baseline(piece: Piece) -> bool:
    """Published methods that sum gradients as they are; also without those that correct them for their delay."""
    return published_plain(piece.name)


COMPARED: tuple[tuple[str, Callable[[Piece], bool]], ...] = (
    ("best published", published_baseline),
    ("best that sums gradients", gradient_baseline),
    ("best that sums them uncorrected", plain_baseline),
)


def tables(pieces: Sequence[Piece]) -> list[str]:
    """Everything, as Markdown."""
    parts = [headline(pieces), ablation(pieces)]
    return parts + [details(pieces, kind, size) for size in SIZES for kind in KINDS if cluster(pieces, kind, size)]


def headline(pieces: Sequence[Piece]) -> str:
    """ABS-SGD over the best baseline, cluster by cluster and in the mean over the kinds."""
    head = [
        "workers",
        "cluster",
        *(cell for name, _ in COMPARED for cell in (name, "abs-sgd ×")),
        "literal abs-sgd × best that sums gradients",
    ]
    rows = []
    for size in SIZES:
        there = [kind for kind in KINDS if cluster(pieces, kind, size)]
        for kind in there:
            those = cluster(pieces, kind, size)
            row = [str(size), kind]
            for _, which in COMPARED:
                than = best_of(those, which)
                row += [_named(than), said(ratio(those, than, OWN))]
            rows.append([*row, said(ratio(those, best_of(those, gradient_baseline), LITERAL))])
        if there:
            means = [said(over_kinds(pieces, size, OWN, which)) for _, which in COMPARED]
            literal = said(over_kinds(pieces, size, LITERAL, gradient_baseline))
            rows.append(
                [str(size), "**mean of the three**", *(cell for mean in means for cell in ("", f"**{mean}**")), literal]
            )
    return markdown(head, rows)


def ablation(pieces: Sequence[Piece]) -> str:
    """Which part of ABS-SGD does the work."""
    there = [(size, kind) for size in SIZES for kind in KINDS if cluster(pieces, kind, size)]
    head = ["what it is worth, ×", *(f"{kind}, {size}" for size, kind in there)]
    rows = []
    for what, first, second in PARTS:
        cells = []
        for size, kind in there:
            those = cluster(pieces, kind, size)
            than = next((p for p in those if p.name == first), None)
            cells.append(said(ratio(those, than, second)))
        rows.append([what, *cells])
    return markdown(head, rows)


def details(pieces: Sequence[Piece], kind: str, size: int) -> str:
    """Every algorithm on one cluster."""
    head = ["algorithm", "to target, s", "learning rate, β", "batch", "updates", "samples/s", "busy", "T/T*"]
    rows = []
    for piece in cluster(pieces, kind, size):
        name = f"`{piece.name}`"
        if piece.best is None or not math.isfinite(piece.median):
            rows.append([name, "not reached", *[""] * 6])
            continue
        row, spread = piece.best["row"], interval(piece.seconds)
        label = piece.best["label"]
        rows.append(
            [name if label == piece.name else f"`{label}`", with_range(spread, 0),
             f"{row['learning_rate']:.3g}, {row['momentum']:g}", f"{row['batch_samples']:,.0f}", f"{row['updates']:,.0f}",
             f"{row['samples_per_s']:,.0f}", f"{100 * row['utilisation']:.0f} %",
             "" if row["over_least"] is None else f"{row['over_least']:.2f}"]
        )  # fmt: skip
    return f"**{size} workers, {kind}** ({KINDS[kind]}-{size})\n\n" + markdown(head, rows)


def said(found: Interval | None) -> str:
    """A ratio with its range; a dash where there is none, which is where neither or the second alone reaches the target."""
    if found is None or not math.isfinite(found.median):
        return "–"
    if found.median == 0.0:
        return "not reached"
    return with_range(found, 2)


def with_range(found: Interval, digits: int) -> str:
    """A single seed has no range."""
    if found.low is None or found.high is None:
        return _number(found.median, digits)
    return f"{_number(found.median, digits)} ({_number(found.low, digits)} – {_number(found.high, digits)})"


def _named(piece: Piece | None) -> str:
    return "–" if piece is None else f"`{piece.name}`"


def _number(value: float, digits: int) -> str:
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; keep all pieces in one file where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path, help="folder of run.py, or the file that --keep wrote")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write all pieces into one file")
    asked = parser.parse_args(arguments)
    found = kept.read(asked.study)
    if asked.keep is not None:
        kept.keep(found, asked.keep)
    print("\n\n".join(tables([_piece(each) for each in found])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
