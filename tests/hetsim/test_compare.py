"""compare: against simulate and the predictor by hand, over processes, and at its limits."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_clusters import small

from hetsim.cluster.spec import Link
from hetsim.compare import Comparison, compare
from hetsim.convergence import Setting, get_predictor
from hetsim.errors import UsageError
from hetsim.simulate import simulate

LABELS = ["s-sgd", "lb-bsp", "local-sgd", "abs-sgd", "abs-sgd:compute_point=current"]
OPTIONS = {"abs-sgd:compute_point=current": {"compute_point": "current"}}
ROW_KEYS = {
    *("name", "algorithm", "options", "role", "samples_per_s", "update_period_s", "mean_batch_samples"),
    *("utilisation", "waiting_share", "waiting", "staleness_mean", "staleness_max", "sample_share", "limited_by"),
    "period_error",
    *("memory_bytes", "critical_batch_samples", "learning_rate", "momentum", "samples_to_target"),
    *(
        "updates_to_target",
        "tried_samples",
        "tried_s",
        "time_to_target_s",
        "speedup_over_best_baseline",
        "cost",
        "yardsticks",
    ),
}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(small(), LABELS, jobs=1)


def test_json_is_complete_and_plain(found: Comparison) -> None:
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["schema_version"] == 1
    assert {"profile", "seed", "predictor", "target", "best_baseline", "warnings", "algorithms"} <= document.keys()
    assert (document["profile"], document["predictor"], document["seed"]) == ("small", "nqm", 0)
    assert set(document["target"]) == {"metric", "value"}
    assert [row["name"] for row in document["algorithms"]] == LABELS
    for row in document["algorithms"]:
        assert set(row) == ROW_KEYS
        assert set(row["time_to_target_s"]) == {"median", "low", "high", "reached", "seeds", "by_seed"}
        assert set(row["speedup_over_best_baseline"]) == {"value", "low", "high"}
        assert set(row["memory_bytes"]) == set(row["sample_share"]) == {"fast", "slow"}
        assert row["time_to_target_s"]["reached"] == row["time_to_target_s"]["seeds"] == 3


@pytest.mark.parametrize("label", LABELS)
def test_every_seed_by_hand(found: Comparison, label: str) -> None:
    """The whole run, simulated and predicted without any shortcut, meets the target at the same second."""
    cluster, row, nqm = small(max_samples=200_000), found[label], get_predictor("nqm")
    assert row.learning_rate is not None and row.momentum is not None and row.time_to_target_s is not None
    setting = Setting(learning_rate=row.learning_rate, momentum=row.momentum)
    for seed, seconds in zip(found.seeds, row.time_to_target_s.by_seed, strict=True):
        run = simulate(cluster, label.split(":")[0], options=OPTIONS.get(label), seed=seed)
        (curve,) = nqm.curves(run.schedule, cluster, [setting])
        met = curve.crossing(found.target.value)
        assert met is not None and seconds == pytest.approx(met[1], rel=1e-9)


@pytest.mark.parametrize("label", LABELS)
def test_no_other_setting_of_the_grid_is_faster(found: Comparison, label: str) -> None:
    cluster, row = small(), found[label]
    grid = [Setting(learning_rate=lr, momentum=m) for lr in np.geomspace(1e-3, 4, 25).tolist() for m in (0.0, 0.5, 0.9)]
    curves = get_predictor("nqm").curves(found.runs[label].schedule, cluster, grid)
    times = [met[1] for curve in curves if (met := curve.crossing(found.target.value)) is not None]
    assert times and row.time_to_target_s is not None
    assert row.time_to_target_s.by_seed[0] <= min(times) * (1 + 1e-9)  # type: ignore[operator]


def test_speedups_follow_from_the_times(found: Comparison) -> None:
    baselines = [row for row in found.algorithms if row.role == "baseline"]
    best = min(baselines, key=lambda row: row.seconds)
    assert found.best_baseline == best.name == "lb-bsp"
    for row in found.algorithms:
        pairs = zip(best.time_to_target_s.by_seed, row.time_to_target_s.by_seed, strict=True)  # type: ignore[union-attr]
        ratios = sorted(b / own for b, own in pairs)  # type: ignore[operator]
        s = row.speedup_over_best_baseline
        assert s is not None and (s.low, s.value, s.high) == tuple(ratios)


def test_what_it_costs(found: Comparison) -> None:
    row = found["lb-bsp"]
    assert row.cost is not None and (row.cost.usd_per_h, row.cost.power_w) == (3.0, 400.0)
    assert row.cost.usd_to_target == pytest.approx(3.0 * row.seconds / 3600)
    assert row.cost.kwh_to_target == pytest.approx(0.4 * row.seconds / 3600)
    assert compare(small("  - {name: a, samples_per_s: 100}\n"), ["s-sgd"], jobs=1).algorithms[0].cost is None


def test_memory_counts_buffers_and_the_largest_pass(found: Comparison) -> None:
    """4 MB of gradients, 1 MB of activations a sample; s-sgd 3 buffers and 32 samples, abs-sgd 8 samples at a time."""
    assert found["s-sgd"].memory_bytes == {"fast": 44e6, "slow": 44e6}
    assert found["local-sgd"].memory_bytes == found["s-sgd"].memory_bytes
    assert found["abs-sgd:compute_point=current"].memory_bytes["fast"] == 4 * 4e6 + 8e6
    assert found["abs-sgd"].memory_bytes["fast"] == 8 * 4e6 + 8e6


def test_the_sentence_names_winner_limit_and_literal_reading(found: Comparison) -> None:
    said = found.sentence()
    assert found.winner == "abs-sgd" and "abs-sgd wins" in said and "lb-bsp" in said
    assert "limited by computation" in said
    assert "literal reading, abs-sgd:compute_point=current, takes" in said
    assert found.rows()[0]["name"] == "abs-sgd"


def test_processes_do_not_change_a_digit() -> None:
    labels, done = ["s-sgd", "abs-sgd", "asgd"], []
    alone = compare(small(max_samples=100_000), labels, seeds=2, jobs=1)
    spread = compare(small(max_samples=100_000), labels, seeds=2, jobs=2, progress=lambda *step: done.append(step))
    assert json.dumps(alone.to_json()) == json.dumps(spread.to_json())
    assert sorted(label for label, _, _ in done) == sorted(labels)
    assert [(finished, total) for _, finished, total in done] == [(1, 3), (2, 3), (3, 3)]
    for label in labels:
        assert np.array_equal(alone.runs[label].schedule.end_s, spread.runs[label].schedule.end_s)
        assert np.array_equal(alone.curves[label].loss, spread.curves[label].loss)


def test_seeds_repeat_and_differ() -> None:
    first = compare(small(), ["lb-bsp"], seeds=2, seed=5, jobs=1)
    again = compare(small(), ["lb-bsp"], seeds=2, seed=5, jobs=1)
    other = compare(small(), ["lb-bsp"], seeds=2, seed=6, jobs=1)
    assert first.to_json() == again.to_json()
    assert first.seeds[0] == 5 and not set(first.seeds) & set(other.seeds)
    assert first["lb-bsp"].time_to_target_s != other["lb-bsp"].time_to_target_s


EQUAL = "  - {name: a, samples_per_s: 400}\n  - {name: b, samples_per_s: 400}\n"


def test_equal_workers_and_a_free_network_leave_no_winner() -> None:
    """ABS-SGD's micro-batches then take all workers' time, and S-SGD's batches too; predicted points make delayed gradients exact."""
    cluster = small(EQUAL, micro_batch_samples=32)
    free = tuple(Link(bytes_per_s=math.inf) for _ in cluster.workers)
    cluster = replace(cluster, network=replace(cluster.network, links=free))
    c = compare(cluster, ["s-sgd", "one-step-delay:compute_point=local-prediction", "abs-sgd"], jobs=1)
    sync, delayed, ours = c.algorithms
    assert c.winner is None and c.sentence().startswith("No clear winner")
    assert delayed.seconds == pytest.approx(sync.seconds, rel=0.01)
    assert ours.samples_per_s == pytest.approx(sync.samples_per_s, rel=1e-9) == pytest.approx(800)
    assert ours.seconds == pytest.approx(delayed.seconds, rel=0.01)


