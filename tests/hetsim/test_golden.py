"""Logs checked row by row by hand on two workers whose times are exact in binary, and exact parameters under a constant gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
from golden_tables import TABLES as CORE
from golden_tables_averaging import AVERAGING
from golden_tables_field import FIELD
from handmade_clusters import cluster

from hetsim.algorithms import registry
from hetsim.cluster.spec import Cluster, Link
from hetsim.schedule import Kind, MixRule, PointRule, Schedule, StepRule
from hetsim.simulate import simulate

TABLES = CORE + FIELD + AVERAGING


def two() -> Cluster:
    """a: 1 sample/s on 2 bytes/s, b: half a sample/s on 4 bytes/s; 4 bytes of gradients, server on 4 bytes/s; batch 2 + 2."""
    return cluster(
        [1.0, 0.5],
        gradient_bytes=4.0,
        bandwidths=[2.0, 4.0],
        server=Link(bytes_per_s=4.0),
        global_batch_samples=4,
        micro_batch_samples=1,
    )


def written(s: Schedule) -> list[str]:
    """Rows in the notation above."""
    dots = lambda x: "." if x < 0 else str(x)  # noqa: E731
    out = []
    for i in range(len(s)):
        worker = "*" if s.worker[i] < 0 else str(s.worker[i])
        ids = [dots(int(getattr(s, name)[i])) for name in ("state", "parent", "source", "slot")]
        numbers = [
            str(int(s.samples[i])),
            str(int(s.first[i])),
            f"{float(s.scale[i])!r}".removesuffix(".0"),
            str(int(s.code[i])),
        ]
        times = [repr(float(t[i])).removesuffix(".0") for t in (s.start_s, s.end_s)]
        out.append(" ".join([Kind(int(s.kind[i])).name, worker, *times, *ids, *numbers]))
    return out


@pytest.mark.parametrize(
    ("name", "options", "updates", "table"), TABLES, ids=lambda x: x if isinstance(x, str) and len(x) < 40 else ""
)
def test_log_by_hand(name: str, options: dict[str, Any], updates: int, table: str) -> None:
    s = simulate(two(), name, options=options, updates=updates).schedule
    assert written(s) == [" ".join(line.split()) for line in table.strip().splitlines()]


def test_every_algorithm_has_a_table() -> None:
    assert {name for name, *_ in TABLES} == set(registry())


# ---- exact parameters -----------------------------------------------------------------------------------------------------------

LEARNING_RATE = 0.25


class Scalar:
    """Executes a log on one parameter whose gradient is 1 per sample everywhere: parameters and velocity by state, exact in binary."""

    def __init__(self, s: Schedule, momentum: float) -> None:
        self.momentum = momentum
        self.x: dict[int, float] = {0: 0.0}
        self.v: dict[int, float] = {0: 0.0}
        self.sums: dict[int, float] = {}
        self.taken: dict[int, int] = {}
        self.square = 0.0
        self.mean: dict[int, float] = {}  # the gradient applied in the step to a state
        self.own: dict[int, tuple[int, float]] = {}  # by worker: transfer and own mean of its last damped prediction
        self.outer: dict[int, tuple[float, float]] = {}
        self.stated = s.header.outer
        self.joined: dict[int, list[tuple[int, int, float]]] = {}
        for i in range(len(s)):
            self.row(
                *(
                    getattr(s, n)[i].item()
                    for n in (
                        "kind",
                        "worker",
                        "state",
                        "parent",
                        "source",
                        "slot",
                        "samples",
                        "first",
                        "scale",
                        "code",
                    )
                )
            )

    def row(
        self,
        kind: int,
        worker: int,
        state: int,
        parent: int,
        source: int,
        slot: int,
        samples: int,
        first: int,
        scale: float,
        code: int,
    ) -> None:
        if kind == Kind.GRAD:
            assert state in self.x
            self.sums[slot] = self.sums.get(slot, 0.0) + samples
            self.taken[slot] = state
        elif kind == Kind.JOIN:
            self.joined.setdefault(source, []).append((slot, state, scale))
        elif kind == Kind.STEP:
            parts = self.joined[source] if source >= 0 else [(slot, -1, 1.0)]
            total = sum(w * self.sums.get(number, 0.0) for number, _, w in parts)
            if source >= 0 and len(parts) > 1:
                assert total == samples
            mean = total / first
            if code != StepRule.PLAIN:
                (back,) = {self.taken[number] for number, _, _ in parts}
                if code == StepRule.DELAY_COMPENSATED_ADAPTIVE:
                    self.square = 0.95 * self.square + 0.05 * mean**2
                    scale /= math.sqrt(self.square + 1e-7)
                correction = mean * mean * (self.x[parent] - self.x[back])
                if code == StepRule.DELAY_COMPENSATED_RELATIVE:
                    scale = scale * abs(mean) / abs(correction) if correction else 0.0
                mean, scale = mean + scale * correction, 1.0
            self.mean[state] = mean
            self.step(state, parent, mean, scale)
        elif kind == Kind.PREDICT:
            own = self.sums.get(slot, 0.0) / samples if samples else 0.0
            if code == PointRule.LOCAL_PREDICTION:
                self.step(state, parent, own, 1.0)
            elif code == PointRule.DAMPED_PREDICTION:
                assert samples, "a worker without samples predicts with the last mean: not in these clusters"
                before = self.own.get(worker, (-2, 0.0))
                off = before[1] - self.mean[parent] if before[0] == source - 1 else 0.0
                self.own[worker] = source, own
                self.step(state, parent, own + scale * off, 1.0)
            elif code == PointRule.LOCAL_STEP:
                self.x[state], self.v[state] = self.x[parent] - scale * LEARNING_RATE * own, self.v[parent]
            elif code == PointRule.LOOK_AHEAD:
                self.x[state], self.v[state] = self.x[parent] - scale * LEARNING_RATE * self.v[parent], self.v[parent]
        elif kind == Kind.MIX and code == MixRule.OUTER:
            self.outer_step(state, parent, source, first, scale)
        elif kind == Kind.MIX:
            weights = [w for _, _, w in self.joined[source]]
            mean = sum(w * self.x[number] for _, number, w in self.joined[source])
            shift = code == MixRule.SHIFT
            mean = mean / sum(weights) if slot < 0 or shift else mean + (1 - sum(weights)) * self.x[slot]
            if shift:
                mean += self.x[parent] - self.x[slot]
            self.x[state], self.v[state] = (1 - scale) * self.x[parent] + scale * mean, self.v[parent]

    def outer_step(self, state: int, parent: int, source: int, fragment: int, share: float) -> None:
        """A parameter alone is all of the last fragment."""
        g, u = self.outer.get(parent, (0.0, 0.0))
        x, lr, momentum = self.x[parent], self.stated["learning_rate"], self.stated["momentum"]
        if fragment == self.stated["fragments"] - 1:
            moved = g - sum(self.x[number] for _, number, _ in self.joined[source]) / len(self.joined[source])
            u = momentum * u + moved
            g -= lr * (moved + momentum * u)
            x = (1 - share) * x + share * g
        self.x[state], self.v[state], self.outer[state] = x, self.v[parent], (g, u)

    def step(self, state: int, parent: int, gradient: float, scale: float) -> None:
        v = self.momentum * self.v[parent] + gradient
        made = (self.x[parent] - scale * LEARNING_RATE * v, v)
        if parent in self.outer:
            self.outer[state] = self.outer[parent]
        assert state not in self.x or (self.x[state], self.v[state]) == made  # replicas agree
        self.x[state], self.v[state] = made


def after(steps: int, momentum: float) -> float:
    """x_k = -lr Σ_j v_j with v_j = β v_{j-1} + 1."""
    x = v = 0.0
    for _ in range(steps):
        v = momentum * v + 1.0
        x -= LEARNING_RATE * v
    return x


SEQUENCES = (
    "s-sgd",
    "lb-bsp",
    "one-step-delay",
    "one-step-delay-balanced",
    "asgd",
    "ssp",
    "abs-sgd",
    "dropcompute",
    "ringmaster-asgd",
    "omnilearn",
    "delay-adaptive-asgd",
    "backup-workers",
    "rennala-sgd",
    "od-sgd",
    "dssp",
)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", SEQUENCES)
def test_update_k_is_k_steps(name: str, momentum: float) -> None:
    """A mean of gradients that are all 1 is 1 however unequal the batches: x_k is k steps, exactly."""
    s = simulate(two(), name, updates=12).schedule
    u = s.updates
    made = Scalar(s, momentum)
    assert u.is_sequence and len(u) >= 12
    assert [made.x[int(state)] for state in u.state] == [after(k + 1, momentum) for k in range(len(u))]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["one-step-delay", "one-step-delay-balanced", "abs-sgd"])
@pytest.mark.parametrize("point", ["local-prediction", "damped-prediction"])
def test_a_prediction_is_the_coming_update(name: str, momentum: float, point: str) -> None:
    """Where all gradients are equal the own one predicts the update exactly: gradients of update k are taken at x_k itself."""
    s = simulate(two(), name, options={"compute_point": point}, updates=12).schedule
    made, u = Scalar(s, momentum), s.updates
    assert [made.x[int(p)] for p in u.point] == [after(k, momentum) for k in u.owner.tolist()]
    assert u.predicted[u.owner > 0].all()


@pytest.mark.parametrize("name", ["one-step-delay", "abs-sgd"])
@pytest.mark.parametrize("kappa", [0.0, 1.0, 2.0])
def test_look_ahead_is_velocities_ahead(name: str, kappa: float) -> None:
    """Gradients of update k > 0 are taken at x_{k-1} - κ·lr·v_{k-1}."""
    s = simulate(two(), name, options={"compute_point": "look-ahead", "kappa": kappa}, updates=8).schedule
    made, u = Scalar(s, 0.5), s.updates
    for k, point in zip(u.owner.tolist(), u.point.tolist(), strict=True):
        version = max(k - 1, 0)
        velocity = sum(0.5**j for j in range(version))
        assert made.x[point] == after(version, 0.5) - kappa * LEARNING_RATE * velocity


def test_current_takes_gradients_one_update_back() -> None:
    s = simulate(two(), "abs-sgd", options={"compute_point": "current"}, updates=8).schedule
    made, u = Scalar(s, 0.5), s.updates
    assert [made.x[int(p)] for p in u.point] == [after(max(k - 1, 0), 0.5) for k in u.owner.tolist()]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_local_sgd_averages_equals(momentum: float) -> None:
    """Replicas that took the same steps average to themselves: after r rounds of H steps x is r·H steps."""
    s = simulate(two(), "local-sgd", options={"local_steps": 2}, updates=4).schedule
    made = Scalar(s, momentum)
    mixes = s.state[s.rows(Kind.MIX)].tolist()
    assert [made.x[m] for m in mixes] == [after(2 * r, momentum) for r in (1, 1, 2, 2, 3, 3, 4, 4)]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(("name", "options"), [("dc-s3gd", {}), ("prague", {"group_size": 2})])
def test_averaged_equals_are_one_step_a_round(name: str, options: dict[str, Any], momentum: float) -> None:
    """Where all gradients are equal every replica makes the same steps, and nothing is left to correct."""
    s = simulate(two(), name, options=options, updates=6).schedule
    made = Scalar(s, momentum)
    mixes = s.rows(Kind.MIX)
    rounds = (s.source[mixes] + 1).tolist()
    assert max(rounds) == 6
    assert [made.x[m] for m in s.state[mixes].tolist()] == [after(r, momentum) for r in rounds]


def test_fednova_by_hand() -> None:
    """H = (2, 2), then by speed (3, 1): shares 6/8 and 2/8, τ_eff = 2.5, weights .75·2.5/3 = .25·2.5/1 = .625, and -.25 on the anchor."""
    s = simulate(two(), "local-sgd", options={"local_steps": 2, "by_speed": True}, updates=3).schedule
    mixes = s.rows(Kind.MIX)
    joins = s.rows(Kind.JOIN)
    assert s.scale[joins].tolist() == [1.0 * 0.5 * 2 / 2] * 2 + [0.625] * 4
    made = Scalar(s, 0.0)
    assert [made.x[m] for m in s.state[mixes].tolist()] == [-0.25 * d for d in (2, 2, 4.5, 4.5, 7, 7)]
    assert s.slot[mixes].tolist()[:2] == [0, 0]  # the anchor of the first average is x_0


def test_by_speed_weighted_by_samples() -> None:
    """H = (3, 1), weights 6 and 2 samples: x moves by (6·3 + 2·1)/8 = 2.5 steps a round as well."""
    s = simulate(
        two(), "local-sgd", options={"local_steps": 2, "by_speed": True, "normalise": "samples"}, updates=3
    ).schedule
    made = Scalar(s, 0.0)
    assert [made.x[m] for m in s.state[s.rows(Kind.MIX)].tolist()] == [-0.25 * d for d in (2, 2, 4.5, 4.5, 7, 7)]
    assert s.scale[s.rows(Kind.JOIN)].tolist() == [4, 4, 2, 6, 2, 6]


def test_ssp_clock_is_a_weighted_mean() -> None:
    """Both pushes of a clock step by their share of its samples, so a clock moves x by one step (no momentum)."""
    s = simulate(two(), "ssp", options={"server_update": "clock", "staleness": 1}, updates=8).schedule
    made, u = Scalar(s, 0.0), s.updates
    assert u.divisor.tolist() == [4] * len(u) and u.samples.tolist() == [2] * len(u)
    assert [made.x[int(state)] for state in u.state[1::2]] == [after(k + 1, 0.0) for k in range(len(u) // 2)]


@pytest.mark.parametrize("variant", ["constant", "adaptive"])
def test_delay_compensation_by_hand(variant: str) -> None:
    """Gradient 1, lr 1/4, no momentum, asgd's order. Update 0 is on time: x_1 = -1/4. Update 1 was taken at x_0: its gradient is
    1 - λ'/4 with λ' = λ, or λ over the root of M = .05 and then .95·.05 + .05 = .0975."""
    s = simulate(two(), "dc-asgd", options={"variant": variant, "strength": 0.5}, updates=4).schedule
    made, u = Scalar(s, 0.0), s.updates
    assert u.staleness.tolist()[:4] == [0, 1, 1, 1]
    strength = 0.5 / math.sqrt(0.0975 + 1e-7) if variant == "adaptive" else 0.5
    second = -0.25 - 0.25 * (1 - strength / 4)
    assert [made.x[int(state)] for state in u.state[:2]] == pytest.approx([-0.25, second], rel=1e-14)
    assert set(s.scale[s.rows(Kind.STEP)].tolist()) == {0.5} and set(u.scale.tolist()) == {1.0}


def test_streaming_diloco_by_hand() -> None:
    """One fragment, H = 2, τ = 0, η = 1/2, μ = 1/2, α = 1/2, no inner momentum: gradient 1, lr 1/4, so two steps move by -1/2. Round 1: Δ
    = 1/2, u = 1/2, g = -(1/2 + 1/4)/2 = -3/8, x = (-1/2 - 3/8)/2 = -7/16. Round 2: x = -15/16 before, Δ = -3/8 + 15/16 = 9/16, u = 13/16,
    g = -3/8 - (9/16 + 13/32)/2 = -55/64, x = (-15/16 - 55/64)/2 = -115/128."""
    options = {
        "local_steps": 2,
        "fragments": 1,
        "overlap_steps": 0,
        "outer_rate": 0.5,
        "outer_momentum": 0.5,
        "mixing": 0.5,
    }
    s = simulate(two(), "streaming-diloco", options=options, updates=2).schedule
    made = Scalar(s, 0.0)
    assert [made.x[m] for m in s.state[s.rows(Kind.MIX)].tolist()] == [-7 / 16, -7 / 16, -115 / 128, -115 / 128]
