"""calibrate: measure this machine, or under torchrun this cluster, and write its profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit, err, say
from hetsim.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from abs_sgd.calibration import Calibration, Estimate


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(calibrate)


def calibrate(
    ranks: int = typer.Option(
        2, "--ranks", min=1, max=64, metavar="N", help="Processes; under torchrun those that it starts."
    ),
    workload: str = typer.Option("digits-cnn", "--workload", metavar="NAME", help="A shipped workload."),
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PKG:FN", help="Your own: returns a torch.nn.Module.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="PKG:FN", help="Your own: returns (train, held_out).", show_default=False),
    ] = None,
    batches: str = typer.Option("8,16,32,64", "--batches", metavar="M,...", help="Batch sizes to time."),
    payloads: Annotated[
        str | None,
        typer.Option(
            "--payloads",
            metavar="BYTES,...",
            help="Sizes of the all-reduces. Default: 16 KiB to 16 MiB.",
            show_default=False,
        ),
    ] = None,
    repeats: int = typer.Option(
        20, "--repeats", min=1, metavar="K", help="Measurements of each, after warm-up; medians count."
    ),
    device: str = typer.Option("auto", "--device", metavar="auto|cpu|cuda", help="Where to compute."),
    cpu_shares: arg.CpuShares = None,
    name: str = typer.Option("calibrated", "--name", metavar="NAME", help="Name of the profile."),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, not to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", metavar=arg.FLAG, help="Replace a file that exists.")] = False,
) -> None:
    """Measure this machine or cluster (passes, all-reduces, how they slow each other down) and write its profile.

    What was found goes to stderr.

    \b
    Examples:
      hetsim calibrate -o here.yaml
      hetsim calibrate --workload digits-mlp --ranks 4 --batches 16,64,256 -o here.yaml
      hetsim calibrate --model mine:model --data mine:data -o here.yaml
      torchrun --nproc-per-node 4 -m hetsim calibrate --workload resnet18-cifar10 -o cluster.yaml
    """
    try:
        from abs_sgd.calibrate import Settings, under_torchrun
        from abs_sgd.calibrate import calibrate as measure
    except ImportError as error:
        raise MissingExtraError("measuring", "train") from error
    from hetsim import writing

    path = writing.check_file(output, force)
    settings = Settings(
        workload=workload,
        model=model,
        data=data,
        batches=_sizes("--batches", batches),
        payloads=_sizes("--payloads", payloads or ""),
        ranks=ranks,
        repeats=repeats,
        device=device,
        name=name,
        cpu_shares=arg.numbers("--cpu-shares", cpu_shares or ""),
    )
    if not under_torchrun():
        say(f"measuring {'1 process' if settings.world == 1 else f'{settings.world} processes'} on this machine")
    found = measure(settings)
    if found is None:  # rank 0 writes
        return
    err().print(*_shown(found), sep="\n")
    if path is None:
        emit(found.profile.to_yaml())
        return
    writing.write_file(path, found.profile.to_yaml())
    say(f"wrote {path}")


def _sizes(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r}: whole numbers with commas between, as in 8,16,32") from None


def _shown(found: Calibration) -> list[Any]:
    from hetsim import wording
    from hetsim.cli import tables

    out: list[Any] = [tables.fits(found.fits), ""]
    if found.all_reduce_s:
        busy = dict(found.busy_all_reduce_s)
        heads = ["all-reduce of", "takes", "standard error", *["while all compute", "standard error"] * bool(busy)]
        table = tables.grid(*heads, right=frozenset(range(len(heads))))
        for payload, took in found.all_reduce_s:
            cells = [
                text
                for each in (took, busy.get(payload))
                if each
                for text in (wording.seconds(each.value), _error(each))
            ]
            table.add_row(f"{payload:,} bytes", *cells)
        out += [table, ""]
    for device in dict.fromkeys(found.devices):
        out.append(tables.paragraph("device", f"{device} × {found.devices.count(device)}"))
    if found.link is not None:
        rate = found.link.bytes_per_s
        text = (
            f"{rate.value * 8 / 1e9:.3g} Gbit/s and {found.link.latency_s.value * 1e6:.3g} µs would explain the table"
        )
        if len(found.all_reduce_s) > 2:  # two points leave no residual
            text += f", residual {found.link.residual_median:.1%}"
        out.append(tables.paragraph("links", text))
    if found.overlap_slowdown is not None:
        shared = found.overlap_slowdown
        out.append(tables.paragraph("overlap", f"a pass takes {shared.value:.3g} times as long beside an all-reduce"))
    elif found.all_reduce_s:
        text = "not measured: no pass ended while an all-reduce was in flight; more --repeats or larger --payloads"
        out.append(tables.paragraph("overlap", text))
    return out


def _error(found: Estimate) -> str:
    return "" if found.error is None else f"{found.error / found.value:.1%}"
