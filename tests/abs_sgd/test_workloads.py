"""Workloads: sample order, keyed randomness, CIFAR-10's layout, a user's own model and data, known answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from schedules_by_hand import delayed, synchronous
from torch import nn

from abs_sgd import workloads
from abs_sgd.gradients import FlatModel
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import UpdateRule
from abs_sgd.workloads.cifar10 import RECORD_BYTES, TEST_FILES, TRAIN_FILES, augment, folder
from abs_sgd.workloads.models import parameters, resnet18, small_resnet
from abs_sgd.workloads.order import SampleOrder, normal, uniform, words
from hetsim.cluster.spec import Workload
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


@given(size=st.integers(1, 60), seed=st.integers(0, 9), start=st.integers(0, 300), count=st.integers(0, 200))
def test_every_sample_once_per_epoch_in_the_same_order_however_it_is_cut(
    size: int, seed: int, start: int, count: int
) -> None:
    order = SampleOrder(size, seed)
    for epoch in range(3):
        assert sorted(order.indices(np.arange(epoch * size, (epoch + 1) * size))) == list(range(size))
    numbers = np.arange(start, start + count)
    singly = [int(SampleOrder(size, seed).indices(np.array([n]))[0]) for n in numbers[:5]]
    assert order.indices(numbers)[:5].tolist() == singly


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order, other = SampleOrder(100, 0), SampleOrder(100, 1)
    assert order.epoch(0).tolist() != order.epoch(1).tolist()
    assert order.epoch(0).tolist() != other.epoch(0).tolist()


def test_keyed_draws_are_independent_of_company_and_look_random() -> None:
    numbers = np.arange(100_000)
    values = normal(3, 1, numbers)
    assert normal(3, 1, numbers[500:510]).tolist() == values[500:510].tolist()
    assert abs(values.mean()) < 4 / np.sqrt(len(values)) and abs(values.var() - 1) < 4 * np.sqrt(2 / len(values))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(len(values))
    assert abs(np.corrcoef(values, normal(4, 1, numbers))[0, 1]) < 4 / np.sqrt(len(values))
    flat = uniform(0, numbers)
    counts = np.histogram(flat, 20, (0.0, 1.0))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-square, 19 degrees of freedom: 43.8 at .1 %
    assert flat.min() > 0.0 and flat.max() < 1.0
    assert len(np.unique(words(0, numbers))) == len(numbers)


def test_flat_model_is_the_model() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    start = torch.cat([p.detach().reshape(-1).clone() for p in plain.parameters()])
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    flat = FlatModel(plain)
    assert torch.equal(flat.parameters_P, start) and flat.size == 26
    first = flat.gradient_sum(lambda m: m(x).square().sum())
    assert torch.equal(first, torch.cat([g.reshape(-1) for g in expected]))
    flat.load(start * 2)
    second = flat.gradient_sum(lambda m: m(x).square().sum())
    assert torch.equal(plain[0].bias, 2 * start[12:16]) and not torch.equal(first, second)
    with pytest.raises(ValueError, match="no trainable"):
        FlatModel(nn.ReLU())


def test_least_squares_finds_its_solution() -> None:
    task = workloads.get("least-squares")
    curve = InProcess(synchronous([[512, 512]] * 200), task).train(UpdateRule(learning_rate=0.3))
    assert abs(curve.loss[-1]) < 1e-12
    assert curve.loss[0] > 1.0


def test_noisy_quadratic_follows_its_recursion_without_noise() -> None:
    task = workloads.get("noisy-quadratic", dimension=4, noise=0.0)
    curve = InProcess(synchronous([[1, 1]] * 20), task).train(UpdateRule(learning_rate=0.3), evaluate_every_samples=1)
    h = 1.0 / np.arange(1, 5)
    expected = [0.5 * float((h * (1 - 0.3 * h) ** (2 * k)).sum()) for k in range(21)]
    assert curve.loss.tolist() == pytest.approx(expected, rel=1e-13)


def test_noisy_quadratic_noise_has_the_stated_variance() -> None:
    task = workloads.get("noisy-quadratic", dimension=3)
    noise, _ = task.batch(np.arange(50_000), 0)
    assert noise.var(0).tolist() == pytest.approx([1.0, 0.5, 1.0 / 3.0], rel=0.03)


def test_networks_have_their_published_sizes() -> None:
    assert parameters(resnet18()) == 11_173_962  # ResNet18 with a CIFAR stem
    assert parameters(resnet18("group")) == 11_173_962
    # stem 464, blocks 4,672 + 14,528 + 57,728, linear 650
    assert parameters(small_resnet()) == 78_042
    assert resnet18()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    separable = small_resnet().double()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    assert torch.allclose(separable(x)[:2], separable(x[:2]), rtol=1e-9)


def write_cifar(place: Path, per_file: int = 20) -> None:
    rng = np.random.default_rng(0)
    for name in (*TRAIN_FILES, *TEST_FILES):
        rows = rng.integers(0, 256, (per_file, RECORD_BYTES), dtype=np.uint8)
        rows[:, 0] %= 10
        rows.tofile(place / name)


def test_cifar10_is_read_from_a_folder_in_the_binary_layout(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    task = workloads.get("cifar10-small-resnet", data=tmp_path)
    assert task.samples == 100 and task.separable
    pictures, labels = task.batch(np.arange(100), 0)
    plain = workloads.cifar10._load(tmp_path)
    values = plain[0].double() / 255.0
    assert torch.allclose(plain[4], values.mean((0, 2, 3)), rtol=1e-12)
    assert torch.allclose(plain[5], values.std((0, 2, 3), correction=0), rtol=1e-9)
    assert pictures.shape == (100, 3, 32, 32) and pictures.dtype == torch.float32
    raw = np.fromfile(tmp_path / "data_batch_1.bin", np.uint8).reshape(-1, RECORD_BYTES)
    order = SampleOrder(100, 0).epoch(0)
    assert labels[order.tolist().index(0)] == raw[0, 0]
    held_out = task.evaluate(task.make_model(0))
    assert 1.5 < held_out < 4.0
    curve = InProcess(delayed([[4, 2]] * 3), task).train(UpdateRule(learning_rate=0.01), evaluate_every_samples=6)
    assert np.isfinite(curve.loss).all() and len(curve.loss) == 4


def test_batchnorm_resnet_trains_on_it(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    task = workloads.get("resnet18-cifar10", data=tmp_path)
    assert not task.separable
    model = FlatModel(task.make_model(0))
    gradient = model.gradient_sum(lambda m: task.loss_sum(m, task.batch(np.arange(4), 0)))
    assert gradient.shape == (11_173_962,) and bool(gradient.isfinite().all())


def test_augmentation_belongs_to_the_sample(tmp_path: Path) -> None:
    pictures = torch.arange(6 * 3 * 32 * 32, dtype=torch.int32).reshape(6, 3, 32, 32)
    numbers = np.arange(6)
    whole = augment(pictures, 0, numbers)
    assert torch.equal(whole[2:4], augment(pictures[2:4], 0, numbers[2:4]))
    assert not torch.equal(whole, augment(pictures, 1, numbers))
    assert not torch.equal(whole, augment(pictures, 0, numbers + 50_000))  # another epoch
    middle = pictures[0, 0, 16, 16]
    assert (whole[0, 0] == middle).sum() == 1  # moved by at most four, so the middle stays inside


def test_augmentation_crops_and_flips_as_defined() -> None:
    picture = torch.arange(1, 1 + 32 * 32, dtype=torch.int32).reshape(1, 1, 32, 32).expand(1, 3, 32, 32)
    padded = nn.functional.pad(picture[0, 0], (4, 4, 4, 4))
    seen = set()
    for number in range(300):
        out = augment(picture, 0, np.array([number]))[0, 0]
        places = [
            (r, c, flip)
            for flip in (False, True)
            for r in range(9)
            for c in range(9)
            if torch.equal(out, (lambda crop: crop.flip(1) if flip else crop)(padded[r : r + 32, c : c + 32]))
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert {flip for *_, flip in seen} == {False, True}
    assert {r for r, *_ in seen} == set(range(9)) == {c for _, c, _ in seen}


def test_missing_or_broken_cifar10_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETSIM_CIFAR10", raising=False)
    with pytest.raises(UsageError, match="HETSIM_CIFAR10=FOLDER"):
        workloads.get("resnet18-cifar10")
    with pytest.raises(UsageError, match=r"data_batch_1\.bin"):
        workloads.get("cifar10-small-resnet", data=tmp_path)
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    write_cifar(inner)
    monkeypatch.setenv("HETSIM_CIFAR10", str(tmp_path))
    assert folder() == inner
    (inner / "data_batch_3.bin").write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match="whole number of 3073-byte"):
        workloads.get("cifar10-small-resnet")


def test_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean digits-mlp"):
        workloads.get("digit-mlp")


OWN = """
import torch
from torch import nn

