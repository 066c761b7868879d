"""Results as Rich tables: columns by width, units in the headers, nothing said by colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hetsim import reasons, wording
from hetsim.comparison import plain

if TYPE_CHECKING:
    from hetsim.algorithms import Algorithm
    from hetsim.cluster import StepFit
    from hetsim.convergence import Curve, Target
    from hetsim.explain import Explanation
    from hetsim.simulate import Result


def grid(*columns: str, right: frozenset[int] = frozenset()) -> Table:
    """An open table; the columns numbered in `right` hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", no_wrap=i in right)
    return table


def paragraph(label: str, text: str) -> Padding:
    """`label: text`, the label in bold."""
    return Padding(Text.assemble((f"{label}: ", "bold"), text), (0, 0, 0, 0))


def profiles(found: Mapping[str, str], default: str) -> list[Any]:
    """Names and descriptions."""
    table = grid("profile", "what it is")
    for name, description in found.items():
        table.add_row(Text(name, style="bold"), Text(description + (" (default)" if name == default else "")))
    return [table]


def gpus() -> list[Any]:
    """The catalogue: memory of each GPU, and the workloads on which it was measured."""
    from hetsim.cluster import catalogue
    from hetsim.cluster.checks import speed_known

    table = grid("GPU", "memory", "measured on", right=frozenset({1}))
    for name in catalogue.gpu_names():
        measured = [workload for workload in catalogue.workload_names() if speed_known(name, workload)]
        memory = wording.size(catalogue.gpu(name).memory_bytes)
        table.add_row(Text(name, style="bold"), memory, ", ".join(measured) or wording.NONE)
    return [
        table,
        Text("Any other GPU or workload: state your own step times (step_times_s, or hetsim import).", style="dim"),
    ]


def algorithms(known: Mapping[str, type[Algorithm]]) -> list[Any]:
    """Per algorithm what it is and where it is described, then its options with defaults."""
    out: list[Any] = []
    for name, kind in known.items():
        role = "" if kind.role == "baseline" else f"  [{kind.role}]"
        out.append(Text.assemble((name, "bold"), role))
        out.append(Padding(Text(kind.summary()), (0, 0, 0, 2)))
        if kind.source:
            out.append(Padding(Text(kind.source, style="dim"), (0, 0, 0, 2)))
        options = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for key, field in kind.Options.model_fields.items():
            default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            options.add_row(Text(f"{key}={default}"), Text(field.description or ""))
        if options.row_count:
            out.append(Padding(options, (0, 0, 0, 4)))
    return out


def simulation(result: Result, label: str) -> list[Any]:
    """Figures of one run, then the share of every worker."""
    from hetsim.export import warnings_of
    from hetsim.metrics import limited_by

    t, cluster = result.timing, result.cluster
    head = Text.assemble((label, "bold"), " on ", (cluster.name, "bold"), f", {wording.count(t.updates)} updates in ")
    head.append(f"{wording.seconds(result.schedule.horizon_s)} of simulated time, seed {result.seed}")
    figures = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in (
        ("samples/s", wording.rate(t.samples_per_s)),
        ("seconds per update", wording.seconds(t.update_period_s)),
        ("samples per update", wording.count(t.mean_batch_samples)),
        ("busy", wording.percent(t.utilisation, 1)),
        ("waiting", waiting_text(t.waiting_share, t.waiting)),
        ("staleness, updates", wording.staleness(t.staleness_mean, t.staleness_max)),
    ):
        figures.add_row(name, Text(value))
    out: list[Any] = [
        head,
        "",
        figures,
        "",
        workers(result),
        "",
        paragraph("limited by", limited_by(t, cluster, server=result.algorithm.has_server)),
    ]
    out += [paragraph("warning", w["text"]) for w in warnings_of(result, label)]
    out.append(Text("Figures over the second half of the updates. Timing only: no loss was predicted.", style="dim"))
    return out


def waiting_text(share: float, causes: Mapping[str, float]) -> str:
    """`41.0 %: 21 % for peers, 20 % for the network`."""
    names = {
        "peers": "for peers",
        "network": "for the network",
        "push": "for pushes",
        "pull": "for pulls",
        "gate": "at the gate",
    }
    parts = sorted(((v, k) for k, v in causes.items() if v >= 0.005), reverse=True)
    detail = ", ".join(f"{wording.percent(v)} {names.get(k, k)}" for v, k in parts)
    return wording.percent(share, 1) + (f": {detail}" if detail else "")


MOST_WORKERS = 16  # rows on a screen


def workers(result: Result) -> Table:
    """What each worker did; of many only the first."""
    t = result.timing
    table = grid("worker", "GPU", "samples %", "busy %", "waiting %", "last to join %", right=frozenset({2, 3, 4, 5}))
    for worker in result.cluster.workers[:MOST_WORKERS]:
        i = worker.rank
        shares = (t.sample_share[i], t.busy_share[i], t.waiting_share_by_worker[i], t.last_share[i])
        table.add_row(worker.name, worker.gpu or wording.NONE, *(f"{100 * float(s):.1f}" for s in shares))
    more = result.cluster.n - MOST_WORKERS
    if more > 0:
        table.add_row(f"and {more:,} more", "", "", "", "", "")
    return table


