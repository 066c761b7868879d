"""Checkpoints as files: written whole or not at all, complete only when every rank's share is there.

    update-000000040.rank-0.pt   one rank's share: tensors and plain values (torch.save)
    update-000000040.rank-1.pt
    update-000000040.json        the seal: version, update, number of ranks, `meta`; written last

    write_share(folder, 40, rank, state)                      # each rank, at the same point of the run
    if seal(folder, 40, world, {"seed": 0}):                  # each rank, after its share: the last one's seal succeeds
        prune(folder)                                         # the newest two are kept
    found = newest(folder)                                    # the newest complete one, None where there is none
    state = read_share(found, rank)

Every file gets a temporary name first and is renamed when it is on the disk, so that a process killed at any moment leaves no file that
looks whole and is not. No message is needed: whoever seals finds all shares or does nothing. Shares are read with `weights_only=True`, so
that a checkpoint of unknown origin cannot run code. All ranks must see the folder.

Before a run starts, or starts again, **one** process calls `discard_unfinished`: shares that a broken run left without a seal must
not be sealed together with those of the next.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abs_sgd.update import Progress, State
from hetsim.errors import HetsimError, UsageError
from hetsim.reading import read_json
from hetsim.writing import new_file, told

CHECKPOINTS = "checkpoints"  # in the folder of a run or a replay
VERSION = 1  # of the files; a changed meaning raises it
KEEP = 2  # one more than needed, should the newest be lost [our choice]
LEAST_FREE_BYTES = 1 << 26  # with less a failed write is put down to the disk [our choice]
_SHARE = re.compile(r"update-(\d{9,})\.rank-(\d+)\.pt")
_SEAL = re.compile(r"update-(\d{9,})\.json")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: after `update` updates, one share for each of `world` ranks, `meta` as it was sealed with."""

    folder: Path
    update: int
    world: int
    meta: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"update {self.update} in {self.folder}"

    def share(self, rank: int) -> Path:
        """The file of a rank."""
        return _share(self.folder, self.update, rank)


def write_share(folder: str | Path, update: int, rank: int, state: Mapping[str, Any]) -> Path:
    """Write what `rank` needs to go on after `update`: tensors, numbers, text and None, in dicts, lists and tuples.

    Raises TypeError for anything else, which could not be read back.
    """
    plain = _plain(state, "state")
    path = _share(Path(folder), update, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, {"version": VERSION, "update": update, "rank": rank, "state": plain})
    return path


def seal(folder: str | Path, update: int, world: int, meta: Mapping[str, Any] | None = None) -> Checkpoint | None:
    """Make the shares of `update` a checkpoint if all of `world` are there; None if one is missing yet. Sealing twice is harmless.

    `meta`: plain JSON values, for the one who resumes (seed, options, what the checkpoint belongs to).
    """
    folder, sizes, meta = Path(folder), [], dict(meta or {})
    for rank in range(world):
        try:
            sizes.append(_share(folder, update, rank).stat().st_size)
        except FileNotFoundError:
            return None
    said = {"version": VERSION, "update": update, "world": world, "bytes": sizes, "meta": meta}
    with whole_file(_seal(folder, update)) as temporary:
        temporary.write_text(json.dumps(said, allow_nan=False), encoding="utf-8")
    return Checkpoint(folder=folder, update=update, world=world, meta=meta)


def newest(folder: str | Path) -> Checkpoint | None:
    """The newest complete checkpoint; one whose shares are missing or cut short is passed over.

    Raises UsageError for one of a newer version of hetsim, and for a seal that is none.
    """
    for update in sorted(_sealed(Path(folder)), reverse=True):
        found = _open(Path(folder), update)
        if found is not None:
            return found
    return None


def last_checkpoint(folder: str | Path) -> str:
    """What could be gone on from, in words."""
    found = newest(folder)
    return "no checkpoint was made" if found is None else f"the last checkpoint is of {found}"


def read_share(checkpoint: Checkpoint, rank: int, device: str | torch.device = "cpu") -> dict[str, Any]:
    """What `rank` wrote, its tensors on `device`. Raises UsageError where it cannot be read."""
    path = checkpoint.share(rank)
    try:
        said = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # whatever torch raises for a file that is not its own, or holds more than data
        raise UsageError(f"{path}: not a share of a checkpoint ({unreadable(error)})") from None
    if not isinstance(said, dict) or not {"version", "update", "rank", "state"} <= set(said):
        raise UsageError(f"{path}: not a share of a checkpoint")
    _check_version(path, said["version"])
    if (said["update"], said["rank"]) != (checkpoint.update, rank):
        raise UsageError(f"{path}: is the share of rank {said['rank']} after update {said['update']}")
    with blaming(path):
        return dict(said["state"])


