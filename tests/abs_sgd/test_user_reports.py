"""What users of such systems report, each as a small test of what right looks like here.

Every report is cited by number in the docstring of the test that covers it, in this file or in the one of the part that it concerns;
the last test checks that none was left out.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import wrapper_ranks as ranks
from live_clusters import RULE, two_workers
from torch import Tensor, nn

import abs_sgd
from abs_sgd.launch import launch
from abs_sgd.runtime.run import Pacing
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.convergence.noise_scale import estimate_noise
from hetsim.metrics import limited_by, timing
from hetsim.schedule import Kind
from hetsim.simulate import simulate

pytestmark = [pytest.mark.torch, pytest.mark.live]
Results = dict[str, list[dict[str, Any]]]
REPORTS = (
    "pytorch#67253 pytorch#37359 Lightning#15573 transformers#34242 timm#580 twinkle#290 FunASR#3472 pytorch#38174 horovod#832 "
    "PyMarlin#80 horovod#403 horovod#2640 pytorch#25162 LongLive#71 accelerate#4071 transgenic#59 accelerate#1382 accelerate#2773 "
    "adaptdl#98 hivemind#443 hivemind#451 traceml#252 kohya#1208 DeepSpeed#4402 pytorch#13711 torchtitan#1224"
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    jobs = [
        ranks.unequal_batches,
        ranks.tokens,
        ranks.clipping,
        ranks.differing,
        ranks.scheduled,
        ranks.out_of_data,
        ranks.paused,
        ranks.sampling_resumed,
    ]
    return ranks.run(2, tmp_path_factory.mktemp("two"), *jobs)


def gradient_sum(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w - 1.0)[:, None] * x).sum(0)


def start() -> Tensor:
    return ranks.weights(ranks.quadratic())


def cards(samples_per_s: tuple[float, ...], batch: int, most: tuple[int | None, ...] | None = None) -> Cluster:
    """Cards on a network without cost."""
    most = most or (None,) * len(samples_per_s)
    workers = tuple(
        Worker(rank=i, name=f"c{i}", group="c", node="n", samples_per_s=v, max_batch_samples=m)
        for i, (v, m) in enumerate(zip(samples_per_s, most, strict=True))
    )
    return Cluster(
        name="cards",
        workers=workers,
        network=Network(links=(Link(bytes_per_s=1e15),) * len(workers)),
        workload=Workload(name="digits-mlp", gradient_bytes=4.0, dataset_samples=10**6),
        training=Training(global_batch_samples=batch, micro_batch_samples=50),
    )


def batches(cluster: Cluster, algorithm: str, **options: Any) -> tuple[list[int], float]:
    """Samples of the last update by worker, and samples/s."""
    run = simulate(cluster, algorithm, options=options, updates=20)
    joins = run.schedule.rows(Kind.JOIN)[-cluster.n :]
    by_worker = dict(zip(run.schedule.worker[joins].tolist(), run.schedule.samples[joins].tolist(), strict=True))
    return [by_worker[i] for i in range(cluster.n)], run.timing.samples_per_s


def test_unequal_batches_weigh_as_one_batch_of_all_samples(two: Results) -> None:
    """pytorch#67253, pytorch#37359, Lightning#15573: unequal batches weighed equally."""
    first, second = two["unequal_batches"]
    x = torch.cat([ranks.inputs(0, 0, 6), ranks.inputs(1, 0, 2)])
    expected = start() - ranks.LR * gradient_sum(x, start()) / 8
    wrong = start() - ranks.LR * sum(gradient_sum(p, start()) / len(p) for p in (x[:6], x[6:])) / 2
    assert torch.allclose(first["weights"], expected, rtol=0, atol=1e-14)
    assert not torch.allclose(first["weights"], wrong, rtol=0, atol=1e-3)
    assert torch.equal(first["weights"], second["weights"])
    assert first["samples"] == 8 and first["contributed"] == [6, 2]


def test_weights_may_be_tokens(two: Results) -> None:
    """transformers#34242: the weight of a mean over tokens is the number of tokens."""
    means = [gradient_sum(ranks.inputs(rank, 0, 4), start()) / 4 for rank in range(2)]
    expected = start() - ranks.LR * (30 * means[0] + 10 * means[1]) / 40
    for result in two["tokens"]:
        assert torch.allclose(result["weights"], expected, rtol=0, atol=1e-14)


