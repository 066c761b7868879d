from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.compute.model import pass_model
from hetsim.webapp import controls
from hetsim.webapp.view import View

SHIPPED = ("mixed-gpu-4", "slow-link-4", "mixed-gpu-16", "two-nodes-4", "changing-4", "emulated-4")


@pytest.mark.parametrize("name", SHIPPED)
def test_controls_that_nobody_touched_say_nothing(name: str) -> None:
    start = View(source=name).profile()
    values = controls.values_of(start, start)
    assert controls.overrides_of(start, values) == ()
    assert all(group.speed == 1.0 for group in values.groups)


@given(data=st.data())
def test_values_come_back_from_the_overrides_they_make(data: st.DataObject) -> None:
    view = View(source=data.draw(st.sampled_from(("mixed-gpu-4", "slow-link-4", "emulated-4"))))
    start = view.profile()
    values = controls.values_of(start, start)
    speeds = st.sampled_from((0.25, 0.5, 0.8, 1.0, 1.5, 3.0))
    groups = tuple(
        replace(
            group,
            count=data.draw(st.integers(1, 4)),
            speed=data.draw(speeds),
            gpu=group.gpu and data.draw(st.sampled_from(("T4", "A100", "RTX2080Ti"))),
        )
        for group in values.groups
    )
    wanted = replace(
        values,
        groups=groups,
        bandwidth_gbit_per_s=data.draw(st.sampled_from((1.0, 2.5, 10.0, 100.0))),
        latency_us=data.draw(st.sampled_from((5.0, 50.0, 1000.0))),
        slow_link=data.draw(st.sampled_from((controls.NO_LINK, start.workers[0].name, start.workers[-1].name))),
        jitter_cv=data.draw(st.sampled_from((0.0, 0.05, 0.3))),
        straggler_probability=data.draw(st.sampled_from((0.0, 0.01, 0.2))),
        micro_batch_samples=data.draw(st.integers(8, 64)),
        learning_rate=data.draw(st.sampled_from((0.01, 0.05, 0.3))),
    )
    changed = replace(view, overrides=controls.overrides_of(start, wanted))
    found = controls.values_of(changed.profile(), start)
    if wanted.slow_link == controls.NO_LINK:  # then its bandwidth is nobody's
        wanted = replace(wanted, slow_gbit_per_s=found.slow_gbit_per_s)
    assert found == wanted
    assert controls.overrides_of(start, found) == changed.overrides


@pytest.mark.parametrize("name, worker", [("mixed-gpu-4", "d"), ("emulated-4", "d")])
def test_twice_as_fast_takes_half_as_long_at_every_batch(name: str, worker: str) -> None:
    start = View(source=name).profile()
    values = controls.values_of(start, start)
    groups = tuple(replace(g, speed=2.0) if g.name == worker else g for g in values.groups)
    overrides = controls.overrides_of(start, replace(values, groups=groups))
    assert overrides and all(o.startswith(f"workers.{worker}.") for o in overrides)
    before = {w.name: pass_model(w) for w in start.cluster().workers}
    after = {w.name: pass_model(w) for w in View(source=name, overrides=overrides).profile().cluster().workers}
    for samples in (1, 8, 40, 128, 1000):
        expected = before[worker].seconds(samples) / 2.0
        assert after[worker].seconds(samples) == pytest.approx(expected, rel=1e-5)
        assert after["a"].seconds(samples) == before["a"].seconds(samples)


def test_a_slow_link_is_given_moved_and_taken_away() -> None:
    start = View(source="slow-link-4").profile()
    values = controls.values_of(start, start)
    name = values.slow_link
    assert name and values.slow_gbit_per_s == 1.0
    faster = controls.overrides_of(start, replace(values, slow_gbit_per_s=2.5))
    assert faster == (f"network.links.{name}.bandwidth_gbit_per_s=2.5",)
    assert controls.overrides_of(start, replace(values, slow_link=controls.NO_LINK)) == ("network.links={}",)
    moved = controls.overrides_of(start, replace(values, slow_link="a"))
    assert moved == ("network.links={a: {bandwidth_gbit_per_s: 1.0}}",)
    rates = [link.bytes_per_s for link in View(source="slow-link-4", overrides=moved).profile().cluster().network.links]
    assert rates[0] == min(rates) < rates[-1]


def test_overrides_that_no_control_stands_for_stay() -> None:
    view = View(overrides=("algorithms.s-sgd.overlap=false", "workers.0.jitter_cv=0.2", "network.collective=tree"))
    mine, others = controls.split(view)
    assert mine == ("workers.0.jitter_cv=0.2",)
    assert others == ("algorithms.s-sgd.overlap=false", "network.collective=tree")
    start = controls.departure(view).profile()
    assert start.network.collective == "tree" and start.workers[0].jitter_cv == 0.05
    assert controls.values_of(view.profile(), start).jitter_cv == 0.2


def test_recorded_steps_are_not_scaled() -> None:
    text = (
        "schema_version: 1\nname: traced\n"
        "workers:\n  - {name: a, trace: [[16, 0.1], [16, 0.2]]}\n  - {name: b, samples_per_s: 100.0}\n"
    )
    start = View(source=text).profile()
    values = controls.values_of(start, start)
    assert not controls.can_scale(start.workers[0]) and controls.can_scale(start.workers[1])
    assert controls.gpu_choices(start, start.workers[1]) == ()
    both = replace(values, groups=tuple(replace(g, speed=2.0) for g in values.groups))
    assert controls.overrides_of(start, both) == ("workers.b.samples_per_s=200.0",)
