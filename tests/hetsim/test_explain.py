"""The arithmetic that is explained is the arithmetic that is simulated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster import load_profile
from hetsim.explain import explain, left_out
from hetsim.period import recurrence, without_luck
from hetsim.simulate import simulate

STEADY = """
schema_version: 1
name: steady
workload: {name: w, gradient_bytes: 1.0e7, dataset_samples: 1000000}
workers:
  - {name: a, samples_per_s: 800.0, overhead_s: 0.002}
  - {name: b, samples_per_s: 400.0, floor_s: 0.05}
  - {name: c, samples_per_s: 200.0}
network: {bandwidth_gbit_per_s: 1.0, latency_us: 100.0, server: {bandwidth_gbit_per_s: 100.0}}
training: {global_batch_samples: 96, micro_batch_samples: 8, max_samples: 1000000}
"""


@pytest.mark.parametrize(
    "label",
    [
        ("s-sgd", {}),
        ("s-sgd", {"overlap": False}),
        ("lb-bsp", {"dead_band": 0.0}),
        ("lb-bsp", {"overlap": False}),
        ("one-step-delay", {}),
        ("one-step-delay-balanced", {}),
        ("local-sgd", {"local_steps": 4}),
        ("dropcompute", {}),
        ("dropcompute", {"limit": "fixed", "limit_s": 0.07}),
        ("dropcompute", {"limit": "none"}),
        ("backup-workers", {}),
        ("backup-workers", {"backups": 2}),
        ("od-sgd", {}),
        ("dasgd", {}),
        ("dasgd", {"local_steps": 3, "delay_steps": 0}),
        ("dc-s3gd", {}),
        ("dc-asgd", {}),
        ("delay-adaptive-asgd", {}),
        ("asgd", {}),
        ("ssp", {}),
        ("abs-sgd", {}),
    ],
)
def test_closed_forms_agree_with_the_simulator_where_there_is_no_luck(label: tuple[str, dict[str, object]]) -> None:
    found = explain(load_profile(STEADY), *label)
    assert found.closed is not None
    # these do not repeat exactly within the window
    served = dict.fromkeys(("asgd", "ssp", "dc-asgd", "delay-adaptive-asgd"), 0.01)
    tolerance = {"abs-sgd": 0.01, **served}.get(label[0], 1e-9)
    assert found.steady.samples_per_s == pytest.approx(found.closed.samples_per_s, rel=tolerance)
    assert found.steady.update_period_s == pytest.approx(found.closed.update_period_s, rel=tolerance)
    assert found.steady == found.simulated
    assert found.left_out == ("batches cut short at the end of an epoch",)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["dropcompute", "backup-workers", "dasgd", "dc-s3gd"]),
    st.lists(st.sampled_from([50.0, 100.0, 130.0, 300.0]), min_size=1, max_size=5),
    st.sampled_from([1e4, 1e6, 2e7]),
    st.integers(0, 3),
    st.sampled_from([8, 20, 24]),
)
def test_closed_forms_of_the_field_on_any_steady_cluster(
    name: str, speeds: list[float], size: float, number: int, batch: int
) -> None:
    """Whether the network is hidden or not, with ties and with leftover samples."""
    rows = "".join(f"  - {{name: w{i}, samples_per_s: {v}, overhead_s: 0.01}}\n" for i, v in enumerate(speeds))
    text = STEADY[: STEADY.index("  - {name: a")] + rows + STEADY[STEADY.index("network:") :]
    options = {
        "dropcompute": {"limit": "fixed", "limit_s": 0.023 + 0.047 * number},
        "backup-workers": {"backups": number},
        "dasgd": {"local_steps": 5, "delay_steps": number},
        "dc-s3gd": {},
    }[name]
    sizes = [f"workload.gradient_bytes={size}", f"training.global_batch_samples={batch * len(speeds) + number}"]
    found = explain(load_profile(text, overrides=sizes), name, options)
    assert found.closed is not None
    assert found.steady.samples_per_s == pytest.approx(found.closed.samples_per_s, rel=1e-9)
    assert found.steady.mean_batch_samples == pytest.approx(found.closed.mean_batch_samples, rel=1e-9)


def test_eager_sgd_has_a_closed_form_among_equals_only() -> None:
    equal = STEADY.replace("samples_per_s: 800.0, overhead_s: 0.002", "samples_per_s: 200.0").replace(
        "samples_per_s: 400.0, floor_s: 0.05", "samples_per_s: 200.0"
    )
    for options in ({}, {"mode": "solo"}):
        found = explain(load_profile(equal), "eager-sgd", options)
        assert found.closed is not None
        assert found.steady.samples_per_s == pytest.approx(found.closed.samples_per_s, rel=1e-9)
        assert explain(load_profile(STEADY), "eager-sgd", options).closed is None


def test_micro_batches_of_equal_time_are_those_that_the_workers_settle_on() -> None:
    options = {"micro_batch": "equal-time"}
    found = explain(load_profile(STEADY), "abs-sgd", options)
    # b takes 50 ms for 8 samples; in that time a manages (0.050 - 0.002)·800 and c 0.050·200
    assert [part.samples for part in found.parts] == [38, 8, 10]
    assert found.closed is not None
    assert found.closed.samples_per_s == pytest.approx(found.steady.samples_per_s, rel=0.02)
    assert found.closed.mean_batch_samples == pytest.approx(found.steady.mean_batch_samples, rel=0.02)
    assert any("equal time" in text for text in found.left_out)


@pytest.mark.parametrize("name", ["mixed-gpu-4", "mixed-gpu-4-slow", "mixed-gpu-8", "homogeneous-4"])
def test_equal_time_on_shipped_clusters(name: str) -> None:
    found = explain(load_profile(name), "abs-sgd", {"micro_batch": "equal-time"})
    assert found.closed is not None
    assert found.closed.samples_per_s == pytest.approx(found.steady.samples_per_s, rel=0.02)
    # micro-batches that vary by a few samples shift against one another, which makes a period a little longer
    assert found.closed.mean_batch_samples == pytest.approx(found.steady.mean_batch_samples, rel=0.06)


@pytest.mark.parametrize("name", ["asgd", "ssp"])
@pytest.mark.parametrize("server_gbit_per_s", [0.5, 1.0, 2.9, 3.0, 100.0])
def test_a_server_s_link_that_transfers_share_has_no_closed_form(name: str, server_gbit_per_s: float) -> None:
    profile = load_profile(STEADY, overrides=[f"network.server.bandwidth_gbit_per_s={server_gbit_per_s}"])
    found = explain(profile, name)
    if server_gbit_per_s < 3.0:  # three links of 1 Gbit/s
        assert found.closed is None and "the server, whose link is narrower" in found.why
        assert any(step[0] == "server's link" for step in found.steps)
    else:
        assert found.closed is not None
        assert found.closed.samples_per_s == pytest.approx(found.steady.samples_per_s, rel=0.01)


def test_the_link_of_a_node_is_shared_too() -> None:
    together = STEADY.replace("name: a,", "name: a, node: n,").replace("name: b,", "name: b, node: n,")
    found = explain(load_profile(together, overrides=["network.topology=nodes"]), "asgd")
    assert found.closed is None and "the node n, whose link" in found.why
    apart = explain(load_profile(STEADY, overrides=["network.topology=nodes"]), "asgd")
    assert apart.closed is not None
    assert apart.closed.samples_per_s == pytest.approx(apart.steady.samples_per_s, rel=0.01)


def test_workers_that_the_staleness_does_not_hold_yet_have_no_closed_form() -> None:
    found = explain(load_profile(STEADY), "ssp", {"staleness": 100_000})
    assert found.closed is None and "nobody is held yet" in found.why


def test_one_worker_shares_no_server() -> None:
    text = STEADY.replace(
        "  - {name: b, samples_per_s: 400.0, floor_s: 0.05}\n  - {name: c, samples_per_s: 200.0}\n", ""
    )
    found = explain(load_profile(text, overrides=["network.server.bandwidth_gbit_per_s=0.1"]), "asgd")
    assert found.closed is not None
    assert found.closed.samples_per_s == pytest.approx(found.steady.samples_per_s, rel=1e-9)


def test_an_event_at_the_start_is_not_in_the_closed_form() -> None:
    changed = STEADY + "events: [{at_s: 0.0, link: a, bandwidth_gbit_per_s: 0.01}]\n"
    closed = explain(load_profile(changed), "one-step-delay").closed
    assert closed == explain(load_profile(STEADY), "one-step-delay").closed


def test_the_ring_formula_is_shown_with_its_numbers() -> None:
    found = explain(load_profile(STEADY), "s-sgd")
    _, formula, value = next(step for step in found.steps if step[0] == "all-reduce C")
    assert "2·2·(100 µs + 10 MB/(3·1 Gbit/s))" in formula
    assert value == "107 ms"  # 4·(1e-4 + 1e7/(3·1.25e8))


@given(
    g=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6),
    c=st.floats(0.001, 2.0),
)
@settings(max_examples=60, deadline=None)
def test_the_recurrence_keeps_its_bounds(g: list[float], c: float) -> None:
    period = recurrence(g, c, 300)
    slack = max(g) / 150  # a window of 150 periods may begin and end anywhere in a micro-batch
    assert max(c, max(g)) - slack <= period <= c + max(g) + slack


@pytest.mark.parametrize(
    ("g", "c", "period"), [([0.08], 0.5, 0.56), ([0.32], 0.5, 0.64), ([0.010, 0.013, 0.021, 0.040], 0.040, 0.0601)]
)
def test_the_recurrence_gives_known_periods(g: list[float], c: float, period: float) -> None:
    assert recurrence(g, c) == pytest.approx(period, rel=2e-3)


def test_a_trigger_without_a_closed_form_says_so_and_still_shows_the_simulation() -> None:
    found = explain(load_profile(STEADY), "abs-sgd", {"trigger": "min_samples", "min_samples": 64})
    assert found.closed is None and "back-to-back" in found.why
    assert found.steady.samples_per_s > 0


def test_one_worker_has_no_network() -> None:
    one = load_profile(
        "schema_version: 1\nname: one\nworkload: resnet18-cifar10\nworkers: [{name: a, samples_per_s: 100.0}]\n"
    )
    for name in ("s-sgd", "abs-sgd", "one-step-delay"):
        found = explain(one, name)
        assert found.closed is not None
        assert found.closed.samples_per_s == pytest.approx(100.0)
        assert any("nobody to talk to" in step[1] for step in found.steps)


def test_luck_is_listed_and_can_be_taken_out() -> None:
    changing = load_profile("changing-4").cluster()
    assert {"jitter", "events"} <= set(left_out(changing))
    calm = without_luck(changing)
    assert left_out(calm) == ["batches cut short at the end of an epoch"]
    one, other = (simulate(calm, "s-sgd", updates=20, seed=seed).timing.samples_per_s for seed in (0, 1))
    assert one == other