def test_norms_are_clipped_once_after_aggregation(two: Results) -> None:
    """twinkle#290: the norm clipped twice, .8 -> 1.131 -> .707."""
    for result in two["clipping"]:
        assert result["moved"] == pytest.approx(0.8, abs=1e-12)  # .707 where each rank clips as well


def test_ranks_that_run_out_of_data_hang_nobody_and_the_run_is_delayed_sgd(two: Results) -> None:
    """pytorch#38174, horovod#832, PyMarlin#80: ranks run out of data and the rest hang."""
    first, second = two["out_of_data"]
    assert torch.equal(first["weights"], second["weights"])
    totals = [sum(count for _, count, _, _ in result["log"]) for result in (first, second)]
    assert first["contributed"] == second["contributed"] == totals
    assert first["samples"] == sum(totals)
    versions, velocity = [start()], torch.zeros(ranks.DIMENSION, dtype=torch.float64)
    slots = [[row for row in result["log"]] for result in (first, second)]
    for k in range(1, max(row[3] for log in slots for row in log) + 1):
        total, samples = torch.zeros_like(velocity), 0
        for rank, log in enumerate(slots):
            for step, count, version, slot in log:
                if slot == k:
                    assert version == max(k - 2, 0), "every gradient is exactly one update old"
                    total += gradient_sum(ranks.inputs(rank, step, count), versions[version])
                    samples += count
        velocity = ranks.MOMENTUM * velocity + total / samples
        versions.append(versions[-1] - ranks.LR * velocity)
    assert torch.allclose(first["weights"], versions[-1], rtol=0, atol=1e-12)
    assert len(versions) > 5


def test_batchnorm_is_averaged_by_samples_and_a_finished_rank_sits_through_pauses(two: Results) -> None:
    """pytorch#13711: BatchNorm differs between ranks in evaluation."""
    first, second = two["paused"]
    expected = (6 * first["own"] + 2 * second["own"]) / 8
    for result in (first, second):
        assert torch.allclose(result["mean"], expected, rtol=0, atol=1e-12)
        assert result["in_flight"] is None
        assert result["samples"] == 6 + 2 + 3 * 4 + 4
    for name in ("mean", "weights", "last", "last_mean"):
        assert torch.equal(first[name], second[name])
    assert not torch.equal(first["weights"], first["last"])


def test_resuming_neither_repeats_nor_skips_a_sample(two: Results) -> None:
    """accelerate#4071, transgenic#59: a resumed run replays or skips samples."""
    results = two["sampling_resumed"]
    before = sorted(i for result in results for i in result["before"])
    after = sorted(i for result in results for i in result["after"])
    assert len(before) == 4 and all(result["saved"] == 4 for result in results)
    assert sorted(before + after) == list(range(40))
    assert all(result["epoch"] == 1 for result in results)


def test_ten_samples_on_four_ranks_come_once_per_epoch(tmp_path: Path) -> None:
    """pytorch#25162, LongLive#71: a sampler that pads with duplicates, ranks that share samples."""
    results = ranks.run(4, tmp_path, ranks.sampling)["sampling"]
    for epoch in range(2):
        assert sorted(i for result in results for i in result["epochs"][epoch]) == list(range(10))


def test_two_fast_and_two_slow_cards_are_balanced() -> None:
    """timm#580: 200 each on two fast and two slow cards is 2000 images/s; 300 on the fast ones is 2500, and is found."""
    fast, slow = 750.0, 500.0
    equal, rate = batches(cards((fast, fast, slow, slow), 800), "s-sgd")
    assert (equal, rate) == ([200] * 4, pytest.approx(2000, rel=1e-6))
    balanced, rate = batches(cards((fast, fast, slow, slow), 1000), "lb-bsp")
    assert (balanced, rate) == ([300, 300, 200, 200], pytest.approx(2500, rel=1e-6))
    assert simulate(cards((fast, fast, slow, slow), 1000), "abs-sgd", updates=50).timing.samples_per_s == pytest.approx(
        2500, rel=0.01
    )


