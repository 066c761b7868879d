"""From profile to cluster: counts, names, units, catalogue, events."""

from __future__ import annotations

import math

import pytest

from hetsim.cluster import catalogue, load_profile
from hetsim.cluster.spec import BandwidthChange, Cluster, Link, Slowdown, Training, Workload


def cluster(body: str) -> Cluster:
    return load_profile("schema_version: 1\nname: x\n" + body).cluster()


def test_counts_expand_in_rank_order() -> None:
    c = cluster(
        "workers: [{name: a, samples_per_s: 4.0, count: 2}, {name: b, samples_per_s: 2.0}, "
        "{name: c, samples_per_s: 1.0, count: 1}]\n"
    )
    assert [(w.rank, w.name, w.group, w.node) for w in c.workers] == [
        (0, "a-0", "a", "a-0"),
        (1, "a-1", "a", "a-1"),
        (2, "b", "b", "b"),
        (3, "c-0", "c", "c-0"),
    ]
    assert [w.samples_per_s for w in c.workers] == [4.0, 4.0, 2.0, 1.0]


def test_one_worker_is_a_cluster() -> None:
    c = cluster("workers: [{name: a, samples_per_s: 4.0}]\n")
    assert c.n == 1 and c.training == Training() and c.options == {}


def test_catalogue_fills_what_is_not_stated() -> None:
    worker = cluster("workers: [{name: a, gpu: V100}]\n").workers[0]
    gpu = catalogue.gpu("V100")
    line = catalogue.line("V100", "resnet18-cifar10")
    assert line is not None
    assert worker.speed_source == "catalogue"
    assert worker.step_times_s == catalogue.step_times("V100", "resnet18-cifar10")
    assert (worker.samples_per_s, worker.overhead_s, worker.floor_s) == (
        line.samples_per_s,
        line.overhead_s,
        line.floor_s,
    )
    assert (worker.memory_bytes, worker.price_per_h, worker.power_w) == (
        gpu.memory_bytes,
        gpu.price_per_h,
        gpu.power_w,
    )


def test_stated_values_win_over_the_catalogue() -> None:
    worker = cluster(
        "workers: [{name: a, gpu: tesla v100, samples_per_s: 10.0, price_per_h: 0, power_w: 1, memory_bytes: 2e9}]\n"
    ).workers[0]
    assert worker.gpu == "V100"
    assert worker.speed_source == "stated" and worker.step_times_s == ()
    assert (worker.samples_per_s, worker.overhead_s, worker.floor_s) == (10.0, 0.0, 0.0)
    assert (worker.price_per_h, worker.power_w, worker.memory_bytes) == (0.0, 1.0, 2e9)


def test_a_stated_overhead_changes_the_catalogues_line() -> None:
    worker = cluster("workers: [{name: a, gpu: V100, overhead_s: 0.5}]\n").workers[0]
    line = catalogue.line("V100", "resnet18-cifar10")
    assert line is not None
    assert (worker.samples_per_s, worker.overhead_s) == (line.samples_per_s, 0.5)
    assert worker.step_times_s == ()  # the table would hide it


@pytest.mark.parametrize(
    "worker, sources, wanted",
    [
        ("samples_per_s: 3.0", "", "stated"),
        ("samples_per_s: 3.0", "workers.0.samples_per_s: calibrated 2026-11-03", "calibrated"),
        ("samples_per_s: 3.0", "workers.a.samples_per_s: Calibrated 2026-11-03", "calibrated"),
        ("samples_per_s: 3.0", "workers.1.samples_per_s: calibrated 2026-11-03", "stated"),
        ("samples_per_s: 3.0", "workers.0.samples_per_s: a data sheet", "stated"),
        ("step_times_s: {8: 0.1}", "workers.0.step_times_s: calibrated", "calibrated"),
        ("step_times_s: {8: 0.1}, samples_per_s: 3.0", "workers.0.samples_per_s: calibrated", "stated"),
        ("trace: [[8, 0.1]]", "", "trace"),
        ("gpu: T4", "workers.0.samples_per_s: calibrated", "catalogue"),
    ],
)
def test_speed_names_its_provenance(worker: str, sources: str, wanted: str) -> None:
    c = cluster(f"workers: [{{name: a, {worker}}}]\nsources: {{{sources}}}\n")
    assert c.workers[0].speed_source == wanted


