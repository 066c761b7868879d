from __future__ import annotations

import base64
import shlex
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.shipped import shipped_paths
from hetsim.errors import HetsimError, ProfileError, UsageError
from hetsim.labels import contenders
from hetsim.webapp import view as views
from hetsim.webapp.view import ALL_ALGORITHMS, DEFAULT_ALGORITHMS, MAX_WORKERS, View

OWN = "schema_version: 1\nname: own\nworkers:\n  - {name: a, samples_per_s: 100.0}\n  - {name: b, gpu: T4}\n"
printable = st.text(st.characters(exclude_categories=("C", "Z")), max_size=60)
views_of_any_kind = st.builds(
    View,
    source=st.one_of(st.sampled_from(sorted(shipped_paths())), st.text(max_size=400).map(lambda t: f"{t}\n")),
    overrides=st.lists(st.builds("{}={}".format, printable, printable), max_size=6).map(tuple),
    algorithms=st.lists(st.sampled_from(ALL_ALGORITHMS), min_size=1, max_size=10, unique=True).map(tuple),
    seed=st.integers(0, views.MAX_SEED),
    tuned=st.booleans(),
    target=st.none() | st.floats(1e-9, 1e9),
)


@settings(max_examples=40)
@given(views_of_any_kind)
def test_a_link_leads_back_to_the_view(view: View) -> None:
    query = view.query()
    assert all(isinstance(value, str) for value in query.values())
    assert View.from_query(query) == view
    assert View.from_query({**query, "utm_source": "elsewhere"}) == view


@given(st.dictionaries(st.sampled_from(views.KEYS), st.text(max_size=80)))
def test_whatever_a_link_says_is_a_view_or_refused_in_words(query: dict[str, str]) -> None:
    try:
        view = View.from_query(query)
    except UsageError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert View.from_query(view.query()) == view


def test_the_default_view_needs_no_parameters_and_compares_what_compare_does() -> None:
    assert View().query() == {}
    assert tuple(c.label for c in contenders(None)) == ALL_ALGORITHMS
    assert set(DEFAULT_ALGORITHMS) < set(ALL_ALGORITHMS)


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


HOSTILE: list[tuple[dict[str, str], str]] = [
    ({"profile": "nowhere"}, "no shipped profile"),
    ({"profile": "../../etc/passwd"}, "no shipped profile"),
    ({"profile": "a\nb"}, "not the name"),
    ({"profile": "mixed-gpu-4", "yaml": packed(OWN.encode())}, "one of them"),
    ({"yaml": "%%%"}, "damaged"),
    ({"yaml": packed(OWN.encode())[:-9]}, "damaged"),
    ({"yaml": packed(b"\xff\xfe\n")}, "damaged"),
    ({"yaml": packed(b"no newline")}, "damaged"),
    ({"yaml": "A" * 7000}, "characters"),
    ({"yaml": packed(b"\n" * 3_000_000)}, "larger than"),
    ({"set": "\n".join(["a=1"] * 1000)}, "1000 overrides"),
    ({"set": "a=" + "1" * 3000}, "characters"),
    ({"set": "no equals sign"}, "path.to.key=value"),
    ({"set": "a=\x1b[31m"}, "path.to.key=value"),
    ({"algorithms": "nothing"}, "nothing"),
    ({"algorithms": ""}, "at least one"),
    ({"algorithms": "s-sgd;s-sgd"}, "twice"),
    ({"algorithms": ";".join(f"local-sgd:local_steps={k}" for k in range(2, 30))}, "more than 16"),
    ({"seed": "-1"}, "whole number"),
    ({"seed": "9" * 10}, "whole number"),
    ({"seed": "1e3"}, "whole number"),
    ({"tuned": "perhaps"}, "yes or no"),
    ({"target": "nan"}, "above 0"),
    ({"target": "-1"}, "above 0"),
    ({"target": "x"}, "above 0"),
]


@pytest.mark.parametrize("query, said", HOSTILE)
def test_hostile_links_are_refused_in_words(query: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        View.from_query(query)
    assert said in str(refused.value) and len(str(refused.value)) < 400


def test_a_profile_too_large_for_a_link_says_so() -> None:
    import random

    noise = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))
    with pytest.raises(UsageError, match="too large for a link"):
        View(source=f"# {noise}\n{OWN}").query()


@pytest.mark.parametrize(
    "text, said",
    [
        ("\n", "is empty"),
        ("workers: [\n", "profile.yaml:"),
        (f"{OWN}workload: {{name: w, gradient_bytes: 1.0e6, model: 'os:system'}}\n", "built in"),
        (f"{OWN}extends: /etc/passwd\n", "shipped"),
        (OWN.replace("{name: b, gpu: T4}", "{name: b, trace: /etc/passwd}"), "profile.yaml:5:"),
    ],
)
def test_a_stranger_s_profile_reads_no_files_and_runs_no_code(text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        View(source=text).profile()


def test_more_workers_than_the_explorer_shows() -> None:
    with pytest.raises(ProfileError, match="257 workers"):
        View(overrides=(f"workers.a.count={MAX_WORKERS - 2}",)).profile()


def test_the_command_says_all_of_it() -> None:
    view = View(
        source=OWN,
        overrides=("workers.a.step_times_s={16: 0.1, 32: 0.2}", "network.latency_us=5.0"),
        algorithms=("s-sgd", "abs-sgd:compute_point=current"),
        seed=7,
        target=0.5,
    )
    assert shlex.split(view.command()) == [
        *("hetsim", "compare", "own.yaml"),
        *("--set", "workers.a.step_times_s={16: 0.1, 32: 0.2}", "--set", "network.latency_us=5.0"),
        *("--set", "training.target_loss=0.5", "-a", "s-sgd", "-a", "abs-sgd:compute_point=current", "--seed", "7"),
    ]


def test_the_command_gives_the_same_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from hetsim.cli import main
    from hetsim.webapp import pictures

    view = View(
        source="homogeneous-4",
        overrides=("network.bandwidth_gbit_per_s=2.0", "training.max_samples=300000", "training.seeds=2"),
        algorithms=("s-sgd", "abs-sgd"),
        seed=3,
        target=1.5,
    )
    assert main([*shlex.split(view.command())[1:], "--json", "-j", "1"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(pictures.compute(view, full=True).to_json()))
    assert printed["winner"] is not None or printed["algorithms"][0]["time_to_target_s"]["reached"]


@pytest.mark.parametrize("tuned", [True, False])
def test_the_command_of_the_quick_picture_gives_the_same_numbers(
    tuned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from hetsim.cli import main
    from hetsim.webapp import pictures

    view = View(overrides=("training.max_samples=300000",), algorithms=("s-sgd", "abs-sgd"), seed=5, tuned=tuned)
    assert main([*shlex.split(view.command(quick=True))[1:], "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(pictures.compute(view, full=False).to_json()))


def test_equal_views_are_one_key() -> None:
    one, other = View(algorithms=("abs-sgd", "s-sgd")), View(algorithms=("abs-sgd: ", "s-sgd"))
    assert one == other and hash(one) == hash(other)
    assert one != replace(one, seed=1)
    with pytest.raises(HetsimError):
        replace(one, seed=-1)
