"""One period of an algorithm without luck: what each worker does, how long the network takes, and the closed form of both.

Steps carry their formula with its numbers; where an algorithm or its options have no closed form, a UsageError says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetsim import wording as w
from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster
from hetsim.compute import pass_model, passes
from hetsim.errors import UsageError
from hetsim.network import Fabric, LinkId, bucket_bytes, stream_ready, streamed_finish
from hetsim.period_field import FORMS
from hetsim.schedule.kinds import Kind
from hetsim.simulate import Result

UPDATES = 400  # simulated for the comparison; its second half is long against any start [our choice]
MOST_EVENTS = 2_000_000  # worker-updates; fewer updates on very large clusters [our choice]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker does in a period: `samples` in passes that take `seconds`, at `samples_per_s`."""

    worker: str
    gpu: str | None
    samples: float
    seconds: float
    samples_per_s: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Period, batch and throughput, by whatever means."""

    update_period_s: float
    mean_batch_samples: float
    samples_per_s: float


def without_luck(cluster: Cluster) -> Cluster:
    """The same cluster without jitter, stragglers and events."""
    network = cluster.network
    workers = [replace(x, jitter_cv=0.0, straggler_probability=0.0, slowdowns=()) for x in cluster.workers]
    links = tuple(replace(link, changes=()) for link in network.links)
    shared = {name: replace(link, changes=()) for name, link in network.node_links.items()}
    server = replace(network.server, changes=()) if network.server else None
    calm = replace(network, links=links, node_links=shared, server=server)
    return replace(cluster, workers=tuple(workers), network=calm)


class Period:
    """One period of one algorithm on one cluster without luck; `closed` fills `steps` as it goes."""

    def __init__(self, cluster: Cluster, algorithm: Algorithm, steady: Result) -> None:
        self.cluster, self.algorithm, self.options, self.steady = cluster, algorithm, algorithm.options, steady
        self.steps: list[tuple[str, str, str]] = []
        self.models = [pass_model(worker) for worker in cluster.workers]
        self.fabric = Fabric.of(without_luck(cluster))
        self.payload = cluster.workload.gradient_bytes
        self.open_batch = algorithm.name == "abs-sgd"
        self.batches = self._batches()

    def _batches(self) -> list[int]:
        """Samples of every worker's unit of work: its batch, its micro-batch, or what balancing settled on."""
        n = self.cluster.n
        if self.open_batch:
            return self._micro_batches()
        u = self.steady.schedule.updates
        if len(u) and not self.algorithm.has_server:
            whole = int(
                np.flatnonzero(u.samples == u.samples.max())[-1]
            )  # the last one that no epoch's end has cut short
            parts = slice(u.begin[whole], u.begin[whole + 1])
            settled = dict(zip(u.worker[parts].tolist(), u.part_samples[parts].tolist(), strict=True))
            return [settled.get(rank, 0) for rank in range(n)]
        return self.share()

    def share(self) -> list[int]:
        """The global batch split equally, what is left over to the first by name."""
        n = self.cluster.n
        by_name = sorted(range(n), key=lambda rank: self.cluster.workers[rank].name)
        share, rest = divmod(self.cluster.training.global_batch_samples, n)
        return [share + (by_name.index(rank) < rest) for rank in range(n)]

    def _micro_batches(self) -> list[int]:
        """The profile's, or with `equal-time` what each worker took most often in the second half of the run."""
        micro, n = self.cluster.training.micro_batch_samples, self.cluster.n
        if self.options.micro_batch == "equal":
            return [micro] * n
        s = self.steady.schedule
        grads = s.rows(Kind.GRAD)
        late = grads[s.end_s[grads] > self.steady.timing.start_s]
        return [_most_frequent(s.samples[late[s.worker[late] == rank]]) or micro for rank in range(n)]

    def left_out(self) -> list[str]:
        """What of this algorithm its closed form does not know."""
        varying = self.open_batch and self.options.micro_batch == "equal-time"
        return ["micro-batches of equal time vary by a few samples (the most frequent are used)"] if varying else []

    def seconds(self, rank: int) -> tuple[float, float]:
        """Of all passes over this worker's batch, and of the last one."""
        return self.seconds_of(rank, self.batches[rank])

    def seconds_of(self, rank: int, batch: int) -> tuple[float, float]:
        """The same over any batch."""
        cap = self.cluster.workers[rank].max_batch_samples
        times = [self.models[rank].seconds(m) for m in passes(batch, cap)]
        return (math.fsum(times), times[-1]) if times else (0.0, 0.0)

    def parts(self) -> tuple[Part, ...]:
        """The workers' rows."""
        out = []
        for worker, samples in zip(self.cluster.workers, self.batches, strict=True):
            seconds = self.seconds(worker.rank)[0]
            speed = samples / seconds if seconds else math.inf
            out.append(Part(worker=worker.name, gpu=worker.gpu, samples=samples, seconds=seconds, samples_per_s=speed))
        return tuple(out)

    # ---- the network -------------------------------------------------------------------------------------------------------

    def all_reduce(self, fragments: int = 1) -> float:
        """C of the payload, or of one of so many equal fragments of it, with its formula."""
        n, network = self.cluster.n, self.cluster.network
        everybody, payload = tuple(range(n)), self.payload / fragments
        seconds = self.fabric.all_reduce_seconds(everybody, payload)
        if n == 1:
            self.step("all-reduce C", "one worker has nobody to talk to", w.seconds(0.0))
            return 0.0
        slowest = min(network.links, key=lambda link: link.bytes_per_s)
        latency = max(link.latency_s for link in network.links)
        if network.all_reduce_table:
            how = f"measured table at {w.size(payload)}"
        elif network.collective == "ring" and network.topology != "nodes":
            how = (
                f"ring, 2(n-1)(α + M/(n·bw)) = 2·{n - 1}·({w.seconds(latency)} + {w.size(payload)}"
                f"/({n}·{w.bandwidth(slowest.bytes_per_s)}))"
            )
        else:
            how = f"{network.collective} on {network.topology}, {w.size(payload)}, slowest way: {self.fabric.bottleneck(everybody)}"
        self.step("all-reduce C", how, w.seconds(seconds))
        return seconds

    def step(self, name: str, formula: str, value: str) -> None:
        """One more line of the arithmetic."""
        self.steps.append((name, formula, value))

    # ---- closed forms --------------------------------------------------------------------------------------------------------

    def closed(self) -> tuple[Figures | None, str]:
        """The closed form of this algorithm, or why there is none."""
        name = self.algorithm.name
        forms: dict[str, Callable[[Period], Figures]] = {
            "s-sgd": Period.synchronous,
            "lb-bsp": Period.synchronous,
            "one-step-delay": Period.delayed,
            "one-step-delay-balanced": Period.delayed,
            "local-sgd": Period.averaging,
            "asgd": Period.served,
            "ssp": Period.served,
            "abs-sgd": Period.open,
            **FORMS,
        }
        if name not in forms:
            return None, f"no closed form is known here for {name}"
        try:
            return forms[name](self), ""
        except UsageError as none:
            return None, str(none)

    def slowest(self) -> tuple[float, str]:
        """max t_i and whose it is."""
        times = [self.seconds(rank)[0] for rank in range(self.cluster.n)]
        rank = max(range(len(times)), key=lambda i: times[i])
        name = self.cluster.workers[rank].name
        self.step("slowest worker", f"max t_i = t_{name}({self.batches[rank]})", w.seconds(times[rank]))
        return times[rank], name

    def finish(self, period_s: float, formula: str, batch: float, batch_formula: str = "Σ b_i") -> Figures:
        """Period, batch and their quotient."""
        self.step("period", formula, w.seconds(period_s))
        self.step("batch", batch_formula, f"{batch:,.6g} samples")
        rate = batch / period_s if period_s else math.inf
        self.step("throughput", "batch / period", f"{w.rate(rate)} samples/s")
        return Figures(update_period_s=period_s, mean_batch_samples=batch, samples_per_s=rate)

    def synchronous(self) -> Figures:
        """max t_i + C, or the streamed form."""
        slow, _ = self.slowest()
        c = self.all_reduce()
        batch = sum(self.batches)
        if not self.options.overlap or self.cluster.n == 1:
            return self.finish(slow + c, f"max t_i + C = {w.seconds(slow)} + {w.seconds(c)}", batch)
        buckets = bucket_bytes(self.payload)
        everybody = tuple(range(self.cluster.n))
        costs = [self.fabric.all_reduce_seconds(everybody, size) for size in buckets]
        share = self.cluster.workload.backward_share
        ready = [stream_ready(*self.seconds(rank), share, buckets) for rank in everybody]
        listed = ", ".join(w.size(size) for size in buckets[:4]) + (", …" if len(buckets) > 4 else "")
        self.step(
            f"{len(buckets)} buckets", f"{listed}; all-reduce one after the other, Σ C_j", w.seconds(math.fsum(costs))
        )
        self.step("backward pass", f"gradients leave during the last {w.percent(share)} of a pass", "")
        period = streamed_finish(ready, costs)
        return self.finish(period, "max_j [max_i ready_ij + Σ_{l≥j} C_l]", batch)

    def delayed(self) -> Figures:
        """max(max t_i, C): compute and communication side by side."""
        if self.options.synchronous_updates >= UPDATES // 2:
            raise UsageError("most of the updates looked at are synchronous warm-up")
        slow, _ = self.slowest()
        c = self.all_reduce()
        return self.finish(max(slow, c), f"max(max t_i, C) = max({w.seconds(slow)}, {w.seconds(c)})", sum(self.batches))

    def averaging(self) -> Figures:
        """max H·t_i + C for H equal steps."""
        if self.options.by_speed:
            raise UsageError("with by_speed the steps follow measured speeds; no closed form")
        steps = self.options.local_steps
        slow, _ = self.slowest()
        c = self.all_reduce()
        text = f"H·max t_i + C = {steps}·{w.seconds(slow)} + {w.seconds(c)}"
        return self.finish(steps * slow + c, text, steps * sum(self.batches), f"H·Σ b_i = {steps}·{sum(self.batches)}")

    def served(self) -> Figures:
        """Parameter server: each at its own pace, or all at the slowest's (SSP)."""
        rounds = self.rounds()
        return self.held(rounds, self.options.staleness) if self.algorithm.name == "ssp" else self.free(rounds)

    def rounds(self) -> list[float]:
        """Seconds from one answer of the server to the next, per worker, where its link takes all workers' at once."""
        rounds = []
        for rank in range(self.cluster.n):
            push, pull = self.fabric.push(rank, self.payload), self.fabric.pull(rank, self.payload)
            rounds.append(self.seconds(rank)[0] + self.fabric.seconds(push) + self.fabric.seconds(pull))
        slow = max(range(len(rounds)), key=lambda i: rounds[i])
        name = self.cluster.workers[slow].name
        self.step("slowest round", f"t_pull + t_{name}({self.batches[slow]}) + t_push", w.seconds(rounds[slow]))
        self._server_load(rounds)
        if shared := self._shared_link():
            raise UsageError(
                f"transfers can meet at the {shared}, whose link is narrower than those of its workers together"
            )
        return rounds

    def free(self, rounds: list[float], used: Sequence[int] | None = None) -> Figures:
        """Each at its own pace; where only some workers' gradients are used, `used` are their ranks."""
        ranks = range(len(rounds)) if used is None else used
        rate = math.fsum(self.batches[rank] / rounds[rank] for rank in ranks)
        pushes = math.fsum(1 / rounds[rank] for rank in ranks)
        return self.finish(1 / pushes, "1 / Σ 1/round_i", rate / pushes, "samples/s · period")

    def held(self, rounds: list[float], lead: int) -> Figures:
        """All at the slowest's pace, once the fastest are `lead` rounds ahead of it."""
        n, slow = self.cluster.n, max(rounds)
        ahead = self.steady.timing.start_s * (1 / min(rounds) - 1 / slow)
        if 1 <= ahead <= lead:
            raise UsageError(
                f"the fastest is {ahead:.0f} rounds ahead of the slowest when the figures begin, and free to be "
                f"{lead}: nobody is held yet"
            )
        batch = sum(self.batches) / n
        return self.finish(slow / n, f"slowest round / n = {w.seconds(slow)} / {n}", batch, "Σ b_i / n")

    def _server_load(self, rounds: list[float]) -> None:
        """How full the server's link would be if nobody ever waited for it."""
        server = self.cluster.network.server
        if server is not None and math.isfinite(server.bytes_per_s):
            load = math.fsum(self.payload / t for t in rounds) / server.bytes_per_s
            self.step("server's link", "Σ M/round_i / bw, were it never shared", w.percent(load))

    def _shared_link(self) -> str:
        """A link on the way to the server that is too narrow for all who send over it at once; "" where there is none."""
        senders: dict[LinkId, list[float]] = {}  # of every link, what each one's other links let it send
        capacity = self.fabric.capacities(0.0)
        for rank in range(self.cluster.n):
            way = [link for link, _ in self.fabric.push(rank, self.payload).crossings]
            for link in way:
                others = [capacity[other] for other in way if other != link]
                senders.setdefault(link, []).append(min(others, default=math.inf))
        for link, sent in senders.items():
            if len(sent) > 1 and math.fsum(sent) > capacity[link] * (1 + 1e-9):
                return self.fabric.describe(link)
        return ""

    def open(self) -> Figures:
        """The recurrence of back-to-back synchronizations."""
        o = self.options
        if o.trigger != "back-to-back" or o.max_local_batch or o.max_global_batch:
            raise UsageError("the closed form is for the trigger back-to-back without caps")
        g = [self.seconds(rank)[0] for rank in range(self.cluster.n)]
        c = self.all_reduce()
        slow = max(range(len(g)), key=lambda i: g[i])
        self.step(
            "micro-batch",
            f"slowest g_i = g_{self.cluster.workers[slow].name}({self.batches[slow]})",
            w.seconds(g[slow]),
        )
        low, high = max(c, g[slow]), c + g[slow]
        self.step("bounds", f"max(C, g_slow) ≤ period ≤ C + g_slow: {w.seconds(low)} … {w.seconds(high)}", "")
        period = recurrence(g, c)
        speed = math.fsum(m / t if t else math.inf for m, t in zip(self.batches, g, strict=True))
        text = "mean of start_{k+1} - start_k, start_{k+1} = max_i g_i·⌈(start_k + C)/g_i⌉"
        return self.finish(period, text, speed * period, f"period · Σ v_i = {w.seconds(period)} · {w.rate(speed)}/s")


def _most_frequent(samples: NDArray[np.int64]) -> int:
    """0 of nothing."""
    sizes, counts = np.unique(samples, return_counts=True)
    return int(sizes[counts.argmax()]) if len(sizes) else 0


def recurrence(g: list[float], c: float, updates: int = 2000) -> float:
    """Mean period of back-to-back synchronizations with micro-batches of g_i seconds, from 0: start_{k+1} = max_i g_i·⌈(start_k + C)/g_i⌉.

    >>> round(recurrence([0.08], 0.5), 9), round(recurrence([0.32], 0.5), 9)
    (0.56, 0.64)
    """
    joined = [1] * len(g)  # micro-batches of each worker when it joined
    starts = [max(g)]
    for _ in range(updates):
        done = starts[-1] + c
        # A multiple of g_i that only rounding has pushed past `done` is still in time; every batch has one micro-batch at least.
        joined = [max(math.ceil(done / t - 1e-9), m + 1) if t else m for t, m in zip(g, joined, strict=True)]
        starts.append(max(done, *(t * m for t, m in zip(g, joined, strict=True))))
    half = updates // 2
    return (starts[-1] - starts[half]) / (updates - half)
