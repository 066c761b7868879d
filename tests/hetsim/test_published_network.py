"""Network models against measurements that other people published; the tolerances are what is found, rounded up."""

from __future__ import annotations

import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

B: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "published_network.py"))


def test_half_of_the_t4_placements_predict_the_other_half() -> None:
    seen, unseen = B["halves"]()
    assert len(seen) + len(unseen) == 107 and not set(seen) & set(unseen)
    constants = B["fit"]()
    for chosen in (seen, unseen):
        spread = B["Spread"].of(B["errors"](chosen, constants))
        assert spread.median < 0.07 and spread.p90 < 0.18 and spread.largest < 0.48 and abs(spread.bias) < 0.01
    # Without communication the step of many GPUs would be 27 % too short.
    assert B["Spread"].of(B["without_network"](unseen)).bias < -0.25


def test_fitted_constants_are_what_such_machines_have() -> None:
    """A flow on EC2 is limited to 5 Gbit/s, 10 in a placement group (EC2 user guide); without NVLink GPUs talk over PCIe 3."""
    constants = B["fit"]()
    assert 5e9 / 8 < constants.between_bytes_per_s < 10e9 / 8
    assert 1e9 < constants.inside_bytes_per_s < 16e9
    assert 0.0 < constants.stretch < 0.05


def test_a_node_link_crossed_once_a_ring_beats_one_flow_per_gpu() -> None:
    seen, unseen = B["halves"]()
    ring, flows = B["fit"](), B["fit"](flow_per_gpu=True)
    assert (
        B["Spread"].of(B["errors"](unseen, ring)).p90
        < B["Spread"].of(B["errors"](unseen, flows, flow_per_gpu=True)).p90 - 0.02
    )
    lonely = B["lonely"](seen + unseen)
    assert sorted(lonely) == ["11", "111", "1111"]
    at_32 = {p: B["predict"](p, flows, flow_per_gpu=True)[32] / B["placements"]()[p][32] for p in lonely}
    assert all(
        ratio < 0.65 for ratio in at_32.values()
    )  # its links must be so wide for "44" that nothing is left for "11"
    at_32 = {p: B["predict"](p, ring)[32] / B["placements"]()[p][32] for p in lonely}
    assert all(0.8 < ratio < 1.15 for ratio in at_32.values())


def test_the_known_miss_two_by_two_is_slower_than_four_by_one() -> None:
    measured, ring = B["placements"](), B["fit"]()
    slower = statistics.median(measured["22"][b] / measured["1111"][b] for b in (32, 45, 64, 91, 129))
    assert 1.15 < slower < 1.3
    assert B["predict"]("22", ring)[32] == pytest.approx(B["predict"]("1111", ring)[32], rel=0.01)


# Leave-one-out: (median, largest) for the table, then for the line, in per cent.
SWEEPS = {
    "8xA100-NVLink": (3, 27, 13, 38),
    "8xH200-NVLink": (2, 12, 10, 22),
    "JABAS intra": (20, 24, 7, 17),
    "JABAS inter": (12, 43, 6, 34),
}


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_each_all_reduce_time_from_the_others(name: str) -> None:
    points = B["sweeps"]()[name]
    found = []
    for model in (B["table"], B["line"]):
        sizes = [abs(error) for error in B["leave_one_out"](points, model)]
        assert len(sizes) == len(points) - 2
        found += [statistics.median(sizes), max(sizes)]
    assert all(value < limit / 100 for value, limit in zip(found, SWEEPS[name], strict=True))
    assert all(
        value > limit / 100 * 0.5 for value, limit in zip(found, SWEEPS[name], strict=True)
    )  # the limits are no slack


@pytest.mark.parametrize("node", ["8xA100-NVLink", "8xH200-NVLink"])
def test_a_dense_table_beats_a_line_on_nvlink(node: str) -> None:
    points = B["sweeps"]()[node]
    by_table, by_line = (
        statistics.median(map(abs, B["leave_one_out"](points, B[model]))) for model in ("table", "line")
    )
    assert by_table < by_line / 4


def test_nominal_link_rates_are_far_from_what_was_measured() -> None:
    payload, seconds = B["sweeps"]()["JABAS inter"][-1]
    assert B["at_nominal_rate"](payload) < seconds / 5