def model():
    return nn.Linear(3, 2)
model.separable = True

def bad_model():
    return 3

def raises():
    return 1 / 0

def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
normed.separable = True

def regression():
    return nn.Linear(3, 1, bias=False)

def dataset():
    x = torch.arange(60.0).reshape(20, 3) / 60
    return (x[:16], (x[:16, 0] > 0.5).long()), (x[16:], (x[16:, 0] > 0.5).long())

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, i):
        if i >= 10:
            raise IndexError
        return torch.full((3,), float(i)), torch.tensor([float(i)])

def map_style():
    return Rows(), Rows()

def uneven():
    return (torch.zeros(3, 3), torch.zeros(2)), (torch.zeros(3, 3), torch.zeros(3))

def nothing():
    return None
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "own_workload_for_tests"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return name


def of(own: str, model: str, dataset: str) -> Workload:
    return Workload(
        name="mine", gradient_bytes=1.0, dataset_samples=16, model=f"{own}:{model}", dataset=f"{own}:{dataset}"
    )


def test_a_users_model_and_tensors(own: str) -> None:
    task = workloads.get(of(own, "model", "dataset"), dtype=torch.float64)
    assert task.samples == 16 and task.separable
    inputs, targets = task.batch(np.arange(16), 0)
    assert inputs.dtype == torch.float64 and targets.dtype == torch.int64
    curve = InProcess(synchronous([[3, 1]] * 300), task).train(UpdateRule(learning_rate=0.5))
    assert curve.loss[-1] < 0.5 * curve.loss[0]


