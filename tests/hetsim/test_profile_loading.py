"""Finding, extending, overriding, trusting and writing profiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from hetsim.cluster import Profile, load_profile, profile_schema, shipped_profiles
from hetsim.cluster.schema import SCHEMA_PATH, schema_text
from hetsim.cluster.shipped import DEFAULT_PROFILE, shipped_paths
from hetsim.errors import ProfileError

BASE = """schema_version: 1
name: base
workers: [{name: a, samples_per_s: 100.0}, {name: b, samples_per_s: 50.0}]
network: {bandwidth_gbit_per_s: 10.0, links: {b: {latency_us: 9.0}}}
sources: {workers.0.samples_per_s: calibrated here, network: guessed}
"""


def error(source: str | Path | None, **options: object) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(source, **options)  # type: ignore[arg-type]
    return str(caught.value)


# --- shipped profiles ---


def test_shipped_profiles_cover_what_people_ask_about() -> None:
    names = set(shipped_profiles())
    assert {"homogeneous-4", "mixed-gpu-4", "mixed-gpu-4-slow", "slow-link-4", "changing-4"} <= names
    assert {"mixed-gpu-8", "mixed-gpu-16", "slow-link-8", "slow-link-16", "changing-8", "changing-16"} <= names


@pytest.mark.parametrize("name", shipped_paths())
def test_shipped_profile_resolves_and_round_trips(name: str) -> None:
    profile = load_profile(name)
    cluster = profile.cluster()
    assert profile.name == cluster.name == name
    assert profile.description.endswith(".")
    assert "-nodes-" in name or str(cluster.n) in name.split("-")  # emulated-4-slow-link has four workers
    assert load_profile(profile.to_yaml()) == profile
    if name.startswith("emulated-"):  # to be run on one machine: no GPU's speeds, and data that need no download
        assert all(worker.speed_source == "stated" for worker in cluster.workers)
    else:
        assert all(worker.speed_source == "catalogue" and worker.step_times_s for worker in cluster.workers)
        assert cluster.workload.dataset_samples / cluster.training.global_batch_samples > 45  # updates an epoch
    assert profile.sources.keys() >= {"workers", "network"}


@pytest.mark.parametrize("name, path", shipped_paths().items())
def test_shipped_profile_names_its_schema(name: str, path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../hetsim/schemas/profile-1.json"


def test_default_is_mixed_gpus_of_unequal_speed() -> None:
    assert load_profile() == load_profile(DEFAULT_PROFILE) == load_profile(shipped_paths()["mixed-gpu-4"])
    workers = load_profile().cluster().workers
    assert len({worker.samples_per_s for worker in workers}) == 4


def test_loading_a_profile_imports_nothing_heavy() -> None:
    heavy = {"torch", "scipy", "joblib", "plotly", "streamlit", "simpy"}  # numpy comes with the algorithms' options
    code = (
        "import sys, hetsim.cluster as c; c.load_profile().cluster(); print(sorted(set(sys.modules) & " + f"{heavy!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


EVERY_KEY = """\
schema_version: 1
name: mixed-gpu-4
description: Four workers of three GPU generations on 10 Gbit/s Ethernet.
extends: base.yaml
workload: {name: mine, gradient_bytes: 44700000, dataset_samples: 50000, activation_bytes_per_sample: 2.1e6,
           backward_share: 0.667, model: "pkg.mod:fn", dataset: "pkg.mod:fn", convergence: resnet18-cifar10}
workers:
  - {name: a, gpu: V100, count: 2, samples_per_s: 900.0}
  - {name: b, gpu: P100, node: n1, step_times_s: {16: 0.05}}
  - name: c
    samples_per_s: 310.0
    overhead_s: 0.004
    floor_s: 0.02
    step_times_s: {16: 0.031, 64: 0.09}
    trace: c.csv
    max_batch_samples: 96
    memory_bytes: 16.0e9
    jitter_cv: 0.05
    stragglers: {probability: 0.01, slowdown: 4.0}
    price_per_h: 0.5
    power_w: 250
    update_s: 0.0
