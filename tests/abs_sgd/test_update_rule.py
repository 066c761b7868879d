"""The one place for the update: clipping, learning-rate rules, warm-up, predictions that leave no trace."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abs_sgd.update import Compensation, Progress, State, Updater, UpdateRule
from hetsim.schedule.kinds import PointRule, StepRule

pytestmark = pytest.mark.torch


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def start(*values: float) -> State:
    return State(parameters_P=vector(*values))


def test_clips_once_after_aggregation_and_division() -> None:
    """Mean gradients of norm .8 on two ranks, limit 1: nothing is clipped (twinkle#290 made .707 of it by clipping the sums' norm)."""
    updater = Updater(UpdateRule(learning_rate=1.0, clip_norm=1.0))
    per_rank = vector(0.8, 0.0)  # rank means; sums over 4 samples each
    made = updater.step(start(0.0, 0.0), 4 * per_rank + 4 * per_rank, divisor=8, samples=8)
    assert made.parameters_P.tolist() == [-0.8, 0.0]
    assert made.progress.last_clip == 1.0
    made = updater.step(start(0.0, 0.0), 8 * vector(3.0, 4.0), divisor=8, samples=8)
    assert made.parameters_P.norm() == pytest.approx(1.0, rel=1e-6)  # torch divides by norm + 1e-6
    assert made.progress.last_clip == pytest.approx(0.2, rel=1e-6)


@given(norm=st.floats(1e-3, 1e3), limit=st.floats(1e-2, 1e2))
def test_clips_as_torch_does(norm: float, limit: float) -> None:
    gradient = vector(0.6, -0.8) * norm
    theta = torch.nn.Parameter(vector(0.0, 0.0))
    theta.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([theta], limit)
    made = Updater(UpdateRule(learning_rate=1.0, clip_norm=limit)).step(start(0.0, 0.0), gradient, divisor=1, samples=1)
    assert torch.allclose(-made.parameters_P, theta.grad, rtol=1e-12)


def test_prediction_is_not_clipped_but_scaled_by_the_last_factor() -> None:
    updater = Updater(UpdateRule(learning_rate=1.0, clip_norm=1.0))
    state = State(parameters_P=vector(0.0), progress=Progress(last_clip=0.25))
    assert updater.predict(state, vector(40.0), 4).tolist() == [-2.5]


@given(
    g=st.tuples(*[st.floats(-3, 3)] * 3), apart=st.tuples(*[st.floats(-1, 1)] * 3), strength=st.sampled_from([0.2, 1.0])
)
def test_a_relative_correction_has_its_share_of_the_gradient_s_norm(
    g: tuple[float, ...], apart: tuple[float, ...], strength: float
) -> None:
    """Along g⊙g⊙(x - x̄), and as long as λ‖g‖."""
    x, gradient = vector(0.5, -1.0, 2.0), vector(*g)
    back = Compensation(strength=strength, taken_at_P=x - vector(*apart), rule=StepRule.DELAY_COMPENSATED_RELATIVE)
    made = Updater(UpdateRule(learning_rate=1.0)).step(
        State(parameters_P=x), 4 * gradient, divisor=4, samples=4, compensation=back
    )
    along = gradient * gradient * (x - back.taken_at_P)
    moved = x - made.parameters_P - gradient
    if float(along.norm()) > 1e-6:
        assert float(moved.norm()) == pytest.approx(strength * float(gradient.norm()), rel=1e-6)
        assert torch.allclose(moved / moved.norm(), along / along.norm(), atol=1e-6)


def test_rounding_alone_is_not_corrected() -> None:
    """Else what an average of equal replicas loses to rounding would be blown up to a fifth of the gradient."""
    x = vector(1.0, 3.0)
    back = Compensation(strength=0.2, taken_at_P=x * (1 + 2.0**-52), rule=StepRule.DELAY_COMPENSATED_RELATIVE)
    made = Updater(UpdateRule(learning_rate=1.0)).step(
        State(parameters_P=x), vector(1.0, 1.0), divisor=1, samples=1, compensation=back
    )
    assert made.parameters_P.tolist() == [0.0, 2.0]


def test_learning_rate_rules() -> None:
    rates = {
        rule: UpdateRule(learning_rate=0.1, lr_rule=rule, reference_batch_samples=64).rate(0, 256)
        for rule in ("none", "linear", "sqrt")
    }
    assert rates == {"none": 0.1, "linear": pytest.approx(0.4), "sqrt": pytest.approx(0.2)}


def test_warm_up_is_linear_in_samples_and_then_full() -> None:
    """Five updates of the reference batch: 1/5, 2/5 ... 1, 1, as a function of samples before, whatever the batches were."""
    rule = UpdateRule(learning_rate=1.0, reference_batch_samples=32, warmup_samples=5 * 32)
    assert [rule.rate(32 * k, 32) for k in range(7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert rule.rate(48, 7) == pytest.approx(0.5)


def test_scale_and_divisor() -> None:
    updater = Updater(UpdateRule(learning_rate=0.5))
    made = updater.step(start(1.0), vector(6.0), divisor=4, samples=3, scale=0.5)
    assert made.parameters_P.tolist() == [1.0 - 0.5 * 0.5 * 1.5]
    assert (made.progress.updates, made.progress.samples, made.progress.last_batch_samples) == (1, 3, 3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_predicting_leaves_state_and_later_steps_untouched(optimizer: str) -> None:
    rule = UpdateRule(learning_rate=0.1, optimizer=optimizer, momentum=0.9, weight_decay=0.01)
    updater, fresh = Updater(rule), Updater(rule)
    state = updater.step(start(1.0, -2.0), vector(1.0, 3.0), divisor=2, samples=2)
    kept = {name: value.clone() for name, value in state.optimizer.items()}
    before = state.parameters_P.clone()
    predicted = updater.predict(state, vector(5.0, 1.0), 2)
    looked = updater.look_ahead(state, 1.0)
    after = updater.step(state, vector(2.0, 2.0), divisor=2, samples=2)
    assert torch.equal(state.parameters_P, before)
    assert all(torch.equal(state.optimizer[name], kept[name]) for name in kept) and kept
    assert torch.equal(after.parameters_P, fresh.step(state, vector(2.0, 2.0), divisor=2, samples=2).parameters_P)
    own = fresh.step(state, vector(5.0, 1.0), divisor=2, samples=2).parameters_P
    assert torch.equal(predicted, own)  # a prediction is the step of the own mean
    assert not torch.equal(looked, before)


def test_prediction_uses_the_last_batch_for_the_rate() -> None:
    rule = UpdateRule(learning_rate=0.1, lr_rule="linear", reference_batch_samples=8)
    updater = Updater(rule)
    state = State(parameters_P=vector(0.0), progress=Progress(samples=32, last_batch_samples=32))
    assert updater.predict(state, vector(2.0), 2).tolist() == pytest.approx([-0.4])
    assert updater.predict(start(0.0), vector(2.0), 2).tolist() == pytest.approx(
        [-0.1]
    )  # none yet: the reference batch


def test_no_samples_predict_with_gradient_zero() -> None:
    updater = Updater(UpdateRule(learning_rate=0.5, momentum=0.5))
    state = updater.step(start(0.0), vector(-4.0), divisor=4, samples=4)  # v = -1, x = .5
    assert updater.predict(state, None, 0).tolist() == [0.75]  # momentum alone
    assert updater.look_ahead(state, 1.0).tolist() == [1.0]  # x - lr v


def test_blend_mixes_in_the_last_applied_mean() -> None:
    updater = Updater(UpdateRule(learning_rate=1.0), keep_mean_gradient=True)
    state = updater.step(start(0.0), vector(8.0), divisor=4, samples=4)  # mean 2, x = -2
    assert updater.predict(state, vector(12.0), 3, own_share=0.25).tolist() == [-2.0 - (0.25 * 4.0 + 0.75 * 2.0)]
    assert updater.predict(start(0.0), vector(12.0), 3, own_share=0.25).tolist() == [-4.0]  # nothing applied yet


def test_look_ahead_for_adamw_is_its_own_next_direction() -> None:
    """With a zero gradient since, Adam's bias-corrected direction after one step is sign(g)."""
    updater = Updater(UpdateRule(learning_rate=0.1, optimizer="adamw", momentum=0.9))
    state = updater.step(start(0.0, 0.0), vector(3.0, -0.5), divisor=1, samples=1)
    moved = updater.look_ahead(state, 0.5) - state.parameters_P
    assert moved.tolist() == pytest.approx([-0.05, 0.05], rel=1e-6)


def test_average_by_hand() -> None:
    updater = Updater(UpdateRule(learning_rate=1.0))
    a = State(parameters_P=vector(4.0), progress=Progress(updates=3, samples=30, averaged_samples=10))
    b = State(parameters_P=vector(8.0), progress=Progress(updates=5, samples=25, averaged_samples=10))
    anchor = start(1.0)
    mixed = updater.average(a, [(0.5, a), (0.25, b)], anchor=anchor)
    assert mixed.parameters_P.tolist() == [2.0 + 2.0 + 0.25]
    assert updater.average(a, [(0.5, a), (0.25, b)]).parameters_P.item() == pytest.approx(16.0 / 3.0)
    assert updater.average(a, [(1.0, b)], weight=0.25).parameters_P.tolist() == [5.0]
    assert (mixed.progress.samples, mixed.progress.updates) == (10 + 20 + 15, 5)


def test_nesterov_without_momentum_is_plain_sgd() -> None:
    made = Updater(UpdateRule(learning_rate=1.0, nesterov=True)).step(start(0.0), vector(1.0), divisor=1, samples=1)
    assert made.parameters_P.tolist() == [-1.0]


def test_warm_up_during_training_depends_on_samples_not_on_updates() -> None:
    rule = UpdateRule(learning_rate=1.0, reference_batch_samples=4, warmup_samples=16)
    updater, state, moved = Updater(rule), start(0.0), []
    for batch in (4, 2, 2, 8, 4):
        then = state.parameters_P
        state = updater.step(state, vector(-1.0) * batch, divisor=batch, samples=batch)
        moved.append(float(state.parameters_P - then))
    assert moved == [0.25, 0.5, 0.625, 0.75, 1.0]
    assert math.isclose(state.progress.samples, 20)


@pytest.mark.parametrize(
    "odd",
    [
        {"learning_rate": -0.1},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": 1e308},
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"reference_batch_samples": 0},
        {"warmup_samples": -1},
    ],
)
def test_what_no_update_can_be_made_with_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(odd))):
        UpdateRule(**{"learning_rate": 0.1, **odd})


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_local_step_is_plain_sgd_whatever_the_optimizer(optimizer: Any) -> None:
    """x - κ·lr·mean, without velocity or decay; at the next update's rate and the last one's clip factor."""
    updater = Updater(
        UpdateRule(
            learning_rate=0.5, optimizer=optimizer, momentum=0.5, weight_decay=0.1, clip_norm=1.0, lr_rule="linear"
        )
    )
    state = updater.step(start(2.0), vector(8.0), divisor=2, samples=2)  # mean 4, clipped to 1
    clip = state.progress.last_clip
    assert clip == pytest.approx(0.25)
    point_P = updater.point(state, PointRule.LOCAL_STEP, 0.5, vector(6.0), 3).parameters_P
    assert float(point_P) == pytest.approx(float(state.parameters_P) - 0.5 * (0.5 * 2) * 2.0 * clip)
    assert updater.point(state, PointRule.LOCAL_STEP, 0.5, None, 0).parameters_P is state.parameters_P
    assert updater.point(state, PointRule.CURRENT, 1.0, vector(6.0), 3) is state
