"""The trainer for one's own loop, on one process: against delayed SGD written by hand, saved and resumed, and what it refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abs_sgd
from hetsim.errors import UsageError

pytestmark = pytest.mark.torch
STEPS, BATCH = 30, 8
X = torch.randn(STEPS * BATCH, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.randn(STEPS * BATCH, 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def loss_of(net: nn.Module, step: int, reduction: str = "mean") -> Tensor:
    rows = slice(step * BATCH, (step + 1) * BATCH)
    return nn.functional.mse_loss(net(X[rows]), Y[rows], reduction=reduction)


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS, **options: Any) -> abs_sgd.AbsSgd:
    trainer = abs_sgd.AbsSgd(net, optimizer, **options)
    for step in range(steps):
        loss_of(net, step, options.get("loss_reduction", "mean")).backward()
        trainer.step(BATCH)
    trainer.finish()
    return trainer


def delayed(net: nn.Module, optimizer: torch.optim.Optimizer, factor: Callable[[int], float] = lambda k: 1.0) -> None:
    """Update k uses the gradient taken at x_{max(k-1, 0)}: torch's own optimizer, fed one update late."""
    rates = [group["lr"] for group in optimizer.param_groups]

    def update(k: int, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor(k)
        optimizer.step()

    late: list[Tensor] = []
    for step in range(STEPS):
        now = list(torch.autograd.grad(loss_of(net, step), list(net.parameters())))
        if step:
            update(step - 1, late)
        late = now
    update(STEPS - 1, late)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)


def groups(net: nn.Module) -> torch.optim.Optimizer:
    first, _, last = net  # type: ignore[misc]
    quick = {"params": last.parameters(), "lr": 0.1, "momentum": 0.0}
    return torch.optim.SGD([{"params": first.parameters()}, quick], lr=0.02, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("make", [sgd, adamw, groups], ids=lambda f: f.__name__)
def test_one_process_equals_delayed_training_by_hand(make: MakeOptimizer) -> None:
    ours, theirs = model(), model()
    optimizer = make(ours)
    trainer = train(ours, optimizer, options={"compute_point": "current"})
    delayed(theirs, make(theirs))
    assert trainer.updates == STEPS and trainer.samples == STEPS * BATCH
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-12)
    assert len(optimizer.param_groups) == len(make(theirs).param_groups)


def test_loss_sums_equal_loss_means() -> None:
    ours, theirs = model(), model()
    train(ours, sgd(ours), loss_reduction="sum")
    train(theirs, sgd(theirs))
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-12)


def test_synchronous_updates_for_all_are_plain_training() -> None:
    ours, theirs = model(), model()
    train(ours, sgd(ours), options={"synchronous_updates": STEPS + 1})
    optimizer = sgd(theirs)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(theirs, step).backward()
        optimizer.step()
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-12)


def test_rates_go_by_samples_in_earlier_updates() -> None:
    ours, theirs = model(), model()
    train(
        ours,
        sgd(ours),
        options={"compute_point": "current"},
        warmup_samples=10 * BATCH,
        reference_batch_samples=2 * BATCH,
        lr_rule="linear",
        schedule=lambda samples: 1.0 if samples < 20 * BATCH else 0.1,
    )
    delayed(theirs, sgd(theirs), lambda k: 0.5 * min(1.0, (k + 2) / 10) * (1.0 if k < 20 else 0.1))
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-12)


def test_local_prediction_takes_the_next_gradient_after_the_own_step() -> None:
    """Alone, the own gradient is the whole one: the prediction is the update to come, and delayed is synchronous training."""
    ours, theirs, damped = model(), model(), model()
    train(ours, sgd(ours), options={"compute_point": "local-prediction"})
    train(
        damped, sgd(damped), options={"compute_point": "damped-prediction"}
    )  # its own gradient is never off the group's
    assert torch.allclose(weights(ours), weights(damped), rtol=0, atol=1e-12)
    train(theirs, sgd(theirs), options={"synchronous_updates": STEPS + 1})
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-12)


def test_look_ahead_stands_one_velocity_ahead() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
    trainer = abs_sgd.AbsSgd(net, optimizer, options={"compute_point": "look-ahead", "kappa": 2.0})
    for step in range(5):
        loss_of(net, step).backward()
        trainer.step(BATCH)
    home = trainer.state_dict()["parameters"]
    velocity = torch.cat([optimizer.state[p]["momentum_buffer"].reshape(-1) for p in net.parameters()])
    assert torch.allclose(weights(net), home - 2.0 * 0.05 * velocity, rtol=0, atol=1e-15)
    with trainer.synchronized():
        assert torch.equal(weights(net), trainer.state_dict()["parameters"])


