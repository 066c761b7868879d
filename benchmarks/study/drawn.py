"""Clusters drawn at random: where ABS-SGD pays, and a rule of one line for it.

    python benchmarks/study/drawn.py -o study/drawn --clusters 120

Workers: 4, 8 or 16, each one of the GPUs of one published study; a bandwidth of 1 to 50 Gbit/s, and on every other cluster one link of a
tenth of it; jitter of 0 to 20 %. Five algorithms (`CONTESTANTS`) at their best batch, learning rate and momentum, by steady states
(docs/sweeps.md: errors of up to 9 % for one algorithm on one cluster, 1.4 % in the median), one seed. Printed: on how many clusters ABS-SGD
wins, by what that is told apart best, and the rule checked on the half of the clusters that it was not made from.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pieces
from design import MAX_SAMPLES, OWN, Contestant, contestants
from pieces import compute, soonest, tried
from results import markdown

from hetsim import load_profile, writing
from hetsim.cluster import Profile
from hetsim.compute.model import pass_model
from hetsim.network.fabric import Fabric
from hetsim.yardsticks import critical_seconds

GPUS = ("A100", "QuadroRTX6000", "RTX2080Ti", "T4")  # measured in one study (Sia, SOSP 2023)
SIZES = (4, 8, 16)
BANDWIDTHS = (1.0, 50.0)  # Gbit/s, log-uniform
JITTER = (0.0, 0.02, 0.05, 0.1, 0.2)
SLOW = 10.0
CONTESTANTS = (
    "s-sgd",
    "lb-bsp",
    "local-sgd",
    "one-step-delay-balanced",
    "abs-sgd",
)  # the soonest of the nine clusters of the study


def draw(index: int, *overrides: str) -> Profile:
    """The cluster of that number; every number gives the same cluster always."""
    rng = np.random.default_rng([2026, index])
    size = SIZES[index % len(SIZES)]
    bandwidth = float(round(math.exp(rng.uniform(*np.log(BANDWIDTHS))), 2))
    jitter = float(rng.choice(JITTER))
    kinds = int(rng.integers(1, len(GPUS) + 1))
    of = rng.choice(rng.permutation(GPUS)[:kinds], size=size)
    workers = [{"name": f"w{i}", "gpu": str(gpu), "jitter_cv": jitter} for i, gpu in enumerate(of)]
    document: dict[str, Any] = {
        "schema_version": 1, "name": f"drawn-{index}", "extends": "mixed-gpu-4", "workers": workers,
        "network": {"bandwidth_gbit_per_s": bandwidth},
        "training": {"max_samples": MAX_SAMPLES},
    }  # fmt: skip
    if rng.random() < 0.5:
        document["network"]["links"] = {"w0": {"bandwidth_gbit_per_s": round(bandwidth / SLOW, 3)}}
    return load_profile(json.dumps(document) + "\n", overrides=overrides)


def features(profile: Profile) -> dict[str, float]:
    """What a person knows of a cluster before anything is simulated.

    `all_reduce_s`: one ring all-reduce; `critical_s`: in which the whole cluster computes a critical batch, nobody waiting; `spread`: speed
    of the fastest over that of the slowest, in samples/s at 128 samples.
    """
    cluster = profile.cluster()
    speeds = [128 / pass_model(w).seconds(128) for w in cluster.workers]
    payload, everybody = cluster.workload.gradient_bytes, tuple(range(cluster.n))
    return {
        "workers": float(cluster.n),
        "all_reduce_s": Fabric.of(cluster).all_reduce_seconds(everybody, payload),
        "critical_s": critical_seconds(cluster),
        "spread": max(speeds) / min(speeds),
        "jitter": cluster.workers[0].jitter_cv,
    }


def piece(folder: Path, index: int) -> str:
    """Every algorithm on one cluster."""
    profile = draw(index)
    found = {one.name: _best(index, one) for one in contestants() if one.name in CONTESTANTS}
    document = {"index": index, "profile": profile.name, "features": features(profile), "seconds": found}
    writing.write_file(_place(folder, index), json.dumps(document, indent=1, allow_nan=False) + "\n")
    return profile.name


def _best(index: int, one: Contestant) -> dict[str, Any] | None:
    best = soonest(tried(one, lambda value: draw(index, f"{one.path}={value}").cluster()))
    return None if best is None else {key: best[key] for key in ("batch", "label", "seconds")}


def _place(folder: Path, index: int) -> Path:
    return folder / f"drawn-{index:04d}.json"


# ---- the rule ------------------------------------------------------------------------------------------------------------------------

Drawn = Mapping[str, Any]
QUANTITIES: Mapping[str, Callable[[Mapping[str, float]], float]] = {  # of which the rule takes the one that tells most
    "all-reduce / time for a critical batch": lambda f: f["all_reduce_s"] / f["critical_s"],
    "fastest / slowest GPU": lambda f: f["spread"],
    "jitter": lambda f: f["jitter"],
    "workers": lambda f: f["workers"],
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """ABS-SGD is faster where the quantity is at least the threshold (or at most, where `above` is false)."""

    quantity: str
    threshold: float
    above: bool

    def says(self, features: Mapping[str, float]) -> bool:
        """Whether it expects ABS-SGD to be faster."""
        return (QUANTITIES[self.quantity](features) >= self.threshold) == self.above


def seconds(drawn: Drawn, name: str) -> float:
    """Infinite where the target was not reached."""
    found = drawn["seconds"][name]
    return math.inf if found is None else float(found["seconds"])


def gain(drawn: Drawn, over: Sequence[str]) -> float:
    """How many times as fast as the best of some others ABS-SGD is."""
    return min(seconds(drawn, name) for name in over) / seconds(drawn, OWN)


def right(rule: Rule, clusters: Sequence[Drawn], over: Sequence[str]) -> float:
    """Share of the clusters on which the rule is right."""
    return sum(rule.says(c["features"]) == (gain(c, over) > 1.0) for c in clusters) / len(clusters)


def best_rule(clusters: Sequence[Drawn], over: Sequence[str]) -> Rule:
    """Of every quantity and every threshold halfway between two clusters, the rule that is right most often; ties go to the first."""
    rules = []
    for name, quantity in QUANTITIES.items():
        values = sorted({quantity(c["features"]) for c in clusters})
        for a, b in pairwise(values):
            rules += [Rule(quantity=name, threshold=(a + b) / 2, above=above) for above in (True, False)]
    return max(rules, key=lambda rule: right(rule, clusters, over))


AGAINST = {  # what ABS-SGD is held against
    "lb-bsp and s-sgd": ("s-sgd", "lb-bsp"),
    "these and local-sgd": ("s-sgd", "lb-bsp", "local-sgd"),
    "one-step-delay-balanced": ("one-step-delay-balanced",),
}


def tables(clusters: Sequence[Drawn]) -> str:
    """How often ABS-SGD is faster, by how much, and the rule for it: made from the even clusters, checked on the odd ones."""
    made, held = clusters[::2], clusters[1::2]
    head = [
        "abs-sgd against",
        "faster on",
        "median (10 % – 90 %)",
        "rule from one half",
        "right there",
        "right on the other half",
        "guessing",
    ]
    rows = []
    for name, over in AGAINST.items():
        gains = [gain(c, over) for c in clusters]
        wins, rule = sum(g > 1.0 for g in gains), best_rule(made, over)
        low, middle, high = np.quantile(gains, [0.1, 0.5, 0.9], method="nearest")
        usual = sum(gain(c, over) > 1.0 for c in made) * 2 > len(made)
        guess = sum((gain(c, over) > 1.0) == usual for c in held) / len(held)
        rows.append(
            [name, f"{wins} of {len(clusters)}", f"{middle:.2f} ({low:.2f} – {high:.2f})",
             f"{rule.quantity} {'≥' if rule.above else '≤'} {rule.threshold:.2g}",
             *(f"{100 * share:.0f} %" for share in (right(rule, made, over), right(rule, held, over), guess))]
        )  # fmt: skip
    return "\n\n".join([markdown(head, rows), bands(clusters)])


def bands(clusters: Sequence[Drawn], count: int = 5) -> str:
    """Gains in bands of the first quantity, equally many clusters in each."""
    name, quantity = next(iter(QUANTITIES.items()))
    ordered = sorted(clusters, key=lambda c: quantity(c["features"]))
    rows = []
    for part in np.array_split(np.arange(len(ordered)), min(count, len(ordered))):
        those = [ordered[i] for i in part]
        ends = [quantity(those[i]["features"]) for i in (0, -1)]
        medians = [f"{np.median([gain(c, over) for c in those]):.2f}" for over in AGAINST.values()]
        rows.append([f"{_two(ends[0])} – {_two(ends[1])}", str(len(those)), *medians])
    return markdown([name, "clusters", *(f"over {against}" for against in AGAINST)], rows)


def _two(value: float) -> str:
    """Two digits, without an exponent.

    >>> _two(112.3), _two(0.0491)
    ('110', '0.049')
    """
    return f"{float(f'{value:.2g}'):g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", required=True, metavar="DIR")
    parser.add_argument("--clusters", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write all clusters into one file")
    asked = parser.parse_args(arguments)
    folder = Path(asked.output)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [i for i in range(asked.clusters) if not _place(folder, i).exists()]
    compute(piece, [(folder, i) for i in missing], asked.jobs)
    found = pieces.read(folder, {"features"})
    if asked.keep is not None:
        pieces.keep(found, asked.keep)
    print(tables(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
