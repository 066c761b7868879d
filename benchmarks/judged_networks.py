"""What `predictors_judged.py` judges on: networks, the clusters they are trained on, and the settings both sides tune over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from abs_sgd import workloads
from abs_sgd.fitting import Settings
from abs_sgd.workloads.task import Batch, Ints, Task, cross_entropy_sum, mean_loss
from hetsim import load_profile
from hetsim.cluster import Profile
from hetsim.convergence.predictor import Setting

ALL = ("s-sgd", "lb-bsp", "one-step-delay", "one-step-delay-balanced", "local-sgd", "asgd", "ssp", "abs-sgd")
OPTIONS = {name: {"compute_point": "local-prediction"} for name in ("one-step-delay-balanced", "abs-sgd")}
BATCH = 64  # of the whole cluster
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training pictures, per channel


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network, its target and the pairs it is judged on.

    `settings`: the grid both sides tune on, likely best first. `margin`: of the race between settings; who takes more than this many times
    the best on the first seed is not tried on the others. `fit`: what `hetsim fit` is told, empty for its defaults."""

    task: Task
    target: float
    settings: tuple[Setting, ...]
    profiles: tuple[str, ...]
    seeds: int
    max_samples: int
    margin: float
    algorithms: tuple[str, ...] = ALL
    fit: Settings = field(default_factory=Settings)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(profile, algorithm)."""
        return [(profile, algorithm) for profile in self.profiles for algorithm in self.algorithms]


def grid(*points: tuple[float, float]) -> tuple[Setting, ...]:
    """Settings from (learning rate, momentum)."""
    return tuple(Setting(learning_rate=lr, momentum=m) for lr, m in points)


DIGITS = grid(
    (0.1, 0.9), (0.2, 0.9), (0.05, 0.9), (0.8, 0.0), (0.4, 0.9), (0.4, 0.0), (0.025, 0.9), (0.2, 0.0), (0.0125, 0.9)
)
PICTURES = grid((0.05, 0.9), (0.1, 0.9), (0.4, 0.0), (0.2, 0.0), (0.025, 0.9), (0.0125, 0.9))
NETWORKS = ("digits-mlp", "digits-cnn", "cifar10")


def network(name: str) -> Network:
    """By name. Raises UsageError where its data are not at hand."""
    if name == "cifar10":
        return Network(
            task=half_resolution(),
            target=1.7,
            settings=PICTURES,
            profiles=("unequal",),
            seeds=3,
            max_samples=100_000,
            margin=1.25,
            fit=Settings(samples=40_960, seeds=2),
        )
    return Network(
        task=replace(workloads.get(name), reference_batch_samples=BATCH),
        target=0.15,
        settings=DIGITS,
        profiles=("unequal", "slow-link"),
        seeds=5 if name == "digits-mlp" else 3,
        max_samples=40_000,
        margin=2.0,
    )


def half_resolution() -> Task:
    """cifar10-small-resnet on pictures of 16 x 16, a quarter of the work; loss over the first 1,000 test pictures."""
    import torch
    from torch.nn.functional import avg_pool2d

    from abs_sgd.workloads.cifar10 import TEST_FILES, folder, read

    task = workloads.get("cifar10-small-resnet")
    pictures, labels = read([folder() / name for name in TEST_FILES])
    mean, deviation = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, DEVIATION))
    held_out = avg_pool2d((pictures[:1000].float() / 255.0 - mean) / deviation, 2), labels[:1000]

    def batch(numbers: Ints, seed: int) -> Batch:
        inputs, targets = task.batch(numbers, seed)
        return avg_pool2d(inputs, 2), targets

    return replace(
        task,
        name="cifar10-half-resnet",
        batch=batch,
        evaluate=mean_loss(cross_entropy_sum, lambda: [held_out]),
        evaluate_every_samples=2048,
        reference_batch_samples=BATCH,
    )


SHIPPED = {
    "unequal": ("emulated-4", ["network.bandwidth_gbit_per_s=1.0"]),
    "slow-link": (
        "emulated-4-slow-link",
        ["network.bandwidth_gbit_per_s=2.0", "network.links.d.bandwidth_gbit_per_s=0.5"],
    ),
}


def profile_of(name: str, judged: Network) -> Profile:
    """Four unequal workers, or four near ones with one behind a slow link. Batches of 64: an all-reduce takes about as long as the slowest
    needs for two passes over 4 samples."""
    shipped, bandwidths = SHIPPED[name]
    training = {"global_batch_samples": BATCH, "micro_batch_samples": 4, "max_samples": judged.max_samples}
    overrides = [*bandwidths, *(f"training.{key}={value}" for key, value in training.items())]
    overrides += ["workload.name=mine", f"workload.dataset_samples={judged.task.samples}"]
    return load_profile(shipped, overrides=overrides)