@pytest.mark.parametrize("point", ["current", "look-ahead", "local-prediction", "blend", "damped-prediction"])
@pytest.mark.parametrize("make", [sgd, adamw], ids=lambda f: f.__name__)
def test_resumed_with_a_gradient_in_flight_equals_uninterrupted(make: MakeOptimizer, point: str) -> None:
    options = {"compute_point": point}
    whole, first, second = model(), model(), model()
    train(whole, make(whole), options=options)
    trainer = abs_sgd.AbsSgd(first, make(first), options=options)
    for step in range(STEPS // 2):
        loss_of(first, step).backward()
        trainer.step(BATCH, loss=1.0)
    saved = io.BytesIO()
    torch.save(trainer.state_dict(), saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    assert state["in_flight"][2] == BATCH and state["progress"][0] == STEPS // 2 - 1
    resumed = abs_sgd.AbsSgd(second, make(second), options=options)
    resumed.load_state_dict(state)
    for step in range(STEPS // 2, STEPS):
        loss_of(second, step).backward()
        resumed.step(BATCH)
    resumed.finish()
    assert torch.equal(weights(second), weights(whole))
    assert resumed.samples == STEPS * BATCH and len(resumed.losses) == STEPS // 2


def test_a_gradient_summed_but_not_sent_is_saved_too() -> None:
    options = {"trigger": "min_samples", "min_samples": 3 * BATCH, "compute_point": "current"}
    whole, first, second = model(), model(), model()
    train(whole, sgd(whole), steps=8, options=options)
    trainer = abs_sgd.AbsSgd(first, sgd(first), options=options)
    for step in range(5):
        loss_of(first, step).backward()
        trainer.step(BATCH)
    state = trainer.state_dict()
    assert state["in_flight"][2] == 3 * BATCH and state["summed"][2] == 2 * BATCH
    resumed = abs_sgd.AbsSgd(second, sgd(second), options=options)
    resumed.load_state_dict(state)
    for step in range(5, 8):
        loss_of(second, step).backward()
        resumed.step(BATCH)
    resumed.finish()
    assert torch.equal(weights(second), weights(whole)) and resumed.updates == 3


def test_a_pause_applies_everything_and_training_goes_on() -> None:
    net = model()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    for step in range(6):
        loss_of(net, step).backward()
        trainer.step(BATCH)
        if step % 2:
            with trainer.synchronized():
                assert trainer.samples == (step + 1) * BATCH
                assert trainer.state_dict()["in_flight"] is None
                with pytest.raises(UsageError, match="inside synchronized"):
                    trainer.step(BATCH)
    trainer.finish()
    trainer.finish()
    assert trainer.updates == 6
    with pytest.raises(UsageError, match="after finish"):
        trainer.step(BATCH)


def test_a_step_without_samples_changes_nothing() -> None:
    net = model()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    before = weights(net).clone()
    loss_of(net, 0).backward()
    assert not trainer.step(0)
    trainer.finish()
    assert trainer.updates == 0 and torch.equal(weights(net), before)


def test_divergence_is_raised() -> None:
    net = model()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    with pytest.raises(abs_sgd.Diverged, match=r"update \d, .*not finite"):
        for _ in range(3):
            (loss_of(net, 0) * float("nan")).backward()
            trainer.step(BATCH)
    net = model()
    trainer = abs_sgd.AbsSgd(net, sgd(net))
    with pytest.raises(abs_sgd.Diverged, match=r"update 4, 24 samples: .*2 times the first"):
        for step, loss in enumerate([1.0, 5.0, 5.0, 5.0, 5.0]):
            loss_of(net, step).backward()
            trainer.step(BATCH, loss=loss)


def test_a_learning_rate_changed_from_outside_is_refused() -> None:
    net = model()
    optimizer = sgd(net)
    trainer = abs_sgd.AbsSgd(net, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UsageError, match="schedule="):
        for step in range(4):
            loss_of(net, step).backward()
            trainer.step(BATCH)
            scheduler.step()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"options": {"compute_point": "nowhere"}}, "compute_point"),
        ({"options": {"trigger": "target_batch"}}, "counts over all ranks"),
        ({"options": {"max_global_batch": 64}}, "counts over all ranks"),
        ({"options": {"micro_batch": "equal-time"}}, "equal-time"),
        ({"loss_reduction": "none"}, "loss_reduction"),
        ({"lr_rule": "linear"}, "reference_batch_samples"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], match: str) -> None:
    net = model()
    with pytest.raises(UsageError, match=match):
        abs_sgd.AbsSgd(net, sgd(net), **wrong)


def test_look_ahead_is_refused_without_a_velocity_it_knows() -> None:
    net = model()
    with pytest.raises(UsageError, match="look-ahead"):
        abs_sgd.AbsSgd(net, torch.optim.RMSprop(net.parameters()), options={"compute_point": "look-ahead"})
    with pytest.raises(UsageError, match="not the model's"):
        abs_sgd.AbsSgd(net, sgd(model()))


def test_bfloat16_rounds_gradients_but_not_counts() -> None:
    net, exact = model(), model()
    trainer = abs_sgd.AbsSgd(net, sgd(net), wire_dtype=torch.bfloat16)
    rough = loss_of(net, 0)
    rough.backward()
    trainer.step(505)
    trainer.finish()
    assert trainer.samples == 505
    train(exact, sgd(exact), steps=1)
    gap = float((weights(net) - weights(exact)).norm() / weights(exact).norm())
    assert 0 < gap < 1e-3
