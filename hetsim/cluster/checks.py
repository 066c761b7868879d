"""Whether the parts of a profile fit together: names, counts, batches, memory, what the catalogue knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from hetsim.cluster import catalogue
from hetsim.cluster.profile import MAX_WORKERS, Event, Profile, WorkerEntry
from hetsim.cluster.spec import Convergence, Workload
from hetsim.cluster.wording import Finding
from hetsim.errors import UsageError, nearest

# Copies of a gradient's size a worker keeps: parameters, gradient, momentum, the buffer in flight [our choice].
STATE_COPIES = 4
MAX_CHANGES = 1_000_000  # events times the workers each concerns: what a cluster's worker tuples can hold


def check(profile: Profile) -> list[Finding]:
    """Everything that does not fit together; empty where `resolve` will succeed."""
    total = sum(entry.count or 1 for entry in profile.workers)
    if total > MAX_WORKERS:
        where = max(range(len(profile.workers)), key=lambda i: profile.workers[i].count or 1)
        path = ("workers", where, "count") if profile.workers[where].count else ("workers",)
        return [Finding(path, f"{total:,} workers in all; at most {MAX_WORKERS:,} can be simulated")]
    steps: list[Callable[[Profile], Iterator[Finding]]] = [
        _check_names,
        _check_speeds,
        _check_batches,
        _check_nodes,
        _check_links,
        _check_events,
        _check_table,
        _check_algorithms,
        _check_convergence,
    ]
    return [finding for step in steps for finding in step(profile)]


def workload_of(profile: Profile) -> Workload:
    """The workload, from the catalogue or as described. Raises UsageError for an unknown name."""
    if isinstance(profile.workload, str):
        return catalogue.workload(profile.workload)
    stated = profile.workload.model_dump()
    if isinstance(stated["convergence"], dict):
        stated["convergence"] = Convergence(**stated["convergence"])
    return Workload(**stated)


def memory_of(entry: WorkerEntry) -> float | None:
    """Bytes of memory, stated or the catalogue's."""
    if entry.memory_bytes is not None or entry.gpu is None:
        return entry.memory_bytes
    return catalogue.gpu(entry.gpu).memory_bytes


def pass_cap(entry: WorkerEntry, workload: Workload) -> int | None:
    """The most samples of one pass: stated, or floor((memory - 4 gradients) / activations of a sample), or unknown."""
    memory = memory_of(entry)
    if entry.max_batch_samples is not None or memory is None or workload.activation_bytes_per_sample <= 0:
        return entry.max_batch_samples
    free = memory - STATE_COPIES * workload.gradient_bytes
    return max(0, math.floor(free / workload.activation_bytes_per_sample))


def groups(profile: Profile) -> dict[str, tuple[str, ...]]:
    """What a name in `links` or `events` stands for: worker names, by worker, group and (shared) node name."""
    names: dict[str, tuple[str, ...]] = {}
    nodes: dict[str, list[str]] = {}
    for entry in profile.workers:
        members = entry.members()
        names |= {member: (member,) for member in members}
        names[entry.name] = members
        if entry.node is not None:
            nodes.setdefault(entry.node, []).extend(members)
    return {node: tuple(members) for node, members in nodes.items()} | names


def _check_convergence(profile: Profile) -> Iterator[Finding]:
    if isinstance(profile.workload, str) or isinstance(profile.workload.convergence, str):
        return
    known, path = profile.workload.convergence, ("workload", "convergence")
    if not known.floor_loss < known.initial_loss:
        yield Finding((*path, "floor_loss"), "floor_loss must be below initial_loss")
    elif not known.floor_loss < known.target_loss < known.initial_loss:
        yield Finding((*path, "target_loss"), "target_loss must lie between floor_loss and initial_loss")


def _check_names(profile: Profile) -> Iterator[Finding]:
    owner: dict[str, int] = {}
    for index, entry in enumerate(profile.workers):
        for name in dict.fromkeys((entry.name, *entry.members())):
            if name in owner:
                which = f"workers[{owner[name]}]"
                yield Finding(("workers", index, "name"), f"the name {name!r} is taken by {which}", "names are unique")
                break
        for name in (entry.name, *entry.members()):
            owner.setdefault(name, index)


def _check_speeds(profile: Profile) -> Iterator[Finding]:
    workload = ""
    try:
        workload = workload_of(profile).name
    except UsageError as error:
        yield Finding(("workload",), str(error))
    for index, entry in enumerate(profile.workers):
        path = ("workers", index)
        stated = entry.samples_per_s or entry.step_times_s or entry.trace
        if isinstance(entry.trace, str):
            yield Finding(
                (*path, "trace"), "names a file, which only load_profile reads", "give [samples, seconds] pairs"
            )
        if entry.gpu is None:
            if not stated:
                yield Finding(
                    path, f"worker {entry.name} has no speed", "give gpu, samples_per_s, step_times_s or trace"
                )
            continue
        try:
            gpu = catalogue.gpu(entry.gpu).name
        except UsageError as error:
            yield Finding((*path, "gpu"), str(error))
            continue
        if workload and not stated and not speed_known(gpu, workload):
            message = f"the catalogue has no speed of {gpu} for workload {workload}"
            yield Finding((*path, "gpu"), message, "give samples_per_s or step_times_s")


def speed_known(gpu: str, workload: str) -> bool:
    """Whether the catalogue says how fast this GPU is on this workload."""
    if workload not in catalogue.workload_names():
        return False
    return catalogue.line(gpu, workload) is not None or catalogue.step_times(gpu, workload) is not None