def unreadable(error: Exception) -> str:
    """Why torch.load refused a file, in a line; torch's own advice would be to run what is in it."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds something else than tensors and plain values, or is cut short; nothing in it was run"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn what a damaged share brings about while it is taken up into a UsageError that names the file."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise UsageError(f"{path}: damaged ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})") from None


def prune(folder: str | Path, keep: int = KEEP) -> None:
    """Remove all but the newest `keep` checkpoints, seal first, and unsealed shares older than the newest."""
    folder = Path(folder)
    sealed = sorted(_sealed(folder))
    for update in sealed[:-keep]:
        _seal(folder, update).unlink(missing_ok=True)
    kept = set(sealed[-keep:])
    for path, update in _shares(folder):
        if update not in kept and sealed and update < sealed[-1]:
            path.unlink(missing_ok=True)


def discard_unfinished(folder: str | Path) -> None:
    """Remove what a broken run left behind: shares without a seal and temporary files. Nobody may be writing."""
    folder = Path(folder)
    sealed = set(_sealed(folder))
    leftovers = [path for path, update in _shares(folder) if update not in sealed]
    for path in [*leftovers, *folder.glob(".update-*.tmp")]:
        path.unlink(missing_ok=True)


def plain_of(state: State) -> dict[str, Any]:
    """A training state as a share can hold it."""
    return {
        "parameters_P": state.parameters_P,
        "optimizer": dict(state.optimizer),
        "progress": asdict(state.progress),
        "mean_gradient_P": state.mean_gradient_P,
        "mean_square_P": state.mean_square_P,
        "outer_P": state.outer_P,
        "outer_velocity_P": state.outer_velocity_P,
        "own_mean_P": state.own_mean_P,
    }


def state_of(plain: Mapping[str, Any]) -> State:
    """The opposite of `plain_of`."""
    return State(**{**plain, "progress": Progress(**plain["progress"])})


def save_tensors(path: Path, value: Any) -> None:
    """torch.save, whole or not at all. Raises HetsimError where the disk is full or the folder cannot be written to.

    torch says of a full disk that a position is unexpected.
    """
    try:
        with told(path), whole_file(path) as temporary:
            torch.save(value, temporary)
    except RuntimeError as error:
        free = shutil.disk_usage(path.parent).free
        why = "no space left on device" if free < LEAST_FREE_BYTES else str(error).splitlines()[0]
        raise HetsimError(f"{path}: cannot be written: {why}, {free:,} bytes are free") from None


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends well and removed when it does not."""
    with new_file(path) as temporary:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())  # renamed before its data are on the disk, it could be empty after a power cut


def _open(folder: Path, update: int) -> Checkpoint | None:
    path = _seal(folder, update)
    try:
        said = read_json(path)
        version, sizes = said["version"], said.get("bytes", [])
        _check_version(path, version)
        world, meta = int(said["world"]), dict(said["meta"])
        if world < 1 or not isinstance(meta.get("run", {}), dict):
            raise ValueError("of no rank or no run")
    except FileNotFoundError:
        return None  # pruned meanwhile
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path}: not the seal of a checkpoint ({type(error).__name__}: {error})") from None
    for rank, size in zip(range(world), sizes, strict=False):
        share = _share(folder, update, rank)
        if not share.is_file() or share.stat().st_size != size:
            return None
    return Checkpoint(folder=folder, update=update, world=world, meta=meta)


def _check_version(path: Path, version: object) -> None:
    if not isinstance(version, int) or version > VERSION:
        raise UsageError(f"{path}: checkpoint version {version}, this hetsim reads up to {VERSION}: update hetsim")


def _share(folder: Path, update: int, rank: int) -> Path:
    return folder / f"update-{update:09d}.rank-{rank}.pt"


def _seal(folder: Path, update: int) -> Path:
    return folder / f"update-{update:09d}.json"


def _sealed(folder: Path) -> list[int]:
    return [int(m[1]) for path in folder.glob("update-*.json") if (m := _SEAL.fullmatch(path.name))]


def _shares(folder: Path) -> list[tuple[Path, int]]:
    return [(path, int(m[1])) for path in folder.glob("update-*.pt") if (m := _SHARE.fullmatch(path.name))]


def _plain(value: Any, where: str) -> Any:
    """A copy that `weights_only=True` reads back; a subclass (numpy's numbers, an enumeration) would not come back.

    Tensors go to the CPU, and a view is cut out of its storage, which would be saved whole.
    """
    if isinstance(value, Tensor):
        whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
        held = value.detach().cpu()
        return held if whole else held.clone()
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if isinstance(value, Mapping):
        odd = next((key for key in value if type(key) not in (int, str)), None)
        if odd is not None:
            raise TypeError(f"{where}: a key of a checkpoint is text or an int, not {type(odd).__name__}")
        return {key: _plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(inner, f"{where}[{at}]") for at, inner in enumerate(value))
    raise TypeError(f"{where}: a checkpoint holds tensors and plain values, not {type(value).__name__}")
