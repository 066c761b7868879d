"""What would fill memory or never end is refused with a reason: endless runs, absurd counts, numbers next to zero."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hetsim import load_profile, simulate
from hetsim.cli import main
from hetsim.compare import task_of
from hetsim.contest import follow
from hetsim.errors import ProfileError, RunTooLongError, UsageError
from hetsim.labels import parse
from hetsim.quick import quick
from hetsim.runtime.collectives import Counter
from hetsim.steady_run import short
from hetsim.trace import trace_events


def test_a_transfer_that_takes_for_ever_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """ABS-SGD's workers compute on while it travels: only the log's limit ends that."""
    monkeypatch.setattr("hetsim.schedule.log.MOST_ROWS", 10_000)
    slow = load_profile("mixed-gpu-4", overrides=["network.bandwidth_gbit_per_s=1e-9"])
    with pytest.raises(RunTooLongError, match="more than 10,000 operations"):
        simulate(slow, "abs-sgd", updates=3)


def test_what_is_quick_stays_quick_where_a_transfer_takes_for_ever() -> None:
    """ABS-SGD, which would compute on, is followed over the samples that a full comparison looks at, and it is said."""
    slow = load_profile(
        "mixed-gpu-4", overrides=["network.bandwidth_gbit_per_s=1e-9", "training.max_samples=50000", "training.seeds=1"]
    )
    c = quick(slow, ["s-sgd", "abs-sgd"])
    assert any("followed update by update: abs-sgd." in sentence for sentence in c.assumptions)
    assert len(c.runs["abs-sgd"].schedule) < 100_000 and c["abs-sgd"].seconds == math.inf
    full = follow(task_of(slow, "nqm", None), parse("abs-sgd"), 0, None)
    assert len(full.result.schedule) == len(c.runs["abs-sgd"].schedule)
    assert short(task_of(slow, "nqm", None), parse("abs-sgd"), 0) is None


def test_waits_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not packed as rows of their own until the end: half of a synchronous run's log."""
    profile = load_profile("mixed-gpu-4")
    rows = len(simulate(profile, "s-sgd", updates=3000).schedule)
    monkeypatch.setattr("hetsim.schedule.log.MOST_ROWS", rows // 2)
    with pytest.raises(RunTooLongError):
        simulate(profile, "s-sgd", updates=3000)


@pytest.mark.parametrize("budget", [{"updates": 10**12}, {"max_samples": 10**15}, {}])
def test_counts_that_cannot_be_are_refused_before_anything_runs(budget: dict[str, Any]) -> None:
    profile = load_profile("mixed-gpu-4", overrides=["training.max_samples=1e15"])
    with pytest.raises(UsageError, match=r"training\.max_samples"):
        simulate(profile, "s-sgd", **budget)


@pytest.mark.parametrize(
    "override",
    [
        "network.bandwidth_gbit_per_s=5e-324",
        "network.payload_share=1e-300",
        "network.all_reduce_table=[{bytes: 1e-320, seconds: 1}]",
        "workers.0.samples_per_s=1e-320",
        "workload={name: w, gradient_bytes: 1e18}",
    ],
)
def test_numbers_whose_quotients_overflow_are_refused(override: str) -> None:
    with pytest.raises(ProfileError, match=r"must be at (least 1e-12|most 1e\+13)"):
        load_profile("mixed-gpu-4", overrides=[override])


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_period_without_end_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="finite"):
        simulate(load_profile("mixed-gpu-4"), "abs-sgd", options={"trigger": "period_s", "period_s": value}, updates=1)


def test_a_shared_counter_counts_what_has_arrived() -> None:
    """Against the sum over everything added: one's own at once, the others' one latency later."""
    latency, counter, added = 2.0, Counter(), []
    for step in range(200):
        now, rank, samples = step // 3, step * 7 % 5, step % 11
        added.append((now, rank, samples))
        known = sum(s for at, who, s in added if who == rank or at <= now - latency)
        assert counter.add(now, now - latency, rank, samples) == known


@pytest.mark.parametrize("algorithm", ["s-sgd", "asgd", "abs-sgd"])
def test_a_cut_trace_is_the_beginning_of_the_whole_one(algorithm: str) -> None:
    """It is cut before its events are made; arrows without their end are left out."""
    schedule = simulate(load_profile("mixed-gpu-4"), algorithm, updates=50).schedule
    whole = [e for e in trace_events(schedule)["traceEvents"] if e["ph"] not in "Mstf"]
    cut = trace_events(schedule, most=300)
    spans = [e for e in cut["traceEvents"] if e["ph"] not in "Mstf"]
    assert cut["otherData"]["complete"] is False
    assert 100 < len(spans) <= 300
    assert spans == whole[: len(spans)]


def test_out_of_memory_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def starved(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hetsim.runtime.Simulation.run", starved)
    assert main(["simulate", "mixed-gpu-4", "-a", "s-sgd", "--updates", "1"]) == 1
    assert "out of memory" in capsys.readouterr().err
