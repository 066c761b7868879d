"""Network models against published measurements: prints the tables of docs/how-far-to-trust.md.

    python benchmarks/published_network.py

1. Steps of ResNet18 on several T4 GPUs = the single-GPU step of the same study + the streamed all-reduce of
   `hetsim.network`. Three constants are fitted on every second placement and checked on the others; the rest is stated.
2. NCCL and JABAS all-reduce times: each point predicted from the others by a measured table and by a latency-bandwidth line.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hetsim.cluster import catalogue
from hetsim.cluster.spec import Link, Network
from hetsim.network import Fabric, bucket_bytes, stream_ready, streamed_finish
from hetsim.network.collectives import table_seconds

DATA = Path(__file__).parents[1] / "tests" / "data"
WORKLOAD = catalogue.workload("resnet18-cifar10")
BUCKETS = bucket_bytes(WORKLOAD.gradient_bytes)
LATENCY_S = 50e-6  # not fitted: the data leave it at zero
INSIDE_LATENCY_S = 10e-6

Rows = dict[str, dict[int, float]]  # seconds a step by placement and samples a GPU
Points = list[tuple[float, float]]  # (bytes, seconds)


@cache
def placements() -> Rows:
    rows: Rows = {}
    with (DATA / "network_t4_placements.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["placement"], {})[int(row["local_bsz"])] = float(row["step_s"])
    return rows


# ---- steps of several GPUs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """What is fitted: bytes/s between and inside nodes, and how much slower a step gets when the number of workers doubles."""

    between_bytes_per_s: float
    inside_bytes_per_s: float
    stretch: float


def fabric_of(placement: str, constants: Constants, flow_per_gpu: bool = False) -> Fabric:
    """`flow_per_gpu`: the rejected model, in which each GPU of a node sends the ring's volume through the node's link."""
    nodes = [f"n{k}" for k, digit in enumerate(placement) for _ in range(int(digit))]
    between = constants.between_bytes_per_s
    network = Network(
        topology="nodes",
        links=(Link(bytes_per_s=between, latency_s=LATENCY_S),) * len(nodes),
        node_links={
            node: Link(bytes_per_s=between / (nodes.count(node) if flow_per_gpu else 1), latency_s=LATENCY_S)
            for node in nodes
        },
        intra_node=Link(bytes_per_s=constants.inside_bytes_per_s, latency_s=INSIDE_LATENCY_S),
    )
    return Fabric(network, len(nodes), nodes)


def predict(placement: str, constants: Constants, flow_per_gpu: bool = False) -> dict[int, float]:
    """Seconds a step by samples per GPU, from the single-GPU steps."""
    fabric = fabric_of(placement, constants, flow_per_gpu)
    members = tuple(range(fabric.n))
    cost = [fabric.all_reduce_seconds(members, size) for size in BUCKETS]
    stretch = 1.0 + constants.stretch * math.log2(fabric.n)
    steps = {}
    for samples in placements()[placement]:
        alone = placements()["1"][samples] * stretch
        ready = stream_ready(alone, alone, WORKLOAD.backward_share, BUCKETS)
        steps[samples] = streamed_finish([ready], cost)
    return steps


def errors(chosen: Sequence[str], constants: Constants, flow_per_gpu: bool = False) -> list[float]:
    """Predicted over measured, minus one."""
    return [
        step / placements()[placement][samples] - 1
        for placement in chosen
        for samples, step in predict(placement, constants, flow_per_gpu).items()
    ]


@cache
def halves() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every second placement of several GPUs, in alphabetical order, to fit; the others to check."""
    several = sorted(placement for placement in placements() if placement != "1")
    return tuple(several[::2]), tuple(several[1::2])


@cache
def fit(flow_per_gpu: bool = False) -> Constants:
    """Robust least squares on log errors (soft L1 from 10 % on: a shared cloud network has outliers)."""
    from scipy.optimize import least_squares

    seen, _ = halves()

    def residuals(logs: np.ndarray[tuple[int], np.dtype[np.float64]], /) -> list[float]:
        return [math.log1p(e) for e in errors(seen, Constants(*map(math.exp, logs)), flow_per_gpu)]

    found = least_squares(residuals, [math.log(7e8), math.log(3e9), math.log(0.02)], loss="soft_l1", f_scale=0.1)
    return Constants(*map(math.exp, found.x))


@dataclass(frozen=True)
class Spread:
    """Sizes of relative errors."""

    median: float
    p90: float
    largest: float
    bias: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Spread:
        sizes = np.abs(found)
        return cls(float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max()), float(np.median(found)))


def lonely(chosen: Sequence[str]) -> list[str]:
    """Placements with one GPU a node: there a node's link is nobody else's."""
    return [placement for placement in chosen if set(placement) == {"1"}]


