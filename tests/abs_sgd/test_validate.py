"""Did the prediction hold: errors by hand, and on Schedules stretched by a known factor; verdict, command, folder, page; live mechanics."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from finished_runs import TWO
from made_validations import made

import abs_sgd.validate as validating
from abs_sgd import agreement
from abs_sgd.agreement import Figures, Run, Tolerances
from abs_sgd.validate import Validation, execute, prepare, validate
from hetsim import load_profile, simulate
from hetsim.algorithms import get
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.schedule import Kind

pytestmark = pytest.mark.torch


def figures(period_s: float = 1.0, share: float = 0.5, time_s: float | None = 10.0) -> Figures:
    return Figures(
        update_period_s=period_s, samples_per_s=8.0 / period_s, mean_batch_samples=8.0, utilisation=0.5, waiting_share=0.5,
        waiting={"peers": 0.5}, sample_share={"a": share, "b": 1 - share}, time_to_target_s=time_s, final_loss=0.1,
    )  # fmt: skip


def one(measured: Figures, *, seed: int = 0, deviation: float | None = 1e-8) -> Run:
    return Run(seed=seed, predicted=figures(), measured=measured, replay_deviation=deviation)


# ---- figures, errors, verdict --------------------------------------------------------------------------------------------


def test_errors_by_hand() -> None:
    run = one(figures(period_s=1.04, share=0.45, time_s=9.0))
    assert agreement.period_error(run) == pytest.approx(0.04)
    assert agreement.share_error(run) == pytest.approx(0.1)  # both are .05 of .5 off
    assert agreement.time_error(run) == pytest.approx(0.1)


def test_the_worst_worker_counts_relative_to_its_own_share() -> None:
    run = Run(seed=0, predicted=figures(share=0.9), measured=figures(share=0.88))
    assert agreement.share_error(run) == pytest.approx(0.2)  # b: .12 for .1


def test_a_share_of_nothing_that_turns_up_is_infinitely_wrong() -> None:
    assert agreement.share_error(Run(seed=0, predicted=figures(share=1.0), measured=figures(share=1.0))) == 0.0
    assert agreement.share_error(Run(seed=0, predicted=figures(share=1.0), measured=figures(share=0.9))) == math.inf


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"period_s": 1.051}, "period, seed 0"),
        ({"period_s": 0.949}, "period, seed 0"),
        ({"share": 0.53}, "shares, seed 0"),
        ({"time_s": 11.1}, "time to target, median"),
        ({"time_s": None}, "time to target, median"),
    ],
)
def test_each_figure_alone_can_fail(change: dict[str, Any], named: str) -> None:
    holds, text = agreement.verdict(agreement.checks([one(figures(**change))], Tolerances(), 60))
    assert not holds and text.startswith("outside tolerance") and named in text
    assert agreement.verdict(agreement.checks([one(figures())], Tolerances(), 60)) == (True, "within tolerance")


def test_every_run_has_to_hold_but_the_time_to_target_only_in_the_median() -> None:
    good, late, slow = (one(figures(**c), seed=i) for i, c in enumerate([{}, {"time_s": 20.0}, {"period_s": 1.2}]))
    again = dataclasses.replace(good, seed=3)
    assert agreement.verdict(agreement.checks([good, late, again], Tolerances(), 60))[0]
    holds, text = agreement.verdict(agreement.checks([good, slow, again], Tolerances(), 60))
    assert not holds and "seed 2" in text and "seed 0" not in text


def test_the_median_period_of_several_runs_has_a_tolerance_of_its_own() -> None:
    def runs(*periods_s: float) -> list[Run]:
        return [one(figures(period_s=p), seed=i) for i, p in enumerate(periods_s)]

    assert agreement.verdict(agreement.checks(runs(1.04, 0.99, 1.01), Tolerances(), 60))[0]
    assert agreement.verdict(agreement.checks(runs(1.04), Tolerances(), 60))[0]  # one run has no other median
    holds, text = agreement.verdict(agreement.checks(runs(1.04, 0.99, 1.03), Tolerances(), 60))
    assert not holds and "(period, median: 3 % off, tolerance 2 %)" in text
    assert agreement.verdict(agreement.checks(runs(1.04, 0.99, 1.03), Tolerances(period_median=0.031), 60))[0]


@pytest.mark.parametrize("name", ["emulated-4", "emulated-4-slow-link", "emulated-4-changing"])
@pytest.mark.parametrize("label", ["s-sgd", "lb-bsp", "one-step-delay-balanced", "abs-sgd"])
def test_emulation_profiles_suit_one_machine(name: str, label: str) -> None:
    """What they promise, and that no event comes after a run of the usual length."""
    setup = prepare(load_profile(name), 60)
    cluster = setup.cluster
    (_, algorithm), micro = validating._as_live(validating.parse(label), setup), cluster.training.micro_batch_samples
    assert all(micro / w.samples_per_s >= 0.010 - 1e-12 for w in cluster.workers)
    assert all(link.bytes_per_s * 8 <= 1e9 for link in cluster.network.links)
    assert 1e6 <= cluster.workload.gradient_bytes <= 10e6
    result = simulate(cluster, algorithm, updates=60)
    assert 6.0 < result.schedule.horizon_s < 18.0
    assert all(s.at_s < result.schedule.horizon_s - 2.0 for w in cluster.workers for s in w.slowdowns)
    curve, _ = execute(setup, result.schedule, 0)
    assert curve.crossing(setup.target) is not None


def test_what_cannot_be_compared_is_said_and_neither_holds_nor_fails() -> None:
    run = Run(seed=0, predicted=figures(time_s=None), measured=figures(time_s=None))
    found = agreement.checks([run], Tolerances(), 60)
    assert [c.within for c in found] == [True, True, None, None]
    assert agreement.verdict(found)[1].count("not compared") == 2


@pytest.mark.parametrize(("deviation", "updates", "within"), [(2e-5, 60, False), (9e-6, 60, True), (2e-5, 201, None)])
def test_replay(deviation: float, updates: int, within: bool | None) -> None:
    found = agreement.checks([one(figures(), deviation=deviation)], Tolerances(), updates)
    assert {c.name: c.within for c in found}["replay, seed 0"] is within


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_tolerance_is_a_share(value: float) -> None:
    with pytest.raises(UsageError, match="period tolerance"):
        Tolerances(period=value)


def test_a_schedule_slower_by_a_factor_is_off_by_it_and_by_nothing_else() -> None:
    row = made(1.04).document["algorithms"][0]
    assert row["within"]
    run = row["runs"][0]
    assert run["period_error"] == pytest.approx(0.04) and run["share_error"] == 0.0
    assert run["time_error"] == pytest.approx(0.04)  # the same losses, later
    assert run["measured"]["final_loss"] == run["predicted"]["final_loss"]
    assert not made(1.06).within and made(1.06, tolerances=Tolerances(period=0.07)).within


# ---- what the profile is turned into ------------------------------------------------------------------------------------------


def test_a_model_larger_than_the_profiles_gradient_is_sent_whole_and_said() -> None:
    small = load_profile(TWO.replace("100000", "1000"))
    setup = prepare(small, 10)
    assert setup.cluster.workload.gradient_bytes == 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert "19,240" in setup.said[0] and "not the profile's 1,000" in setup.said[0]


def test_what_does_not_run_live_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get("ssp"), "live", "its clocks are not real")
    with pytest.raises(UsageError, match="ssp does not run live: its clocks are not real"):
        validate(load_profile(TWO), ["ssp"], updates=4)


@pytest.mark.parametrize("changed", [{"runs": 0}, {"runs": 6}, {"updates": 1}])
def test_counts_out_of_range(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        validate(load_profile(TWO), ["s-sgd"], **changed)


def test_the_shipped_profile_fits_one_machine() -> None:
    setup = prepare(load_profile("emulated-4"), 60)
    assert setup.task.name == "digits-mlp" and setup.cluster.workload.gradient_bytes == 2.1e6
    micro = setup.cluster.training.micro_batch_samples
    times_s = [micro / w.samples_per_s for w in setup.cluster.workers]
    assert times_s == pytest.approx([0.010, 0.013, 0.021, 0.040])


# ---- command, folder, page --------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, found: Validation, tmp_path: Path, *more: str) -> int:
    monkeypatch.setattr(validating, "validate", lambda *a, **k: found)
    profile = tmp_path / "two.yaml"
    profile.write_text(TWO, encoding="utf-8")
    return main(["validate", str(profile), "-a", "s-sgd", *more])


@pytest.mark.parametrize(("factor", "code"), [(1.04, 0), (1.2, 3)])
def test_exit_code_and_one_document(
    factor: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, made(factor), tmp_path, "--json") == code
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == "" and document["schema_version"] == 1 and document["within"] is (code == 0)
    assert "validate" in document["command"]


def test_the_table_says_what_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, made(1.2), tmp_path) == 3
    out = capsys.readouterr().out
    assert "+20.0 %" in out and "tolerance 5 %" in out and "share of b" in out and "✗" in out


# ---- live -------------------------------------------------------------------------------------------------------------------

ANYTHING = Tolerances(
    period=1000.0, period_median=1000.0, share=1000.0, time=1000.0
)  # machines that test are busy: mechanics, not figures


@pytest.mark.live
def test_a_validation_on_two_ranks() -> None:
    told: list[tuple[int, int, str]] = []
    found = validate(
        load_profile(TWO), ["abs-sgd"], updates=6, seed=3, tolerances=ANYTHING, shape=False, pace_tolerance=1000.0,
        progress=lambda *how_far: told.append(how_far),
    )  # fmt: skip
    assert told[0] == (0, 6, "abs-sgd, seed 3") and {of for _, of, _ in told} == {6}
    counts = [done for done, _, _ in told]
    assert counts == sorted(set(counts)) and len(counts) > 1  # it is told of updates while they are made
    check_live(found)
    assert found.document["shaped"] is False
    assert any("not shaped" in text for text in found.document["said"])


@pytest.mark.live
@pytest.mark.netns
def test_a_validation_on_shaped_links_leaves_nothing_behind() -> None:
    from abs_sgd import namespaces
    from abs_sgd.netlab import NetLab

    if not (probe := NetLab.probe()).ok:
        pytest.skip(probe.reason)
    found = validate(
        load_profile(TWO), ["s-sgd"], updates=6, seed=3, tolerances=ANYTHING, shape=True, pace_tolerance=1000.0
    )
    check_live(found)
    assert found.document["shaped"] is True
    schedule = found.pairs["s-sgd"][0].measured.schedule
    reduces = schedule.rows(Kind.REDUCE)
    wire_s = 2 * 1 / 2 * 100000 * 8 / 0.2e9  # 4 ms; a token bucket lets at most 96 KiB of the 100 kB through at once
    assert float((schedule.end_s - schedule.start_s)[reduces].max()) > wire_s / 4
    mine = namespaces.name(os.getpid(), 0, "x").rsplit("-", 2)[0]
    assert not [name for name in namespaces.existing() if name.startswith(mine + "-")]


def check_live(found: Validation) -> None:
    (pairs,) = found.pairs.values()
    assert found.within and pairs[0].measured.schedule.header.origin == "measured"
    run = found.document["algorithms"][0]["runs"][0]
    assert run["seed"] == 3 and 0.0 <= run["replay_deviation"] <= 1e-5
    assert run["measured"]["update_period_s"] > 0
    assert sum(run["measured"]["sample_share"].values()) == pytest.approx(1.0)
    assert pairs[0].measured.samples.in_flight == 0
