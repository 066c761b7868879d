"""Profiles to start from: by naming GPUs, and from one's own step times."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hetsim.cluster import import_steps, init_profile, load_profile
from hetsim.cluster.init import parse_rate
from hetsim.errors import ProfileError, UsageError

# --- init ---


def test_init_gives_each_gpu_a_letter() -> None:
    cluster = load_profile(init_profile("A100:2,V100:2", slow="d:1gbit")).cluster()
    assert [(w.name, w.gpu) for w in cluster.workers] == [("a", "A100"), ("b", "A100"), ("c", "V100"), ("d", "V100")]
    rates = [link.bytes_per_s for link in cluster.network.links]
    assert rates[0] == rates[1] == rates[2] == pytest.approx(10 * rates[3])
    assert cluster.training.global_batch_samples == 512


def test_init_text_is_commented_and_names_its_schema() -> None:
    text = init_profile("T4")
    assert text.startswith("# yaml-language-server: $schema=")
    assert text.count("#") > 8
    assert "1 GPU (T4)" in text
    uncommented = text.replace("# events:", "events:").replace("#   - ", "  - ")
    assert len(load_profile(uncommented).events) == 2


def test_init_of_a_large_cluster_makes_groups() -> None:
    text = init_profile("A100:20, v100:20", slow=["V100:200mbit", "a-3:1gbit"], bandwidth="25gbit", latency_us=20)
    cluster = load_profile(text).cluster()
    assert cluster.n == 40 and cluster.workers[20].name == "b-0"
    rates = [round(link.bytes_per_s / cluster.network.links[0].bytes_per_s, 9) for link in cluster.network.links]
    assert rates[3] == 0.04 and rates[4] == 1.0 and set(rates[20:]) == {0.008}
    assert cluster.network.links[0].latency_s == 2e-5


def test_init_takes_a_gpu_model_as_slow() -> None:
    links = load_profile(init_profile("A100:2,V100:2", slow="A100:1gbit")).network.links
    assert set(links) == {"a", "b"}


@pytest.mark.parametrize(
    "gpus, slow, wanted",
    [
        ("A100:2,V10", (), "unknown GPU 'V10' (did you mean V100?)"),
        (
            "GTX1080:2",
            (),
            "unknown GPU 'GTX1080' (did you mean RTX2080Ti?); for one that is not in the catalogue state step_times_s",
        ),
        ("A100:two", (), "--gpus A100:two: cannot read the count (write A100:2)"),
        ("A100:0", (), "--gpus A100:0: cannot read the count (write A100:2)"),
        (" , ", (), "--gpus names no GPU (write A100:2,V100:2)"),
        ("A100:99999", (), "--gpus asks for 99,999 workers; at most 20,000 can be simulated"),
        ("A100,V100", "d:1gbit", "--slow d:1gbit: there is no worker 'd' (a (A100), b (V100))"),
        ("A100:40", "b-1:1gbit", "--slow b-1:1gbit: there is no worker 'b-1' (did you mean a-1?)"),
        ("A100,V100", "b", "--slow b: write NAME:RATE, such as b:1gbit"),
        ("A100,V100", "b:fast", "--slow b:fast: cannot read the rate (write 1gbit, 2.5gbit or 200mbit)"),
        ("A100,V100", "b:0gbit", "--slow b:0gbit: cannot read the rate (write 1gbit, 2.5gbit or 200mbit)"),
        ("A100,H100", (), "the catalogue has no speed of H100 for workload resnet18-cifar10 (it knows these GPUs for "),
    ],
)
def test_init_refuses_with_the_reason(gpus: str, slow: str | tuple[str, ...], wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        init_profile(gpus, slow=slow)
    assert str(caught.value).startswith(wanted)


def test_init_refuses_an_unknown_workload() -> None:
    with pytest.raises(UsageError, match="unknown workload 'resnet'"):
        init_profile("A100", workload="resnet")


@pytest.mark.parametrize("name", ["my-cluster", "on", "true", "null", "123", "1e5", "ä", "𝒜", "x" * 64])
def test_init_writes_any_name_so_that_it_comes_back(name: str) -> None:
    assert load_profile(init_profile("T4:2", name=name)).name == name


@pytest.mark.parametrize(
    "name", ["", " x", "#x", "x # y", "a: b", "x\ny", "x\0", "\ud800", "it's", '"x"', "!!str x", "*x", "%"]
)
def test_init_refuses_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match=r"^--name: "):
        init_profile("T4:2", name=name)


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"bandwidth": "0.0000001kbit"}, "--bandwidth: must be at least 1e-12, not 1e-13"),
        ({"slow": "a:0.0000001kbit"}, "--slow: must be at least 1e-12, not 1e-13"),
        ({"latency_us": -1.0}, "network.latency_us: must be at least 0"),
        ({"latency_us": 1e10}, "network.latency_us: must be at most 1e+09"),
    ],
)
def test_init_writes_nothing_that_does_not_load(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        init_profile("T4:2", **flags)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "text, gbit",
    [("1gbit", 1.0), ("2.5 Gbit/s", 2.5), ("200mbit", 0.2), ("100Mbps", None), ("5kbit", 5e-6), ("1", None)],
)
def test_rates(text: str, gbit: float | None) -> None:
    if gbit is None:
        with pytest.raises(UsageError):
            parse_rate(text, "--slow a:")
    else:
        assert parse_rate(text, "--slow a:") == pytest.approx(gbit, rel=1e-12)


# --- import ---

BATCHES = (8, 16, 32, 64, 128, 256)


def steps(rows: list[tuple[str, int, float]]) -> str:
    return "worker,samples,seconds\n" + "".join(f"{w},{m},{t!r}\n" for w, m, t in rows)


def test_exact_lines_come_back() -> None:
    rows = [("fast", m, max(0.03, 0.004 + m / 1000)) for m in BATCHES] + [("slow", m, 0.01 + m / 250) for m in BATCHES]
    text, fits = import_steps(steps(rows))
    assert [(f.worker, f.model, f.steps, f.batches, f.outliers) for f in fits] == [
        ("fast", "line", 6, 6, 0),
        ("slow", "line", 6, 6, 0),
    ]
    assert fits[0].samples_per_s == pytest.approx(1000, rel=1e-6)
    assert (fits[0].floor_s, fits[0].overhead_s) == pytest.approx((0.03, 0.004), rel=1e-6)
    assert (fits[1].samples_per_s, fits[1].overhead_s, fits[1].floor_s) == pytest.approx((250, 0.01, 0.0), rel=1e-6)
    assert max(f.residual_max for f in fits) < 1e-6
    workers = load_profile(text).cluster().workers
    assert [w.speed_source for w in workers] == ["calibrated", "calibrated"]
    assert workers[1].samples_per_s == pytest.approx(250, rel=1e-5)
    assert (
        load_profile(text).sources["workers.slow.samples_per_s"]
        == "calibrated from <steps>: 6 steps, line, residual 0.0%"
    )


def test_odd_steps_do_not_count() -> None:
    draw = random.Random(5)
    rows = []
    for m in BATCHES:
        for _ in range(15):
            time = (0.01 + m / 500) * draw.lognormvariate(0, 0.02)
            rows.append(("a", m, time * 20 if draw.random() < 0.1 else time))
    odd = sum(t > 5 * (0.01 + m / 500) for _, m, t in rows)
    (fit,) = import_steps(steps(rows))[1]
    assert odd > 3 and fit.outliers == odd
    assert fit.samples_per_s == pytest.approx(500, rel=0.03)
    assert fit.overhead_s == pytest.approx(0.01, rel=0.1)
    assert fit.jitter_cv == pytest.approx(0.02, rel=0.5)


@pytest.mark.parametrize("spoilt", range(len(BATCHES)))
def test_one_odd_batch_size_does_not_count(spoilt: int) -> None:
    rows = [("a", m, (0.01 + m / 500) * (3 if i == spoilt else 1)) for i, m in enumerate(BATCHES)]
    (fit,) = import_steps(steps(rows))[1]
    assert (fit.samples_per_s, fit.overhead_s) == pytest.approx((500, 0.01), rel=1e-6)
    assert fit.residual_max == pytest.approx(2 / 3, rel=1e-6)


def test_what_is_no_line_becomes_a_table() -> None:
    times = {8: 0.1, 16: 0.1, 32: 0.4, 64: 0.45, 128: 3.0}
    text, (fit,) = import_steps(steps([("a", m, t) for m, t in times.items()]))
    assert fit.model == "table" and fit.residual_median > 0.05
    worker = load_profile(text).cluster().workers[0]
    assert worker.step_times_s == tuple(times.items()) and worker.speed_source == "calibrated"


def test_one_batch_size_gives_a_rate_and_a_flat_table_a_floor() -> None:
    (one,) = import_steps(steps([("a", 32, 0.5)]))[1]
    assert (one.samples_per_s, one.overhead_s, one.floor_s) == (64.0, 0.0, 0.0)
    (flat,) = import_steps(steps([("a", 32, 0.5), ("a", 64, 0.5), ("a", 16, 0.5)]))[1]
    assert (flat.samples_per_s, flat.floor_s) == (128.0, 0.5)


def test_names_are_made_fit_and_batches_too() -> None:
    text, fits = import_steps(steps([("rank 0", 64, 0.5), ("1", 48, 0.25)]))
    assert [fit.worker for fit in fits] == ["rank-0", "w1"]
    assert load_profile(text).training.micro_batch_samples == 64  # both were measured there or below
    with pytest.raises(ProfileError, match="two workers have the same name"):
        import_steps(steps([("a b", 64, 0.5), ("a-b", 64, 0.5)]))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("worker,seconds\na,1\n", "<steps>:1:1: the first line must name the columns worker,samples,seconds"),
        ("worker,samples,seconds\n", "<steps>: has no rows; it needs the columns worker,samples,seconds"),
        ("worker,samples,seconds\na,16\n", "<steps>:2:1: seconds is missing"),
        ("worker,samples,seconds\n,16,1\n", "<steps>:2:1: worker is missing"),
        ("worker,samples,seconds\na,16.5,1\n", "<steps>:2:1: samples must be a whole number, not 16.5"),
        ("worker,samples,seconds\n\na,16,-1\n", "<steps>:3:1: seconds must be a finite number greater than 0, not -1"),
        ("worker,samples,seconds\na,16,nan\n", "<steps>:2:1: seconds must be a finite number greater than 0, not nan"),
        ("worker,samples,seconds\na,x,1\nb,16,y\n", "<steps>:2:1: samples must be a number, not 'x'\n<steps>:3:1: "),
    ],
)
def test_bad_csv_names_its_lines(text: str, wanted: str) -> None:
    with pytest.raises(ProfileError) as caught:
        import_steps(text)
    assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(
    "row, wanted",
    [
        ("a,1e300,1", "<steps>:2:1: samples must be between 1 and 1e+15, not 1e300"),
        ("a,1e16,1", "<steps>:2:1: samples must be between 1 and 1e+15, not 1e16"),
        ("a,16,1e300", "<steps>:2:1: seconds must be between 1e-12 and 1e+09, not 1e300"),
        ("a,16,1e-300", "<steps>:2:1: seconds must be between 1e-12 and 1e+09, not 1e-300"),
        ("a,16,1e-12", "<steps>: workers[0].samples_per_s: must be at most 1e+12, not 16000000000000.0"),
        ("a,1e15,1e9\nb,1,1e9", "<steps>: training.global_batch_samples: must be at most 1,000,000,000,000,000"),
    ],
)
def test_import_of_extremes_is_refused_with_the_reason(row: str, wanted: str) -> None:
    with pytest.raises(ProfileError) as caught:
        import_steps(f"worker,samples,seconds\n{row}\n")
    assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 1, 1e9), ("a", 2, 1e9)],
        [("a", 1, 1e-12), ("a", 10**15, 1e9)],
        [("a", 1, 1e-9), ("a", 2, 1e9), ("a", 3, 1e-9)],
        [("x" * 300, 16, 1.0), ("漢 字", 16, 1.0), ("...", 16, 1.0)],
        [("a", m, 0.01 + m / 100 * (1 + m % 7 / 10)) for m in range(1, 3000)],
    ],
)
def test_import_of_odd_steps_loads(rows: list[tuple[str, int, float]]) -> None:
    text, _ = import_steps(steps(rows))
    assert load_profile(text).cluster().n == len({worker for worker, _, _ in rows})


def test_where_every_step_has_a_batch_size_of_its_own_neighbours_are_taken_together() -> None:
    (line,) = import_steps(steps([("a", m, 0.01 + m / 500) for m in range(1, 2000)]))[1]
    assert line.model == "line" and line.batches == 1999
    assert (line.samples_per_s, line.overhead_s) == pytest.approx((500, 0.01), rel=0.01)


@pytest.mark.parametrize("flag", ["name", "workload"])
@pytest.mark.parametrize("value", ["a: b", "", "x\ny"])
def test_import_names_the_flag_that_is_wrong(flag: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^--{flag}: ") as caught:
        import_steps(steps([("a", 16, 0.5)]), **{flag: value})
    assert not isinstance(caught.value, ProfileError)


def test_import_of_more_workers_than_a_profile_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetsim.cluster.imports.MAX_TEXT_BYTES", 5_000)
    with pytest.raises(ProfileError, match="has 100 workers, more than fit into a profile of 5 kB"):
        import_steps(steps([(f"w{i}", 16, 1.0) for i in range(100)]))


def test_import_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(steps([("a", m, 0.01 + m / 500) for m in BATCHES]), encoding="utf-8")
    profile = load_profile(import_steps(path, name="mine")[0])
    assert profile.name == "mine" and "steps.csv" in profile.sources["workers.a.samples_per_s"]
    with pytest.raises(ProfileError, match="no such file"):
        import_steps(str(tmp_path / "none.csv"))
