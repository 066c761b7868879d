"""Whatever is loaded, the loader answers with a Profile or a ProfileError, soon."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetsim.cluster import Profile, load_profile
from hetsim.cluster.profile import (
    Event,
    InlineWorkload,
    LinkEntry,
    NetworkEntry,
    Stragglers,
    TrainingEntry,
    WorkerEntry,
)
from hetsim.cluster.shipped import shipped_paths
from hetsim.errors import ProfileError

BUDGET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEWER = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEEDS = [path.read_text(encoding="utf-8") for path in shipped_paths().values()]
SEEDS.append(load_profile("changing-4").to_yaml())
KEYS = sorted(
    {
        key
        for model in (Profile, WorkerEntry, NetworkEntry, TrainingEntry, Event, LinkEntry, Stragglers, InlineWorkload)
        for key in model.model_fields
    }
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(
        ["a", "b", "V100", "T4", "server", "ring", "nodes", "resnet18-cifar10", "digits-mlp", "mixed-gpu-4"]
    ),
    st.text(max_size=8),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5), st.integers(0, 99)), inner, max_size=5),
    ),
    max_leaves=25,
)


def answers(text: str, **options: Any) -> Profile | None:
    """A Profile that resolves to finite numbers, or None where it was refused with a message."""
    try:
        profile = load_profile(text + "\n", **options)
    except ProfileError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert len(error.problems) <= 51
        return None
    for worker in profile.cluster().workers:
        assert worker.samples_per_s > 0 and math.isfinite(worker.overhead_s + worker.floor_s)
    for link in profile.cluster().network.links:
        assert 0 < link.bytes_per_s < math.inf and 0 <= link.latency_s < math.inf
    return profile


def as_yaml(tree: Any) -> str:
    """Flow YAML of any tree, in keys' order, with nothing but the syntax in common with the product's writer."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{as_yaml(key)}: {as_yaml(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(as_yaml, tree)) + "]"
    if isinstance(tree, str):
        return tree if tree.isidentifier() else '"' + "".join(f"\\U{ord(c):08x}" for c in tree) + '"'
    if isinstance(tree, float):
        return repr(tree).replace("inf", ".inf").replace("nan", ".nan")
    return {None: "null", True: "true", False: "false"}[tree] if tree is None or isinstance(tree, bool) else str(tree)


@BUDGET
@given(st.text(max_size=300), st.booleans())
def test_random_text(text: str, trusted: bool) -> None:
    answers(text, trusted=trusted)


@BUDGET
@given(st.text(alphabet="{}[]:,-&*!|>'\"%@`#?\n\t  ab1.~<=\\", max_size=120))
def test_random_yaml_punctuation(text: str) -> None:
    answers("name: " + text)
    answers(text)


@BUDGET
@given(st.data())
def test_mutated_profiles(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        piece = data.draw(st.one_of(st.text(max_size=6), st.sampled_from([*KEYS, "-1", ".inf", "1e400", "&a ", "*a"])))
        text = text[:start] + piece + text[end:]
    answers(text, trusted=data.draw(st.booleans()))


@BUDGET
@given(trees)
def test_random_trees(tree: Any) -> None:
    answers(as_yaml(tree))


@BUDGET
@given(st.sampled_from(KEYS), trees, st.sampled_from(KEYS), trees)
def test_profiles_with_random_parts(key: str, value: Any, inner: str, inner_value: Any) -> None:
    answers(as_yaml({"schema_version": 1, "name": "x", "workers": [{"name": "a", "gpu": "T4"}], key: value}))
    answers(as_yaml({"schema_version": 1, "name": "x", "workers": [{"name": "a", "gpu": "T4", inner: inner_value}]}))
    part = {"name": "x", "schema_version": 1, "workers": [{"name": "a", "gpu": "T4"}]}
    for section in ("network", "training", "workload"):
        answers(as_yaml(part | {section: {inner: inner_value, key: value}}))
    answers(as_yaml(part | {"events": [{"at_s": 1, "worker": "a", "slowdown": 2, inner: inner_value}]}))


@FEWER
@given(st.text(max_size=30), st.sampled_from(["workers", "network", "training", "events", "x"]), st.text(max_size=12))
def test_random_overrides(path: str, section: str, value: str) -> None:
    for override in (path, f"{path}={value}", f"{section}.{path}={value}", f"{section}={value}"):
        try:
            load_profile(None, overrides=[override])
        except ProfileError as error:
            assert "--set" in str(error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 900_000,
        "- " * 400_000,
        "{a: " * 200_000,
        "a: 1\n" * 190_000,
        "- !x 1\n" * 140_000,
        "a: '" + "''" * 490_000 + "'",
        "# comment\n" * 99_000,
        "? " * 400_000,
        "workers:\n" + "  - 1\n" * 50_000,
        "events:\n" + "  - {}\n" * 30_000,
        "workers:\n" + "".join(f"  - {{name: w{i}, gpu: V{i}}}\n" for i in range(5_000)),
    ],
    ids=["lists", "dashes", "maps", "duplicates", "tags", "quotes", "comments", "keys", "workers", "events", "gpus"],
)
def test_long_hostile_texts_end(text: str) -> None:
    assert answers("schema_version: 1\nname: x\n" + text if text[:4] in ("work", "even") else text) is None


# --- round trip of everything a profile can hold ---

positive = st.floats(1e-6, 1e9)
names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=40)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    who = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    workers = [
        WorkerEntry(
            name=name,
            gpu=draw(maybe(st.just("T4"))),
            node=draw(maybe(st.just("zz-node"))),
            samples_per_s=draw(positive),
            overhead_s=draw(maybe(st.floats(0, 10))),
            step_times_s=draw(maybe(st.dictionaries(st.integers(1, 10**6), positive, min_size=1, max_size=3))),
            trace=draw(maybe(st.lists(st.tuples(st.integers(1, 999), positive), min_size=1, max_size=3).map(tuple))),
            jitter_cv=draw(st.floats(0, 1)),
            stragglers=draw(maybe(st.builds(Stragglers, probability=st.floats(0, 1), slowdown=st.floats(1, 9)))),
            price_per_h=draw(maybe(st.floats(0, 99))),
        )
        for name in who
    ]
    target = st.sampled_from(who)
    events = st.one_of(
        st.builds(Event, at_s=st.floats(0, 1e6), for_s=maybe(positive), worker=target, slowdown=st.floats(0.1, 9)),
        st.builds(Event, at_s=st.floats(0, 1e6), for_s=maybe(positive), link=target, bandwidth_gbit_per_s=positive),
    )
    links = draw(st.dictionaries(target, st.builds(LinkEntry, latency_us=maybe(st.floats(0, 1e6))), max_size=2))
    return Profile(
        schema_version=1,
        name=draw(names),
        description=draw(texts),
        workload=draw(st.one_of(st.just("digits-mlp"), st.just(InlineWorkload(name="mine", gradient_bytes=1e6)))),
        workers=tuple(workers),
        network=NetworkEntry(bandwidth_gbit_per_s=draw(positive), links=links),
        training=TrainingEntry(target_loss=draw(maybe(positive)), nesterov=draw(st.booleans())),
        events=tuple(draw(st.lists(events, max_size=3))),
        sources=draw(st.dictionaries(texts, texts, max_size=3)),
    )


@FEWER
@given(profiles())
def test_every_profile_survives_its_own_yaml(profile: Profile) -> None:
    again = load_profile(profile.to_yaml(), trusted=False)
    assert again == profile
    assert again.digest() == profile.digest()
    assert again.to_yaml() == profile.to_yaml()
    assert again.cluster() == profile.cluster()
