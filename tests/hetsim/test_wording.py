"""Cells of a comparison: three digits, and an interval wherever there is one."""

from __future__ import annotations

from typing import Any

import pytest

from hetsim import wording


def row(median: float | None, low: float | None, high: float | None) -> dict[str, Any]:
    reached = 0 if median is None else 5
    return {"time_to_target_s": {"median": median, "low": low, "high": high, "reached": reached, "seeds": 5}}


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ((845.974, 845.776, 846.297), "846 (846 – 846)"),  # narrower than its last digit, and still there
        ((66.1, 66.0, 66.14), "66.1 (66.0 – 66.1)"),
        ((1.5, 0.9, 12.345), "1.50 (0.9 – 12.3)"),
        ((99.96, 9.996, 999.6), "100 (10.0 – 1,000)"),
        ((50.0, 49.0, None), "50.0 (49.0 – never)"),
        ((50.0, None, None), "50.0"),  # one seed
        ((50.0, 50.0, 50.0), "50.0"),  # nothing depends on luck
        ((None, None, None), "not reached"),
    ],
)
def test_time_to_target_with_its_interval(times: tuple[float | None, float | None, float | None], shown: str) -> None:
    unit, cell = wording.time_column([row(*times), row(374.0, 367.0, 384.0)])
    assert unit == "s" and cell(row(*times)) == shown


def test_one_unit_for_the_whole_column() -> None:
    unit, cell = wording.time_column([row(3600.0, 3590.0, 3610.0), row(36000.0, 35900.0, 36100.0)])
    assert unit == "min"
    assert cell(row(36000.0, 35900.0, 36100.0)) == "600 (598 – 602)"


def test_the_best_baseline_over_itself_has_no_interval() -> None:
    assert wording.speedup_cell({"speedup_over_best_baseline": {"value": 1.0, "low": 1.0, "high": 1.0}}) == "1.00"
    assert wording.speedup_cell({"speedup_over_best_baseline": {"value": 2.0, "low": 1.999, "high": 2.001}}) == (
        "2.00 (2.00 – 2.00)"
    )
