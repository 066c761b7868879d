"""Diffs against plain loops and by hand: fields, figures with their intervals, rows of Schedules, and input that is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import SMALL

from hetsim.cluster import load_profile
from hetsim.compare import compare
from hetsim.diff import Changed, Side, changes, diff, read_side
from hetsim.diff_figures import moved_rows, moved_validations
from hetsim.diff_schedules import COLUMNS, TIMES, parted
from hetsim.errors import HetsimError, ScheduleFileError, UsageError
from hetsim.export import simulation_document, write_comparison, write_simulation
from hetsim.schedule.store import save
from hetsim.schedule.table import Schedule
from hetsim.simulate import simulate

RUN = simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=20)

# ---- fields ------------------------------------------------------------

leaves = st.one_of(st.integers(0, 3), st.booleans(), st.text("ab", max_size=2), st.lists(st.integers(0, 2), max_size=2))
trees = st.recursive(
    leaves, lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=3), max_leaves=8
)


def flat(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    if isinstance(tree, dict):
        return {key: value for name, item in tree.items() for key, value in flat(item, (*path, name)).items()}
    return {path: json.dumps(tree)}


@settings(deadline=None)
@given(a=trees, b=trees)
def test_changes_are_those_of_the_flattened_trees(a: Any, b: Any) -> None:
    assert changes(a, a) == []
    found = changes(a, b)
    assert bool(found) == (flat(a) != flat(b))
    different = {key for key in flat(a).keys() | flat(b).keys() if flat(a).get(key) != flat(b).get(key)}
    told = [tuple(filter(None, change.path.split("."))) for change in found]
    assert all(any(leaf[: len(path)] == path for path in told) for leaf in different)  # each is under a change
    assert all(any(leaf[: len(path)] == path for leaf in different) for path in told)  # and each change has one


def test_changes_name_paths_and_sides() -> None:
    a = {"events": [{"at_s": 1.0}], "n": 1, "gone": True}
    b = {"events": [{"at_s": 2.0}, {"at_s": 3.0}], "n": 1.0}
    assert changes(a, b) == [
        Changed(path="events.0.at_s", a=1.0, b=2.0),
        Changed(path="events.1", a=None, b={"at_s": 3.0}),
        Changed(path="gone", a=True, b=None),
    ]
    assert changes({"x": 1}, {"x": True}) == [Changed(path="x", a=1, b=True)]


# ---- profiles ------------------------------------------------------------


def side(*overrides: str, text: str = SMALL) -> Side:
    return Side(name="p", what="profiles", profile=load_profile(text, overrides=overrides))


def test_a_slower_network_is_named_with_what_it_does() -> None:
    labels = ["s-sgd", "one-step-delay-balanced"]
    quick = ("training.max_samples=100000", "training.seeds=2")
    a, b = side(*quick), side(*quick, "network.bandwidth_gbit_per_s=0.5", "workers.slow.price_per_h=3.0")
    found = diff(a, b, algorithms=labels, predictor="noise-scale", jobs=1)
    assert found.changed == (
        Changed(path="workers.slow.price_per_h", a=1.0, b=3.0),
        Changed(path="network.bandwidth_gbit_per_s", a=5.0, b=0.5),
    )
    by_hand = [compare(one.profile, labels, predictor="noise-scale", jobs=1) for one in (a, b)]
    for label in labels:
        rows = [c[label] for c in by_hand]
        moved = {m.figure: m for m in found.moved if m.name == label}
        assert (moved["time to target"].a, moved["time to target"].b) == (rows[0].seconds, rows[1].seconds)
        assert moved["time to target"].beyond is True and (moved["time to target"].low or 0) > 1
        ratios = sorted(
            y / x  # type: ignore[operator]
            for x, y in zip(
                rows[0].time_to_target_s.by_seed,  # type: ignore[union-attr]
                rows[1].time_to_target_s.by_seed,  # type: ignore[union-attr]
                strict=True,
            )
        )
        assert moved["time to target"].ratio == pytest.approx(sum(ratios) / 2)
        assert moved["throughput"].ratio == pytest.approx(rows[1].samples_per_s / rows[0].samples_per_s)
        assert moved["cost to target"].b == rows[1].cost.usd_to_target  # type: ignore[union-attr]
    assert not found.same and found.parted is None


def test_of_equal_profiles_nothing_is_run() -> None:
    asked: list[str] = []
    again = SMALL.replace("momentum: 0.9, ", "").replace(
        "name: small", "name: small\ndescription: ''"
    )  # defaults, unstated
    found = diff(side(), side(text=again), jobs=1, progress=lambda label, *_: asked.append(label))
    assert found.same and not asked and found.moved == ()


# ---- results ------------------------------------------------------------


def row(name: str, seconds: list[float | None], **fields: Any) -> dict[str, Any]:
    """A row of a document with these times; intervals as of so few seeds: least to most."""
    document = simulation_document(RUN)
    known = [math.inf if s is None else s for s in seconds]
    ends = [None if math.isinf(s) else s for s in (sorted(known)[len(known) // 2], min(known), max(known))]
    time = {
        "median": ends[0],
        "low": ends[1] if len(known) > 1 else None,
        "high": ends[2] if len(known) > 1 else None,
        "reached": sum(s is not None for s in seconds),
        "seeds": len(seconds),
        "by_seed": seconds,
    }
    return {**document, "name": name, "time_to_target_s": time, **fields}


def documents(
    a: list[float | None], b: list[float | None], seeds_b: tuple[int, ...] = (0, 1, 2)
) -> list[dict[str, Any]]:
    return [
        {"seeds": [0, 1, 2][: len(a)], "algorithms": [row("x", a)]},
        {"seeds": list(seeds_b)[: len(b)], "algorithms": [row("x", b)]},
    ]


@pytest.mark.parametrize(
    ("a", "b", "seeds_b", "ratio", "beyond"),
    [
        ([10.0, 20.0, 30.0], [11.0, 22.0, 33.0], (0, 1, 2), 1.1, True),  # on the same seeds: always a tenth more
        ([10.0, 20.0, 30.0], [11.0, 22.0, 33.0], (7, 8, 9), 1.1, False),  # on others: well within the spread
        ([10.0, 20.0, 30.0], [31.0, 40.0, 50.0], (7, 8, 9), 2.0, True),  # intervals that leave a gap
        ([10.0, 20.0, 30.0], [9.0, 22.0, 33.0], (0, 1, 2), 1.1, False),
        ([10.0], [11.0], (0,), 1.1, None),  # one seed says nothing of luck
        ([10.0, 20.0, 30.0], [10.0, None, None], (0, 1, 2), None, False),  # the first seed was as fast
    ],
)
def test_times_are_judged_by_their_intervals(
    a: list[float | None], b: list[float | None], seeds_b: tuple[int, ...], ratio: float | None, beyond: bool | None
) -> None:
    (found,) = moved_rows(*documents(a, b, seeds_b))
    assert found.figure == "time to target"
    assert found.ratio == (None if ratio is None else pytest.approx(ratio))
    assert found.beyond is beyond


def test_equal_documents_move_nothing_and_other_figures_have_no_interval() -> None:
    assert list(moved_rows(*documents([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]))) == []
    a, b = row("x", [1.0]), row("x", [1.0])
    b |= {"samples_per_s": 2 * a["samples_per_s"], "limited_by": "magic", "cost": {"usd_to_target": 3.0}}
    found = {m.figure: m for m in moved_rows({"algorithms": [a]}, {"algorithms": [b]})}
    assert set(found) == {"throughput", "limited by", "cost to target"}
    assert found["throughput"].ratio == pytest.approx(2) and found["throughput"].beyond is None
    assert (found["cost to target"].a, found["cost to target"].b, found["cost to target"].ratio) == (None, 3.0, None)


def test_validations_by_their_runs() -> None:
    def validation(periods: list[float], within: bool) -> dict[str, Any]:
        figures = {"samples_per_s": 1.0, "mean_batch_samples": 8.0, "time_to_target_s": None}
        runs = [
            {"predicted": {**figures, "update_period_s": 0.1}, "measured": {**figures, "update_period_s": p}}
            for p in periods
        ]
        return {"algorithms": [{"name": "x", "within": within, "runs": runs}]}

    before = validation([0.10, 0.11, 0.12], True)
    (apart, verdict) = moved_validations(before, validation([0.13, 0.14, 0.15], False))
    assert (apart.figure, apart.a, apart.b, apart.beyond) == ("time per update, measured", 0.11, 0.14, True)
    assert (verdict.a, verdict.b) == ("held", "did not hold")
    (meeting,) = moved_validations(before, validation([0.12, 0.14, 0.15], True))
    assert meeting.beyond is False
    assert list(moved_validations(before, before)) == []


# ---- Schedules ------------------------------------------------------------


def by_loop(a: Schedule, b: Schedule, columns: tuple[str, ...]) -> int | None:
    for i in range(max(len(a), len(b))):
        if i >= len(a) or i >= len(b) or any(getattr(a, c)[i] != getattr(b, c)[i] for c in columns):
            return i
    return None


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_first_row_is_the_one_a_loop_finds(data: st.DataObject) -> None:
    a = RUN.schedule
    columns = {c: getattr(a, c).copy() for c in COLUMNS}
    for _ in range(data.draw(st.integers(0, 4))):
        name, place = data.draw(st.sampled_from(COLUMNS)), data.draw(st.integers(0, len(a) - 1))
        columns[name][place] += 1
    keep = data.draw(st.sampled_from([len(a), len(a) - 1, len(a) // 2]))
    b = replace(a, **{c: values[:keep] for c, values in columns.items()})
    found = parted(a, b)
    assert (found.first.row if found.first else None) == by_loop(a, b, COLUMNS)
    operations = tuple(c for c in COLUMNS if c not in TIMES)
    assert (found.first_operation.row if found.first_operation else None) == by_loop(a, b, operations)
    assert found.same == (found.first is None)


def test_the_row_is_told_in_words() -> None:
    a = RUN.schedule
    later = replace(a, end_s=np.where(np.arange(len(a)) == 3, a.end_s + 1.0, a.end_s))
    found = parted(a, later)
    assert found.first is not None and found.first.row == 3 and set(found.first.columns) == {"end_s"}
    assert found.first_operation is None
    assert "samples from" in (found.first.a or "") and found.first.a != found.first.b
    short = parted(a, replace(a, **{c: getattr(a, c)[:5] for c in COLUMNS}))
    assert short.first is not None and (short.first.row, short.first.b, short.first.columns) == (5, None, {})


# ---- what is read ------------------------------------------------------------


def test_folders_documents_and_schedules_are_told_apart(tmp_path: Path) -> None:
    profile = load_profile(SMALL, overrides=["training.max_samples=60000", "training.seeds=2"])
    found = compare(profile, ["s-sgd"], predictor="noise-scale", jobs=1)
    write_comparison(found, tmp_path / "one")
    (tmp_path / "kept.json").write_text(json.dumps(found.to_json()), encoding="utf-8")
    assert diff(read_side(str(tmp_path / "one")), read_side(str(tmp_path / "kept.json"))).same
    write_simulation(RUN, tmp_path / "run")
    other = simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=20, seed=1)
    write_simulation(other, tmp_path / "other")
    both = diff(read_side(str(tmp_path / "run")), read_side(str(tmp_path / "other")))
    assert both.parted is not None and not both.parted.same and {c.path for c in both.changed} == {"seed"}
    save(RUN.schedule, tmp_path / "s.parquet")
    alone = diff(read_side(str(tmp_path / "s.parquet")), read_side(str(tmp_path / "run" / "schedule.parquet")))
    assert alone.same and alone.what == "schedules"
    with pytest.raises(UsageError, match=r"is one of results and .* one of profiles; both must be of a kind"):
        diff(read_side(str(tmp_path / "one")), read_side("mixed-gpu-4"))
    document = json.loads(json.dumps(both.to_json(), allow_nan=False))
    assert document["schema_version"] == 1 and document["parted"]["first"]["row"] >= 0


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("a.json", "{", UsageError, "damaged"),
        ("a.json", "[1]", UsageError, "no result of hetsim"),
        ("a.json", '{"label": "x"}', UsageError, "no result of hetsim"),
        ("a.json", '{"algorithms": [], "schema_version": 1}', UsageError, "damaged"),
        ("a.json", '{"algorithms": [], "schema_version": 99}', UsageError, "upgrade hetsim"),
        ("a.json", '{"updates": NaN}', UsageError, "no number"),
        ("a.parquet", "no parquet", ScheduleFileError, "not a Parquet file"),
        ("a.yaml", "name: x", UsageError, "workers"),
    ],
)
def test_what_is_none_of_them_is_bad_input(
    tmp_path: Path, name: str, text: str, error: type[HetsimError], words: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=words) as caught:
        read_side(str(path))
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="holds no comparison"):
        read_side(str(tmp_path))
    with pytest.raises(UsageError, match="no such file"):
        read_side(str(tmp_path / "nothing.json"))
