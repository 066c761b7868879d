"""The contract between algorithms and the worlds they run in.

An algorithm is written once, as a generator per worker (and one for the server where there is one) that yields the small frozen
commands of this file and gets each command's result back. Two runtimes drive the same generators: `hetsim.runtime` on a virtual clock,
`abs_sgd.runtime` on torch.distributed and the wall clock. Neither this file nor an algorithm knows which.

    h = yield w.all_reduce()        starts are split from waits: this returns at once,
    while not (yield w.poll(h)):    so work can go on while the gradients travel
        yield w.compute(16)
    reduced = yield w.wait(h)       never forget the wait: it is where errors of the transfer come out
    yield w.apply(h)

| command                              | meaning                                                                    | result                         |
|--------------------------------------|----------------------------------------------------------------------------|--------------------------------|
| compute(n, stream)                   | gradient **sum** over the next n samples at the worker's compute point, added to its accumulator; `stream`: an all-reduce with `stream` follows, and this pass feeds it bucket by bucket | Computed(samples, seconds); samples < n where an epoch or the data ends, 0 = no data left |
| all_reduce(what, weight, gather, group, stream, quorum, trigger, at_once, fragment) | start a non-blocking collective: "gradients" (takes and clears the accumulator) or "parameters"; small tuples ride along and come back from everybody; with `quorum` it starts once so many workers with samples have joined, with `trigger` once that rank has, and takes what the accumulators of the others hold; who joins at that instant is in it, unless it starts `at_once`; `fragment` (i, of so many): a part of the parameters, as much less on the wire | handle |
| missed()                             | the worker's next collective if it has started without it, to be waited for and applied | handle / None |
| poll(h) / wait(h)                    | complete yet? / block until complete                                       | bool / Reduced                 |
| apply(h, scale, divisor, compensation, adaptive) | optimizer step on the reduced sum over the total count (or `divisor`); with `compensation` λ on g + λ g⊙g⊙(x - x̄), x̄ where the gradient was taken | update number |
| step(scale, compensation)            | optimizer step on the own accumulator; with `compensation` λ on g + λ ‖g‖/‖c‖ c, c = g⊙g⊙(x - x̄), x̄ where the gradient was taken | local step number              |
| predict(h)                           | move the compute point to where the algorithm's `compute_point` says the next gradient belongs | None          |
| merge(h, weight, anchored, outer, shift) | replica := mix of itself and the reduced parameters; with `shift` it moves by how far they are from what it sent; with `outer` a mix with what an outer optimizer makes of the fragment that was reduced | None |
| exchange(peer) / over()              | average the replica with another worker's as both are once the transfer is through, whatever the other does meanwhile / are as many exchanges or groups' averages made as the run is for? | handle / bool |
| group_reduce(size, slack, leaving)   | hand the parameters to the all-reduce of this worker's next group; where it is in none, all who are in none and have asked less than `slack` times less than it are divided at random into groups of at most `size`; `leaving`: it is drawn for none any more, None where it is in none | handle / None |
| push() / pull()                      | send the accumulator to the server / ask for its parameters                | handle                         |
| receive() / reply(m)                 | server: next message in order of arrival / answer a pull                   | Message / None                 |
| discard(reason)                      | drop the own accumulator (worker) or the message's gradient (server)       | samples dropped                |
| count(n)                             | add n to the counter shared by the current synchronization                 | the count as known here        |
| draw(purpose, shared) / now()        | a seeded uniform number, `shared`: the same on every rank / the clock      | float                          |

Rules. Every timing-dependent outcome (poll, missed, over, group_reduce, count, now, order of receive) is recorded. Only rank-local decisions may hang on them;
what all ranks must agree on (when to stop, the next batch sizes) is read from a Reduced, which is the same on every rank. After a
Reduced with `stop` a rank launches nothing. Out of data, contribute zero samples and `wait`: polling would never let virtual time pass.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

What = Literal["gradients", "parameters"]
_new = tuple.__new__  # a NamedTuple at half the price of its own constructor


class Handle:
    """A transfer in flight. Opaque to algorithms: only ask for it with `poll` and `wait`."""

    __slots__ = ("apply", "done", "id", "poll", "result", "wait", "waiters")

    def __init__(self, number: int) -> None:
        self.id = number
        self.done = False
        self.result: Any = None
        self.waiters: list[Any] = []
        self.poll = _new(Poll, (self,))  # the plain commands on this handle, made once for all workers
        self.wait = _new(Wait, (self, ""))
        self.apply = _new(Apply, (self, 1.0, 0, 0.0, False))


class Computed(NamedTuple):
    """What a `compute` did: samples taken, and the seconds it took this worker."""

    samples: int
    seconds: float


class Reduced(NamedTuple):
    """What a collective brought, the same on every rank.

    `samples`: total over contributors; `gathered`: rank -> the tuple it contributed; `contributors`: ranks whose contribution counts;
    `stop`: the run's end, agreed: apply this and launch nothing more.
    """

    samples: int
    gathered: dict[int, tuple[float, ...]]
    contributors: tuple[int, ...]
    stop: bool


class Message(NamedTuple):
    """What reached the server, and at what time: a gradient ("push") or a request for parameters ("pull"). `stop`: the run is over."""

    kind: Literal["push", "pull"]
    worker: int
    samples: int
    handle: Handle
    stop: bool
    at_s: float


class Compute(NamedTuple):
    """Gradient sum over the next `samples` samples."""

    samples: int
    stream: bool


class AllReduce(NamedTuple):
    """Start a collective; None for `group` is everybody. `quorum` and `trigger`: it need not wait for all (0 and -1: it does)."""

    what: What
    weight: float
    gather: tuple[float, ...]
    group: tuple[int, ...] | None
    stream: bool
    quorum: int = 0
    trigger: int = -1
    at_once: bool = False
    fragment: tuple[int, int] = (0, 1)


class Missed(NamedTuple):
    """Has the next collective started without this worker?"""


class Poll(NamedTuple):
    """Is it complete?"""

    handle: Handle


class Wait(NamedTuple):
    """Block until complete. `cause` overrides what the waiting is put down to: "cap" or "data"."""

    handle: Handle
    cause: str


class Apply(NamedTuple):
    """Optimizer step on a transfer's gradient sum. `divisor` 0 is the number of samples in it. `compensation`: λ of a first-order correction
    for the delay, `adaptive`: over the root of the gradient's running mean square; it leaves `scale` at 1."""

    handle: Handle
    scale: float
    divisor: int
    compensation: float = 0.0
    adaptive: bool = False


