"""What goes wrong in a training loop without a word elsewhere is refused by the wrapper, or warned of."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from abs_sgd import AbsSgd
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def make(model: nn.Module, **asked: Any) -> AbsSgd:
    return AbsSgd(model, torch.optim.SGD(model.parameters(), lr=0.1), **asked)


def backward(model: nn.Module) -> None:
    model(torch.ones(4, 4)).pow(2).mean().backward()


@pytest.mark.parametrize("count", [-1, 2.5, math.nan, math.inf, "4", None, 2**70])
def test_what_is_no_count_of_samples(count: Any) -> None:
    model = make_model()
    trainer = make(model)
    backward(model)
    with pytest.raises(UsageError, match="needs a count of samples"):
        trainer.step(count)
    trainer.step(4)  # nothing was taken, nothing was lost
    trainer.finish()
    assert (trainer.updates, trainer.samples) == (1, 4)


def test_samples_without_a_gradient_are_not_counted() -> None:
    model = make_model()
    trainer = make(model)
    backward(model)
    trainer.step(4)
    with pytest.raises(UsageError, match=r"step\(\) without backward\(\)"):
        trainer.step(4)
    trainer.step(0)  # a rank that had nothing to do
    trainer.finish()
    assert trainer.samples == 4


@pytest.mark.parametrize(
    "asked",
    [
        {"lr_rule": "cubic", "reference_batch_samples": 4},
        {"lr_rule": "linear", "reference_batch_samples": 0},
        {"lr_rule": "linear", "reference_batch_samples": -4},
        {"wire_dtype": torch.int8},
        {"wire_dtype": torch.complex64},
        {"wire_dtype": "bf16"},
        {"diverged_factor": -1.0},
        {"diverged_factor": math.nan},
        {"clip_norm": 0.0},
        {"warmup_samples": -1},
    ],
)
def test_what_cannot_be_asked_for(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(asked)) if len(asked) == 1 else "lr_rule|reference_batch_samples"):
        make(make_model(), **asked)


def test_an_optimizer_that_wants_a_closure_is_refused_before_anybody_waits() -> None:
    model = make_model()
    with pytest.raises(UsageError, match="LBFGS needs a closure"):
        AbsSgd(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("model", [nn.ReLU(), nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])])
def test_models_that_cannot_be_trained(model: nn.Module) -> None:
    with pytest.raises(UsageError, match="parameter"):
        AbsSgd(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))


def test_two_dtypes_are_refused() -> None:
    model = make_model()
    model[2].to(torch.float64)
    with pytest.raises(UsageError, match="one dtype"):
        make(model)


def test_a_second_trainer_of_one_model_does_not_leave_the_first_training_nothing() -> None:
    model = make_model()
    first = make(model)
    second = make(model)
    backward(model)
    with pytest.raises(UsageError, match="were moved"):
        first.step(4)
    backward(model)
    second.step(4)
    second.finish()
    assert second.updates == 1


def test_a_model_that_is_moved_afterwards_is_told() -> None:
    model = make_model()
    trainer = make(model)
    model.to(torch.float64)
    model(torch.ones(4, 4, dtype=torch.float64)).sum().backward()
    with pytest.raises(UsageError, match="were moved"):
        trainer.step(4)


def test_parameters_that_came_later_are_warned_of() -> None:
    model = make_model()
    trainer = make(model)
    model.add_module("later", nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="later.weight and 1 more are not trained"), trainer.synchronized():
        pass
    del model.later
    model[0].weight.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # frozen ones are nothing to warn of
        trainer.finish()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 7}, "checkpoint of version 7"),
        ({"parameters": torch.zeros(1)}, "holds 1 parameters, the model has"),
        ({"parameters": None}, "holds no parameters"),
        ({"buffers": []}, "other buffers"),
        ({"optimizer": {}}, "other parameter groups"),
        ({"learning_rates": [0.1, 0.1]}, "other parameter groups"),
        ({"progress": [1, 2]}, "progress"),
        ({"progress": [-1, 2, 4, 1.0]}, "progress"),
        ({"progress": [math.nan, 2, 4, 1.0]}, "progress"),
    ],
)
def test_states_of_something_else(change: dict[str, Any], said: str) -> None:
    model = make_model()
    trainer = make(model)
    backward(model)
    trainer.step(4)
    with trainer.synchronized():
        state = trainer.state_dict()
    with pytest.raises(UsageError, match=said):
        make(make_model()).load_state_dict({**state, **change})
    other = make(make_model())
    other.load_state_dict(state)
    assert (other.updates, other.samples) == (1, 4)
    older = {name: value for name, value in state.items() if name != "own_before"}  # of before there was such a key
    make(make_model()).load_state_dict(older)
    for key in older:
        with pytest.raises(UsageError, match=f"{key} is missing|version None"):
            make(make_model()).load_state_dict({name: value for name, value in state.items() if name != key})
