"""The how-to in hetsim.algorithms works as printed, and its list is the registry."""

from __future__ import annotations

import re
import textwrap

import pytest
from handmade_clusters import cluster
from throwaway_algorithms import temporary_registry

import hetsim.algorithms
from hetsim.algorithms import Algorithm, get, make, option_problems, registry
from hetsim.errors import UsageError
from hetsim.simulate import simulate

HOW_TO = hetsim.algorithms.__doc__ or ""


def skeleton() -> str:
    """The indented class of the docstring."""
    return textwrap.dedent(HOW_TO[HOW_TO.index("    class Mine") :])


def test_the_skeleton_is_a_new_algorithm() -> None:
    """Copied as it stands it registers, simulates, and is S-SGD without overlap."""
    before = list(registry())
    c = cluster([4.0, 2.0, 1.0], gradient_bytes=4.0, bandwidths=[2.0] * 3, global_batch_samples=12)
    with temporary_registry():
        exec(compile(skeleton(), "how-to", "exec"), {"Algorithm": Algorithm})
        assert list(registry()) == [*before, "mine"]
        assert get("mine").summary() == "One line that says what it is."
        mine = simulate(c, "mine", updates=10)
        known = simulate(c, "s-sgd", options={"overlap": False}, updates=10)
    assert mine.schedule.end_s.tolist() == known.schedule.end_s.tolist()
    assert mine.schedule.kind.tolist() == known.schedule.kind.tolist()
    assert mine.timing.updates == 10 and mine.samples.applied == 120
    assert list(registry()) == before


def test_a_name_is_taken_once() -> None:
    with temporary_registry(), pytest.raises(TypeError, match="'s-sgd' is defined twice"):

        class Again(Algorithm, name="s-sgd"):
            """Twice."""


def test_the_list_is_the_registry() -> None:
    listed = re.findall(r"^    ([a-z][a-z0-9-]+)  +\S", HOW_TO, re.MULTILINE)
    assert listed == list(registry())


def test_unknown_names_and_options_are_explained() -> None:
    with pytest.raises(UsageError, match="unknown algorithm 'abs-sdg' \\(did you mean abs-sgd\\?\\)"):
        make("abs-sdg")
    with pytest.raises(UsageError, match="abs-sgd: compute_pont: unknown option \\(did you mean compute_point\\?\\)"):
        make("abs-sgd", {"compute_pont": "current"})
    with pytest.raises(UsageError, match="local-sgd: local_steps: input should be greater than or equal to 1"):
        make("local-sgd", {"local_steps": 0})
    assert option_problems("abs-sgd", {"trigger": "min_samples", "min_samples": 9, "max_local_batch": 5}) != []
    assert option_problems("abs-sgd", {"trigger": "target_batch", "target_batch": 9, "max_global_batch": 5}) != []
    assert option_problems("s-sgd", {"overlap": False}) == []
