"""The predictor `virtual`: targets, stand-ins and what it says about them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from schedules_by_hand import delayed, synchronous

from abs_sgd.predictor import VirtualTraining, rule_of
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.convergence.predictor import Predictor, Setting
from hetsim.errors import MissingExtraError, UsageError
from hetsim.schedule import PointRule

pytestmark = pytest.mark.torch


def cluster(workload: str, **training: object) -> Cluster:
    return Cluster(
        name="test",
        workers=tuple(Worker(rank=i, name=f"w{i}", group="w", node=f"n{i}", samples_per_s=100.0) for i in range(2)),
        network=Network(links=(Link(bytes_per_s=1e9),) * 2),
        workload=Workload(name=workload, gradient_bytes=1e6, dataset_samples=1437),
        training=Training(**training),  # type: ignore[arg-type]
    )


def test_is_a_predictor() -> None:
    assert isinstance(VirtualTraining(), Predictor)
    assert VirtualTraining().name == "virtual"


def test_own_workload_keeps_its_target_and_its_samples() -> None:
    own = cluster("digits-mlp", global_batch_samples=32, target_loss=0.25)
    target = VirtualTraining().target(own)
    assert target.value == 0.25 and "digits-mlp" in target.metric
    curves = VirtualTraining().curves(
        synchronous([[16, 16]] * 300), own, [Setting(learning_rate=0.05, momentum=0.9)], seed=1
    )
    assert curves[0].crossing(0.25) is not None
    assert not any("stands in" in a for a in curves[0].assumptions)


def test_stand_in_says_so_and_is_thinned_to_its_regime() -> None:
    """A profile's batch of 256 trains as 32 do; the loss at its samples is that of the thinned Schedule."""
    profile = cluster("resnet18-cifar10", global_batch_samples=256, micro_batch_samples=16, target_loss=0.01)
    setting = Setting(learning_rate=0.05, momentum=0.9)
    predictor = VirtualTraining()
    assert predictor.target(profile).value == 0.1  # the stand-in's, not the profile's
    thick = predictor.curves(delayed([[128, 128]] * 60), profile, [setting])[0]
    said = " ".join(thick.assumptions)
    assert "digits-mlp stands in for resnet18-cifar10" in said and "stands for 8 of the profile's" in said
    thin = VirtualTraining(workload="digits-mlp", thinning=1).curves(
        delayed([[16, 16]] * 60),
        replace(profile, training=replace(profile.training, global_batch_samples=32)),
        [setting],
    )[0]
    assert thick.loss == pytest.approx(thin.loss, rel=1e-6)
    assert (thick.samples == 8 * thin.samples).all()


def test_thinning_leaves_a_sample_in_every_micro_batch() -> None:
    profile = cluster("resnet18-cifar10", global_batch_samples=4096, micro_batch_samples=4)
    curve = VirtualTraining().curves(
        synchronous([[4, 4]] * 3, micro=4), profile, [Setting(learning_rate=0.1, momentum=0.0)]
    )[0]
    assert "stands for 4 of" in " ".join(curve.assumptions)


def test_settings_share_start_and_order_and_stop_at_the_target() -> None:
    profile = cluster("digits-mlp", global_batch_samples=32, target_loss=0.15)
    settings = [Setting(learning_rate=lr, momentum=0.9) for lr in (0.0125, 0.1, 0.05)]
    schedule = synchronous([[16, 16]] * 800)
    raced = VirtualTraining().curves(schedule, profile, settings)
    full = VirtualTraining(race=False).curves(schedule, profile, settings)
    assert len({c.loss[0] for c in full}) == 1
    crossings = [c.crossing(0.15) for c in full]
    assert all(c is not None for c in crossings)
    best = min(c[1] for c in crossings if c)
    assert raced[1].loss.tolist() == full[1].loss.tolist()  # the first that is tried runs to the target
    assert raced[0].crossing(0.15) is None  # cut: far slower
    assert raced[0].time_s[-1] < 1.5 * best < full[0].time_s[-1]
    np.testing.assert_array_equal(raced[0].loss, full[0].loss[: len(raced[0].loss)])


def test_fastest_setting_is_never_cut() -> None:
    profile = cluster("digits-mlp", global_batch_samples=32)
    settings = [Setting(learning_rate=lr, momentum=0.9) for lr in (0.0125, 0.025, 0.05, 0.1)]
    schedule = delayed([[16, 16]] * 500, PointRule.LOCAL_PREDICTION)
    raced = VirtualTraining().curves(schedule, profile, settings)
    full = VirtualTraining(race=False).curves(schedule, profile, settings)
    times = [[c.crossing(0.1) for c in curves] for curves in (raced, full)]
    fastest = [min(t[1] for t in row if t) for row in times]
    assert fastest[0] == fastest[1]


def test_grid_is_the_tasks_at_both_momenta() -> None:
    settings = VirtualTraining().settings(cluster("resnet18-cifar10", momentum=0.8))
    assert {s.momentum for s in settings} == {0.0, 0.8}
    assert len(settings) == 12


def test_real_workload_by_name_needs_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETSIM_CIFAR10", raising=False)
    with pytest.raises(UsageError, match="HETSIM_CIFAR10"):
        VirtualTraining(workload="resnet18-cifar10").target(cluster("resnet18-cifar10"))


def test_rule_takes_all_of_the_profiles_training() -> None:
    training = Training(
        global_batch_samples=64, optimizer="adamw", nesterov=True, weight_decay=0.1, lr_rule="sqrt", warmup_updates=5,
        clip_norm=2.0,
    )  # fmt: skip
    rule = rule_of(training, Setting(learning_rate=0.3, momentum=0.7))
    assert (rule.learning_rate, rule.momentum, rule.optimizer, rule.nesterov) == (0.3, 0.7, "adamw", True)
    assert (rule.weight_decay, rule.lr_rule, rule.clip_norm) == (0.1, "sqrt", 2.0)
    assert (rule.reference_batch_samples, rule.warmup_samples) == (64, 320)


def test_importing_the_predictor_loads_no_torch_and_its_absence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, abs_sgd.predictor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for name in [m for m in sys.modules if m.startswith("abs_sgd.workloads")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("abs_sgd.workloads", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"hetsim\[train\]"):
        VirtualTraining().target(cluster("digits-mlp"))
