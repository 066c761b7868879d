"""Warnings of a comparison: where its numbers reach beyond what is known or what is wise.

batch-past-critical, unstable-learning-rate, learning-rate-near-bound    the profile's own setting (`hetsim.convergence.stability`)
extrapolated-compute, extrapolated-network                              batches or payloads outside what was measured
catalogue-speeds                                                         speeds measured by others
not-reached, grid-edge                                                   the target missed; the best setting at the edge of the grid
idle-worker, out-of-memory                                               a worker that contributes nothing; too little memory
profile-batch                                                            an open batch leads fixed ones that could be larger
constants-not-fitted                                                     the loss of another problem stands for this workload's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetsim import wording
from hetsim.algorithms import registry
from hetsim.cluster import catalogue
from hetsim.cluster.spec import Cluster
from hetsim.comparison import Row
from hetsim.compute import pass_model
from hetsim.convergence.constants import DEFAULT, constants_of
from hetsim.convergence.nqm import NoisyQuadratic
from hetsim.convergence.predictor import Setting
from hetsim.convergence.stability import Caution
from hetsim.memory import pass_sizes
from hetsim.simulate import Result
from hetsim.verdict import BASELINE, fastest

NOTHING = 0.001  # [our choice] share of the samples below which a worker contributes nothing
SELDOM = (
    0.01  # [our choice] share of a worker's passes that may lie outside the measured batches, such as the last of a run
)
WIDER = 1.5  # [our choice] times the profile's batch, from which on a verdict is one about batches
SHOWN = 5  # names listed before "and n more"


def cautions_of_run(row: Row, result: Result) -> list[Caution]:
    """What a run alone shows: idle workers, memory, batch and learning rate of the profile. `row`: its row, by whatever name it goes."""
    return [*idle_workers(row), *memory(row, result.cluster), *setting(row.name, result)]


def cautions_of_cluster(runs: Mapping[str, Result]) -> list[Caution]:
    """What holds for all runs on a cluster together, each said once."""
    cluster = next(iter(runs.values())).cluster
    return [*catalogue_speeds(cluster), *compute_range(cluster, runs), *network_range(cluster)]


def catalogue_speeds(cluster: Cluster) -> list[Caution]:
    """Speeds that nobody measured on this cluster."""
    by_gpu: dict[str, list[str]] = {}
    for w in cluster.workers:
        if w.speed_source == "catalogue":
            by_gpu.setdefault(w.gpu or wording.NONE, []).append(w.name)
    if not by_gpu:
        return []
    whose = listed([f"{gpu} ({listed(names)})" for gpu, names in by_gpu.items()])
    text = f"The speeds of {whose} are the catalogue's, measured by others on other machines; measure your own for decisions."
    odd = filter(None, (catalogue.remark(gpu, cluster.workload.name) for gpu in by_gpu))
    return [Caution("catalogue-speeds", " ".join((text, *odd)))]


def compute_range(cluster: Cluster, runs: Mapping[str, Result]) -> list[Caution]:
    """Passes smaller or larger than the measured ones of a table or trace."""
    sizes: list[dict[str, set[int]]] = [{} for _ in cluster.workers]
    for label, result in runs.items():
        for rank, passes in enumerate(pass_sizes(result.schedule, cluster)):
            model = pass_model(cluster.workers[rank])
            outside = {size for size in passes if model.extrapolates(size)}
            if sum(passes[size] for size in outside) > SELDOM * passes.total():
                sizes[rank][label] = outside
    out = []
    for worker, outside_by_label in zip(cluster.workers, sizes, strict=True):
        if not outside_by_label:
            continue
        measured = [m for m, _ in (worker.step_times_s or worker.trace)]
        beyond = set().union(*outside_by_label.values())
        text = (
            f"{worker.name} computes passes of {spread(beyond)} sample{'' if beyond == {1} else 's'} ({listed(list(outside_by_label))}) "
            f"where {spread(set(measured))} were measured."
        )
        out.append(Caution("extrapolated-compute", text))
    return out


def network_range(cluster: Cluster) -> list[Caution]:
    """Gradients smaller or larger than the payloads of a measured table."""
    measured = [size for size, _ in cluster.network.all_reduce_table]
    size = cluster.workload.gradient_bytes
    if not measured or min(measured) <= size <= max(measured):
        return []
    span = f"{wording.size(min(measured))} to {wording.size(max(measured))}"
    return [
        Caution("extrapolated-network", f"Gradients of {wording.size(size)} lie outside the measured payloads, {span}.")
    ]


def idle_workers(row: Row) -> list[Caution]:
    """Workers whose samples are next to nothing."""
    idle = [name for name, share in row.sample_share.items() if share < NOTHING]
    if not idle:
        return []
    return [Caution("idle-worker", f"{row.name}: {listed(idle)} contributes less than {NOTHING:.1%} of the samples.")]


def memory(row: Row, cluster: Cluster) -> list[Caution]:
    """Workers that need more memory than their GPU has."""
    out = []
    for worker in cluster.workers:
        needed = row.memory_bytes[worker.name]
        if worker.memory_bytes is not None and needed > worker.memory_bytes:
            has = wording.size(worker.memory_bytes)
            text = f"{row.name}: {worker.name} needs about {wording.size(needed)} and has {has}; set max_batch_samples."
            out.append(Caution("out-of-memory", text))
    return out


def setting(label: str, result: Result) -> list[Caution]:
    """The profile's own learning rate, momentum and batch, by the model's curvature and noise scale."""
    training = result.cluster.training
    own = Setting.of(training)
    found = NoisyQuadratic().cautions(result.schedule, result.cluster, own)
    return [Caution(c.code, f"{label}, at the profile's own setting, untuned: {c.text}") for c in found]


def target_cautions(row: Row, at_edge: bool) -> list[Caution]:
    """A target that was missed, and a best setting with nothing tried beyond it."""
    out = []
    time = row.time_to_target_s
    if time is not None and time.reached < time.seeds:
        which = (
            "the target is not reached"
            if not time.reached
            else f"the target is reached on {time.reached} of {time.seeds} seeds"
        )
        far = "" if row.tried_s is None else f" ({row.tried_samples or 0:,} samples, {wording.seconds(row.tried_s)})"
        text = f"{row.name}: {which} as far as it was followed{far}."
        out.append(Caution("not-reached", text))
    elif at_edge and row.learning_rate is not None:
        text = f"{row.name}: the best learning rate, {row.learning_rate:.3g}, lies at the edge of the grid; a wider one may do better."
        out.append(Caution("grid-edge", text))
    return out


def comparison_cautions(rows: Sequence[Row], cluster: Cluster) -> list[Caution]:
    """What a verdict over these rows rests on."""
    return [*not_fitted(cluster), *profile_batch(rows, cluster)]


def not_fitted(cluster: Cluster) -> list[Caution]:
    """Constants of a problem that is not this workload's."""
    known, name = constants_of(cluster.workload), cluster.workload.name
    if known.name != DEFAULT or name == DEFAULT:
        return []
    text = (
        f"The loss is that of a textbook problem, not fitted to {name}: learning rates, batches and times to target are that problem's, "
        "the timing is your own. `hetsim fit` measures its constants."
    )
    return [Caution("constants-not-fitted", text)]


def profile_batch(rows: Sequence[Row], cluster: Cluster) -> list[Caution]:
    """The network sets the batch of a leader with open batches, the profile that of the best baseline: another profile, another leader."""
    leader, baseline = fastest(rows), fastest([row for row in rows if row.role == BASELINE])
    if leader is None or baseline is None or not _is_open(leader) or _is_open(baseline):
        return []
    batch = cluster.training.global_batch_samples
    if leader.mean_batch_samples <= WIDER * batch:
        return []
    text = (
        f"{leader.name} sums {leader.mean_batch_samples:,.0f} samples an update, which the network sets, {baseline.name} the profile's "
        f"{batch:,}: with more it may be faster. `hetsim plan --batches {batch},{2 * batch},{4 * batch}` tries them."
    )
    return [Caution("profile-batch", text)]


def _is_open(row: Row) -> bool:
    return registry()[row.algorithm].split == "open"


def listed(names: Sequence[str]) -> str:
    """a, b and 3 more."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def spread(sizes: set[int]) -> str:
    """64, or 32 to 256."""
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def unique(found: Sequence[Caution]) -> tuple[Caution, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(found))