def test_one_worker() -> None:
    """Nobody to wait for: synchronous and server methods learn the same, update by update."""
    c = compare(small("  - {name: only, samples_per_s: 400}\n", max_samples=150_000), jobs=1, seeds=1)
    learned = [c[name].samples_to_target for name in ("s-sgd", "lb-bsp", "asgd", "ssp")]
    assert learned == pytest.approx([learned[0]] * 4, rel=1e-9)
    assert c["lb-bsp"].seconds == pytest.approx(c["s-sgd"].seconds, rel=1e-9)
    assert all(row.time_to_target_s is not None and row.time_to_target_s.reached == 1 for row in c.algorithms)
    assert c.coverage is None and c["abs-sgd"].time_to_target_s.low is None  # type: ignore[union-attr]
    json.dumps(c.to_json(), allow_nan=False)


def test_a_target_out_of_reach_is_never_a_number() -> None:
    c = compare(small(max_samples=2000), ["s-sgd", "abs-sgd:compute_point=current"], jobs=1)
    document = c.to_json()
    assert document["best_baseline"] is None and document["winner"] is None
    for row in document["algorithms"]:
        time = row["time_to_target_s"]
        assert (time["median"], time["low"], time["high"], time["reached"]) == (None, None, None, 0)
        assert row["samples_to_target"] is None and row["updates_to_target"] is None
        assert row["speedup_over_best_baseline"] == {"value": None, "low": None, "high": None}
        assert row["cost"]["usd_to_target"] is None and row["cost"]["usd_per_h"] == 3.0
    assert [w.code for w in c.warnings].count("not-reached") == 2
    assert "None of the algorithms" in c.sentence() and "does not reach" in c.sentence()