def test_step_times_are_sorted_by_samples() -> None:
    worker = cluster("workers: [{name: a, step_times_s: {64: 0.5, 16: 0.25}}]\n").workers[0]
    assert worker.step_times_s == ((16, 0.25), (64, 0.5))


def test_memory_caps_a_pass() -> None:
    head = "workload: {name: m, gradient_bytes: 1e6, activation_bytes_per_sample: 2e5}\n"
    worker = "{name: a, samples_per_s: 1.0, memory_bytes: 9e6"
    assert cluster(head + f"workers: [{worker}}}]\n").workers[0].max_batch_samples == 25  # (9e6 - 4e6) / 2e5
    assert cluster(head + f"workers: [{worker}, max_batch_samples: 20}}]\n").workers[0].max_batch_samples == 20
    assert cluster("workers: [{name: a, samples_per_s: 1.0}]\n").workers[0].max_batch_samples is None


def test_units_become_si() -> None:
    network = cluster(
        "workers: [{name: a, samples_per_s: 1.0}]\n"
        "network: {bandwidth_gbit_per_s: 8.0, latency_us: 250.0, payload_share: 0.5, overlap_slowdown: 1.25, "
        "all_reduce_table: [{bytes: 1e6, seconds: 0.5}], intra_node: {bandwidth_gbit_per_s: 16.0}, "
        "server: {latency_us: 500.0}}\n"
    ).network
    assert network.links == (Link(bytes_per_s=0.5e9, latency_s=0.00025),)
    assert network.server == Link(bytes_per_s=0.5e9, latency_s=0.0005)
    assert network.intra_node == Link(bytes_per_s=2e9, latency_s=5e-6)  # headers are a matter of the network
    assert (network.all_reduce_table, network.overlap_slowdown) == (((1e6, 0.5),), 1.25)


def test_links_of_groups_and_members() -> None:
    links = cluster(
        "workers: [{name: a, samples_per_s: 1.0, count: 3}, {name: b, samples_per_s: 1.0}]\n"
        "network: {bandwidth_gbit_per_s: 8.0, latency_us: 0.0, links: "
        "{a-1: {bandwidth_gbit_per_s: 2.0}, a: {bandwidth_gbit_per_s: 4.0, latency_us: 1e6}}}\n"
    ).network.links
    assert [(link.bytes_per_s, link.latency_s) for link in links] == [(5e8, 1.0), (2.5e8, 1.0), (5e8, 1.0), (1e9, 0.0)]


def test_workers_of_a_node_share_its_link() -> None:
    network = cluster(
        "workers: [{name: a, samples_per_s: 1.0, count: 2, node: n}, {name: b, samples_per_s: 1.0}]\n"
        "network: {topology: nodes, bandwidth_gbit_per_s: 8.0, links: {n: {bandwidth_gbit_per_s: 4.0}}}\n"
        "events: [{at_s: 1.0, link: n, bandwidth_gbit_per_s: 0.8}]\n"
    ).network
    change = BandwidthChange(at_s=1.0, bytes_per_s=1e8)
    assert network.node_links == {
        "n": Link(bytes_per_s=5e8, latency_s=5e-5, changes=(change,)),
        "b": Link(bytes_per_s=1e9, latency_s=5e-5),
    }
    assert network.intra_node is not None and network.intra_node.bytes_per_s == 12.5e9
    assert network.links[0] == network.links[1] == network.node_links["n"]


def test_a_whole_group_may_name_its_node() -> None:
    body = (
        "workers: [{name: a, samples_per_s: 1.0, count: 2, node: n}]\n"
        "network: {topology: nodes, links: {a: {bandwidth_gbit_per_s: 4.0}}}\n"
    )
    assert cluster(body).network.node_links["n"].bytes_per_s == 5e8


