"""Compute models against published step times: prints the tables of docs/how-far-to-trust.md.

    python benchmarks/published_compute.py

The model is given the smallest measured batch and every second one after it, and predicts the others.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from hetsim.cluster import catalogue
from hetsim.cluster.spec import Worker
from hetsim.compute import fit_line, pass_model
from hetsim.compute.model import TableModel

SIA = ("T4", "RTX2080Ti", "QuadroRTX6000", "V100", "A100")
GAVEL = ("K80", "P100", "V100-Gavel")
JABAS = ("P100", "V100")
CASES = (
    *(("resnet18-cifar10", gpu) for gpu in SIA + GAVEL),
    *(("resnet50-imagenet", gpu) for gpu in JABAS),
)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Relative errors on batches the model has not seen, and the line's residuals on all of them."""

    workload: str
    gpu: str
    batches: int
    line_errors: tuple[float, ...]
    table_errors: tuple[float, ...]
    residual_max: float
    residual_median: float


def predict(workload: str, gpu: str) -> Prediction:
    points = catalogue.step_times(gpu, workload)
    assert points is not None
    seen, unseen = points[::2], points[1::2]
    line, table = fit_line(seen), TableModel(seen)
    full = fit_line(points)
    return Prediction(
        workload=workload,
        gpu=gpu,
        batches=len(points),
        line_errors=tuple(line.seconds(m) / t - 1 for m, t in unseen),
        table_errors=tuple(table.seconds(m) / t - 1 for m, t in unseen),
        residual_max=full.residual_max,
        residual_median=full.residual_median,
    )


def smallest_from_the_rest(gpu: str) -> tuple[float, float]:
    """Relative error at the smallest batch, left out: the first segment's line going on, and a flat continuation."""
    points = catalogue.step_times(gpu, "resnet18-cifar10")
    assert points is not None
    (samples, seconds), rest = points[0], points[1:]
    return TableModel(rest).seconds(samples) / seconds - 1, rest[0][1] / seconds - 1


# Pull request 580 of huggingface/pytorch-image-models (2021): two A6000 and two 2080 Ti, EfficientNet-B0 on ImageNet,
# about 2000 images/s at 200 each. A step of 800 images then takes 0.4 s, set by the slow cards: 500 images/s each.
# That is all the model is given, and that the fast cards do 300 images in that time; the second report, about 2500
# images/s, is predicted.
TIMM_SLOW = Worker(rank=0, name="2080ti", group="2080ti", node="n", samples_per_s=200 / 0.4)
TIMM_FAST = Worker(rank=1, name="a6000", group="a6000", node="n", samples_per_s=300 / 0.4)


def synchronous_throughput(batches: list[tuple[Worker, int]]) -> float:
    """Samples/s where everyone waits for the slowest and communication is free."""
    return sum(b for _, b in batches) / max(pass_model(worker).seconds(b) for worker, b in batches)


def main() -> None:
    print(
        "| workload | GPU | batches | line, unseen: median / max | table, unseen: median / max | line, residual max |"
    )
    print("|---|---|---|---|---|---|")
    for workload, gpu in CASES:
        p = predict(workload, gpu)
        cells = [
            f"{100 * statistics.median(map(abs, errors)):.1f} / {100 * max(map(abs, errors)):.1f} %"
            for errors in (p.line_errors, p.table_errors)
        ]
        print(f"| {workload} | {gpu} | {p.batches} | {cells[0]} | {cells[1]} | {100 * p.residual_max:.1f} % |")
    print("\n| GPU (Gavel) | 16 samples from the larger batches: line goes on | flat |")
    print("|---|---|---|")
    for gpu in GAVEL:
        line, flat = smallest_from_the_rest(gpu)
        print(f"| {gpu} | {100 * line:+.1f} % | {100 * flat:+.1f} % |")
    print("\n| two A6000 and two 2080 Ti (timm, pull request 580) | reported | model |")
    print("|---|---|---|")
    for fast, reported in ((200, 2000), (300, 2500)):
        rate = synchronous_throughput([(TIMM_FAST, fast)] * 2 + [(TIMM_SLOW, 200)] * 2)
        print(f"| {fast} / {fast} / 200 / 200 | {reported} | {rate:.0f} |")


if __name__ == "__main__":
    main()
