"""Whether the parts of a profile fit together: names, counts, batches, memory, what the catalogue knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hetsim.cluster import catalogue
from hetsim.cluster.profile import MAX_WORKERS, Event, Profile, WorkerEntry
from hetsim.cluster.spec import Workload
from hetsim.cluster.wording import Finding
from hetsim.errors import UsageError, nearest

# Copies of a gradient's size a worker keeps: parameters, gradient, momentum, and the buffer being synchronized [our choice].
STATE_COPIES = 4


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
    ]
    return [finding for step in steps for finding in step(profile)]


def workload_of(profile: Profile) -> Workload:
    """The workload, from the catalogue or as described. Raises UsageError for an unknown name."""
    if isinstance(profile.workload, str):
        return catalogue.workload(profile.workload)
    return Workload(**profile.workload.model_dump())


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
    nodes: dict[str, tuple[str, ...]] = {}
    for entry in profile.workers:
        members = entry.members()
        names |= {member: (member,) for member in members}
        names[entry.name] = members
        if entry.node is not None:
            nodes[entry.node] = nodes.get(entry.node, ()) + members
    return nodes | names


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
        if workload and not stated and not _known(gpu, workload):
            message = f"the catalogue has no speed of {gpu} for workload {workload}"
            yield Finding((*path, "gpu"), message, "give samples_per_s or step_times_s")


def _known(gpu: str, workload: str) -> bool:
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


def _shared_node(profile: Profile, name: str) -> str | None:
    """The node whose link `name` would change for some of its workers only."""
    if profile.network.topology != "nodes":
        return None
    known = groups(profile)
    changed = set(known[name])
    for entry in profile.workers:
        if entry.node is not None and changed & set(known[entry.node]) and not changed >= set(known[entry.node]):
            return entry.node
    return None


def _check_target(
    profile: Profile, known: dict[str, tuple[str, ...]], path: tuple[str | int, ...], name: str
) -> Iterator[Finding]:
    if name not in known:
        yield Finding(path, f"there is no worker, group or node {name!r}", nearest(name, known), on_key="links" in path)
        return
    shared = _shared_node(profile, name)
    if shared is not None:
        message = f"{name} shares the link of node {shared} with other workers"
        yield Finding(path, message, f"name {shared} instead", on_key="links" in path)


def _check_links(profile: Profile) -> Iterator[Finding]:
    known = groups(profile)
    for name in profile.network.links:
        yield from _check_target(profile, known, ("network", "links", name), name)


def _check_events(profile: Profile) -> Iterator[Finding]:
    known = groups(profile)
    for index, event in enumerate(profile.events):
        path = ("events", index)
        wrong = _event_shape(event)
        if wrong:
            yield Finding(path, wrong, "worker and slowdown, or link and bandwidth_gbit_per_s")
        elif event.worker is not None and event.worker not in known:
            message = f"there is no worker, group or node {event.worker!r}"
            yield Finding((*path, "worker"), message, nearest(event.worker, known))
        elif event.link is not None and not (event.link == "server" and "server" not in known):
            yield from _check_target(profile, known | {"server": ()}, (*path, "link"), event.link)


def _event_shape(event: Event) -> str:
    if (event.worker is None) == (event.link is None):
        return "an event changes one worker or one link"
    if event.worker is not None and (event.slowdown is None or event.bandwidth_gbit_per_s is not None):
        return "an event of a worker has a slowdown and no bandwidth"
    if event.link is not None and (event.bandwidth_gbit_per_s is None or event.slowdown is not None):
        return "an event of a link has a bandwidth and no slowdown"
    return ""


def _check_table(profile: Profile) -> Iterator[Finding]:
    table = profile.network.all_reduce_table
    for index in range(1, len(table)):
        if table[index].bytes <= table[index - 1].bytes:
            path = ("network", "all_reduce_table", index, "bytes")
            yield Finding(path, "must be greater than the row before", "sort the rows by bytes, each once")


def _check_algorithms(profile: Profile) -> Iterator[Finding]:
    if not profile.algorithms:
        return
    try:
        from hetsim.algorithms import option_problems
    except ImportError:
        return
    for name, options in profile.algorithms.items():
        for message in option_problems(name, dict(options)):
            yield Finding(("algorithms", name), message, on_key=True)
