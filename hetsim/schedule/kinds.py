"""What a row of a Schedule can be, and the codes that qualify it.

Every row is (kind, worker, start_s, end_s, state, parent, source, slot, samples, first, scale, code); what the integers mean
depends on the kind. Columns not named below hold -1 (ids), 0 (samples, first, code) or 1.0 (scale).

| kind    | one row is                                  | columns                                                                                                |
|---------|---------------------------------------------|--------------------------------------------------------------------------------------------------------|
| GRAD    | a gradient **sum** over samples             | state: parameters it is taken at; slot: accumulator it is added to; samples, first: range [first, first+samples) |
| JOIN    | a contribution handed to a transfer         | source: the transfer; slot (gradients) or state (parameters); samples: how many it sums; scale: weight; code: JoinRule |
| REDUCE  | the transfer itself, worker -1 if collective | source: its id; start_s, end_s: on the wire; samples: total; code: Payload                             |
| STEP    | an optimizer step                           | parent -> state; source: transfer whose sum is applied, or -1 and slot: own accumulator; samples: total; first: divisor; scale: on the learning rate, or λ where it is compensated; code: StepRule |
| MIX     | parameters averaged                         | parent -> state; source: transfer; slot: anchor state or -1; first: fragment; scale: weight; code: MixRule               |
| COPY    | parameters adopted from the server          | state; source: transfer                                                                                |
| PREDICT | a compute point is predicted                | parent -> state; source: transfer launched; slot: own accumulator joined to it; scale: kappa, blend or damping; code: PointRule |
| DISCARD | a gradient that is never used               | slot (or source); samples; code: DiscardReason                                                          |
| WAIT    | a worker does nothing                       | source: transfer waited for or -1; code: WaitCause                                                      |

Ids: `state` 0 is the initial parameters; a state is one pair (parameters, optimizer state), and replicas that reach the same parent by
the same transfer share its id, so an executor computes it once and a distributed one on every rank. A replica that makes a STEP another
has made before it, in no time (`update_s` 0), leaves no row: it steps when its next row names the state. `slot` numbers accumulators;
`source` numbers transfers (collectives, pushes, pulls, exchanges). Sample numbers run over all epochs: epoch = number // dataset_samples.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What a row is."""

    GRAD = 0
    JOIN = 1
    REDUCE = 2
    STEP = 3
    MIX = 4
    COPY = 5
    PREDICT = 6
    DISCARD = 7
    WAIT = 8


class WaitCause(IntEnum):
    """Why a worker did nothing."""

    COLLECTIVE = 0  # until its last member joined: the straggler; after that: the network
    PUSH = 1  # gradient on its way to the server
    PULL = 2  # parameters on their way from the server
    GATE = 3  # the server held the reply back
    CAP = 4  # batch cap reached
    DATA = 5  # no samples left
    PEER = 6  # partner of an exchange


MEAN_SQUARE_DECAY = 0.95  # m of DC-ASGD's adaptive λ on CIFAR-10 (Zheng et al. 2017)
MEAN_SQUARE_EPS = 1e-7  # its ε


class PointRule(IntEnum):
    """Where the next gradient is taken (`compute_point`)."""

    CURRENT = 0
    LOOK_AHEAD = 1
    LOCAL_PREDICTION = 2
    BLEND = 3
    LOCAL_STEP = 4
    DAMPED_PREDICTION = 5


class JoinRule(IntEnum):
    """Whose doing it is that a contribution is handed over."""

    JOINED = 0
    TAKEN = 1  # the worker was busy when a collective started without it, which took what its accumulator held


class StepRule(IntEnum):
    """How a step uses its gradient."""

    PLAIN = 0
    DELAY_COMPENSATED = 1  # g + λ g⊙g⊙(x - x̄), x̄ the state its one gradient was taken at
    DELAY_COMPENSATED_ADAPTIVE = 2  # λ over the root of the running mean of g⊙g
    DELAY_COMPENSATED_RELATIVE = 3  # λ times the norm of g over that of g⊙g⊙(x - x̄)


class MixRule(IntEnum):
    """What an average makes of the replica's optimizer state."""

    KEEP = 0
    RESET = 1
    SHIFT = 3  # replica + weight·(average - anchor), the anchor being what it contributed
    OUTER = 2  # of one fragment, after a step of the outer optimizer that the header states


class Payload(IntEnum):
    """What a transfer carries."""

    GRADIENT = 0
    PARAMETERS = 1


class DiscardReason(IntEnum):
    """Why a gradient was never used."""

    LATE = 0
    STALE = 1
    TIME_LIMIT = 2
    RUN_ENDED = 3