def explanation(e: Explanation) -> list[Any]:
    """Workers, steps, and the closed form beside the simulator."""
    unit = grid("worker", "GPU", "samples", "seconds", "samples/s", right=frozenset({2, 3, 4}))
    for part in e.parts[:MOST_WORKERS]:
        cells = (wording.count(part.samples), wording.seconds(part.seconds), wording.rate(part.samples_per_s))
        unit.add_row(part.worker, part.gpu or wording.NONE, *cells)
    if len(e.parts) > MOST_WORKERS:
        unit.add_row(f"and {len(e.parts) - MOST_WORKERS:,} more", "", "", "", "")
    steps = grid("step", "how", "value", right=frozenset({2}))
    for name, how, value in e.steps:
        steps.add_row(Text(name, style="bold"), Text(how), value)
    sides = grid("", "period", "samples per update", "samples/s", right=frozenset({1, 2, 3}))
    for name, f in (("closed form", e.closed), ("simulated, no luck", e.steady), ("simulated", e.simulated)):
        if f is not None:
            batch = f"{f.mean_batch_samples:,.1f}"
            sides.add_row(name, wording.seconds(f.update_period_s), batch, wording.rate(f.samples_per_s))
    from hetsim.algorithms import get

    head = Text.assemble("One period of ", (e.algorithm, "bold"), " on ", (e.profile, "bold"))
    defaults = get(e.algorithm).Options().model_dump(mode="json")
    chosen = wording.option_text({key: value for key, value in e.options.items() if value != defaults.get(key)})
    out: list[Any] = [head, *([Text(chosen, style="dim")] if chosen else []), "", unit, "", steps, "", sides]
    if e.closed is None:
        out.append(paragraph("no closed form", e.why))
    if e.left_out:
        out.append(paragraph("the closed form leaves out", ", ".join(e.left_out)))
    why = yardsticks({"yardsticks": plain(e.yardsticks), "sample_share": e.sample_share})
    why.add_row(
        Text(reasons.NETWORK, style="bold"), reasons.ratio(e.all_reduce_over_critical), Text(reasons.NETWORK_MEANS)
    )
    out += ["", why]
    out += [paragraph("warning", caution.text) for caution in e.warnings]
    return out


def yardsticks(row: Mapping[str, Any]) -> Table:
    """Each yardstick of one row with what it means, and who contributes."""
    table = grid("why", "", "what it means", right=frozenset({1}))
    cells = reasons.yardstick_cells(row)
    for name in reasons.shown([row]):
        table.add_row(Text(name, style="bold"), cells[name], Text(reasons.MEANINGS[name]))
    table.add_row(
        Text(reasons.WHO, style="bold"), "", Text(f"{reasons.shares(row['sample_share'])}: {reasons.WHO_MEANS}")
    )
    return table


def fits(found: Sequence[StepFit]) -> Table:
    """How recorded steps became speeds."""
    table = grid(
        "worker",
        "steps",
        "batches",
        "samples/s",
        "overhead",
        "model",
        "residual %",
        "odd",
        right=frozenset({1, 2, 3, 4, 6, 7}),
    )
    for f in found:
        residual = f"{100 * f.residual_median:.1f} (max {100 * f.residual_max:.1f})"
        cells = (
            f"{f.steps:,}",
            str(f.batches),
            wording.rate(f.samples_per_s),
            wording.seconds(f.overhead_s),
            f.model,
            residual,
        )
        table.add_row(f.worker, *cells, str(f.outliers))
    return table


def curve(found: Curve, target: Target, clock: str = "simulated time") -> list[Any]:
    """A training curve at a dozen points, and when it met its target; `clock` says whose seconds they are."""
    table = grid("update", "samples", clock, "loss", right=frozenset({0, 1, 2, 3}))
    size = len(found.loss)
    for k in sorted({round(i * (size - 1) / 11) for i in range(12)} if size else ()):
        when = wording.seconds(float(found.time_s[k])) if k else "0"
        table.add_row(f"{int(found.updates[k]):,}", f"{int(found.samples[k]):,}", when, f"{float(found.loss[k]):.4g}")
    met = found.crossing(target.value)
    if met is not None:
        text = f"{wording.seconds(met[1])} and {met[0]:,.0f} samples until {target.metric} {target.value:.4g}"
    else:
        text = f"not reached: {target.metric} {target.value:.4g}" + (" (diverged)" if found.diverged else "")
    return [table, "", paragraph("target", text), *(paragraph("assumed", text) for text in found.assumptions)]


def validation(document: Mapping[str, Any]) -> list[Any]:
    """Whether the predictions held, one row for each; then every figure of every run, and how it was run."""
    from hetsim import validation_tables as made

    rows = document["algorithms"]
    out: list[Any] = [Text.assemble(f"{document['profile']}: ", (made.headline(document), "bold")), ""]
    out += [_held(document), ""]
    for row in rows:
        if reasons := [*made.missed(row), *made.uncompared(row)]:
            out.append(paragraph(row["name"], "; ".join(reasons)))
    for row in rows:
        table = grid("", "predicted", "measured", "off", right=frozenset({1, 2, 3}))
        for line in made.lines(row):
            table.add_row(*map(Text, line))
        out += ["", Text(row["name"], style="bold"), "", table]
    return [*out, "", *(paragraph("run", text) for text in document["said"])]


def _held(document: Mapping[str, Any]) -> Table:
    """The summary; each column's tolerance is in its header."""
    from hetsim.validation_tables import summary

    columns = summary(document)
    heads = [f"{c.check.replace(' target', chr(10) + 'target')}\n{c.which}\n≤ {c.allowed}" for c in columns]
    table = grid("", "held", *heads, right=frozenset(range(2, len(heads) + 2)))
    table.columns[0].overflow = "fold"
    for column in table.columns:
        column.vertical = "bottom"
    for place, row in enumerate(document["algorithms"]):
        cells = [column.cells[place] for column in columns]
        shown = (Text(f"✗ {cell.text}", style="bold red") if cell.off else Text(cell.text) for cell in cells)
        held = Text("yes") if row["within"] else Text("no", style="bold red")
        table.add_row(Text(row["name"].replace(":", ":\n").replace(",", ",\n"), style="bold"), held, *shown)
    return table
