"""Cost, energy, memory and what a worker is worth, each by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade_clusters import cluster
from small_clusters import SMALL, small

from hetsim.algorithms import get, make, registry
from hetsim.cautions import memory as memory_cautions
from hetsim.cautions import not_fitted, profile_batch
from hetsim.cluster import catalogue, load_profile
from hetsim.compare import compare
from hetsim.comparison import plain
from hetsim.costs import cost, cost_notes, tariffs
from hetsim.explain import explain
from hetsim.marginal import alike, change, marginals, named, subset
from hetsim.memory import memory_of, memory_use, pass_limit, pass_sizes
from hetsim.period import MOST_EVENTS, UPDATES
from hetsim.rows import timing_row
from hetsim.simulate import simulate

# ---- cost -----------------------------------------------------------------------------------------------------------------------


def test_price_and_power_name_their_source() -> None:
    text = (
        SMALL
        + 'sources: {"workers.slow.price_per_h": "our invoice of March", "workers.0.power_w": "measured at the wall"}\n'
    )
    found = tariffs(load_profile(text).cluster())
    assert (found["fast"].price_per_h, found["fast"].price_source, found["slow"].price_source) == (
        2.0,
        "stated",
        "our invoice of March",
    )
    assert (found["fast"].power_source, found["slow"].power_source) == ("measured at the wall", "stated")
    known = tariffs(load_profile("mixed-gpu-4", overrides=["workers.b.price_per_h=9.0"]).cluster())
    a100 = catalogue.gpu("A100")
    assert (known["a"].price_per_h, known["a"].price_source) == (a100.price_per_h, a100.price_source)
    assert (known["b"].price_per_h, known["b"].price_source) == (9.0, "stated")
    assert (known["c"].price_per_h, known["c"].price_source) == (None, None)
    assert known["c"].power_w == 250 and "reference board" in (known["c"].power_source or "")


def test_notes_give_each_source_once_and_what_is_missing() -> None:
    notes = cost_notes(plain(tariffs(load_profile("mixed-gpu-4").cluster())))
    assert notes[0] == "no cost: c (RTX2080Ti) without a price per hour (price_per_h), stated or in the catalogue"
    assert [note for note in notes if note.startswith("energy: ")]
    assert notes[-1].startswith("cost and energy: ")
    equal = cost_notes(plain(tariffs(load_profile("homogeneous-4").cluster())))
    assert equal[0].startswith("cost: a-0, a-1, a-2, a-3 $0.35/h (Google")
    assert cost_notes(plain(tariffs(cluster([1.0, 2.0])))) == []  # nothing known, nothing said
    assert cost_notes({}) == []


def test_a_comparison_carries_them() -> None:
    found = compare(small(max_samples=40_000, seeds=1), ["s-sgd"], predictor="noise-scale", target=None, jobs=1)
    document = found.to_json()
    assert document["tariffs"]["slow"] == {
        "gpu": None,
        "price_per_h": 1.0,
        "price_source": "stated",
        "power_w": 100.0,
        "power_source": "stated",
    }


def test_hours_times_prices() -> None:
    found = cost(small(), 7200.0)
    assert found is not None
    assert (found.usd_to_target, found.kwh_to_target) == (6.0, pytest.approx(0.8))


# ---- memory -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "options", "buffers"),
    [  # momentum: parameters + gradients + velocity, then what the method keeps beside them
        ("s-sgd", {}, 3),
        ("lb-bsp", {}, 3),
        ("one-step-delay", {}, 4),
        ("one-step-delay-balanced", {"compute_point": "current"}, 4),
        ("one-step-delay-balanced", {"compute_point": "look-ahead"}, 5),
        ("one-step-delay-balanced", {"compute_point": "local-prediction"}, 6),
        ("one-step-delay-balanced", {}, 8),
        ("abs-sgd", {"compute_point": "blend"}, 7),
        ("abs-sgd", {}, 8),
        ("asgd", {}, 2),
        ("local-sgd", {"by_speed": True}, 4),
    ],
)
def test_memory_by_hand(label: str, options: dict[str, object], buffers: int) -> None:
    c = small()  # 4 MB of gradients, 1 MB of activations a sample
    algorithm = make(label, options)
    for use, samples in zip(memory_use(algorithm, c, [7, 3]), (7, 3), strict=True):
        assert use.needs == pytest.approx(buffers * 4e6 + samples * 1e6)
        assert sum(use.parts.values()) == pytest.approx(use.needs) and use.has == 1.6e10 and use.fits
    silent = replace(c, workload=replace(c.workload, activation_bytes_per_sample=0.0))
    assert all("activations" not in use.parts for use in memory_use(algorithm, silent, [7, 3]))


@pytest.mark.parametrize("name", list(registry()))
def test_adam_keeps_a_moment_more_and_the_parts_add_up(name: str) -> None:
    algorithm = get(name)()
    for states in (0, 1, 2):
        assert sum(algorithm.buffers(states).values()) == algorithm.parameter_buffers(states) >= 2
    assert algorithm.parameter_buffers(2) >= algorithm.parameter_buffers(1)


def test_the_largest_pass_that_fits_does_and_the_next_does_not() -> None:
    c = small()
    for name in registry():
        algorithm = make(name)
        tight = replace(c.workers[0], memory_bytes=60.5e6, max_batch_samples=None)
        limit = pass_limit(algorithm, c, tight)
        assert limit is not None
        alone = replace(c, workers=(tight,), network=replace(c.network, links=c.network.links[:1]))
        assert memory_use(algorithm, alone, [limit])[0].fits
        assert not memory_use(algorithm, alone, [limit + 1])[0].fits
    w = c.workers[0]
    assert pass_limit(make("s-sgd"), c, replace(w, memory_bytes=11e6, max_batch_samples=None)) == 0
    assert pass_limit(make("s-sgd"), c, replace(w, max_batch_samples=5)) == 5
    assert pass_limit(make("s-sgd"), c, replace(w, memory_bytes=None, max_batch_samples=None)) is None


def test_too_little_memory_is_warned_of() -> None:
    c = small()
    result = simulate(replace(c, workers=tuple(replace(w, memory_bytes=2e7) for w in c.workers)), "s-sgd", updates=10)
    assert not any(use.fits for use in memory_of(result))
    assert [w.code for w in memory_cautions(timing_row(result), result.cluster)] == ["out-of-memory"] * 2


# ---- what a worker is worth -------------------------------------------------------------------------------------------------------


def test_the_worth_of_two_slow_cards_by_hand() -> None:
    """S-SGD on a free network, 120 samples an update: t = 30/100 with the slow ones, 60/300 without, so a third less time; and of the
    price 2 + 2 + 1 + 1 there is 4 left."""
    c = cluster([300.0, 300.0, 100.0, 100.0], global_batch_samples=120, max_samples=10**6)
    prices = (2.0, 2.0, 1.0, 1.0)
    c = replace(c, workers=tuple(replace(w, price_per_h=p) for w, p in zip(c.workers, prices, strict=True)))
    by_names = {m.without: m for m in marginals(c, make("s-sgd"))}
    assert set(by_names) == {("b",), ("a", "b"), ("d",), ("c", "d")}
    slow = by_names["c", "d"]
    assert slow.seconds_ratio == pytest.approx(2 / 3)
    assert slow.cost_ratio == pytest.approx(2 / 3 * 4 / 6) and slow.energy_ratio is None
    assert slow.text == "without c and d: 33 % faster, 56 % cheaper"
    assert by_names["a", "b"].seconds_ratio == pytest.approx(2.0)  # 60 samples each at 100 samples/s
    assert by_names["d",].seconds_ratio == pytest.approx(0.4 / 0.3)  # 40 each
    assert by_names["d",].samples_per_s == pytest.approx(300.0)


def test_a_larger_batch_of_open_batches_counts_by_the_noise_scale() -> None:
    """ABS-SGD on a free network: the batch is a micro-batch of each; without a worker it is smaller, and needs more updates."""
    c = cluster([100.0] * 4, global_batch_samples=4000, micro_batch_samples=1000, max_samples=10**7)
    (one,) = marginals(c, make("abs-sgd"))
    assert one.without == ("d",)
    known = 3035.0  # noise scale of the defaults
    before, after = 1 + known / 4000, 1 + known / 3000
    assert one.seconds_ratio == pytest.approx(after / before, rel=0.02)


def test_nobody_is_left_out_of_one() -> None:
    assert marginals(cluster([1.0]), make("s-sgd")) == ()
    (only,) = [m for m in marginals(cluster([10.0, 10.0], global_batch_samples=4), make("s-sgd"))]
    assert only.without == ("b",) and only.seconds_ratio == pytest.approx(2.0)


def test_subsets_keep_links_and_luck() -> None:
    whole = load_profile("slow-link-4").cluster()
    part = subset(whole, [1, 3])
    assert [w.name for w in part.workers] == [whole.workers[1].name, whole.workers[3].name]
    assert [w.rank for w in part.workers] == [0, 1]
    assert part.network.links == (whole.network.links[1], whole.network.links[3])
    assert simulate(part, "abs-sgd", updates=20).timing.updates == 20
    nodes = subset(load_profile("two-nodes-4").cluster(), [0, 1])
    assert set(nodes.network.node_links) == {nodes.workers[0].node}


def test_kinds_go_by_link_and_by_node() -> None:
    assert sorted(map(len, alike(load_profile("slow-link-4").cluster()))) == [1, 3]
    assert sorted(map(len, alike(load_profile("two-nodes-4").cluster()))) == [2, 2]
    assert sorted(map(len, alike(load_profile("homogeneous-4").cluster()))) == [4]


def test_words() -> None:
    assert change(1.04, "slower", "faster") == "4 % slower"
    assert change(0.69, "dearer", "cheaper") == "31 % cheaper"
    assert change(0.999, "slower", "faster") == "under 1 % faster"
    assert named(["a"]) == "a" and named(["a", "b"]) == "a and b" and named(list("abc")) == "a, b and c"


def test_explain_has_both() -> None:
    found = explain(load_profile("mixed-gpu-4"), "s-sgd").to_json()
    assert [m["without"] for m in found["marginal"]] and {"text", "seconds_ratio"} <= found["marginal"][0].keys()
    assert [use["worker"] for use in found["memory"]] == ["a", "b", "c", "d"]


def test_who_stays_keeps_the_passes_of_the_whole_cluster() -> None:
    """Without the T4s the micro-batch, which was their pass, would be the A100s': too small for them to be fast."""
    own = load_profile(
        "mixed-gpu-4",
        overrides=["training.micro_batch_samples=40", "workers.b.gpu=A100", "workers.c.gpu=T4"],
    ).cluster()
    algorithm = make("abs-sgd", {"micro_batch": "equal-time"})
    updates = max(10, min(UPDATES, MOST_EVENTS // own.n))
    usual = [
        sizes.most_common(1)[0][0] for sizes in pass_sizes(simulate(own, algorithm, updates=updates).schedule, own)
    ]
    assert max(usual[2:]) < 50 and min(usual[:2]) > 160
    found = {one.without: one for one in marginals(own, algorithm)}["c", "d"]
    rest = subset(own, [0, 1])
    kept = replace(rest, training=replace(rest.training, micro_batch_samples=min(usual[:2])))
    expected, tiny = (simulate(c, algorithm, updates=UPDATES).timing for c in (kept, rest))
    assert found.samples_per_s == pytest.approx(expected.samples_per_s, rel=0.02)
    assert expected.samples_per_s > 1.2 * tiny.samples_per_s
    equal = make("abs-sgd", {"micro_batch": "equal"})
    alone = {one.without: one for one in marginals(own, equal)}["c", "d"]
    assert alone.samples_per_s == pytest.approx(simulate(rest, equal, updates=UPDATES).timing.samples_per_s, rel=0.02)


# ---- what a verdict rests on ------------------------------------------------------------------------------------------------------


def test_a_verdict_for_an_open_batch_says_that_the_others_keep_the_profiles() -> None:
    """On the README's first kind of cluster ABS-SGD leads at 512 samples, and its batch is over twice that."""
    found = compare(small(max_samples=400_000, seeds=1), ["s-sgd", "abs-sgd"], predictor="noise-scale", jobs=1)
    rows = {row.name: row for row in found.algorithms}
    lead, base = rows["abs-sgd"], rows["s-sgd"]
    batch = small().training.global_batch_samples

    def cautions(mean: float, own_s: float) -> list[str]:
        own = replace(lead, mean_batch_samples=mean, time_to_target_s=replace(base.time_to_target_s, median=own_s))
        return [c.code for c in profile_batch([base, own], small())]

    sooner, later = 0.5 * base.seconds, 2.0 * base.seconds
    assert cautions(1.6 * batch, sooner) == ["profile-batch"]
    assert cautions(1.4 * batch, sooner) == []
    assert cautions(1.6 * batch, later) == []
    (said,) = profile_batch(
        [
            base,
            replace(lead, mean_batch_samples=3.0 * batch, time_to_target_s=replace(base.time_to_target_s, median=1e-9)),
        ],
        small(),
    )
    assert f"--batches {batch},{2 * batch},{4 * batch}`" in said.text


def test_constants_of_another_problem_are_a_warning() -> None:
    own = small()
    assert own.workload.name != "resnet18-cifar10" and [c.code for c in not_fitted(own)] == ["constants-not-fitted"]
    assert not_fitted(load_profile("mixed-gpu-4").cluster()) == []
