from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from hetsim.cluster import catalogue
from hetsim.compute import fit_line
from hetsim.errors import UsageError

DATA = Path(__file__).parents[1] / "data"
SIA_NAMES = {"t4": "T4", "rtx": "RTX2080Ti", "quad": "QuadroRTX6000", "v100": "V100", "dgx": "A100"}


def rows(file: str) -> list[dict[str, str]]:
    with (DATA / file).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


FITTED = [(w, g) for w in catalogue.workload_names() for g in catalogue.gpu_names() if catalogue.step_times(g, w)]


def test_every_published_cifar10_step_time_is_in_the_catalogue_to_the_last_digit() -> None:
    published = rows("sia_cifar10_step_times.csv")
    assert len(published) == 65
    for row in published:
        table = dict(catalogue.step_times(SIA_NAMES[row["gpu_type"]], "resnet18-cifar10") or ())
        assert table[int(row["local_bsz"])] == float(row["step_time"])
    counted = sum(len(catalogue.step_times(g, "resnet18-cifar10") or ()) for g in SIA_NAMES.values())
    assert counted == len(published)


def test_gavel_tables_are_reciprocals_of_its_iteration_rates() -> None:
    used = {("k80", "ResNet-18"), ("p100", "ResNet-18"), ("v100", "ResNet-18"), ("k80", "ResNet-50")}
    checked = 0
    for row in rows("gavel_iterations_per_s.csv"):
        if (row["gpu"], row["model"]) in used:
            gpu = "V100-Gavel" if row["gpu"] == "v100" else row["gpu"]
            workload = {"ResNet-18": "resnet18-cifar10", "ResNet-50": "resnet50-imagenet"}[row["model"]]
            seconds = dict(catalogue.step_times(gpu, workload) or ())[int(row["batch"])]
            assert seconds * float(row["iterations_per_s"]) == pytest.approx(1, rel=1e-15)
            checked += 1
    assert checked == 3 * 5 + 4


def test_jabas_tables_are_forward_plus_backward_plus_update() -> None:
    for row in rows("jabas_resnet50_step_ms.csv"):
        gpu = "V100" if "V100" in row["gpu_type"] else "P100"
        seconds = dict(catalogue.step_times(gpu, "resnet50-imagenet") or ())[int(row["lbs"])]
        assert seconds * 1e3 == pytest.approx(sum(float(row[k]) for k in ("fwd_time", "bwd_time", "update_time")))


@pytest.mark.parametrize(("workload", "gpu"), FITTED)
def test_shipped_lines_are_those_that_fit_the_tables(workload: str, gpu: str) -> None:
    line, points = catalogue.line(gpu, workload), catalogue.step_times(gpu, workload)
    assert line is not None and points is not None
    fit = fit_line(points)
    shipped = (line.floor_s, line.overhead_s, line.samples_per_s)
    assert shipped == pytest.approx((fit.floor_s, fit.overhead_s, fit.samples_per_s), rel=1e-5)
    assert f"residual at most {100 * fit.residual_max:.1f} %" in line.source


@pytest.mark.parametrize(("workload", "gpu"), FITTED)
def test_scipy_finds_no_better_line_from_the_shipped_one(workload: str, gpu: str) -> None:
    """Started at the shipped numbers and around them, an independent optimiser gains less than 1e-6 of the squared
    relative residuals. A floor must carry two points at least, as in the fit."""
    from scipy.optimize import least_squares

    line, points = catalogue.line(gpu, workload), catalogue.step_times(gpu, workload)
    assert line is not None and points is not None
    m, t = np.array(points, dtype=float).T

    def residuals(p: np.ndarray) -> np.ndarray:
        floor = p[0] if line.floor_s else 0.0
        return np.asarray(np.maximum(floor, p[1] + p[2] * m) / t - 1)

    shipped = np.array([line.floor_s, line.overhead_s, 1 / line.samples_per_s])
    own = float(np.sum(residuals(shipped) ** 2))
    for scale in (1.0, 0.9, 1.1):
        found = least_squares(residuals, shipped * scale, bounds=(0, np.inf), x_scale=np.maximum(shipped, 1e-6))
        on_floor = int(np.sum(found.x[1] + found.x[2] * m <= found.x[0])) if line.floor_s else 0
        if on_floor != 1:
            assert 2 * found.cost >= own * (1 - 1e-6)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("2080Ti", "RTX2080Ti"),
        ("RTX-2080Ti", "RTX2080Ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX2080Ti"),
        ("quadro rtx 6000", "QuadroRTX6000"),
        ("Tesla V100-PCIE-16GB", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("tesla t4", "T4"),
        ("k80", "K80"),
    ],
)
def test_gpus_are_found_under_the_names_people_and_drivers_use(spelling: str, name: str) -> None:
    assert catalogue.gpu(spelling).name == name


def test_unknown_names_raise_with_the_nearest_match() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU 'V10' \(did you mean V100\?\)"):
        catalogue.gpu("V10")
    with pytest.raises(UsageError, match=r"did you mean RTX2080Ti\?"):
        catalogue.step_times("2080Tii", "resnet18-cifar10")
    with pytest.raises(UsageError, match="known: K80, P100, V100"):
        catalogue.line("abacus", "resnet18-cifar10")
    with pytest.raises(UsageError, match=r"did you mean resnet18-cifar10\?"):
        catalogue.workload("resnet18-cifar1")
    with pytest.raises(UsageError, match="unknown workload"):
        catalogue.step_times("V100", "nothing of the kind")