def test_a_users_map_style_data_set_and_regression(own: str) -> None:
    task = workloads.get(of(own, "regression", "map_style"))
    assert not task.separable  # not declared
    inputs, targets = task.batch(np.arange(10), 0)
    assert torch.equal(inputs[:, :1], targets) and sorted(targets[:, 0].tolist()) == list(range(10))
    curve = InProcess(synchronous([[5, 5]] * 50), task).train(UpdateRule(learning_rate=0.005))
    assert curve.loss[-1] < 0.01 * curve.loss[0]


def test_batchnorm_is_never_separable_whatever_is_declared(own: str) -> None:
    assert not workloads.get(of(own, "normed", "dataset")).separable


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("bad_model", "dataset", "returned int, not a torch.nn.Module"),
        ("missing", "dataset", "has no function missing"),
        ("model", "nothing", "must return"),
        ("model", "uneven", "3 inputs but 2 targets"),
        ("raises", "dataset", r"raised ZeroDivisionError: .* \(.*\.py:\d+\)"),
        ("model", "raises", r"raised ZeroDivisionError: .* \(.*\.py:\d+\)"),
    ],
)
def test_a_users_mistakes_are_named(own: str, model: str, dataset: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workloads.get(of(own, model, dataset))


def test_a_users_wrong_name_is_named() -> None:
    for name, message in (("nocolon", "module:function"), ("no_such_module_x:f", "cannot import no_such_module_x")):
        with pytest.raises(UsageError, match=message):
            workloads.get(Workload(name="m", gradient_bytes=1.0, dataset_samples=1, model=name, dataset=name))


@pytest.mark.data
def test_cifar10_itself(cifar10: Path) -> None:
    task = workloads.get("cifar10-small-resnet", data=cifar10)
    assert task.samples == 50_000
    _, labels = task.batch(np.arange(50_000), 0)
    assert torch.bincount(labels).tolist() == [5_000] * 10
    pictures, _ = task.batch(np.arange(512), 0)
    assert abs(float(pictures.mean())) < 0.3 and 0.7 < float(pictures.std()) < 1.3


def test_digits_are_scikit_learns_read_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    from abs_sgd.workloads import digits

    said = load_digits()
    right = np.column_stack([said.data, said.target])
    assert np.array_equal(digits._rows(), right)
    monkeypatch.setattr(digits, "find_spec", lambda _: None)  # where the file lies elsewhere
    assert np.array_equal(digits._rows(), right)
    code = "import sys; from abs_sgd.workloads import get; get('digits-mlp'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