class Step(NamedTuple):
    """Optimizer step on the own accumulator. `compensation`: λ of a first-order correction for the delay whose norm is λ of the gradient's;
    it leaves `scale` at 1."""

    scale: float
    compensation: float = 0.0


class Predict(NamedTuple):
    """Move the compute point, by the algorithm's `compute_point`."""

    handle: Handle


class Merge(NamedTuple):
    """Replica := (1 - weight)·own + weight·average; anchored: weights that do not sum to 1 leave the rest on the last merged parameters;
    outer: of the transfer's fragment, and of what the outer optimizer makes of the average; shift: replica += weight·(average - what it sent).
    """

    handle: Handle
    weight: float
    anchored: bool
    outer: bool = False
    shift: bool = False


class Exchange(NamedTuple):
    """Average the own replica with `peer`'s."""

    peer: int


class GroupReduce(NamedTuple):
    """Join the all-reduce of parameters of the next group that this worker is in."""

    size: int
    slack: int
    leaving: bool


class Over(NamedTuple):
    """Has the run had all its exchanges or groups?"""


class Push(NamedTuple):
    """Send the accumulator to the server."""


class Pull(NamedTuple):
    """Ask the server for its parameters."""


class Receive(NamedTuple):
    """Server: the next message."""


class Reply(NamedTuple):
    """Server: send the parameters to who asked."""

    message: Message


class Discard(NamedTuple):
    """Drop a gradient that will never be used."""

    reason: str
    handle: Handle | None


class Count(NamedTuple):
    """Add to the shared counter of the current synchronization."""

    samples: int


class Draw(NamedTuple):
    """A seeded uniform number in [0, 1), keyed by purpose and worker, or where `shared` by purpose alone."""

    purpose: str
    shared: bool = False


class Now(NamedTuple):
    """The clock, seconds since the start."""


_PUSH, _PULL, _RECEIVE, _NOW, _MISSED, _OVER = Push(), Pull(), Receive(), Now(), Missed(), Over()
GRADIENTS = AllReduce("gradients", 1.0, (), None, False)
STREAMED = AllReduce("gradients", 1.0, (), None, True)