@pytest.mark.parametrize("name", catalogue.gpu_names())
def test_every_gpu_is_plausible_and_names_its_sources(name: str) -> None:
    gpu = catalogue.gpu(name)
    assert catalogue.gpu(name.lower()) is gpu
    assert 8e9 <= gpu.memory_bytes <= 300e9 and 50 <= gpu.power_w <= 1500
    assert "power: " in gpu.source and ("price: " in gpu.source) == (gpu.price_per_h is not None)
    assert gpu.price_per_h is None or (0.1 < gpu.price_per_h < 20 and "as published in 20" in gpu.source)
    assert any(catalogue.line(name, workload) for workload in catalogue.workload_names())


@pytest.mark.parametrize("name", catalogue.workload_names())
def test_every_workload_has_sizes_and_a_source(name: str) -> None:
    workload = catalogue.workload(name)
    assert workload.name == name and workload.model is None and workload.dataset is None
    assert workload.gradient_bytes > 0 and workload.dataset_samples > 0
    assert workload.activation_bytes_per_sample >= 0 and 0 < workload.backward_share < 1
    assert len(catalogue.workload_source(name)) > 20


def test_sizes_of_the_two_big_models_follow_from_their_layers() -> None:
    """Parameters counted layer by layer, independently of any framework."""
    norm = 2  # BatchNorm: a weight and a bias per channel
    total = 3 * 64 * 9 + norm * 64
    channels = 64
    for out in (64, 128, 256, 512):
        total += channels * out * 9 + out * out * 9 + 2 * norm * out + 2 * out * out * 9 + 2 * norm * out
        total += channels * out + norm * out if channels != out else 0
        channels = out
    total += 512 * 10 + 10
    assert catalogue.workload("resnet18-cifar10").gradient_bytes == 4 * total == 44_695_848

    total, channels = 3 * 64 * 49 + norm * 64, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            total += channels * width + width * width * 9 + width * 4 * width + norm * (width + width + 4 * width)
            total += channels * 4 * width + norm * 4 * width if block == 0 else 0
            channels = 4 * width
    total += 2048 * 1000 + 1000
    assert catalogue.workload("resnet50-imagenet").gradient_bytes == 4 * total


def test_batches_that_people_ran_fit_in_memory_and_the_next_size_of_the_v100_does_not() -> None:
    """Sia's largest batches per GPU; its V100 stops at 3,072, so 4,096 should be too much for 16 GB."""
    workload = catalogue.workload("resnet18-cifar10")

    def needed(samples: int) -> float:
        return 4 * workload.gradient_bytes + samples * workload.activation_bytes_per_sample

    for name in SIA_NAMES.values():
        points = catalogue.step_times(name, "resnet18-cifar10")
        assert points is not None and needed(points[-1][0]) < catalogue.gpu(name).memory_bytes
    assert needed(3072) < catalogue.gpu("V100").memory_bytes < needed(4096)


def test_single_rates_are_lines_through_the_origin() -> None:
    line = catalogue.line("RTX3090", "resnet50-imagenet")
    assert line is not None and (line.floor_s, line.overhead_s, line.samples_per_s) == (0, 0, 513)
    assert catalogue.step_times("RTX3090", "resnet50-imagenet") is None
    assert catalogue.line("RTX3090", "digits-mlp") is None


def test_study_tells_which_speeds_were_measured_alike() -> None:
    def studies(*gpus: str) -> set[str | None]:
        return {catalogue.study(gpu, "resnet18-cifar10") for gpu in gpus}

    assert studies("t4", "2080ti", "QuadroRTX6000", "V100", "A100") == {"sia"}
    assert studies("K80", "P100", "V100-Gavel") == {"gavel"}
    assert studies("H100") == {None}


def test_generations_rank_as_expected_within_a_study() -> None:
    for gpus in (("T4", "RTX2080Ti", "A100"), ("K80", "P100", "V100-Gavel")):
        tables = [dict(catalogue.step_times(gpu, "resnet18-cifar10") or ()) for gpu in gpus]
        for samples in set.intersection(*map(set, tables)) - {32, 45}:
            assert sorted((table[samples] for table in tables), reverse=True) == [table[samples] for table in tables]


@pytest.mark.torch
def test_gradients_are_those_of_the_models_that_are_trained() -> None:
    pytest.importorskip("torch", reason="needs the extra train")
    from abs_sgd.workloads import digits, models

    built = {
        "resnet18-cifar10": models.resnet18(),
        "resnet18-gn-cifar10": models.resnet18("group"),
        "cifar10-small-resnet": models.small_resnet(),
        "digits-mlp": digits.digits_mlp().make_model(0),
        "digits-cnn": digits.digits_cnn().make_model(0),
    }
    for name, model in built.items():
        assert catalogue.workload(name).gradient_bytes == 4 * models.parameters(model)
    assert catalogue.workload("digits-mlp").dataset_samples == digits.digits_mlp().samples
