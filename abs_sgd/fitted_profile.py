"""A profile that states the constants which `abs_sgd.fitting` found, with their standard errors in its sources."""

from __future__ import annotations

from dataclasses import asdict, replace

from abs_sgd import workloads
from abs_sgd.fitting import Fitted, Settings
from abs_sgd.workloads.task import Task
from abs_sgd.workloads.user import user_task
from hetsim.cluster import Profile, load_profile
from hetsim.convergence.training_fit import Estimate
from hetsim.errors import UsageError


def task_of(
    profile: Profile,
    *,
    workload: str | None = None,
    model: str | None = None,
    data: str | None = None,
    device: str = "cpu",
) -> Task:
    """What to train: the caller's `model` and `data`, or a shipped `workload`, or the profile's own. Raises UsageError."""
    if (model is None) != (data is None):
        raise UsageError("--model and --data go together")
    batch = profile.training.global_batch_samples
    if model and data:
        return user_task(model, data, reference_batch_samples=batch, device=device)
    if workload is not None:
        return replace(workloads.get(workload, device=device), reference_batch_samples=batch)
    return replace(workloads.get(profile.cluster().workload, device=device), reference_batch_samples=batch)


def settings_of(profile: Profile, settings: Settings) -> Settings:
    """Momentum and target from the profile where the caller states none. Raises UsageError where its optimizer has no quadratic model."""
    if profile.training.optimizer != "sgd":
        raise UsageError(
            f"the quadratic model is of SGD with momentum, the profile's optimizer is {profile.training.optimizer}"
        )
    target = profile.training.target_loss if settings.target_loss is None else settings.target_loss
    momentum = profile.training.momentum if settings.momentum is None else settings.momentum
    return replace(settings, target_loss=target, momentum=momentum)


def fitted_profile(
    profile: Profile, task: Task, fitted: Fitted, *, date: str, model: str | None = None, data: str | None = None
) -> Profile:
    """The profile with `workload.convergence` and the target of the fit; what `hetsim compare` then predicts with."""
    cluster = profile.cluster()
    workload = {key: value for key, value in asdict(cluster.workload).items() if value is not None}
    workload["convergence"] = asdict(fitted.convergence(task.name))
    if model and data:
        workload |= {"model": model, "dataset": data, "dataset_samples": task.samples}
    document = profile.model_dump(mode="python", exclude_none=True, exclude={"extends"})
    document["workload"] = workload
    document["training"]["target_loss"] = fitted.quadratic.target_loss
    document["sources"] = {**document.get("sources", {}), **_sources(fitted, date)}
    return load_profile(Profile.model_validate(document).to_yaml())


def _sources(fitted: Fitted, date: str) -> dict[str, str]:
    asked = fitted.settings
    runs = (
        f"{len(fitted.runs)} runs of synchronous SGD, momentum {asked.momentum:g}, batches {_listed(asked.batches)}, "
        f"learning rates {_listed(asked.learning_rates)}, {asked.seeds} seed{'s' * (asked.seeds != 1)} each"
    )
    found = fitted.quadratic
    out = {
        "workload.convergence": f"fitted {date} to {runs}; updates to a loss off by {found.residual:.0%} rms, at the target by "
        f"{found.residual_at_target:.0%}" + ("; no run reached the target: extrapolated" if found.extrapolates else ""),
        "training.target_loss": "the target that the constants were fitted for",
        "workload.convergence.largest_curvature": f"Lanczos on the mean Hessian along a run{_error(fitted.curvature)}",
        "workload.convergence.noise_scale_samples": f"from gradients of unequal batches along a run{_error(fitted.noise_scale)}",
        "workload.convergence.min_updates": f"from the fewest updates of each batch{_error(fitted.min_updates)}",
    }
    if fitted.weight_square is not None:
        said = f"of the weights whose gradient is at right angles to them{_error(fitted.weight_square)}"
        out["workload.convergence.weight_square"] = said
    for name, value in found.values.items():
        out[f"workload.convergence.{name}"] = f"fitted{_error(value)}"
    return out


def _error(found: Estimate) -> str:
    if found.error is None:
        return f", no standard error: {found.reason}" if found.reason else ""
    return f", standard error {found.error:.2g}"


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
