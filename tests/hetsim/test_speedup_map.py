"""Maps of the speed-up: each cell is a sweep's, not reached is never a number, and a speed ratio is what it says."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import SMALL

from hetsim import load_profile, sweep
from hetsim.cli import main
from hetsim.errors import ProfileError, SimulationError, UsageError
from hetsim.speedup_map import PENDING, SpeedupMap, coarse_first, command, map_spec, of_rows, speedup_map
from hetsim.split import batch_seconds
from hetsim.sweeps.composed import SPEED_RATIO, overrides_of, ratio_of, slowdowns, speeds

BANDWIDTH = "network.bandwidth_gbit_per_s"
LABELS = ["s-sgd", "lb-bsp", "abs-sgd"]
AXES = (f"{SPEED_RATIO}=1,2,8", f"{BANDWIDTH}=0.5,5")


@pytest.fixture(scope="module")
def small_map() -> SpeedupMap:
    return speedup_map(load_profile(SMALL), *AXES, LABELS)


# ---- the speed ratio ---------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1.0, 1e4), min_size=2, max_size=8), st.floats(1.0, 1e4))
def test_slowed_speeds_have_the_ratio_and_keep_their_order(known: list[float], ratio: float) -> None:
    found = [speed / factor for speed, factor in zip(known, slowdowns(known, ratio), strict=True)]
    assert max(found) / min(found) == pytest.approx(ratio, rel=1e-6)
    assert max(found) == pytest.approx(max(known))
    if max(known) / min(known) > 1.001:
        order = sorted(range(len(known)), key=lambda i: known[i])
        assert all(found[a] <= found[b] * (1 + 1e-9) for a, b in itertools.pairwise(order))


def test_equal_workers_are_spaced_evenly() -> None:
    assert slowdowns([5.0, 5.0, 5.0, 5.0], 8.0) == pytest.approx((1.0, 2.0, 4.0, 8.0))


@pytest.mark.parametrize("name", ["mixed-gpu-4", "emulated-4", "slow-link-4", "mixed-gpu-16"])
@pytest.mark.parametrize("ratio", [1, 2.5, 40])
def test_a_ratio_set_is_the_ratio_measured(name: str, ratio: float) -> None:
    before = load_profile(name)
    after = load_profile(name, overrides=overrides_of(before, SPEED_RATIO, ratio))
    assert ratio_of(after) == pytest.approx(ratio, rel=1e-4)
    assert max(speeds(after)) == pytest.approx(max(speeds(before)), rel=1e-4)
    # every worker's passes take the same number of times as long at any size within what was measured
    for old, new in zip(before.cluster().workers, after.cluster().workers, strict=True):
        factors = [batch_seconds(new)(m) / batch_seconds(old)(m) for m in (32, 100, 512)]
        assert factors == pytest.approx([factors[0]] * 3, rel=1e-4)
        assert (new.memory_bytes, new.price_per_h, new.jitter_cv) == (old.memory_bytes, old.price_per_h, old.jitter_cv)


@pytest.mark.parametrize("name", ["mixed-gpu-4", "emulated-4", "mixed-gpu-8"])
def test_the_profiles_own_ratio_changes_nothing(name: str) -> None:
    profile = load_profile(name)
    assert overrides_of(profile, SPEED_RATIO, ratio_of(profile)) == ()


def test_a_line_keeps_its_overhead_in_proportion() -> None:
    text = SMALL.replace("samples_per_s: 200", "samples_per_s: 200, overhead_s: 0.01, floor_s: 0.02")
    profile = load_profile(text)
    after = load_profile(text, overrides=overrides_of(profile, SPEED_RATIO, 10))
    old, new = profile.cluster().workers[1], after.cluster().workers[1]
    factor = old.samples_per_s / new.samples_per_s
    assert (new.overhead_s / old.overhead_s, new.floor_s / old.floor_s) == pytest.approx((factor, factor), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        (SMALL, 0.5, "a number from 1"),
        (SMALL, "four", "a number from 1"),
        (SMALL, True, "a number from 1"),
        (SMALL, math.nan, "a number from 1"),
        ("homogeneous-4", 2, "one entry of workers"),
        (SMALL.replace("samples_per_s: 200", "trace: [[8, 0.1]]"), 2, "slow replays recorded steps"),
    ],
)
def test_a_ratio_that_means_nothing_is_refused(text: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        overrides_of(load_profile(text), SPEED_RATIO, value)


def test_a_ratio_and_a_speed_are_not_swept_together() -> None:
    for field in ("workers.slow.samples_per_s", "workers", "workers.0", "workers.0.step_times_s.8"):
        with pytest.raises(UsageError, match=rf"{field} is swept twice, also by speed-ratio"):
            map_spec(load_profile(SMALL), f"{field}=1,2", f"{SPEED_RATIO}=1,2", LABELS)
    map_spec(load_profile(SMALL), "workers.slow.jitter_cv=0,0.2", f"{SPEED_RATIO}=1,2", LABELS)


def test_a_refused_ratio_names_its_cell() -> None:
    with pytest.raises(UsageError, match=r"cell 1 \(speed-ratio=0\.5\): speed-ratio=0\.5"):
        sweep(load_profile(SMALL), over={SPEED_RATIO: [2, 0.5]}, algorithms=["s-sgd"], jobs=1)


# ---- the map -----------------------------------------------------------------------------------------------------------------------------


def test_cells_are_those_of_the_sweep_that_the_command_runs(
    small_map: SpeedupMap, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    words = shlex.split(command(str(tmp_path / "small.yaml"), (), AXES, small_map.labels))
    assert words[0] == "hetsim"
    assert main([*words[1:], "--json", "-j", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    again = of_rows(map_spec(load_profile(SMALL), *AXES, LABELS), rows)
    assert again.csv() == small_map.csv()


def test_a_cell_is_what_its_overrides_make(small_map: SpeedupMap) -> None:
    for i, j in ((0, 0), (2, 1)):
        cell = small_map.cell(i, j)
        assert (cell.x, cell.y) == (small_map.x_values[i], small_map.y_values[j])
        profile = load_profile(SMALL, overrides=cell.overrides)
        alone = sweep(profile, over={"training.seeds": [1]}, algorithms=LABELS, jobs=1).rows()
        assert dict(cell.seconds) == {row["algorithm"]: row["seconds"] for row in alone}
        assert cell.speedup == next(row["speedup"] for row in alone if row["algorithm"] == "abs-sgd")
        assert cell.speedup == pytest.approx(dict(cell.seconds)[cell.baseline] / dict(cell.seconds)["abs-sgd"])
        assert cell.winner == min(dict(cell.seconds), key=lambda name: dict(cell.seconds)[name] or math.inf)


def made(seconds: dict[str, float | None]) -> SpeedupMap:
    """A map of one cell with these seconds."""
    spec = map_spec(load_profile(SMALL), f"{SPEED_RATIO}=2", f"{BANDWIDTH}=1", LABELS)
    known = [s for name, s in seconds.items() if name != "abs-sgd" and s is not None]
    rows = [
        {
            "algorithm": name,
            "role": "ours" if name == "abs-sgd" else "baseline",
            "seconds": s,
            "speedup": min(known) / s if s is not None and known else None,
            "method": "full",
            "cell": 0,
        }
        for name, s in seconds.items()
    ]
    return of_rows(spec, rows)


def test_not_reached_is_a_reason_and_never_a_number() -> None:
    for seconds, winner, why in (
        ((None, 5.0, None), "lb-bsp", "abs-sgd does not reach the target"),
        ((None, None, 3.0), "abs-sgd", "no baseline reaches the target, abs-sgd does"),
        ((None, None, None), None, "neither abs-sgd nor a baseline reaches the target"),
    ):
        found = made(dict(zip(LABELS, seconds, strict=True)))
        cell = found.cell(0, 0)
        assert math.isnan(cell.speedup) and math.isnan(found.speedup[0, 0])
        assert (cell.winner, cell.why) == (winner, why)
        row = next(csv.DictReader(io.StringIO(found.csv())))
        assert row["speedup_of_abs-sgd"] == "" and row["why_not"] == why and row["winner"] == (winner or "")
        assert [row[f"{name}_s"] == "" for name in LABELS] == [s is None for s in seconds]
    assert "Nothing reaches the target in any of 1 cells" in made(dict.fromkeys(LABELS)).sentence()


@pytest.mark.parametrize(("second", "clear"), [(10.05, False), (10.2, True), (None, True)])
def test_a_lead_within_the_margin_is_not_clear(second: float | None, clear: bool) -> None:
    assert made({"s-sgd": None, "lb-bsp": second, "abs-sgd": 10.0}).cell(0, 0).clear is clear


def test_progress_counts_and_stopping_stops() -> None:
    seen: list[tuple[int, int]] = []
    speedup_map(load_profile(SMALL), *AXES, LABELS, progress=lambda *now: seen.append(now))
    assert seen == [(i, 6) for i in range(7)]
    seen.clear()
    with pytest.raises(SimulationError, match="stopped after 2 of 6 cells"):
        speedup_map(
            load_profile(SMALL),
            *AXES,
            LABELS,
            progress=lambda *now: seen.append(now),
            should_stop=lambda: len(seen) > 2,
        )
    assert seen[-1] == (2, 6)


def test_a_map_is_watched_from_its_corners_on(small_map: SpeedupMap) -> None:
    seen: list[SpeedupMap] = []
    speedup_map(load_profile(SMALL), *AXES, LABELS, watch=lambda partly: seen.append(partly()))
    assert [partly.pending for partly in seen] == [5, 4, 3, 2, 1, 0] and seen[-1] == small_map
    corners = {(i, j) for i in (0, 2) for j in (0, 1)}
    assert {(i, j) for i in range(3) for j in range(2) if not seen[3].cell(i, j).pending} == corners
    for partly in seen:
        for i in range(3):
            for j in range(2):
                cell = partly.cell(i, j)
                assert cell == small_map.cell(i, j) or (
                    cell.pending and cell.why == PENDING and math.isnan(cell.speedup)
                )


@given(st.integers(1, 60))
def test_a_coarse_picture_comes_first(count: int) -> None:
    rounds = coarse_first(count)
    assert rounds[0] == rounds[-1] == 0 and len(rounds) == count
    for number in range(max(rounds) + 1):
        there = [place for place, one in enumerate(rounds) if one <= number]
        gaps = [b - a for a, b in itertools.pairwise(there)]
        assert all(gap <= math.ceil((count - 1) / 2**number) for gap in gaps)


def test_what_cannot_be_mapped_is_refused() -> None:
    profile = load_profile(SMALL)
    for axes, labels, says in (
        ((AXES[0], AXES[0]), LABELS, "swept twice"),
        ((AXES[0], "network.bandwidth=1,2"), LABELS, "bandwidth"),
        ((AXES[0], f"{BANDWIDTH}=0,1"), LABELS, "greater than 0"),
        (AXES, ["abs-sgd"], "name a baseline"),
        (AXES, ["no-such"], "no-such"),
    ):
        with pytest.raises((UsageError, ProfileError), match=says):
            speedup_map(profile, *axes, labels)


def test_the_label_is_taken_along() -> None:
    spec = map_spec(load_profile(SMALL), *AXES, ["s-sgd"], label="abs-sgd: compute_point=current")
    assert spec.labels == ("s-sgd", "abs-sgd:compute_point=current")
