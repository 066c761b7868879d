"""Every kind of bad profile gets its own message, with its place, and nothing but ProfileError."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetsim.cluster import load_profile
from hetsim.errors import ProfileError

HEAD = "schema_version: 1\nname: x\n"
ONE = "workers: [{name: a, samples_per_s: 100.0}]\n"
TWO = "workers: [{name: a, samples_per_s: 100.0, count: 2}, {name: b, samples_per_s: 50.0}]\n"


def problems(text: str, **options: object) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(text, name="p.yaml", **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return str(caught.value)


CASES = {
    "unknown key": (
        "workers:\n  - {name: a, samples_per_sec: 3}\n",
        "p.yaml:4:15: workers[0].samples_per_sec: unknown key (did you mean samples_per_s?)",
    ),
    "unknown top key": (ONE + "netwrok: {}\n", "p.yaml:4:1: netwrok: unknown key (did you mean network?)"),
    "wrong type": (
        "workers: [{name: a, samples_per_s: fast}]\n",
        "p.yaml:3:36: workers[0].samples_per_s: must be a number, not 'fast'",
    ),
    "unit in a value": (
        ONE + "network: {bandwidth_gbit_per_s: 10 Gbit}\n",
        "p.yaml:4:33: network.bandwidth_gbit_per_s: must be a number, not '10 Gbit' "
        "(the unit stands in the key: write the number alone, without quotes)",
    ),
    "true is no number": (
        "workers: [{name: a, samples_per_s: true}]\n",
        "p.yaml:3:36: workers[0].samples_per_s: must be a number, not true",
    ),
    "a fraction of a sample": (
        ONE + "training: {global_batch_samples: 25.5}\n",
        "p.yaml:4:34: training.global_batch_samples: must be a whole number, not 25.5",
    ),
    "missing name": (
        "workers:\n  - {samples_per_s: 3}\n",
        "p.yaml:4:5: workers[0].name: required key is missing",
    ),
    "missing workers": (
        "",
        "p.yaml:1:1: workers: required key is missing (a list of GPUs, such as - {name: a, gpu: V100})",
    ),
    "no workers": ("workers: []\n", "p.yaml:3:10: workers: must not be empty"),
    "workers not a list": ("workers: 4\n", "p.yaml:3:10: workers: must be a list, not 4"),
    "worker not a mapping": (
        "workers: [V100]\n",
        "p.yaml:3:11: workers[0]: must be a mapping (key: value), not 'V100'",
    ),
    "zero speed": (
        "workers: [{name: a, samples_per_s: 0}]\n",
        "p.yaml:3:36: workers[0].samples_per_s: must be greater than 0, not 0",
    ),
    "negative speed": (
        "workers: [{name: a, samples_per_s: -3.5}]\n",
        "p.yaml:3:36: workers[0].samples_per_s: must be greater than 0, not -3.5",
    ),
    "zero bandwidth": (
        ONE + "network: {bandwidth_gbit_per_s: 0.0}\n",
        "p.yaml:4:33: network.bandwidth_gbit_per_s: must be greater than 0, not 0.0",
    ),
    "zero bandwidth by event": (
        ONE + "events: [{at_s: 1, link: a, bandwidth_gbit_per_s: 0}]\n",
        "p.yaml:4:51: events[0].bandwidth_gbit_per_s: must be greater than 0, not 0",
    ),
    "infinite": (
        "workers: [{name: a, samples_per_s: .inf}]\n",
        "p.yaml:3:36: workers[0].samples_per_s: must be a finite number, not inf",
    ),
    "not a number": (
        ONE + "training: {learning_rate: .nan}\n",
        "p.yaml:4:27: training.learning_rate: must be a finite number, not nan",
    ),
    "infinite option": (
        ONE + "algorithms: {s-sgd: {overlap: .inf}}\n",
        "p.yaml:4:31: algorithms.s-sgd.overlap: must be a finite number, text, true or false",
    ),
    "unknown choice": (
        ONE + "network: {topology: swich}\n",
        "p.yaml:4:21: network.topology: must be one of switch, nodes, parameter_server, not 'swich' "
        "(did you mean switch?)",
    ),
    "momentum 1": (
        ONE + "training: {momentum: 1.0}\n",
        "p.yaml:4:22: training.momentum: must be less than 1, not 1.0",
    ),
    "duplicate key": (ONE + "name: y\n", "p.yaml:4:1: duplicate key 'name' (first on line 2)"),
    "duplicate names": (
        "workers:\n  - {name: a, samples_per_s: 1}\n  - {name: a, samples_per_s: 2}\n",
        "p.yaml:5:12: workers[1].name: the name 'a' is taken by workers[0] (names are unique)",
    ),
    "member's name taken": (
        "workers:\n  - {name: a, samples_per_s: 1, count: 2}\n  - {name: a-1, samples_per_s: 2}\n",
        "p.yaml:5:12: workers[1].name: the name 'a-1' is taken by workers[0] (names are unique)",
    ),
    "name is a number": (
        "workers: [{name: 1, samples_per_s: 1}]\n",
        "p.yaml:3:18: workers[0].name: must be text, not 1 (put it in quotes)",
    ),
    "name with a dot": (
        "workers: [{name: a.b, samples_per_s: 1}]\n",
        "p.yaml:3:18: workers[0].name: 'a.b' is no name (start with a letter, go on with letters, digits, - and _)",
    ),
    "unknown GPU": (
        "workers: [{name: a, gpu: V10}]\n",
        "p.yaml:3:26: workers[0].gpu: unknown GPU 'V10' (did you mean V100?)",
    ),
    "no speed": (
        "workers:\n  - {name: a}\n",
        "p.yaml:4:5: workers[0]: worker a has no speed (give gpu, samples_per_s, step_times_s or trace)",
    ),
    "speed unknown to the catalogue": (
        "workload: {name: mine, gradient_bytes: 1e6}\nworkers: [{name: a, gpu: V100}]\n",
        "p.yaml:4:26: workers[0].gpu: the catalogue has no speed of V100 for workload mine "
        "(give samples_per_s or step_times_s)",
    ),
    "unknown workload": (
        "workload: resnet18-cifar\n" + ONE,
        "p.yaml:3:11: workload: unknown workload 'resnet18-cifar' (did you mean resnet18-cifar10?)",
    ),
    "workload of the wrong kind": ("workload: 7\n" + ONE, "p.yaml:3:11: workload: must be a name or a mapping, not 7"),
    "incomplete workload": (
        "workload: {name: mine}\n" + ONE,
        "p.yaml:3:11: workload.gradient_bytes: required key is missing",
    ),
    "unknown workload key": (
        "workload: {name: mine, gradient_byte: 1}\n" + ONE,
        "p.yaml:3:24: workload.gradient_byte: unknown key (did you mean gradient_bytes?)",
    ),
    "batch below workers": (
        TWO + "training: {global_batch_samples: 2}\n",
        "p.yaml:4:34: training.global_batch_samples: 2 samples are fewer than the 3 workers "
        "(every worker needs one at least)",
    ),
    "micro-batch above batch": (
        TWO + "training: {global_batch_samples: 8}\n",
        "p.yaml:4:11: training.micro_batch_samples: 16 is more than global_batch_samples 8",
    ),
    "micro-batch over the cap": (
        "workers: [{name: a, samples_per_s: 1, max_batch_samples: 8}]\n",
        "p.yaml:3:58: workers[0].max_batch_samples: worker a holds 8 samples in one pass, micro_batch_samples is 16 "
        "(lower training.micro_batch_samples)",
    ),
    "micro-batch over memory": (
        "workload: {name: mine, gradient_bytes: 1e6, activation_bytes_per_sample: 1e6}\n"
        "workers: [{name: a, samples_per_s: 1, memory_bytes: 12e6}]\n",
        "p.yaml:4:53: workers[0].memory_bytes: worker a holds 8 samples in one pass, micro_batch_samples is 16 "
        "(lower training.micro_batch_samples)",
    ),
    "model over memory": (
        "workload: {name: mine, gradient_bytes: 1e9, activation_bytes_per_sample: 1e6}\n"
        "workers: [{name: a, samples_per_s: 1, memory_bytes: 2e9}]\n",
        "p.yaml:4:11: workers[0]: mine does not fit into 2 GB (it keeps 4 times gradient_bytes and the activations)",
    ),
    "link of nobody": (
        TWO + "network:\n  links: {c: {bandwidth_gbit_per_s: 1}}\n",
        "p.yaml:5:11: network.links.c: there is no worker, group or node 'c' (known: a, a-0, a-1, b)",
    ),
    "link named by a number": (
        TWO + "network:\n  links: {1: {bandwidth_gbit_per_s: 1}}\n",
        "p.yaml:5:11: network.links[1]: this key must be a name (letters, digits, - and _) (put it in quotes)",
    ),
    "event of nobody": (
        TWO + "events:\n  - {at_s: 1, worker: a-2, slowdown: 2}\n",
        "p.yaml:5:23: events[0].worker: there is no worker, group or node 'a-2' (did you mean a-1?)",
    ),
    "the server is no worker": (
        TWO + "events: [{at_s: 1, worker: server, slowdown: 2}]\n",
        "p.yaml:4:28: events[0].worker: there is no worker, group or node 'server' (known: a, a-0, a-1, b)",
    ),
    "event of two things": (
        TWO + "events:\n  - {at_s: 1, worker: a, link: b, slowdown: 2}\n",
        "p.yaml:5:5: events[0]: an event changes one worker or one link (worker and slowdown, or link and "
        "bandwidth_gbit_per_s)",
    ),
    "event without a change": (
        TWO + "events:\n  - {at_s: 1, worker: a}\n",
        "p.yaml:5:5: events[0]: an event of a worker has a slowdown and no bandwidth (worker and slowdown, or link and "
        "bandwidth_gbit_per_s)",
    ),
    "event in the past": (
        TWO + "events: [{at_s: -1, worker: a, slowdown: 2}]\n",
        "p.yaml:4:17: events[0].at_s: must be at least 0, not -1",
    ),
    "part of a shared link": (
        "workers: [{name: a, samples_per_s: 1, node: n, count: 2}]\n"
        "network: {topology: nodes, links: {a-0: {latency_us: 1}}}\n",
        "p.yaml:4:36: network.links.a-0: a-0 shares the link of node n with other workers (name n instead)",
    ),
    "node named as a worker": (
        "workers: [{name: a, samples_per_s: 1, node: b}, {name: b, samples_per_s: 1}]\n",
        "p.yaml:3:45: workers[0].node: node 'b' has the name of a worker, which makes links and events ambiguous "
        "(rename one of them)",
    ),
    "absurd count": (
        "workers: [{name: a, samples_per_s: 1, count: 1000000000}]\n",
        "p.yaml:3:46: workers[0].count: 1,000,000,000 workers in all; at most 20,000 can be simulated",
    ),
    "count 0": (
        "workers: [{name: a, samples_per_s: 1, count: 0}]\n",
        "p.yaml:3:46: workers[0].count: must be greater than 0, not 0",
    ),
    "unknown algorithm": (
        ONE + "algorithms:\n  ssgd: {overlap: true}\n",
        "p.yaml:5:3: algorithms.ssgd: unknown algorithm (did you mean s-sgd?)",
    ),
    "unknown option": (
        ONE + "algorithms:\n  s-sgd: {overlp: true}\n",
        "p.yaml:5:11: algorithms.s-sgd.overlp: unknown option (did you mean overlap?)",
    ),
    "bad option": (
        ONE + "algorithms:\n  abs-sgd: {trigger: sometimes}\n",
        "p.yaml:5:22: algorithms.abs-sgd.trigger: must be 'back-to-back', ",
    ),
    "empty table": (
        "workers: [{name: a, step_times_s: {}}]\n",
        "p.yaml:3:35: workers[0].step_times_s: must not be empty",
    ),
    "step times by text": (
        "workers: [{name: a, step_times_s: {few: 1.0}}]\n",
        "p.yaml:3:36: workers[0].step_times_s.few: this key must be a whole number greater than 0",
    ),
    "step time 0": (
        "workers: [{name: a, step_times_s: {16: 0}}]\n",
        "p.yaml:3:40: workers[0].step_times_s[16]: must be greater than 0, not 0",
    ),
    "unsorted all-reduce table": (
        ONE + "network: {all_reduce_busy_table: [{bytes: 2e6, seconds: 1}, {bytes: 1e6, seconds: 2}]}\n",
        "p.yaml:4:69: network.all_reduce_busy_table[1].bytes: must be greater than the row before "
        "(sort the rows by bytes, each once)",
    ),
    "unsorted table of all-reduces beside computation": (
        ONE + "network: {all_reduce_table: [{bytes: 2e6, seconds: 1}, {bytes: 1e6, seconds: 2}]}\n",
        "p.yaml:4:64: network.all_reduce_table[1].bytes: must be greater than the row before "
        "(sort the rows by bytes, each once)",
    ),
    "a tag": ("workers: !!python/object:os.system [x]\n", "p.yaml:3:10: tags are not allowed in a profile"),
    "broken YAML": ("workers: [{name: a\nb: 1\n", "p.yaml:4:2: is not valid YAML: expected ',' or '}', but got ':'"),
    "a tab": ("workers:\n\t- 1\n", "p.yaml:4:1: is not valid YAML: found character '\\t'"),
    "two documents": (ONE + "---\nname: y\n", "p.yaml:4:1: a second document starts here (one profile per file)"),
    "key that is no text": (ONE + "true: 1\n", "p.yaml:4:1: a key must be text (put it in quotes)"),
    "alias of nothing": (ONE + "events: *x\n", "p.yaml:4:9: *x refers to no finished anchor before it"),
    "alias of itself": ("workers: &w [*w]\n", "p.yaml:3:14: *w refers to no finished anchor before it"),
    "too deep": ("workers: " + "[" * 60 + "]" * 60 + "\n", "p.yaml:3:41: nested deeper than 32 levels"),
    "an absurd integer": (
        "workers: [{name: a, samples_per_s: 1, count: " + "9" * 5000 + "}]\n",
        "p.yaml:3:46: is not a number that can be read",
    ),
    "a control character": (ONE + "description: \x07\n", "p.yaml: is not valid YAML: "),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_profile_gets_its_message(case: str) -> None:
    body, wanted = CASES[case]
    lines = problems(HEAD + body).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(wanted)


def test_all_problems_at_once_in_file_order() -> None:
    text = HEAD + (
        "workers:\n"
        "  - {name: a, gpu: V10, samples_per_sec: 3}\n"
        "  - {name: a, samples_per_s: -1}\n"
        "  - {name: b, samples_per_s: 1}\n"
        "network: {bandwidth_gbit_per_s: 0, links: {z: {}}}\n"
        "events: [{at_s: 1, worker: q, slowdown: 2}]\n"
    )
    places = [line.split(": ")[:2] for line in problems(text).splitlines()]
    assert places == [
        ["p.yaml:4:20", "workers[0].gpu"],
        ["p.yaml:4:25", "workers[0].samples_per_sec"],
        ["p.yaml:5:12", "workers[1].name"],
        ["p.yaml:5:30", "workers[1].samples_per_s"],
        ["p.yaml:7:33", "network.bandwidth_gbit_per_s"],
        ["p.yaml:7:44", "network.links.z"],
        ["p.yaml:8:28", "events[0].worker"],
    ]


def test_wrong_value_is_not_reported_twice_as_a_missing_speed() -> None:
    assert problems(HEAD + "workers: [{name: a, samples_per_s: -1}]\n").count("\n") == 0


def test_missing_schema_version() -> None:
    assert problems("name: x\n" + ONE) == (
        "p.yaml:1:1: schema_version: required key is missing (write schema_version: 1)"
    )


def test_newer_schema_version_is_the_only_complaint() -> None:
    assert problems("schema_version: 2\nname: x\nnodes: []\n") == (
        "p.yaml:1:17: schema_version: 2 is newer than this hetsim reads (1) (a newer hetsim reads it)"
    )


@pytest.mark.parametrize("text, wanted", [("\n", "is empty"), ("- 1\n", "must be a mapping"), ("5\n", "must be a map")])
def test_no_mapping_at_the_top(text: str, wanted: str) -> None:
    assert problems(text).startswith(f"p.yaml:1:1: {wanted}") or problems(text).startswith(f"p.yaml:2:1: {wanted}")


def test_alias_bomb_costs_nothing() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    assert "more than 200,000 values, aliases included" in problems(text)


def test_thousands_of_problems_are_cut_short() -> None:
    lines = problems(HEAD + "workers:\n" + "  - 1\n" * 3000).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "p.yaml: and 2,950 more problems"
    assert len(problems("a: 1\n" * 3000).splitlines()) == 51


def test_many_changes_are_refused() -> None:
    text = (
        HEAD
        + "workers: [{name: a, samples_per_s: 1, count: 20000}]\ntraining: {global_batch_samples: 20000}\nevents:\n"
    )
    text += "  - {at_s: 1, worker: a, slowdown: 2}\n" * 51
    assert problems(text).startswith(
        "p.yaml:56:5: events[50]: with this event they concern more than 1,000,000 workers"
    )


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    def message(path: Path | str) -> str:
        with pytest.raises(ProfileError) as caught:
            load_profile(path)
        return str(caught.value)

    assert message(tmp_path) == f"{tmp_path}: is a folder (name the file in it)"
    assert message(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: no such file"
    assert message("mixed-gpu") == (
        "mixed-gpu: no such file, and no shipped profile 'mixed-gpu' (did you mean mixed-gpu-8?)"
    )
    assert "cannot be read" in message("a\0b.yaml")
    assert message("x" * 5000 + ".yaml").endswith("cannot be read: File name too long")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: x\ndescription: K\u00f6ln\n".encode("latin-1"))
    assert message(latin) == f"{latin}:2:15: is not UTF-8 text (save it as UTF-8)"
    utf16 = tmp_path / "utf16.yaml"
    utf16.write_text("name: x\n", encoding="utf-16")
    assert message(utf16) == f"{utf16}:1:1: is not UTF-8 text (save it as UTF-8)"
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as stream:
        stream.truncate(100_000_000)
    assert message(huge) == f"{huge}: is larger than 1,000 kB (a profile is a few kB)"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(bytes(range(128)))
    assert message(binary).startswith(f"{binary}: is not valid YAML: ")


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + ONE).replace("\n", "\r\n").encode())
    assert load_profile(path) == load_profile(HEAD + ONE)
