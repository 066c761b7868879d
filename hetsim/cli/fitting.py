"""fit: train for a short while, and state in a profile what the predictors need to know of this training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetsim.cli.terminal import emit, err, say
from hetsim.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from abs_sgd.fitting import Fitted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(fit)


def fit(
    profile: str = typer.Argument(..., metavar="PROFILE", help="Whose workload, batch, momentum and target."),
    workload: Annotated[
        str | None, typer.Option("--workload", metavar="NAME", help="Train this shipped one.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PKG:FN", help="Your own: returns a torch.nn.Module.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="PKG:FN", help="Your own: returns (train, held_out).", show_default=False),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="LOSS", help="Held-out loss that counts as trained.", show_default=False),
    ] = None,
    batches: str = typer.Option("", "--batches", metavar="B,...", help="Default: half and twice the profile's."),
    learning_rates: str = typer.Option(
        "", "--learning-rates", metavar="LR,...", help="Default: the middle of the workload's grid."
    ),
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", metavar="N", help="Of a run, at most. Default: 400 batches of the profile.", show_default=False
        ),
    ] = None,
    seeds: int = typer.Option(3, "--seeds", metavar="K", help="Runs of each setting."),
    device: str = typer.Option("cpu", "--device", metavar="DEVICE", help="Where to train, as torch names it."),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, not to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Fit the predictors to your own training: short runs of plain synchronous SGD, then a profile that states what they showed.

    \b
    Examples:
      hetsim fit emulated-4 -o fitted.yaml && hetsim compare fitted.yaml
      hetsim fit my.yaml --model mine:model --data mine:data --target 0.3 --learning-rates 0.02,0.05,0.1 -o fitted.yaml
    """
    try:
        import datetime

        from abs_sgd.fitted_profile import fitted_profile, settings_of, task_of
        from abs_sgd.fitting import Settings
        from abs_sgd.fitting import fit as find
    except ImportError as error:
        raise MissingExtraError("fitting", "train") from error
    from hetsim import load_profile, writing

    path = writing.check_file(output, force)
    loaded = load_profile(profile)
    task = task_of(loaded, workload=workload, model=model, data=data, device=device)
    asked = Settings(
        batches=tuple(int(value) for value in _numbers("--batches", batches, int)),
        learning_rates=_numbers("--learning-rates", learning_rates, float),
        samples=samples,
        seeds=seeds,
        target_loss=target,
    )
    found = find(
        task,
        settings_of(loaded, asked),
        told=lambda text, done, total: say(f"training {done + 1} of {total}: {text}"),
    )
    err().print(*_shown(found), sep="\n")
    made = fitted_profile(loaded, task, found, date=datetime.date.today().isoformat(), model=model, data=data).to_yaml()
    if path is None:
        emit(made)
        return
    writing.write_file(path, made)
    say(f"wrote {path}")


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} {text!r}: {what} with commas between") from None


def _shown(found: Fitted) -> list[Any]:
    from hetsim.cli import tables

    table = tables.grid("constant", "value", "standard error", right=frozenset({1, 2}))
    rows = {
        **found.quadratic.values,
        "largest_curvature": found.curvature,
        **({} if found.weight_square is None else {"weight_square": found.weight_square}),
        "min_updates": found.min_updates,
        "noise_scale_samples": found.noise_scale,
    }
    for name, value in rows.items():
        table.add_row(
            name, f"{value.value:.4g}", f"none: {value.reason}" if value.error is None else f"{value.error:.2g}"
        )
    fitted = found.quadratic
    text = (
        f"updates to a loss off by {fitted.residual:.0%} rms over all levels, by {fitted.residual_at_target:.0%} at the target, "
        f"{fitted.target_loss:g} from {fitted.initial_loss:.3g}"
    )
    out: list[Any] = [table, "", tables.paragraph("fit", text)]
    if fitted.extrapolates:
        text = f"no two runs reached the target; the lowest loss was {fitted.lowest_loss:.3g}: times to it are extrapolated"
        out.append(tables.paragraph("beware", text))
    return out