def _check_batches(profile: Profile) -> Iterator[Finding]:
    training = profile.training
    n = sum(entry.count or 1 for entry in profile.workers)
    micro = training.micro_batch_samples
    if training.global_batch_samples < n:
        message = f"{training.global_batch_samples} samples are fewer than the {n} workers"
        yield Finding(("training", "global_batch_samples"), message, "every worker needs one at least")
    elif micro > training.global_batch_samples:
        message = f"{micro} is more than global_batch_samples {training.global_batch_samples}"
        yield Finding(("training", "micro_batch_samples"), message)
    try:
        workload = workload_of(profile)
    except UsageError:
        return
    for index, entry in enumerate(profile.workers):
        try:
            cap = pass_cap(entry, workload)
        except UsageError:
            continue
        if cap == 0:
            memory = memory_of(entry) or 0.0
            message = f"{workload.name} does not fit into {memory / 1e9:g} GB"
            yield Finding(
                ("workers", index), message, f"it keeps {STATE_COPIES} times gradient_bytes and the activations"
            )
        elif cap is not None and micro > cap:
            key = "max_batch_samples" if entry.max_batch_samples is not None else "memory_bytes"
            message = f"worker {entry.name} holds {cap} samples in one pass, micro_batch_samples is {micro}"
            yield Finding(("workers", index, key), message, "lower training.micro_batch_samples")


def _check_nodes(profile: Profile) -> Iterator[Finding]:
    names = {entry.name: i for i, entry in enumerate(profile.workers)}
    names |= {member: i for i, entry in enumerate(profile.workers) for member in entry.members()}
    for index, entry in enumerate(profile.workers):
        owner = names.get(entry.node) if entry.node is not None else None
        if owner is not None and (owner != index or entry.count is not None):
            message = f"node {entry.node!r} has the name of a worker, which makes links and events ambiguous"
            yield Finding(("workers", index, "node"), message, "rename one of them")


def near(word: str, known: Iterable[str]) -> str:
    """`nearest` over the first few dozen names: of thousands, neither a search nor a list is a help."""
    return nearest(word, list(islice(known, 40)))


class _Names:
    """What links and events may name, and on topology `nodes` which node links a name would change only in part."""

    def __init__(self, profile: Profile) -> None:
        self.known = groups(profile)
        self.node_of: dict[str, str] = {}
        if profile.network.topology == "nodes":
            self.node_of = {m: entry.node for entry in profile.workers if entry.node for m in entry.members()}

    def link_problem(self, name: str) -> tuple[str, str] | None:
        """What is wrong with changing the link of `name`: message and hint."""
        if name not in self.known:
            return f"there is no worker, group or node {name!r}", near(name, self.known)
        members = self.known[name]
        for node in dict.fromkeys(self.node_of[member] for member in members if member in self.node_of):
            inside = self.known[node]
            if len(inside) > len(members) or not set(members) >= set(inside):
                return f"{name} shares the link of node {node} with other workers", f"name {node} instead"
        return None


def _check_links(profile: Profile) -> Iterator[Finding]:
    names = _Names(profile)
    for name in profile.network.links:
        problem = names.link_problem(name)
        if problem is not None:
            yield Finding(("network", "links", name), *problem, on_key=True)


def _check_events(profile: Profile) -> Iterator[Finding]:
    names = _Names(profile)
    names.known.setdefault("server", ())
    changes = 0
    for index, event in enumerate(profile.events):
        path = ("events", index)
        wrong = _event_shape(event)
        changes += len(names.known.get(event.worker or event.link or "", ()))
        if changes > MAX_CHANGES:
            yield Finding(
                path, f"with this event they concern more than {MAX_CHANGES:,} workers in all", "use fewer events"
            )
            return
        if wrong:
            yield Finding(path, wrong, "worker and slowdown, or link and bandwidth_gbit_per_s")
        elif event.worker is not None and not names.known.get(event.worker):
            message = f"there is no worker, group or node {event.worker!r}"
            yield Finding((*path, "worker"), message, near(event.worker, filter(names.known.get, names.known)))
        elif event.link is not None:
            problem = names.link_problem(event.link)
            if problem is not None:
                yield Finding((*path, "link"), *problem)


def _event_shape(event: Event) -> str:
    if (event.worker is None) == (event.link is None):
        return "an event changes one worker or one link"
    if event.worker is not None and (event.slowdown is None or event.bandwidth_gbit_per_s is not None):
        return "an event of a worker has a slowdown and no bandwidth"
    if event.link is not None and (event.bandwidth_gbit_per_s is None or event.slowdown is not None):
        return "an event of a link has a bandwidth and no slowdown"
    return ""


def _check_table(profile: Profile) -> Iterator[Finding]:
    for name in ("all_reduce_table", "all_reduce_busy_table"):
        table = getattr(profile.network, name)
        for index in range(1, len(table)):
            if table[index].bytes <= table[index - 1].bytes:
                path = ("network", name, index, "bytes")
                yield Finding(path, "must be greater than the row before", "sort the rows by bytes, each once")


def _check_algorithms(profile: Profile) -> Iterator[Finding]:
    if not profile.algorithms:
        return
    from hetsim.algorithms import option_problems  # the algorithms are built on top of the cluster

    for name, options in profile.algorithms.items():
        for message in option_problems(name, dict(options)):
            key, _, rest = message.partition(": ")
            if rest and key in options:
                unknown = rest.startswith("unknown")
                yield Finding(("algorithms", name, key), rest.replace("input should be", "must be"), on_key=unknown)
            else:
                yield Finding(("algorithms", name), message, on_key=True)
