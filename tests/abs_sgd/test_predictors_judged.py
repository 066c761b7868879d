"""The fitted predictors beside training in virtual time: a few pairs, what is kept, and (slow) a whole network."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from abs_sgd.fitting import Settings
from hetsim import simulate
from hetsim.algorithms import make
from hetsim.convergence.predictor import Setting

pytestmark = pytest.mark.torch
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAIRS = [("unequal", "lb-bsp"), ("unequal", "s-sgd"), ("unequal", "one-step-delay")]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("judged_networks", "predictors_judged"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("predictors_judged")


def small(judged: ModuleType) -> object:
    """digits-mlp with one seed and three settings."""
    settings = tuple(Setting(learning_rate=lr, momentum=0.9) for lr in (0.1, 0.2, 0.05))
    return replace(judged.network("digits-mlp"), seeds=1, settings=settings, fit=Settings(seeds=1))


def test_a_few_pairs_come_out_near_and_in_order_and_are_kept(judged: ModuleType, tmp_path: Path) -> None:
    network = small(judged)
    pairs = list(judged.pairs_of(network, tmp_path, PAIRS))
    trained = [pair.trained.seconds for pair in pairs]
    assert trained == sorted(trained) and trained[2] > 1.5 * trained[1]  # the delay is dear, and seen
    assert [pair.nqm.seconds for pair in pairs] == sorted(pair.nqm.seconds for pair in pairs)
    for pair in pairs:
        assert abs(judged.error(pair.nqm.seconds, pair.trained.seconds)) < 0.3, pair
    assert judged.error(pairs[2].noise_scale_s, trained[2]) < -0.3  # which knows no delay
    assert list(judged.pairs_of(network, tmp_path, PAIRS, dry=True)) == pairs
    further = [("unequal", "abs-sgd")]
    assert list(judged.pairs_of(network, tmp_path, further, dry=True)) == further
    assert len(list(tmp_path.glob("*.json"))) == 4


def test_what_is_kept_is_found_by_the_schedule_s_numbers(judged: ModuleType) -> None:
    schedules = []
    for profile in ("unequal", "unequal", "slow-link"):  # the same updates, at other times
        cluster = judged.profile_of(profile, small(judged)).cluster()
        cluster = replace(cluster, training=replace(cluster.training, max_samples=2000))
        schedules.append(simulate(cluster, make("s-sgd")).schedule)
    one, same, other = map(judged.content, schedules)
    assert one == same != other


def test_errors_and_rank_correlation(judged: ModuleType) -> None:
    found = judged.judge([1.1, 3.0, 2.0, 8.0], [1.0, 2.0, 4.0, 8.0])
    assert found.rank == pytest.approx(1 - 6 * 2 / (4 * 15))  # Spearman: 1 - 6 Σ d² / (n (n² - 1))
    assert found.median_error == pytest.approx(0.3) and found.largest_error == pytest.approx(0.5) and not found.held
    assert judged.judge([1.0, 2.1, math.inf], [1.0, 2.0, math.inf]).held
    assert judged.error(math.inf, 1.0) == math.inf and judged.error(1.0, math.inf) == -math.inf


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_digits_mlp_meets_both_goals(judged: ModuleType, tmp_path: Path) -> None:
    pairs = list(judged.pairs_of(judged.network("digits-mlp"), tmp_path))
    said = judged.summary(pairs)
    assert said["nqm"].pairs == 16 and said["nqm"].held, said
    assert not said["noise-scale"].held, said  # a predictor without delay must not pass
