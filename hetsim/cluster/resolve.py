"""From a Profile to a Cluster: counts expanded, catalogue looked up, names resolved, SI units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hetsim.cluster import catalogue
from hetsim.cluster.checks import check, groups, memory_of, pass_cap, workload_of
from hetsim.cluster.profile import Event, LinkEntry, Profile, WorkerEntry
from hetsim.cluster.spec import (
    BandwidthChange,
    Cluster,
    Link,
    Network,
    Provenance,
    Slowdown,
    Training,
    Worker,
    Workload,
)
from hetsim.errors import ProfileError

_INTRA_NODE = LinkEntry(bandwidth_gbit_per_s=100.0, latency_us=5.0)  # about PCIe 3.0 x16, 126 Gbit/s raw [our choice]


def resolve(profile: Profile) -> Cluster:
    """The cluster that `profile` describes. Raises ProfileError where its parts do not fit together."""
    found = check(profile)
    if found:
        raise ProfileError(profile.name, [finding.problem() for finding in found])
    workload = workload_of(profile)
    return Cluster(
        name=profile.name,
        description=profile.description,
        workers=_workers(profile, workload),
        network=_network(profile),
        workload=workload,
        training=Training(**profile.training.model_dump()),
        options={name: dict(options) for name, options in profile.algorithms.items()},
        sources=dict(profile.sources),
    )


def _workers(profile: Profile, workload: Workload) -> tuple[Worker, ...]:
    known = groups(profile)
    slowdowns: dict[str, list[Slowdown]] = {}
    for event in profile.events:
        if event.worker is not None and event.slowdown is not None:
            change = Slowdown(at_s=event.at_s, until_s=_until(event), factor=event.slowdown)
            for name in known[event.worker]:
                slowdowns.setdefault(name, []).append(change)
    workers: list[Worker] = []
    for index, entry in enumerate(profile.workers):
        common = _common(profile, index, entry, workload)
        for name in entry.members():
            workers.append(
                Worker(
                    rank=len(workers),
                    name=name,
                    group=entry.name,
                    node=entry.node or name,
                    slowdowns=tuple(slowdowns.get(name, ())),
                    **common,
                )
            )
    return tuple(workers)


def _until(event: Event) -> float:
    return math.inf if event.for_s is None else event.at_s + event.for_s


def _common(profile: Profile, index: int, entry: WorkerEntry, workload: Workload) -> dict[str, Any]:
    """What all members of an entry share."""
    gpu = catalogue.gpu(entry.gpu) if entry.gpu is not None else None
    stragglers = entry.stragglers
    return {
        "gpu": gpu.name if gpu else None,
        "max_batch_samples": pass_cap(entry, workload),
        "memory_bytes": memory_of(entry),
        "jitter_cv": entry.jitter_cv,
        "straggler_probability": stragglers.probability if stragglers else 0.0,
        "straggler_slowdown": stragglers.slowdown if stragglers else 1.0,
        **_tariff(profile.sources, index, entry, gpu),
        "update_s": entry.update_s,
        **_speed(profile.sources, index, entry, workload.name),
    }


def _tariff(sources: Mapping[str, str], index: int, entry: WorkerEntry, gpu: catalogue.Gpu | None) -> dict[str, Any]:
    """Price and power, stated or the catalogue's, and where they are from."""
    found: dict[str, Any] = {}
    for key, source in (("price_per_h", "price_source"), ("power_w", "power_source")):
        value = getattr(entry, key)
        if value is not None:
            named = (sources.get(f"workers.{who}.{key}") for who in (index, entry.name))
            found |= {key: value, source: next(filter(None, named), "stated")}
        elif gpu is not None and getattr(gpu, key) is not None:
            found |= {key: getattr(gpu, key), source: getattr(gpu, source)}
    return found