def test_cards_with_different_memory_have_caps_of_their_own() -> None:
    """kohya#1208, DeepSpeed#4402: no pass is larger than its own card holds, and the larger card is not held down to the smaller."""
    options = {"micro_batch": "equal-time"}
    capped = simulate(cards((750.0, 250.0), 100, most=(60, None)), "abs-sgd", options=options, updates=40).schedule
    free = simulate(cards((750.0, 250.0), 100), "abs-sgd", options=options, updates=40).schedule
    largest = [
        [int(s.samples[rows][s.worker[rows] == rank].max()) for rank in range(2)]
        for s, rows in ((s, s.rows(Kind.GRAD)) for s in (capped, free))
    ]
    assert largest == [[60, 50], [150, 50]]


def test_replicas_are_equal_after_every_update(two: Results) -> None:
    """FunASR#3472: gradients of 4.0 and 7.0 on two ranks; 5.5 is right, on both."""
    for result in two["differing"]:
        assert result["moved"] == pytest.approx([-5.5, -11.0, -16.5], abs=1e-12)


def test_the_rate_goes_by_samples_whatever_the_number_of_processes(two: Results) -> None:
    """accelerate#1382, accelerate#2773: a scheduler stepped once per process decays as many times too fast."""
    first, second = two["scheduled"]
    assert first["asked"] == second["asked"] and first["rate"] == second["rate"]
    assert first["asked"] == [8 * k for k in range(5)]  # two ranks of 4 samples: 8 by update, however many processes
    assert first["rate"] == pytest.approx(ranks.LR * 0.5**4, rel=1e-12)


def test_one_replica_has_no_noise_scale_and_says_why() -> None:
    """adaptdl#98: the gradient noise scale divides by zero with one replica."""
    one = estimate_noise([4.0], [8], 4.0)
    assert one.scale is None and "at least 2" in one.reason
    assert estimate_noise([4.0, 0.0], [8, 0], 4.0).scale is None  # the other one had no data
    assert estimate_noise([4.0, 4.0], [2, 2], 12.0).scale == pytest.approx(1.0 / 0.5)


def test_a_rank_that_contributes_nothing_is_told() -> None:
    """hivemind#443, hivemind#451: a slow peer never contributes, and nobody notices."""
    net = nn.Linear(3, 1)
    trainer = abs_sgd.AbsSgd(net, torch.optim.SGD(net.parameters(), lr=0.1))
    net(torch.ones(2, 3)).sum().backward()
    trainer.step(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with trainer.synchronized():
            pass
    trainer.contributed = [2, 0, 0]  # as on three ranks
    with pytest.warns(UserWarning, match=r"ranks 1, 2 have contributed no sample"):
        trainer.finish()


def test_a_slow_rank_is_named_and_the_others_waiting_is_not_taken_for_work() -> None:
    """traceml#252: one rank is 200 ms late, and every rank shows 293 ms."""
    cluster = two_workers((120.0, 12 / 0.3))  # 12 samples: .1 s and .3 s
    run = launch(cluster, "s-sgd", rule=RULE, updates=8, pacing=Pacing(profile=True, tolerance=1.0))
    found = timing(run.schedule, cluster)
    busy = found.busy_share * found.update_period_s
    assert busy[0] < 0.2 < busy[1]
    assert found.waiting_share_by_worker[0] > 0.3 > found.waiting_share_by_worker[1]
    assert limited_by(found, cluster).startswith("straggler w1")


def test_a_rank_that_is_gone_is_named_by_the_others(tmp_path: Path) -> None:
    """horovod#403, horovod#2640: "submitted by subset of ranks", and no word of which."""
    left = ranks.run(3, tmp_path, ranks.dying)["dying"]
    assert len(left) == 2
    for result in left:
        assert re.match(r"synchronization \d+ failed: .* no answer from rank 1 of 3 ", result["said"])
        number = int(result["said"].split()[1])
        assert f"all took part in number {number - 1}, the last to succeed" in result["said"]
        assert 0 < result["after_s"] < 10.0


def test_every_report_has_its_test() -> None:
    docstring = re.compile(r'^def test_\w+\(.*?\) -> None:\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
    cited = " ".join(
        said
        for path in Path(__file__).parents[1].glob("*/test_*.py")
        for said in docstring.findall(path.read_text(encoding="utf-8"))
    )
    assert [report for report in REPORTS.split() if not re.search(rf"{report}\b", cited)] == []