def without_network(chosen: Sequence[str]) -> list[float]:
    """Errors of the single-GPU step taken for the step of many."""
    return [
        placements()["1"][samples] / step - 1
        for placement in chosen
        for samples, step in placements()[placement].items()
    ]


# ---- tables and lines --------------------------------------------------------------------------------------------------------------


@cache
def sweeps() -> dict[str, Points]:
    found: dict[str, Points] = {}
    with (DATA / "network_nccl_all_reduce.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["node"], []).append((float(row["payload_bytes"]), float(row["time_us"]) / 1e6))
    with (DATA / "network_jabas_all_reduce.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(f"JABAS {row['where']}", []).append(
                (float(row["payload_mb"]) * 1e6, float(row["time_ms"]) / 1e3)
            )
    return found


def table(seen: Points) -> Callable[[float], float]:
    return lambda payload: table_seconds(seen, payload)


def line(seen: Points) -> Callable[[float], float]:
    """α + M/bw by least squares on relative errors, neither below zero."""
    from scipy.optimize import nnls

    payload, seconds = np.array(seen).T
    scale = payload.max()  # keeps both columns of like size
    (alpha, slope), _ = nnls(np.stack([1 / seconds, payload / scale / seconds], axis=1), np.ones(len(seen)))
    return lambda x: float(alpha + slope * x / scale)


def leave_one_out(points: Points, model: Callable[[Points], Callable[[float], float]]) -> list[float]:
    """Relative error at every inner point when the model has seen all others."""
    return [model(points[:k] + points[k + 1 :])(points[k][0]) / points[k][1] - 1 for k in range(1, len(points) - 1)]


def at_nominal_rate(payload: float) -> float:
    """JABAS between nodes: a ring of its two nodes with four GPUs each over links of the stated 12.5 GB/s."""
    placed = Constants(between_bytes_per_s=12.5e9, inside_bytes_per_s=15.75e9, stretch=0.0)
    return fabric_of("44", placed).all_reduce_seconds(tuple(range(8)), payload)


# ---- printing ----------------------------------------------------------------------------------------------------------------------


def main() -> None:
    seen, unseen = halves()
    ours, flows = fit(), fit(flow_per_gpu=True)
    print(
        f"Fitted on {len(seen)} placements: {ours.between_bytes_per_s * 8 / 1e9:.1f} Gbit/s between nodes, "
        f"{ours.inside_bytes_per_s * 8 / 1e9:.0f} Gbit/s inside, steps {ours.stretch:.1%} slower per doubling of workers.\n"
    )
    print("| T4 placements, error of the step time | median | 90 % | largest | bias |")
    print("|---|---|---|---|---|")
    for label, found in (
        (f"ring that crosses a node's link once, {len(seen)} placements fitted", errors(seen, ours)),
        (f"the same, {len(unseen)} placements not seen", errors(unseen, ours)),
        ("one flow per GPU through the node's link, not seen", errors(unseen, flows, flow_per_gpu=True)),
        ("ring, all placements with one GPU a node", errors(lonely(seen + unseen), ours)),
        (
            "one flow per GPU, all placements with one GPU a node",
            errors(lonely(seen + unseen), flows, flow_per_gpu=True),
        ),
        ("no network, not seen", without_network(unseen)),
    ):
        s = Spread.of(found)
        print(f"| {label} | {s.median:.1%} | {s.p90:.0%} | {s.largest:.0%} | {s.bias:+.1%} |")
    print("\n| ms a step, measured / predicted | 32 | 129 | 513 samples a GPU |")
    print("|---|---|---|---|")
    for placement in ("11", "1111", "2", "22", "2222", "4", "44", "4444"):
        steps = predict(placement, ours)
        cells = [f"{placements()[placement][b] * 1e3:.0f} / {steps[b] * 1e3:.0f}" for b in (32, 129, 513)]
        print(f"| {placement} | " + " | ".join(cells) + " |")
    print(
        "\n| all-reduce sweep, each point from the others | points | table: median / largest | line: median / largest |"
    )
    print("|---|---|---|---|")
    for name, points in sweeps().items():
        by_table, by_line = (sorted(map(abs, leave_one_out(points, model))) for model in (table, line))
        print(
            f"| {name} | {len(points)} | {statistics.median(by_table):.1%} / {by_table[-1]:.0%} "
            f"| {statistics.median(by_line):.1%} / {by_line[-1]:.0%} |"
        )
    payload, seconds = sweeps()["JABAS inter"][-1]
    print(
        f"\nJABAS, {payload / 1e6:.0f} MB between nodes: {seconds * 1e3:.0f} ms measured, "
        f"{at_nominal_rate(payload) * 1e3:.0f} ms at the links' nominal rate. Measure, do not trust the label."
    )


if __name__ == "__main__":
    main()