def _speed(sources: Mapping[str, str], index: int, entry: WorkerEntry, workload: str) -> dict[str, Any]:
    """Line, table, trace and where they come from. Stated values win over the catalogue, each part of the line."""
    speed: dict[str, Any] = {"speed_source": _provenance(sources, index, entry)}
    if isinstance(entry.trace, tuple):
        speed["trace"] = entry.trace
    if entry.step_times_s is not None:
        speed["step_times_s"] = tuple(sorted(entry.step_times_s.items()))
    if speed["speed_source"] == "catalogue" and entry.gpu is not None:
        line = catalogue.line(entry.gpu, workload)
        if line is not None:
            speed |= {"samples_per_s": line.samples_per_s, "overhead_s": line.overhead_s, "floor_s": line.floor_s}
        if entry.overhead_s is None and entry.floor_s is None:
            speed["step_times_s"] = catalogue.step_times(entry.gpu, workload) or ()
    for key in ("samples_per_s", "overhead_s", "floor_s"):
        stated = getattr(entry, key)
        if stated is not None:
            speed[key] = stated
    return speed


def _provenance(sources: Mapping[str, str], index: int, entry: WorkerEntry) -> Provenance:
    if entry.trace is not None:
        return "trace"
    for key in ("step_times_s", "samples_per_s"):
        if getattr(entry, key) is not None:
            named = (sources.get(f"workers.{who}.{key}", "") for who in (index, entry.name))
            return "calibrated" if any(text.lower().startswith("calibrated") for text in named) else "stated"
    return "catalogue"


def _network(profile: Profile) -> Network:
    entry = profile.network
    known = groups(profile)
    base = LinkEntry(bandwidth_gbit_per_s=entry.bandwidth_gbit_per_s, latency_us=entry.latency_us)
    special: dict[str, LinkEntry] = {}
    for name, link in sorted(entry.links.items(), key=lambda item: -len(known[item[0]])):  # the narrower name wins
        special |= {member: _merged(special.get(member, base), link) for member in known[name]}
    changes: dict[str, list[BandwidthChange]] = {}
    for event in profile.events:
        for member in _link_members(event, known):
            changes.setdefault(member, []).append(_change(event, entry.payload_share))
    links, node_links = [], {}
    for worker in profile.workers:
        for name in worker.members():
            link_changes = tuple(changes.get(name, ()))
            links.append(_link(special.get(name, base), entry.payload_share, link_changes))
            node_links[worker.node or name] = links[-1]
    server = _merged(base, entry.server or LinkEntry())
    return Network(
        topology=entry.topology,
        collective=entry.collective,
        links=tuple(links),
        node_links=node_links if entry.topology == "nodes" else {},
        intra_node=_link(_merged(_INTRA_NODE, entry.intra_node or LinkEntry()), 1.0),
        server=_link(server, entry.payload_share, tuple(changes.get("server", ()))),
        all_reduce_table=tuple((point.bytes, point.seconds) for point in entry.all_reduce_table),
        all_reduce_busy_table=tuple((point.bytes, point.seconds) for point in entry.all_reduce_busy_table),
        overlap_slowdown=entry.overlap_slowdown,
    )


def _link_members(event: Event, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if event.link is None:
        return ()
    return known.get(event.link, ("server",))


def _change(event: Event, payload_share: float) -> BandwidthChange:
    assert event.bandwidth_gbit_per_s is not None
    rate = _bytes_per_s(event.bandwidth_gbit_per_s, payload_share)
    return BandwidthChange(at_s=event.at_s, until_s=_until(event), bytes_per_s=rate)


def _merged(base: LinkEntry, over: LinkEntry) -> LinkEntry:
    return base.model_copy(update=over.model_dump(exclude_none=True))


def _link(entry: LinkEntry, payload_share: float, changes: tuple[BandwidthChange, ...] = ()) -> Link:
    assert entry.bandwidth_gbit_per_s is not None and entry.latency_us is not None
    rate = _bytes_per_s(entry.bandwidth_gbit_per_s, payload_share)
    return Link(bytes_per_s=rate, latency_s=entry.latency_us / 1e6, changes=changes)


def _bytes_per_s(gbit_per_s: float, payload_share: float) -> float:
    return gbit_per_s * 1e9 / 8 * payload_share