class Port:
    """What a worker's program sees of the world: who it is, and the commands it may yield.

    `rank`, `name`, `n`: place in the group; `batch`: this worker's share of training.global_batch_samples; `global_batch`;
    `micro_batch`: samples of one micro-batch; `max_batch`: most samples one update may take from this worker (memory caps a
    single pass, not a batch); `speed`: samples/s expected of this worker before anything was measured, and `speeds` of all;
    `by_name`: all ranks in order of their workers' names, for draws that must not hang on positions.
    """

    def __init__(
        self,
        *,
        rank: int,
        name: str,
        n: int,
        batch: int,
        batches: tuple[int, ...],
        micro_batch: int,
        speeds: tuple[float, ...],
        max_pass: tuple[int | None, ...],
        names: tuple[str, ...] = (),
    ) -> None:
        self.by_name = tuple(sorted(range(n), key=lambda i: names[i] if names else str(i)))
        self.rank, self.name, self.n = rank, name, n
        self.batch, self.batches = batch, batches
        self.global_batch = sum(batches)
        self.micro_batch = micro_batch
        self.speeds = speeds
        self.max_pass = max_pass
        self._plain: dict[int, Compute] = {}
        self._streamed: dict[int, Compute] = {}

    def compute(self, samples: int, stream: bool = False) -> Compute:
        """Gradient sum over the next `samples` samples at the compute point."""
        made = self._streamed if stream else self._plain
        try:
            return made[samples]
        except KeyError:
            command = made[samples] = Compute(samples, stream)
            return command

    def all_reduce(
        self,
        what: What = "gradients",
        *,
        weight: float = 1.0,
        gather: tuple[float, ...] = (),
        group: tuple[int, ...] | None = None,
        stream: bool = False,
        quorum: int = 0,
        trigger: int = -1,
        at_once: bool = False,
        fragment: tuple[int, int] = (0, 1),
    ) -> AllReduce:
        """Start a collective; the accumulator or the parameters are handed over now."""
        if not gather and group is None and what == "gradients" and weight == 1.0 and not quorum and trigger < 0:
            return STREAMED if stream else GRADIENTS
        return AllReduce(what, weight, gather, group, stream, quorum, trigger, at_once, fragment)

    def missed(self) -> Missed:
        """The next collective, if it has started without this worker."""
        return _MISSED

    def poll(self, handle: Handle) -> Poll:
        """Complete yet?"""
        return handle.poll

    def wait(self, handle: Handle, cause: str = "") -> Wait:
        """Block until complete."""
        return Wait(handle, cause) if cause else handle.wait

    def apply(self, handle: Handle, scale: float = 1.0, divisor: int = 0) -> Apply:
        """Optimizer step on what the transfer brought."""
        return handle.apply if scale == 1.0 and not divisor else Apply(handle, scale, divisor)

    def step(self, scale: float = 1.0, compensation: float = 0.0) -> Step:
        """Optimizer step on the own accumulator."""
        return Step(scale, compensation)

    def predict(self, handle: Handle) -> Predict:
        """Move the compute point."""
        return Predict(handle)

    def merge(
        self, handle: Handle, weight: float = 1.0, anchored: bool = False, outer: bool = False, shift: bool = False
    ) -> Merge:
        """Mix the reduced parameters into the replica."""
        return Merge(handle, weight, anchored, outer, shift)

    def exchange(self, peer: int) -> Exchange:
        """Start averaging with another worker; with oneself where there is nobody."""
        return Exchange(peer)

    def group_reduce(self, size: int, slack: int, leaving: bool = False) -> GroupReduce:
        """Start averaging with a random group."""
        return GroupReduce(size, slack, leaving)

    def over(self) -> Over:
        """Whether the run has had all its exchanges or groups, for those who start none."""
        return _OVER

    def push(self) -> Push:
        """Send the accumulator to the server."""
        return _PUSH

    def pull(self) -> Pull:
        """Ask the server for its parameters."""
        return _PULL

    def discard(self, reason: str) -> Discard:
        """Drop the accumulator."""
        return Discard(reason, None)

    def count(self, samples: int) -> Count:
        """Add to the shared counter."""
        return Count(samples)

    def draw(self, purpose: str, shared: bool = False) -> Draw:
        """A seeded uniform number."""
        return Draw(purpose, shared)

    def now(self) -> Now:
        """The clock."""
        return _NOW


class ServerPort:
    """What a server's program sees: `n` workers, and the commands it may yield."""

    def __init__(self, *, n: int, batches: tuple[int, ...]) -> None:
        self.n = n
        self.batches = batches

    def receive(self) -> Receive:
        """The next message, in order of arrival."""
        return _RECEIVE

    def apply(
        self,
        message: Message,
        scale: float = 1.0,
        divisor: int = 0,
        compensation: float = 0.0,
        adaptive: bool = False,
    ) -> Apply:
        """Optimizer step on a pushed gradient."""
        return Apply(message.handle, scale, divisor, compensation, adaptive)

    def reply(self, message: Message) -> Reply:
        """Answer a pull."""
        return Reply(message)

    def discard(self, message: Message, reason: str) -> Discard:
        """Never use a pushed gradient."""
        return Discard(reason, message.handle)
