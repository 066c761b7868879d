"""Labels of a comparison."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.algorithms import registry
from hetsim.errors import UsageError
from hetsim.labels import LITERAL_READING, contenders, parse


def test_options_become_typed_and_the_label_normal() -> None:
    one = parse(" abs-sgd : compute_point = blend , blend=0.250,max_local_batch=032 ")
    assert one.label == "abs-sgd:compute_point=blend,blend=0.25,max_local_batch=32"
    assert one.options == {"compute_point": "blend", "blend": 0.25, "max_local_batch": 32}
    assert parse("s-sgd:overlap=No").label == "s-sgd:overlap=false"
    assert parse("ssp:").label == "ssp"


@given(st.sampled_from(["s-sgd:overlap=off", "ssp:staleness=7", "abs-sgd:period_s=1e-3,trigger=period_s", "asgd"]))
def test_a_normal_label_means_itself(text: str) -> None:
    one = parse(text)
    assert parse(one.label) == one


CORE = ["s-sgd", "lb-bsp", "one-step-delay", "one-step-delay-balanced", "local-sgd", "asgd", "ssp", "abs-sgd"]


def test_default_is_the_core_and_the_literal_reading() -> None:
    labels = [c.label for c in contenders(None)]
    assert labels[: len(CORE)] == CORE == [name for name, kind in registry().items() if kind.by_default]
    assert len(labels) == len(CORE) + 2
    assert LITERAL_READING in labels and "one-step-delay-balanced:compute_point=current" in labels
    assert len(set(labels)) == len(labels)


def test_all_is_every_registered_algorithm_once() -> None:
    assert [c.label for c in contenders(["all"])] == list(registry()) != CORE
    some = [c.label for c in contenders(["ssp", "all", "abs-sgd:compute_point=current"])]
    assert some[0] == "ssp" and some[-1] == "abs-sgd:compute_point=current"
    assert sorted(some) == sorted([*registry(), "abs-sgd:compute_point=current"])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["abs-sdg"], "did you mean abs-sgd"),
        (["abs-sgd:compute_pint=current"], "did you mean compute_point"),
        (["abs-sgd:compute_point=now"], "compute_point"),
        (["abs-sgd:compute_point"], "not option=value"),
        (["ssp:staleness=1,staleness=2"], "twice"),
        (["ssp:staleness=1", "ssp: staleness = 01"], "given twice"),
        (["s-sgd", "s-sgd"], "given twice"),
        ([], "at least one"),
    ],
)
def test_what_is_wrong_is_said(labels: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        contenders(labels)


def test_the_label_goes_over_the_profile() -> None:
    profile = {"abs-sgd": {"compute_point": "blend", "blend": 0.1}}
    plain = parse("abs-sgd").algorithm(profile).options
    stated = parse("abs-sgd:compute_point=current").algorithm(profile).options
    assert (plain.compute_point, plain.blend) == ("blend", 0.1)
    assert (stated.compute_point, stated.blend) == ("current", 0.1)
