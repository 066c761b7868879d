"""The columns of a sweep: one row for every cell and algorithm.

    cell          number of the cell
    <field> ...   the swept fields by their paths
    algorithm ... see `COLUMNS`

Not reached, not known and not defined are null, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetsim.comparison import Row
from hetsim.sweeps.cells import Cell

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_VERSION = 1
# Name, type, meaning. Timing figures are of the first seed (`hetsim.comparison.Row`).
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("algorithm", "string", "label of the algorithm"),
    ("role", "string", "baseline or ours"),
    ("method", "string", "full: as compare computes it; steady: from the steady state of a shorter run"),
    ("seconds", "float64", "time to target, median over seeds"),
    ("low_s", "float64", "lower end of its interval"),
    ("high_s", "float64", "upper end of its interval"),
    ("reached", "int32", "seeds on which the target was reached"),
    ("speedup", "float64", "times faster than the cell's best baseline"),
    ("samples_to_target", "float64", "samples, median over seeds"),
    ("updates_to_target", "float64", "updates, median over seeds"),
    ("learning_rate", "float64", "the best of the grid"),
    ("momentum", "float64", "the best of the grid"),
    ("samples_per_s", "float64", "throughput"),
    ("update_period_s", "float64", "seconds per update"),
    ("mean_batch_samples", "float64", "samples per update"),
    ("utilisation", "float64", "share of all workers' time that they compute"),
    ("waiting_share", "float64", "share of all workers' time that they wait"),
    ("staleness_mean", "float64", "versions between a gradient and the update it is in"),
    ("limited_by", "string", "what limits it, in words"),
    ("usd_to_target", "float64", "cost to target, where every worker has a price"),
    ("kwh_to_target", "float64", "energy to target, where every worker has a power"),
)
KEY = "key"


def figures(row: Row, method: str) -> dict[str, Any]:
    """A row of a comparison as the columns of a sweep."""
    time, speedup, cost = row.time_to_target_s, row.speedup_over_best_baseline, row.cost
    return {
        "algorithm": row.name,
        "role": row.role,
        "method": method,
        "seconds": None if time is None else time.median,
        "low_s": None if time is None else time.low,
        "high_s": None if time is None else time.high,
        "reached": 0 if time is None else time.reached,
        "speedup": None if speedup is None else speedup.value,
        "samples_to_target": row.samples_to_target,
        "updates_to_target": row.updates_to_target,
        "learning_rate": row.learning_rate,
        "momentum": row.momentum,
        "samples_per_s": row.samples_per_s,
        "update_period_s": row.update_period_s,
        "mean_batch_samples": row.mean_batch_samples,
        "utilisation": row.utilisation,
        "waiting_share": row.waiting_share,
        "staleness_mean": row.staleness_mean,
        "limited_by": row.limited_by,
        "usd_to_target": None if cost is None else cost.usd_to_target,
        "kwh_to_target": None if cost is None else cost.kwh_to_target,
    }


def shard_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> pa.Table:
    """Figures of some cells by key, before they get their places."""
    import pyarrow as pa

    rows = [{KEY: key, **row} for key, rows in found.items() for row in rows]
    return pa.Table.from_pylist(rows, schema=_schema([(KEY, "string")]))


def read_shard(table: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """What `shard_table` made. Raises ValueError for another table."""
    if table.schema != _schema([(KEY, "string")]):
        raise ValueError("columns of another version")
    out: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        out.setdefault(row.pop(KEY), []).append(row)
    return out


def full_table(
    fields: Sequence[str],
    places: Sequence[tuple[int, tuple[Any, ...], str]],
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> pa.Table:
    """All cells in their order, `places` giving number, values and key of each."""
    import pyarrow as pa

    kinds = [_kind([values[i] for _, values, _ in places]) for i in range(len(fields))]
    schema = _schema([("cell", "int32"), *zip(fields, kinds, strict=True)])
    rows = [
        {"cell": number, **dict(zip(fields, map(_cast, values, kinds), strict=True)), **row}
        for number, values, key in places
        for row in found[key]
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def place_of(cell: Cell) -> tuple[int, tuple[Any, ...], str]:
    """What is kept of a cell once its cluster is known."""
    return cell.index, cell.values, cell.key


def _schema(first: Sequence[tuple[str, str]]) -> pa.Schema:
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "string": pa.string(),
        "bool": pa.bool_(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
    }
    named = [*first, *((name, kind) for name, kind, _ in COLUMNS)]
    return pa.schema([(name, kinds[kind]) for name, kind in named])


def _kind(values: Sequence[Any]) -> str:
    """The type that holds all values of a field: numbers stay numbers, everything mixed or nested is text."""
    known = {type(value) for value in values if value is not None}
    if known and known <= {int}:
        return "int64"
    if known and known <= {int, float}:
        return "float64"
    return "bool" if known == {bool} else "string"


def _cast(value: Any, kind: str) -> Any:
    import json

    if value is None or kind in ("int64", "bool"):
        return value
    if kind == "float64":
        return float(value)
    return value if isinstance(value, str) else json.dumps(value)
