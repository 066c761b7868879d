"""Yardsticks: the figures of a run over what bounds them, so that a row says why it is fast or slow.

    B / B_crit         samples per update over the gradient noise scale
    lr·h / bound       learning rate × largest curvature beside the largest stable one
    period / ideal     time per update over the least in which these workers compute its samples, none ever waiting, the network free
    T / T*             time to target over T* (`hetsim.convergence.complexity`), each worker at its best rate
    C / t_crit         one all-reduce over the time in which these workers compute a critical batch: of a cluster, before any run

`hetsim.reasons` has the line that says what each one tells; whoever prints a yardstick prints its line.
"""

from __future__ import annotations

import math

from hetsim.cluster.spec import Cluster, Worker
from hetsim.comparison import Yardsticks
from hetsim.compute import pass_model
from hetsim.convergence.complexity import Difficulty, optimal_time
from hetsim.convergence.constants import constants_of
from hetsim.convergence.noise_scale import NoiseScale
from hetsim.convergence.nqm import NoisyQuadratic, circumstances
from hetsim.convergence.predictor import Setting
from hetsim.convergence.progress import progress_of
from hetsim.metrics import update_times
from hetsim.network.fabric import Fabric
from hetsim.simulate import Result

USUAL = 128  # samples of a pass at which a cluster's speed is taken [our choice]
DEEP = 10**9  # samples of a pass without a cap: on a line the rate no longer grows


def best_rate(worker: Worker, most: int | None = None) -> float:
    """Largest samples/s of a pass of at most `most` samples and of no more than memory holds; infinite for a worker that takes no time.

    On a line or between the points of a table m/t(m) has no maximum inside, so the ends are enough.
    """
    limits = [limit for limit in (most, worker.max_batch_samples) if limit is not None]
    end = max(1, min(limits, default=DEEP))
    model = pass_model(worker)
    sizes = {end, 1, *(m for m, _ in worker.step_times_s if m <= end)}
    return max(m / t if (t := model.seconds(m)) > 0 else math.inf for m in sizes)


def ideal_period(cluster: Cluster, batch: float, largest: int) -> float:
    """B / Σ v_i, v_i the best rate of passes of at most `largest` samples: no method needs less for the samples of an update."""
    return batch / math.fsum(best_rate(worker, largest) for worker in cluster.workers)


def least_time(cluster: Cluster) -> float | None:
    """T* in seconds for the workload's own target: L·Δ/ε its updates at an infinite batch, σ²/ε its noise scale; None for free workers.

    Free communication, steady speeds, every worker at its best rate.
    """
    rates = [best_rate(worker) for worker in cluster.workers]
    if not all(map(math.isfinite, rates)):
        return None
    known = constants_of(cluster.workload).noise_scale
    difficulty = Difficulty(l_delta=known.min_updates, epsilon=1.0, sigma2=known.noise_scale_samples)
    return optimal_time([1.0 / rate for rate in rates], difficulty).seconds


def critical_seconds(cluster: Cluster) -> float:
    """Time in which the workers compute a critical batch (the gradient noise scale), in passes of 128 samples or what memory holds, none
    ever waiting; 0 where a worker takes no time."""
    rates = [_usual_rate(worker) for worker in cluster.workers]
    critical = constants_of(cluster.workload).noise_scale.noise_scale_samples
    return critical / math.fsum(rates) if all(map(math.isfinite, rates)) else 0.0


def _usual_rate(worker: Worker) -> float:
    samples = min(USUAL, worker.max_batch_samples or USUAL)
    seconds = pass_model(worker).seconds(samples)
    return samples / seconds if seconds > 0 else math.inf


def all_reduce_over_critical(cluster: Cluster) -> float | None:
    """One all-reduce of the gradients at the start over `critical_seconds`; None for workers that take no time."""
    seconds = Fabric.of(cluster).all_reduce_seconds(tuple(range(cluster.n)), cluster.workload.gradient_bytes)
    critical = critical_seconds(cluster)
    return seconds / critical if critical > 0 else None


def yardsticks(result: Result, *, setting: Setting | None, seconds: float | None = None) -> Yardsticks:
    """All that applies. `setting`: learning rate and momentum on the model's scale, None where there are none; `seconds`: the time to the
    workload's own target, None where it was not reached or not asked for."""
    timing, cluster, schedule = result.timing, result.cluster, result.schedule
    known = constants_of(cluster.workload)
    curvature = bound = None
    if setting is not None and cluster.training.optimizer == "sgd":
        curvature = setting.learning_rate * known.nqm.quadratic().largest_curvature
        bound = circumstances(schedule, cluster).bound(setting.momentum)
    _, samples = update_times(schedule)
    ideal = ideal_period(cluster, timing.mean_batch_samples, int(samples.max(initial=1)))
    steps = progress_of(schedule).steps  # of a round of local steps; 1 of an update
    batch = timing.mean_batch_samples / float(steps.mean()) if len(steps) else timing.mean_batch_samples
    least = least_time(cluster)
    return Yardsticks(
        batch_over_critical=batch / known.noise_scale.noise_scale_samples,
        rate_times_curvature=curvature,
        stability_bound=bound,
        ideal_period_s=ideal,
        period_over_ideal=timing.update_period_s / ideal if ideal > 0 else None,
        least_s=least,
        time_over_least=None if least is None or seconds is None or not least > 0 else seconds / least,
    )


def on_model_scale(predictor: str, setting: Setting | None) -> Setting | None:
    """A tuned setting, where its learning rate is one of the quadratic model and not of a network trained for real."""
    return setting if predictor == NoisyQuadratic.name else None


def of_own_target(predictor: str, cluster: Cluster, seconds: float | None) -> float | None:
    """Seconds, where they are those to the workload's own target, which T* is for."""
    own = predictor == NoiseScale.name or (predictor == NoisyQuadratic.name and cluster.training.target_loss is None)
    return seconds if own else None
