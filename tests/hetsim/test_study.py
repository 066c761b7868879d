"""The study's own arithmetic: clusters after their changes, ratios over kinds of cluster, pieces that did not reach the target."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hetsim import load_profile
from hetsim.algorithms import registry
from hetsim.cluster.spec import BandwidthChange, Slowdown
from hetsim.compute.model import pass_model

FOLDER = Path(__file__).parents[2] / "benchmarks" / "study"


@pytest.fixture(scope="module")
def study() -> dict[str, ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        return {name: importlib.import_module(name) for name in ("design", "results", "run", "drawn")}
    finally:
        sys.path.remove(str(FOLDER))


def test_what_stays_changed_is_in_the_cluster_and_what_ends_is_not(study: dict[str, ModuleType]) -> None:
    cluster = load_profile("mixed-gpu-4").cluster()
    slowdowns = (
        Slowdown(at_s=1.0, factor=1.5),
        Slowdown(at_s=2.0, until_s=9.0, factor=7.0),
        Slowdown(at_s=3.0, factor=2.0),
    )
    changes = (BandwidthChange(at_s=5.0, bytes_per_s=5e6), BandwidthChange(at_s=4.0, bytes_per_s=9e9))
    changing = replace(
        cluster,
        workers=(replace(cluster.workers[0], slowdowns=slowdowns), *cluster.workers[1:]),
        network=replace(
            cluster.network, links=(replace(cluster.network.links[0], changes=changes), *cluster.network.links[1:])
        ),
    )
    after = study["design"].after_changes(changing)
    for samples in (1, 40, 1000):
        slow, fast = (pass_model(c.workers[0]).seconds(samples) for c in (after, cluster))
        assert slow == pytest.approx(3.0 * fast)
    assert after.network.links[0].bytes_per_s == 5e6
    assert after.workers[1:] == cluster.workers[1:] and after.network.links[1:] == cluster.network.links[1:]
    assert study["design"].after_changes(cluster) == cluster


def test_every_registered_algorithm_takes_part_once(study: dict[str, ModuleType]) -> None:
    found = study["design"].contestants()
    names = [one.name for one in found]
    assert len(names) == len(set(names)) and set(registry()) <= set(names)
    paths = {one.name: one.path for one in found}
    assert paths["abs-sgd"] == "training.micro_batch_samples" and paths["lb-bsp"] == "training.global_batch_samples"
    assert [study["design"].published(name) for name in ("lb-bsp", "one-step-delay-balanced", "abs-sgd")] == [
        True,
        False,
        False,
    ]


def pieces(
    folder: Path, study: dict[str, ModuleType], seconds: dict[tuple[str, str], list[float | None]]
) -> list[object]:
    for (kind, name), by_seed in seconds.items():
        seeds = 1 if name == "ssp" else study["design"].SEEDS
        best = (
            None if not by_seed else {"label": name, "batch": 1, "seeds": seeds, "seconds_by_seed": by_seed, "row": {}}
        )
        text = json.dumps({"kind": kind, "size": 4, "name": name, "tried": [], "best": best})
        (folder / f"{kind}.{name}.json").write_text(text, encoding="utf-8")
    found: list[object] = study["results"].read(folder)
    return found


def test_ratios_by_hand(study: dict[str, ModuleType], tmp_path: Path) -> None:
    """Twice, half and four times as fast: the geometric mean over three kinds is 4^(1/3), seed by seed."""
    results = study["results"]
    seconds: dict[tuple[str, str], list[float | None]] = {}
    for kind, factor in zip(study["design"].KINDS, (2.0, 0.5, 4.0), strict=True):
        base = [100.0, 110.0, 90.0, 105.0, 95.0]
        seconds[kind, "lb-bsp"] = list(base)
        seconds[kind, "s-sgd"] = [3 * s for s in base]
        seconds[kind, "local-sgd"] = [s / 1.25 if kind == "unequal" else 4 * s for s in base]
        seconds[kind, "dc-asgd"] = [s / 2 for s in base]
        seconds[kind, "dc-s3gd"] = [1.0, 1.0, 1.0, 1.0, None]  # sooner but for one seed, which it misses: not the best
        seconds[kind, "one-step-delay-balanced"] = [s / 8 for s in base]
        seconds[kind, "abs-sgd"] = [s / factor for s in base]
        seconds[kind, "abs-sgd:compute_point=current"] = []
    found = pieces(tmp_path, study, seconds)
    mean = results.over_kinds(found, 4, "abs-sgd", results.published_baseline)
    assert (mean.median, mean.low, mean.high) == pytest.approx((4 ** (1 / 3) / 2,) * 3)
    mean = results.over_kinds(found, 4, "abs-sgd", results.gradient_baseline)
    assert (mean.median, mean.low, mean.high) == pytest.approx((4 ** (1 / 3) / 2,) * 3)
    mean = results.over_kinds(found, 4, "abs-sgd", results.plain_baseline)
    assert (mean.median, mean.low, mean.high) == pytest.approx((4 ** (1 / 3),) * 3)
    assert results.over_kinds(found, 4, "abs-sgd:compute_point=current", results.plain_baseline) is None
    text = results.headline(found)
    row = "| 4 | unequal | `dc-asgd` | 1.00 (1.00 – 1.00) | `dc-asgd` | 1.00 (1.00 – 1.00) | `lb-bsp` | 2.00 (2.00 – 2.00) | – |"
    assert row in text


def test_a_piece_that_fails_on_one_seed_has_no_mean(study: dict[str, ModuleType], tmp_path: Path) -> None:
    results = study["results"]
    found = pieces(
        tmp_path,
        study,
        {
            (kind, name): [1.0, 1.0, 1.0, 1.0, None if name == "abs-sgd" else 1.0]
            for kind in study["design"].KINDS
            for name in ("lb-bsp", "abs-sgd")
        },
    )
    assert math.isinf(max(found[0].seconds) if found[0].name == "abs-sgd" else max(found[1].seconds))  # type: ignore[attr-defined]
    assert results.over_kinds(found, 4, "abs-sgd", results.plain_baseline) is None
    there = results.cluster(found, "unequal", 4)
    assert results.ratio(there, results.best_of(there, results.plain_baseline), "abs-sgd").low == 0.0


def test_a_long_run_has_one_seed_and_is_compared_on_it_alone(study: dict[str, ModuleType], tmp_path: Path) -> None:
    results = study["results"]
    of = {("unequal", "abs-sgd"): [1.0, 9.0, 9.0, 9.0, 9.0], ("unequal", "ssp"): [4.0], ("unequal", "lb-bsp"): [4.0]}
    found = pieces(tmp_path, study, dict(of))
    there = results.cluster(found, "unequal", 4)
    seconds = {p.name: p.seconds for p in there}
    assert (
        seconds["ssp"] == (4.0,) and seconds["lb-bsp"] == (math.inf,) * 5
    )  # lb-bsp's first of five seeds alone: not reached
    assert results.said(results.ratio(there, there[0], "abs-sgd")) == "4.00"


def test_pieces_in_one_file_are_those_of_the_folder(
    study: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = {("unequal", name): [s] * 5 for name, s in (("abs-sgd", 2.0), ("lb-bsp", 3.0), ("s-sgd", 5.0))}
    pieces(tmp_path, study, dict(of))
    for place in tmp_path.glob("*.json"):  # whole rows, as run.py writes them
        document = json.loads(place.read_text(encoding="utf-8"))
        row = {
            "learning_rate": 0.1,
            "momentum": 0.9,
            "batch_samples": 8,
            "updates": 9,
            "samples_per_s": 7.0,
            "utilisation": 0.5,
        }
        document["best"]["row"] = row | {"over_least": 1.5}
        place.write_text(json.dumps(document), encoding="utf-8")
    one = tmp_path / "found.jsonl"
    assert study["results"].main([str(tmp_path), "--keep", str(one)]) == 0
    first = capsys.readouterr().out
    assert study["results"].main([str(one)]) == 0
    assert capsys.readouterr().out == first
    assert "| 4 | unequal | `lb-bsp` | 1.50 (1.50 – 1.50) |" in first


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_torn_piece_is_named(study: dict[str, ModuleType], tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"x\.json: not a piece"):
        study["results"].read(tmp_path)
    with pytest.raises(SystemExit, match="no such folder"):
        study["results"].read(tmp_path / "nothing")


def test_drawn_clusters_are_the_same_every_time_and_differ(study: dict[str, ModuleType]) -> None:
    drawn = study["drawn"]
    assert drawn.draw(3).to_yaml() == drawn.draw(3).to_yaml() != drawn.draw(4).to_yaml()
    sizes = [len(drawn.draw(i).cluster().workers) for i in range(6)]
    assert sizes == [4, 8, 16, 4, 8, 16]
    features = drawn.features(drawn.draw(0))
    link = min(link.bytes_per_s for link in drawn.draw(0).cluster().network.links)
    assert features["all_reduce_s"] == pytest.approx(
        6 * (5e-5 + drawn.draw(0).cluster().workload.gradient_bytes / 4 / link)
    )


def test_a_piece_of_another_grid_is_computed_again(study: dict[str, ModuleType], tmp_path: Path) -> None:
    one = next(c for c in study["design"].contestants() if c.name == "lb-bsp")
    place = tmp_path / "mixed-gpu-4.lb-bsp.json"
    is_kept = study["run"]._is_kept
    assert not is_kept(tmp_path, "unequal", 4, one)
    for tried, kept in (
        ([("lb-bsp", 512), ("lb-bsp", 1024)], True),
        ([("lb-bsp", 512), ("lb-bsp", 1000)], False),
        ([("lb-bsp", 512), ("lb-bsp:dead_band=0", 512)], False),
        ([], False),
    ):
        rows = [{"label": label, "batch": value, "seconds": None} for label, value in tried]
        document = {"kind": "unequal", "size": 4, "name": "lb-bsp", "tried": rows, "best": None}
        place.write_text(json.dumps(document), encoding="utf-8")
        assert is_kept(tmp_path, "unequal", 4, one) == kept


def test_what_was_chosen_is_kept_and_only_repeated_on_more_seeds(
    study: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, one = study["run"], next(c for c in study["design"].contestants() if c.name == "lb-bsp")
    place = tmp_path / "mixed-gpu-4.lb-bsp.json"
    rows = [{"label": "lb-bsp", "batch": 512, "seconds": 9.0, "updates_to_target": study["design"].LONG}]
    document = {"kind": "unequal", "size": 4, "name": "lb-bsp", "tried": rows, "best": {"seeds": 1}}
    place.write_text(json.dumps(document), encoding="utf-8")
    assert not run._is_kept(tmp_path, "unequal", 4, one)
    monkeypatch.setattr(run, "tried", None)  # not called
    monkeypatch.setattr(run, "_repeated", lambda *of: {"seeds": run._seeds(of[-1]), "row": {"seconds": 9.0}})
    assert run.piece(tmp_path, "unequal", 4, one) == "unequal 4 lb-bsp: 9 s"
    assert run._is_kept(tmp_path, "unequal", 4, one)
    after = json.loads(place.read_text(encoding="utf-8"))
    assert after["tried"] == rows and after["best"]["seeds"] == study["design"].SEEDS


def test_the_study_goes_on_from_one_file_and_names_a_torn_piece(
    study: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, asked = tmp_path / "study", ["--algorithms", "lb-bsp", "--sizes", "4", "--kinds", "unequal", "--dry-run"]
    found = FOLDER / "found.jsonl"
    main = study["run"].main
    main(["-o", str(folder), *asked])
    assert "1 pieces, 1 to compute" in capsys.readouterr().err
    main(["-o", str(folder), "--from", str(found), *asked])
    assert "1 pieces, 0 to compute" in capsys.readouterr().err
    assert len([*folder.iterdir()]) == len(found.read_text(encoding="utf-8").splitlines())
    torn = folder / "mixed-gpu-4.lb-bsp.json"
    torn.write_text('{"kind": "unequal"', encoding="utf-8")
    main(
        ["-o", str(folder), "--from", str(found), "--algorithms", "s-sgd", "--dry-run"]
    )  # what is there stays as it is
    with pytest.raises(SystemExit, match=r"lb-bsp\.json: not a piece .*; delete it and run again"):
        main(["-o", str(folder), *asked])


@pytest.mark.parametrize(
    ("seconds", "looked_at"),
    [
        ({512: 9.0, 1024: 8.0, 2048: 8.5, 4096: 8.9}, [512, 1024, 2048, 4096, 8192]),
        ({1024: 8.0, 2048: 9.0}, [512, 1024, 2048, 4096]),  # 512 and 4096 do not reach it
        ({128: 1.0, 256: 2.0, 512: 4.0, 1024: 8.0, 2048: 16.0}, [128, 256, 512, 1024, 2048, 4096]),
        ({8192: 5.0}, [1024, 2048, 4096, 8192, 16384]),
        ({128: 5.0}, [128, 256, 512, 1024, 2048, 4096, 8192, 16384]),
        ({}, [128, 256, 512, 1024, 2048, 4096, 8192, 16384]),
    ],
)
def test_the_grid_is_walked_from_its_middle_while_it_pays(
    study: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], looked_at: list[int]
) -> None:
    pieces_module = sys.modules["pieces"]
    one = next(c for c in study["design"].contestants() if c.name == "lb-bsp")

    def cell(value: int, labels: list[str], *_: object) -> list[dict[str, object]]:
        assert labels == ["s-sgd", "lb-bsp"]
        row = dict.fromkeys(pieces_module.FIGURES)
        return [row | {"seconds": 1.0}, row | {"seconds": seconds.get(value)}]

    monkeypatch.setattr(pieces_module, "run_cell", cell)
    rows = pieces_module.tried(one, lambda value: value)
    assert [row["batch"] for row in rows] == looked_at
    assert [row["seconds"] for row in rows] == [seconds.get(value) for value in looked_at]


def test_the_rule_finds_what_tells_the_clusters_apart(study: dict[str, ModuleType]) -> None:
    """Faster exactly where an all-reduce takes over twice a critical batch's time: the rule is that, and is right everywhere."""
    drawn = study["drawn"]

    def cluster(all_reduce_s: float, spread: float, own_s: float) -> dict[str, object]:
        features = {"all_reduce_s": all_reduce_s, "critical_s": 2.0, "spread": spread, "jitter": 0.0, "workers": 4.0}
        times = {"s-sgd": 40.0, "lb-bsp": 20.0, "local-sgd": 20.0, "one-step-delay-balanced": None, "abs-sgd": own_s}
        return {"features": features, "seconds": {n: None if s is None else {"seconds": s} for n, s in times.items()}}

    those = [cluster(float(t), 10.0 - i % 3, 10.0 if t > 4 else 30.0) for i, t in enumerate((1, 2, 3, 5, 6, 9))]
    rule = drawn.best_rule(those, ("s-sgd", "lb-bsp"))
    assert (rule.quantity, rule.threshold, rule.above) == ("all-reduce / time for a critical batch", 2.0, True)
    assert drawn.right(rule, those, ("s-sgd", "lb-bsp")) == 1.0
    assert drawn.gain(those[0], ("s-sgd", "lb-bsp")) == pytest.approx(2 / 3)
    assert math.isinf(drawn.gain(those[0], ("one-step-delay-balanced",)))
    opposite = drawn.Rule(quantity=rule.quantity, threshold=rule.threshold, above=False)
    assert drawn.right(opposite, those, ("s-sgd", "lb-bsp")) == 0.0


@pytest.mark.parametrize(
    ("option", "value"), [("--kinds", "bogus"), ("--sizes", "five"), ("--sizes", "5"), ("--algorithms", "lb-bsp,lb")]
)
def test_what_the_study_does_not_know_is_told(
    study: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        study["run"].main(["-o", str(tmp_path), option, value, "--dry-run"])
    assert stopped.value.code == 2
    assert f"{option}: {value.split(',')[-1]}: not one of" in capsys.readouterr().err