network:
  topology: switch
  collective: ring
  bandwidth_gbit_per_s: 10.0
  latency_us: 50.0
  links: {c: {bandwidth_gbit_per_s: 1.0}}
  intra_node: {bandwidth_gbit_per_s: 100.0, latency_us: 5.0}
  server: {bandwidth_gbit_per_s: 10.0}
  all_reduce_table: [{bytes: 1.0e6, seconds: 0.001}, {bytes: 1.0e8, seconds: 0.09}]
  all_reduce_busy_table: [{bytes: 1.0e6, seconds: 0.004}]
  payload_share: 1.0
  overlap_slowdown: 1.05
training: {global_batch_samples: 256, micro_batch_samples: 16, learning_rate: 0.05, lr_rule: none, momentum: 0.9,
           nesterov: false, weight_decay: 0.0005, optimizer: sgd, warmup_updates: 0, target_loss: 0.3,
           max_samples: 500000, seeds: 5}
algorithms:
  s-sgd: {overlap: true}
  abs-sgd: {trigger: back-to-back, compute_point: local-prediction}
events:
  - {at_s: 30.0, worker: a-0, slowdown: 2.0, for_s: 60.0}
  - {at_s: 90.0, link: c, bandwidth_gbit_per_s: 0.2}
sources: {"workers.2.samples_per_s": "calibrated 2026-11-03, torch 2.13, residual 1.1 %"}
"""


def test_a_profile_with_every_key(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "c.csv").write_text("samples,seconds\n16,0.03\n", encoding="utf-8")
    path = tmp_path / "every.yaml"
    path.write_text(EVERY_KEY, encoding="utf-8")
    profile = load_profile(path)
    assert load_profile(profile.to_yaml()) == profile
    cluster = profile.cluster()
    assert [worker.name for worker in cluster.workers] == ["a-0", "a-1", "b", "c"]
    assert [worker.speed_source for worker in cluster.workers] == ["stated", "stated", "stated", "trace"]
    assert cluster.options["abs-sgd"] == {"trigger": "back-to-back", "compute_point": "local-prediction"}
    known = {"workers", "network", "training", "workload", "events"} | {"algorithms", "sources", "description"}
    assert known | {"schema_version", "name", "extends"} == set(Profile.model_fields)
    for part in (profile.workers[2], profile.network, profile.training, profile.workload):
        left_out = set(type(part).model_fields) - part.model_fields_set  # type: ignore[union-attr]
        assert left_out <= {"gpu", "count", "node", "clip_norm"}  # shown on other workers, or optional


# --- schema ---


def test_schema_file_is_fresh() -> None:
    how = "write hetsim.cluster.schema.schema_text() to hetsim/schemas"
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(), how


def test_schema_speaks_the_words_of_json_schema() -> None:
    words: set[str] = set()

    def collect(node: object, names: bool) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if not names:
                    words.add(key)
                collect(value, key in ("properties", "$defs") and not names)
        elif isinstance(node, list):
            for item in node:
                collect(item, False)

    collect(profile_schema(), False)
    assert not words & {"gt", "ge", "lt", "le"}
    assert {"exclusiveMinimum", "additionalProperties", "description"} <= words


def test_schema_describes_every_key() -> None:
    schema = profile_schema()
    parts = {"Profile": schema, **schema["$defs"]}
    for name, part in parts.items():
        assert part["additionalProperties"] is False, name
        for key, value in part["properties"].items():
            assert value.get("description"), f"{name}.{key}"
    assert "V100" in schema["$defs"]["WorkerEntry"]["properties"]["gpu"]["examples"]
    json.dumps(schema)


# --- extends ---


def test_mappings_merge_and_lists_replace(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: base.yaml\nname: child\nworkers: [{name: b, samples_per_s: 5.0}]\n"
        "network: {latency_us: 7.0, links: {b: {bandwidth_gbit_per_s: 1.0}}}\n",
        encoding="utf-8",
    )
    profile = load_profile(child)
    assert (profile.name, profile.extends) == ("child", None)
    assert [worker.name for worker in profile.workers] == ["b"]
    assert (profile.network.bandwidth_gbit_per_s, profile.network.latency_us) == (10.0, 7.0)
    link = profile.network.links["b"]
    assert (link.bandwidth_gbit_per_s, link.latency_us) == (1.0, 9.0)
    # what the parent says of workers that were replaced is forgotten: the child's speed is not calibrated
    assert profile.sources == {"network": "guessed"}
    assert profile.cluster().workers[0].speed_source == "stated"


def test_null_takes_an_optional_value_back() -> None:
    text = "extends: mixed-gpu-4\ntraining: {target_loss: null}\nnetwork: {server: null}\n"
    assert load_profile(text).training.target_loss is None


def test_problem_in_a_parent_is_shown_in_the_parent(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE + "netwrok: {}\n", encoding="utf-8")
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\ntraining: {seeds: 0}\n", encoding="utf-8")
    lines = error(child).splitlines()
    assert lines == [
        f"{child}:2:19: training.seeds: must be greater than 0, not 0",
        f"{tmp_path / 'base.yaml'}:6:1: netwrok: unknown key (did you mean network?)",
    ]


def test_cycles_and_towers_end(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"p{i}.yaml").write_text(f"extends: p{(i + 1) % 3 if i < 3 else i - 1}.yaml\n", encoding="utf-8")
    assert "p0.yaml extends itself, directly or by others" in error(tmp_path / "p0.yaml")
    (tmp_path / "p0.yaml").write_text("extends: p0.yaml\n", encoding="utf-8")
    assert "p0.yaml:1:10: extends: p0.yaml extends itself" in error(tmp_path / "p0.yaml")
    (tmp_path / "p2.yaml").write_text("name: x\n", encoding="utf-8")
    assert "more than 10 profiles on top of each other" in error(tmp_path / "p19.yaml")


def test_extends_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: x\nextends: nothing.yaml\n", encoding="utf-8")
    assert (
        error(path)
        == f"{path}:2:10: extends: there is no file 'nothing.yaml' here, and no shipped profile of that name"
    )
    path.write_text("name: x\nextends: [a]\n", encoding="utf-8")
    assert error(path) == f"{path}:2:10: extends: must be the name of one profile"
    path.write_text(f"extends: {tmp_path}\n", encoding="utf-8")
    assert error(path) == f"{tmp_path}: is a folder (name the file in it)"


# --- overrides ---


def test_overrides_reach_every_kind_of_field() -> None:
    profile = load_profile(
        overrides=[
            "workers.2.samples_per_s=150",
            "workers.a.jitter_cv=0",
            "algorithms.s-sgd.overlap=false",
            "network.bandwidth_gbit_per_s=1e0",
            "network.links.c.latency_us=3",
            "workers.b.step_times_s.16=0.5",
            "events=[{at_s: 1, worker: a, slowdown: 2}]",
            "description=one = two",
        ]
    )
    assert profile.workers[2].samples_per_s == 150.0
    assert profile.workers[0].jitter_cv == 0.0
    assert profile.algorithms["s-sgd"] == {"overlap": False}
    assert profile.network.bandwidth_gbit_per_s == 1.0
    assert profile.network.links["c"].latency_us == 3.0
    assert profile.workers[1].step_times_s == {16: 0.5}
    assert profile.events[0].slowdown == 2.0
    assert profile.description == "one = two"


def test_an_overridden_speed_is_no_longer_calibrated() -> None:
    assert load_profile(BASE).cluster().workers[0].speed_source == "calibrated"
    for path in ("workers.0.samples_per_s", "workers.a.samples_per_s"):
        assert load_profile(BASE, overrides=[f"{path}=7"]).cluster().workers[0].speed_source == "stated"


@pytest.mark.parametrize(
    "override, wanted",
    [
        ("workers.9.gpu=T4", "--set workers.9.gpu=T4: workers: has no item '9', it has 4 (0 is the first)"),
        (
            "workers.mixed.gpu=T4",
            "--set workers.mixed.gpu=T4: workers: has no item 'mixed', it has 4 (0 is the first) (known: a, b, c, d)",
        ),
        ("workers", "--set workers: must read path.to.key=value"),
        ("a..b=1", "--set a..b=1: must read path.to.key=value"),
        ("=1", "--set =1: must read path.to.key=value"),
        ("name.x=1", "--set name.x=1: name: is 'mixed-gpu-4', it has no 'x' inside"),
        ("training.seeds=many", "--set training.seeds=many: training.seeds: must be a whole number, not 'many'"),
        ("network.latency=1", "--set network.latency=1: network.latency: unknown key (did you mean latency_us?)"),
        ("workers.0.gpu=V10", "--set workers.0.gpu=V10: workers[0].gpu: unknown GPU 'V10' (did you mean V100?)"),
    ],
)
def test_bad_override_names_the_flag(override: str, wanted: str) -> None:
    assert error(None, overrides=[override]) == wanted


def test_override_with_broken_yaml_names_the_flag() -> None:
    assert error(None, overrides=["workers=[{"]).startswith("--set workers=[{:1:3: is not valid YAML: ")


# --- trust ---


def test_untrusted_text_cannot_import_read_or_extend(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "steps.csv").write_text("samples,seconds\n16,0.1\n", encoding="utf-8")
    text = (
        "schema_version: 1\nname: x\n"
        "workload: {name: m, gradient_bytes: 1e6, model: 'os:system', dataset: /etc}\n"
        f"workers: [{{name: a, trace: {tmp_path / 'steps.csv'}}}]\n"
    )
    lines = error(text, trusted=False).splitlines()
    assert [line.split(": ", 1)[0] for line in lines] == ["<profile>:3:49", "<profile>:3:71", "<profile>:4:28"]
    assert "no module:function" in lines[0] and "may not name a file" in lines[2]
    load_profile(text)
    for parent in (tmp_path / "base.yaml", "../base.yaml", "/etc/passwd"):
        assert "an untrusted profile may extend only a shipped one" in error(f"extends: {parent}\n", trusted=False)
    assert load_profile("extends: mixed-gpu-4\n", trusted=False).workers == load_profile().workers


def test_untrusted_string_is_never_a_path(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(BASE, encoding="utf-8")
    assert load_profile(str(path)).name == "base"
    assert "must be a mapping" in error(str(path), trusted=False)


def test_untrusted_override_gains_nothing() -> None:
    assert "may not name a file" in error(None, trusted=False, overrides=["workers.a.trace=/etc/passwd"])


# --- traces ---


def test_trace_is_read_beside_the_profile_and_kept_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps.csv").write_text("# recorded\nsamples, seconds\n16, 0.25\n32, 0.5\n", encoding="utf-8")
    path = tmp_path / "p.yaml"
    path.write_text("schema_version: 1\nname: x\nworkers: [{name: a, trace: steps.csv}]\n", encoding="utf-8")
    profile = load_profile(path)
    worker = profile.cluster().workers[0]
    assert worker.trace == ((16, 0.25), (32, 0.5)) and worker.speed_source == "trace"
    assert load_profile(profile.to_yaml(), trusted=False) == profile
    monkeypatch.chdir(tmp_path)
    assert load_profile(None, overrides=["workers.a.trace=steps.csv"]).workers[0].trace == worker.trace


def test_bad_trace_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("schema_version: 1\nname: x\nworkers: [{name: a, trace: steps.csv}]\n", encoding="utf-8")
    csv = tmp_path / "steps.csv"
    where = f"{path}:3:28: workers[0].trace: {csv}"
    assert error(path) == f"{where}: no such file"
    csv.write_text("samples,seconds\n16,0.25\n32,fast\n0,1\n", encoding="utf-8")
    assert error(path).splitlines() == [
        f"{where}:3:1: seconds must be a number, not 'fast'",
        f"{where}:4:1: samples must be a finite number greater than 0, not 0",
    ]
    csv.write_text("m,t\n16,0.25\n", encoding="utf-8")
    assert error(path) == f"{where}:1:1: the first line must name the columns samples,seconds"


# --- the object ---


def test_profile_is_frozen_and_forbids_extras() -> None:
    profile = load_profile(BASE)
    with pytest.raises(ValidationError):
        setattr(profile, "name", "y")  # noqa: B010
    with pytest.raises(ValidationError):
        Profile.model_validate(profile.model_dump() | {"speed": 3})


def test_digest_follows_content_and_not_layout() -> None:
    profile = load_profile(BASE)
    reordered = load_profile("\n".join(reversed(BASE.strip().splitlines())) + "\n")
    assert profile.digest() == reordered.digest() == load_profile(profile.to_yaml()).digest()
    assert len(profile.digest()) == 64
    assert profile.digest() != load_profile(BASE, overrides=["workers.0.samples_per_s=101"]).digest()


def test_profile_built_in_code_reports_what_does_not_fit() -> None:
    profile = Profile(schema_version=1, name="x", workers=({"name": "a"},))  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r"^x: workers\[0\]: worker a has no speed"):
        profile.cluster()


def test_messages_shorten_paths_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text("name: x\n", encoding="utf-8")
    assert error(tmp_path / "p.yaml").startswith("p.yaml:1:1: ")
    assert error(os.path.join(".", "p.yaml")).startswith("p.yaml:1:1: ")
