"""Plans: the unequal split under memory caps against every split there is, timm's case, ties, memory, and what is copied."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from hetsim import wording
from hetsim.candidates import candidates
from hetsim.cluster import Profile, load_profile
from hetsim.cluster.spec import Worker
from hetsim.compute import pass_model, passes
from hetsim.errors import SimulationError, UsageError
from hetsim.plan import Plan, choose, clearly_slower, plan, simplicity
from hetsim.plan_copy import command_words, copy
from hetsim.simulate import simulate

TWO_AND_TWO = """
schema_version: 1
name: two-and-two
workload: {{name: mine, gradient_bytes: 1.0e+6, dataset_samples: 1000000, activation_bytes_per_sample: 1.0e+5}}
workers:
  - {{name: fast, samples_per_s: {fast}, overhead_s: {overhead}, count: 2{fast_more}}}
  - {{name: slow, samples_per_s: {slow}, overhead_s: {overhead}, count: 2{slow_more}}}
network: {{bandwidth_gbit_per_s: 1000.0, latency_us: 0}}
training: {{global_batch_samples: {batch}, micro_batch_samples: {micro}, max_samples: 200000, seeds: 1}}
"""


def two_and_two(
    fast: float,
    slow: float,
    batch: int,
    *,
    overhead: float = 0.0,
    micro: int = 4,
    fast_more: str = "",
    slow_more: str = "",
) -> Profile:
    given = {"fast_more": fast_more, "slow_more": slow_more}
    return load_profile(TWO_AND_TWO.format(fast=fast, slow=slow, batch=batch, overhead=overhead, micro=micro, **given))


def cheap(profile: Profile, *labels: str, **more: object) -> Plan:
    return plan(profile, labels or None, predictor="noise-scale", jobs=1, **more)  # type: ignore[arg-type]


def brute_force(workers: tuple[Worker, ...], caps: list[int | None], total: int) -> float:
    """The least time of the last of four workers, over all splits."""

    def seconds(i: int, b: int) -> float:
        return sum(pass_model(workers[i]).seconds(m) for m in passes(b, caps[i]))

    table = [[seconds(i, b) for b in range(total + 1)] for i in range(4)]
    return min(
        max(table[i][b] for i, b in enumerate((x, y - x, z - y, total - z)))
        for x, y, z in itertools.combinations(range(1, total), 3)
    )


@pytest.mark.parametrize(
    ("fast_more", "slow_more", "caps"),
    [
        (", max_batch_samples: 9", ", max_batch_samples: 4", (9, 4)),
        # memory beside three buffers of 1 MB; what a profile derives leaves room for four
        (", memory_bytes: 4.9e+6", ", memory_bytes: 4.45e+6", (9, 4)),
    ],
)
def test_two_fast_and_two_slow_cards_under_memory_caps(fast_more: str, slow_more: str, caps: tuple[int, int]) -> None:
    profile = two_and_two(300.0, 100.0, 26, overhead=0.02, fast_more=fast_more, slow_more=slow_more)
    found = cheap(profile, "s-sgd", "lb-bsp")
    workers = profile.cluster().workers
    assert found.algorithm == "lb-bsp"
    batches = [round(share.batch_samples) for share in found.workers]
    assert sum(batches) == 26 and batches[0] > batches[2]
    assert max(share.seconds for share in found.workers) == pytest.approx(
        brute_force(workers, [caps[0], caps[0], caps[1], caps[1]], 26), rel=1e-12
    )
    for share, cap in zip(found.workers, (caps[0], caps[0], caps[1], caps[1]), strict=True):
        assert share.pass_samples <= cap
        assert math.ceil(share.batch_samples / share.pass_samples) == round(share.passes)
        assert share.memory.fits


def test_timm_s_case() -> None:
    """Pull request 580 of timm: two fast and two slow cards at 200 each do 2000 images/s; 300/300/200/200 do 2500."""
    profile = two_and_two(750.0, 500.0, 1000, micro=100)
    found = cheap(profile, "s-sgd", "lb-bsp")
    assert [share.batch_samples for share in found.workers] == [300, 300, 200, 200]
    assert found.samples_per_s == pytest.approx(2500, rel=0.002)  # gradients of 1 MB at 1 Tbit/s
    assert found.alternatives[0].name == "s-sgd"
    assert [share.loss_weight for share in found.workers] == pytest.approx([1.2, 1.2, 0.8, 0.8])
    anything = cheap(profile, "s-sgd", "lb-bsp", "one-step-delay-balanced", "abs-sgd")  # or better
    assert anything.samples_per_s >= 0.998 * 2500
    assert anything.time_to_target_s is not None and found.time_to_target_s is not None
    assert (anything.time_to_target_s.median or math.inf) <= (found.time_to_target_s.median or 0.0)


def test_the_loss_weight_makes_ddp_s_average_that_of_all_samples() -> None:
    found = cheap(two_and_two(300.0, 100.0, 37), "lb-bsp")
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(round(share.batch_samples), 5)) for share in found.workers]
    ddp = np.mean([s.loss_weight * g.mean(axis=0) for s, g in zip(found.workers, gradients, strict=True)], axis=0)
    assert ddp == pytest.approx(np.concatenate(gradients).mean(axis=0), rel=1e-12)


def test_of_what_cannot_be_told_apart_the_simplest_is_taken() -> None:
    found = cheap(two_and_two(300.0, 300.0, 32), "lb-bsp", "one-step-delay", "s-sgd")
    assert found.label == "s-sgd" and found.trigger is None and found.compute_point is None
    assert {share.batch_samples for share in found.workers} == {8.0}


def test_why_the_fastest_was_not_taken() -> None:
    alone = cheap(two_and_two(300.0, 297.0, 2000), "lb-bsp:dead_band=0", "s-sgd")
    assert alone.label == "s-sgd" and alone.alternatives[0].seconds < alone.time_to_target_s.median  # type: ignore[operator,union-attr]
    assert re.search(
        r"; lb-bsp:dead_band=0.0 is more complicated, and its .* are less by no more than 1 %, our margin$",
        alone.reasons[0],
    )
    text = two_and_two(300.0, 297.0, 64).to_yaml()
    luck = ["training.seeds=3", "workers.fast.jitter_cv=0.1", "workers.slow.jitter_cv=0.1"]
    found = cheap(load_profile(text, overrides=luck), "s-sgd", "lb-bsp")
    fastest = found.alternatives[0]
    assert found.label != fastest.name and fastest.slower.value is not None
    assert (
        f"over 3 seeds its {wording.seconds(fastest.seconds)} can't be told from that: {fastest.slower.value:.2f} ("
        in found.reasons[0]
    )


def test_the_profile_s_own_setting_is_named_where_another_was_chosen() -> None:
    profile = two_and_two(300.0, 100.0, 64, overhead=0.02, micro=2)
    found = cheap(profile, "abs-sgd", "abs-sgd:micro_batch=equal-time")
    (own,) = [one for one in found.alternatives if one.name == "abs-sgd"]
    (said,) = [reason for reason in found.reasons if reason.startswith("as the profile has it: it takes ")]
    assert own.seconds is not None and wording.seconds(own.seconds) in said
    assert not [reason for reason in cheap(profile, "s-sgd").reasons if reason.startswith("as the profile")]


def test_what_does_not_fit_is_left_out_with_its_numbers() -> None:
    """5.05 MB: room for the four buffers of a delayed method at the current point and one sample, not for the six of a
    local prediction or the eight of a damped one."""
    tight = ", memory_bytes: 5.05e+6"
    profile = two_and_two(300.0, 100.0, 32, fast_more=tight, slow_more=tight)
    found = cheap(profile, "one-step-delay", "one-step-delay:compute_point=local-prediction", "abs-sgd")
    assert found.label == "one-step-delay"
    assert found.excluded == {
        "one-step-delay:compute_point=local-prediction": "fast-0 needs 6.1 MB for a single sample and has 5.05 MB",
        "abs-sgd": "fast-0 needs 8.1 MB for a single sample and has 5.05 MB",
    }
    with pytest.raises(UsageError, match=r"nothing fits into memory; abs-sgd: fast-0 needs 8\.1 MB"):
        cheap(profile, "abs-sgd")


def test_passes_leave_room_for_what_the_algorithm_keeps() -> None:
    """9.05 MB beside eight buffers: ten samples; the profile, which counts four buffers, would allow fifty."""
    tight = ", memory_bytes: 9.05e+6"
    profile = two_and_two(300.0, 100.0, 160, fast_more=tight, slow_more=tight)
    assert profile.cluster().workers[0].max_batch_samples == 50
    found = cheap(profile, "one-step-delay-balanced")
    assert max(share.pass_samples for share in found.workers) <= 10
    assert all(share.memory.fits for share in found.workers)


def test_a_global_batch_can_be_chosen() -> None:
    profile = two_and_two(300.0, 100.0, 32, overhead=0.05)
    found = cheap(profile, "s-sgd", batches=[32, 64, 128])
    assert found.global_batch_samples == 128 and found.overrides == {"training.global_batch_samples": 128}
    assert {one.name for one in found.alternatives} == {"s-sgd", "s-sgd (global_batch_samples=64)"}
    assert any(reason.startswith("global batch: 128 samples (64: ") for reason in found.reasons)
    with pytest.raises(UsageError, match="a global batch of 3 samples is smaller than the 4 workers"):
        cheap(profile, batches=[3, 32])


def test_open_batches_are_means_in_passes_of_the_workers_own_size() -> None:
    profile = two_and_two(300.0, 100.0, 256, overhead=0.02, micro=64)
    found = cheap(profile, "abs-sgd:micro_batch=equal-time")
    assert found.split == "open" and (found.trigger, found.micro_batch) == ("back-to-back", "equal-time")
    assert sum(share.batch_samples for share in found.workers) == pytest.approx(found.mean_batch_samples, rel=0.02)
    assert found.workers[0].pass_samples > found.workers[2].pass_samples
    for share in found.workers:
        assert share.passes * share.pass_samples == pytest.approx(share.batch_samples)


def test_micro_batches_are_searched_and_the_reason_lists_them() -> None:
    """A pass costs 20 ms beside its samples: two samples a pass are far too few."""
    found = cheap(two_and_two(300.0, 100.0, 64, overhead=0.02, micro=2), "abs-sgd")
    assert found.micro_batch_samples >= 8 and found.overrides["training.micro_batch_samples"] >= 8
    assert any(r.startswith(f"micro-batch: {found.micro_batch_samples} samples") and "2: " in r for r in found.reasons)


def test_a_worker_that_slows_the_others_is_named() -> None:
    """S-SGD with equal batches of 32: 0.16 s with the slow pair at 100 samples/s, 32/600 s without it, a third of that."""
    found = cheap(two_and_two(600.0, 100.0, 64), "s-sgd")
    assert found.reasons[-1].startswith("workers: the same would be better off without slow-0 and slow-1: 67 % faster")
    assert not [r for r in cheap(two_and_two(300.0, 300.0, 64), "s-sgd").reasons if r.startswith("workers")]


def test_what_is_copied_gives_the_same_again() -> None:
    profile = two_and_two(300.0, 100.0, 32, overhead=0.05)
    found = cheap(profile, "lb-bsp", batches=[32, 64])
    given = command_words("my file.yaml", ["network.latency_us=3"])
    lines = copy(found, given)
    assert lines[0] == f"batch = {[round(s.batch_samples) for s in found.workers]}  # samples of each rank and update"
    shell = "'my file.yaml' --set network.latency_us=3 -a lb-bsp --set training.global_batch_samples=64"
    assert lines[-2:] == [f"hetsim simulate {shell}", f"torchrun --nproc-per-node 4 -m abs_sgd {shell} -o run"]
    again = replace(profile.cluster(), training=replace(profile.cluster().training, global_batch_samples=64))
    period = simulate(again, "lb-bsp").timing.update_period_s
    assert found.update_period_s == pytest.approx(period, rel=0.01)


def test_the_document_is_plain_and_complete() -> None:
    document = json.loads(
        json.dumps(cheap(two_and_two(300.0, 100.0, 32), "s-sgd", "lb-bsp").to_json(), allow_nan=False)
    )
    assert document["schema_version"] == 1
    assert {
        "label",
        "overrides",
        "workers",
        "reasons",
        "alternatives",
        "excluded",
        "marginal",
        "warnings",
    } <= document.keys()
    assert document["cost"] is None and document["trigger"] is None
    assert set(document["workers"][0]["memory"]["parts"]) == {"parameters", "gradients", "optimizer", "activations"}


def test_a_target_out_of_reach_is_a_failed_run() -> None:
    profile = load_profile("mixed-gpu-4", overrides=["training.max_samples=2000"])
    with pytest.raises(SimulationError, match="none of 1 candidates reaches the target within 2,000 samples") as caught:
        plan(profile, ["s-sgd"], jobs=1)
    assert caught.value.exit_code == 1


def test_candidates_cover_the_registry_and_its_options() -> None:
    cluster = load_profile("mixed-gpu-4").cluster()
    labels = [one.label for one in candidates(cluster, None, None)]
    assert len(set(labels)) == len(labels)
    assert {"s-sgd", "abs-sgd", "abs-sgd:compute_point=current", "abs-sgd:trigger=target_batch"} <= set(labels)
    assert "abs-sgd:micro_batch=equal" in labels  # the profile has equal-time
    assert "abs-sgd:micro_batch=equal-time" not in labels
    assert "one-step-delay:compute_point=local-prediction" in labels
    assert "abs-sgd:compute_point=local-prediction" in labels
    assert "abs-sgd:compute_point=damped-prediction" not in labels  # the default
    assert len(candidates(cluster, ["s-sgd"], [512, 256, 512])) == 2


def test_a_lead_within_luck_does_not_count() -> None:
    profile = load_profile("mixed-gpu-4", overrides=["training.seeds=5"])
    from hetsim.candidates import first_round
    from hetsim.comparison import TimeToTarget

    cluster = profile.cluster()
    both = candidates(cluster, ["lb-bsp", "s-sgd"], None)
    lb, s = first_round(cluster, both, predictor="noise-scale", seed=0, jobs=1, done=None)

    def at(one: object, *seconds: float) -> object:
        times = TimeToTarget(median=sorted(seconds)[2], low=None, high=None, reached=5, seeds=5, by_seed=seconds)
        comparison = replace(one.comparison, seeds=(0, 1, 2, 3, 4))  # type: ignore[attr-defined]
        return replace(one, row=replace(one.row, time_to_target_s=times), comparison=comparison)  # type: ignore[type-var,attr-defined]

    balanced = at(lb, 10, 10, 10, 10, 10)
    near, far = at(s, 10.5, 9.9, 10.4, 10.3, 10.2), at(s, 10.5, 10.4, 10.4, 10.3, 10.2)
    assert not clearly_slower(near, balanced) and clearly_slower(far, balanced)  # type: ignore[arg-type]
    assert simplicity(s, cluster) < simplicity(lb, cluster)
    assert choose([balanced, near], cluster) is near  # type: ignore[list-item]
    assert choose([balanced, far], cluster) is balanced  # type: ignore[list-item]