def test_events_reach_workers_links_and_the_server() -> None:
    c = cluster(
        "workers: [{name: a, samples_per_s: 1.0, count: 2}, {name: b, samples_per_s: 1.0}]\n"
        "network: {payload_share: 0.5}\n"
        "events:\n"
        "  - {at_s: 10.0, worker: a, slowdown: 2.0, for_s: 5.0}\n"
        "  - {at_s: 20.0, worker: a-1, slowdown: 3.0}\n"
        "  - {at_s: 30.0, link: b, bandwidth_gbit_per_s: 8.0, for_s: 1.0}\n"
        "  - {at_s: 40.0, link: server, bandwidth_gbit_per_s: 0.8}\n"
    )
    first = Slowdown(at_s=10.0, until_s=15.0, factor=2.0)
    second = Slowdown(at_s=20.0, until_s=math.inf, factor=3.0)
    assert [w.slowdowns for w in c.workers] == [(first,), (first, second), ()]
    assert [link.changes for link in c.network.links] == [
        (),
        (),
        (BandwidthChange(at_s=30.0, until_s=31.0, bytes_per_s=0.5e9),),
    ]
    assert c.network.server is not None
    assert c.network.server.changes == (BandwidthChange(at_s=40.0, until_s=math.inf, bytes_per_s=0.5e8),)


def test_workload_by_name_and_inline() -> None:
    assert cluster("workers: [{name: a, samples_per_s: 1.0}]\n").workload == catalogue.workload("resnet18-cifar10")
    inline = cluster(
        'workload: {name: mine, gradient_bytes: 44700000, dataset_samples: 1e4, model: "pkg.mod:fn"}\n'
        "workers: [{name: a, samples_per_s: 1.0}]\n"
    ).workload
    assert inline == Workload(name="mine", gradient_bytes=44700000.0, dataset_samples=10000, model="pkg.mod:fn")


def test_everything_in_training_arrives() -> None:
    training = cluster(
        "workers: [{name: a, samples_per_s: 1.0}]\n"
        "training: {global_batch_samples: 64, micro_batch_samples: 8, learning_rate: 0.1, lr_rule: linear, "
        "momentum: 0.5, nesterov: true, weight_decay: 0.001, optimizer: adamw, warmup_updates: 3, "
        "clip_norm: 1.0, target_loss: 0.3, max_samples: 5e5, seeds: 2}\n"
    ).training
    assert training == Training(
        global_batch_samples=64,
        micro_batch_samples=8,
        learning_rate=0.1,
        lr_rule="linear",
        momentum=0.5,
        nesterov=True,
        weight_decay=0.001,
        optimizer="adamw",
        warmup_updates=3,
        clip_norm=1.0,
        target_loss=0.3,
        max_samples=500_000,
        seeds=2,
    )


def test_twenty_thousand_workers_resolve() -> None:
    c = cluster("workers: [{name: a, samples_per_s: 1.0, count: 20000}]\ntraining: {global_batch_samples: 20000}\n")
    assert c.n == 20_000 and c.workers[-1].name == "a-19999"


def test_sums_of_caps_may_be_below_the_batch() -> None:
    body = "workers: [{name: a, samples_per_s: 1.0, max_batch_samples: 16, count: 2}]\n"
    assert cluster(body).training.global_batch_samples == 256  # taken in several passes


def test_everything_in_the_worker_arrives() -> None:
    worker = cluster(
        "workers: [{name: a, samples_per_s: 1.0, overhead_s: 0.25, floor_s: 2.0, jitter_cv: 0.5, update_s: 0.125, "
        "stragglers: {probability: 0.01, slowdown: 4.0}}]\n"
    ).workers[0]
    assert (worker.overhead_s, worker.floor_s, worker.jitter_cv, worker.update_s) == (0.25, 2.0, 0.5, 0.125)
    assert (worker.straggler_probability, worker.straggler_slowdown) == (0.01, 4.0)