def test_the_end_of_the_samples_does_not_reach_a_target() -> None:
    """Whatever stands only at the last, cut-off point of a run is not counted: a run twice as long would not have it."""
    cluster = small(max_samples=40_000)
    c = compare(cluster, ["local-sgd"], seeds=1, jobs=1)
    end = float(c.runs["local-sgd"].schedule.samples[c.runs["local-sgd"].schedule.kind == 3].sum())
    reached = c["local-sgd"].samples_to_target
    assert reached is None or reached < end


def test_easier_targets_come_sooner() -> None:
    times = [compare(small(), ["lb-bsp"], target=t, seeds=1, jobs=1).algorithms[0].seconds for t in (0.5, 0.2, 0.05)]
    assert times == sorted(times) and times[0] < times[2] < math.inf


def test_noise_scale_predictor_has_nothing_to_tune() -> None:
    c = compare(small(), ["s-sgd", "abs-sgd"], predictor="noise-scale", jobs=1)
    assert c.predictor == "noise-scale"
    assert all(row.learning_rate is None and row.momentum is None and row.seconds < math.inf for row in c.algorithms)
    with pytest.raises(UsageError, match="target of its own"):
        compare(small(), ["s-sgd"], predictor="noise-scale", target=0.3, jobs=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"jobs": 0}, "at least 1"),
        ({"seeds": 0}, "at least one"),
        ({"target": -1.0}, "above 0"),
        ({"target": math.nan}, "above 0"),
        ({"predictor": "nqn"}, "did you mean nqm"),
        ({"algorithms": ["s-sdg"]}, "did you mean s-sgd"),
    ],
)
def test_requests_that_cannot_be_met(arguments: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare(small(), **arguments)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").exists() else True
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_an_interruption_leaves_no_process(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    child = subprocess.Popen(
        [sys.executable, str(here / "waiting_predictor.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 100
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.05)
        workers = [int(p.name) for p in tmp_path.iterdir()]
        assert len(workers) == 2 and child.pid not in workers
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
        deadline = time.monotonic() + 20
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, workers))
        assert child.stderr is not None and "Traceback" not in child.stderr.read()
    finally:
        child.kill()
        child.wait()
