"""The summary of a sweep from tables written by hand, and its page."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hetsim.sweeps.page import report_html, speedup_map, steady_note
from hetsim.sweeps.summary import summarise
from hetsim.sweeps.table import COLUMNS

# per cell: x, then seconds of s-sgd, lb-bsp and abs-sgd
CELLS: list[tuple[float, float | None, float | None, float | None]] = [
    (1.0, 10.0, 8.0, 4.0),  # abs-sgd twice as fast
    (2.0, 10.0, 12.0, 20.0),  # half as fast
    (3.0, 10.0, None, 9.95),  # within a hundredth: no gain
    (4.0, None, None, 5.0),  # alone
    (5.0, None, None, None),  # nobody
]


def table(method: str = "full") -> pa.Table:
    rows: list[dict[str, Any]] = []
    for number, (x, *seconds) in enumerate(CELLS):
        best = min((s for s in seconds[:2] if s is not None), default=None)
        for label, s in zip(("s-sgd", "lb-bsp", "abs-sgd"), seconds, strict=True):
            row: dict[str, Any] = dict.fromkeys((name for name, *_ in COLUMNS), None)
            role = "ours" if label == "abs-sgd" else "baseline"
            speedup = None if best is None or s is None else best / s
            rows.append({**row, "cell": number, "x": x, "<b>": -x, "algorithm": label, "role": role, "seconds": s})
            rows[-1] |= {"speedup": speedup, "method": method}
    return pa.Table.from_pylist(rows)


def test_who_wins_and_where_it_pays() -> None:
    found = summarise(table(), ["x"])
    assert (found.cells, found.nobody) == (5, 1)
    assert found.wins == {"abs-sgd": 3, "s-sgd": 1}
    (gain,) = found.gains
    assert (gain.algorithm, gain.cells, gain.pays, gain.alone) == ("abs-sgd", 3, 1, 1)
    assert gain.quantiles[0] == 0.5 and gain.quantiles[3] == pytest.approx(10 / 9.95) and gain.quantiles[-1] == 2.0
    assert (gain.best, gain.worst) == (0, 1)
    (trend,) = found.trends
    assert trend.bands == ((1.0, 1.0, 1, 1), (2.0, 2.0, 1, 0), (3.0, 3.0, 1, 0), (4.0, 4.0, 1, 1), (5.0, 5.0, 1, 0))


def test_many_values_are_told_by_quarters() -> None:
    columns = table().to_pylist()
    wide = pa.Table.from_pylist(
        [{**row, "cell": 5 * i + row["cell"], "x": row["x"] + 5 * i} for i in range(20) for row in columns]
    )
    (trend,) = summarise(wide, ["x"]).trends
    assert len(trend.bands) == 4 and sum(cells for *_, cells, _ in trend.bands) == 100
    assert sum(pays for *_, pays in trend.bands) == 40
    assert [low for low, *_ in trend.bands] == sorted(low for low, *_ in trend.bands)


def test_the_map_has_a_point_for_every_cell_and_a_sign_for_every_speed() -> None:
    one, two = speedup_map(table(), ["x"], "abs-sgd"), speedup_map(table(), ["x", "<b>"], "abs-sgd")
    assert one is not None and two is not None
    assert list(one.data[0].x) == [1.0, 2.0, 3.0, 4.0, 5.0] and list(one.data[0].y)[:2] == [2.0, 0.5]
    assert list(two.data[0].marker.color)[:2] == [1.0, -1.0] and two.data[0].text[4] == "–"
    assert speedup_map(table(), ["x"], "no-such") is None


def test_the_page_escapes_and_says_how_it_was_computed() -> None:
    document = {"command": "hetsim sweep spec.yaml", "versions": {"hetsim": "1"}}
    html = report_html(table("steady"), ["x", "<b>"], document, "name: <i>")
    assert "Sweep over x, &lt;b&gt;" in html and "name: &lt;i&gt;" in html and "hetsim sweep spec.yaml" in html
    assert "15 of 15 rows are from the steady state" in html and "from the steady state" not in steady_note(table())
    assert "2.00×" in html and "nobody" in html
