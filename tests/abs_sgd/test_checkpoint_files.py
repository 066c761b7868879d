"""Checkpoints as files: whole or absent, complete only with every share, readable only if nothing but data."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from abs_sgd import checkpoint
from abs_sgd.checkpoint import discard_unfinished, newest, prune, read_share, seal, whole_file, write_share
from hetsim.errors import HetsimError, UsageError

pytestmark = pytest.mark.torch


def write_all(folder: Path, update: int, world: int = 2) -> None:
    for rank in range(world):
        write_share(folder, update, rank, {"x": torch.full((3,), float(update + rank))})
    assert seal(folder, update, world, {"seed": update}) is not None


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_share_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "x": torch.tensor([0.1, -0.0, float("inf")], dtype=torch.float64),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "states": {3: {"step": torch.tensor(7.0)}, 4: {}},
        "list": [1, 2.5, "three", None, True, (1, 2)],
    }
    write_share(tmp_path, 12, 0, state)
    found = seal(tmp_path, 12, 1, {"seed": 5, "options": {"a": [1]}})
    assert found == newest(tmp_path) and found is not None
    assert (found.update, found.world, found.meta) == (12, 1, {"seed": 5, "options": {"a": [1]}})
    back = read_share(found, 0)
    assert back.keys() == state.keys() and back["list"] == state["list"] and back["states"].keys() == {3, 4}
    assert torch.equal(back["x"].view(torch.int64), state["x"].view(torch.int64))  # type: ignore[attr-defined]
    assert back["half"].dtype == torch.bfloat16


def test_a_view_is_written_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    whole = torch.arange(1_000_000.0)
    path = write_share(tmp_path, 1, 0, {"part": whole[10:13]})
    assert path.stat().st_size < 10_000
    found = seal(tmp_path, 1, 1)
    assert found is not None and read_share(found, 0)["part"].tolist() == [10.0, 11.0, 12.0]


def test_only_with_all_shares_it_is_complete_and_the_last_to_write_seals(tmp_path: Path) -> None:
    assert newest(tmp_path) is None and newest(tmp_path / "absent") is None
    for rank in (2, 0):
        write_share(tmp_path, 10, rank, {})
        assert seal(tmp_path, 10, 3) is None and newest(tmp_path) is None
    write_share(tmp_path, 10, 1, {})
    assert seal(tmp_path, 10, 3) == seal(tmp_path, 10, 3) == newest(tmp_path)


def test_the_newest_is_by_number_and_those_cut_short_are_passed_over(tmp_path: Path) -> None:
    for update in (9, 10, 2_000_000_000, 100):
        write_all(tmp_path, update)
    assert newest(tmp_path).update == 2_000_000_000  # type: ignore[union-attr]
    share = tmp_path / "update-2000000000.rank-1.pt"
    share.write_bytes(share.read_bytes()[:-1])
    assert newest(tmp_path).update == 100  # type: ignore[union-attr]
    (tmp_path / "update-000000100.rank-0.pt").unlink()
    assert newest(tmp_path).update == 10  # type: ignore[union-attr]


def test_pruning_keeps_the_newest_two_and_what_is_being_written(tmp_path: Path) -> None:
    for update in (10, 20, 30):
        write_all(tmp_path, update)
    write_share(tmp_path, 15, 0, {})  # left behind
    write_share(tmp_path, 40, 1, {})  # the other rank has not come to it
    prune(tmp_path)
    kept = [f"update-{u:09d}.{end}" for u in (20, 30) for end in ("json", "rank-0.pt", "rank-1.pt")]
    assert names(tmp_path) == [*kept, "update-000000040.rank-1.pt"]
    discard_unfinished(tmp_path)
    assert names(tmp_path) == kept
    prune(tmp_path, keep=1)
    assert names(tmp_path) == kept[3:]


def test_a_write_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert names(tmp_path) == ["file"] and target.read_text() == "old"


def test_a_process_killed_while_it_writes_leaves_nothing_that_counts(tmp_path: Path) -> None:
    (tmp_path / ".update-000000010.rank-0.pt.0123.tmp").write_bytes(b"half")
    write_share(tmp_path, 10, 1, {})
    assert seal(tmp_path, 10, 2) is None and newest(tmp_path) is None
    discard_unfinished(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1, np.int64(3)]}}, r"state\['a'\]\['b'\]\[1\]: .* not int64"),
        ({"p": Path()}, "not PosixPath" if os.name == "posix" else "not WindowsPath"),
        ({(1, 2): 3}, "a key of a checkpoint .* not tuple"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, state: dict[str, object], where: str) -> None:
    with pytest.raises(TypeError, match=where):
        write_share(tmp_path, 1, 0, state)
    assert names(tmp_path) == []


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["HETSIM_TEST_PROOF"],)


def test_a_share_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = tmp_path / "it-ran"
    monkeypatch.setenv("HETSIM_TEST_PROOF", str(proof))
    write_all(tmp_path, 1, world=1)
    found = newest(tmp_path)
    assert found is not None
    torch.save({"version": 1, "update": 1, "rank": 0, "state": _Runs()}, tmp_path / "update-000000001.rank-0.pt")
    with pytest.raises(UsageError, match="not a share of a checkpoint"):
        read_share(found, 0)
    (tmp_path / "update-000000001.rank-0.pt").write_bytes(pickle.dumps(_Runs(), protocol=2))
    with pytest.raises(UsageError, match="not a share of a checkpoint") as caught:
        read_share(found, 0)
    assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)  # torch's advice: run it
    assert not proof.exists()


@pytest.mark.parametrize("said", [{"version": 1}, {"version": 1, "update": 1, "rank": 0, "state": [1]}])
def test_a_share_that_lacks_something_is_named(tmp_path: Path, said: dict[str, object]) -> None:
    write_all(tmp_path, 1, world=1)
    found = newest(tmp_path)
    assert found is not None
    torch.save(said, found.share(0))
    with pytest.raises(UsageError, match=r"update-000000001\.rank-0\.pt: (not a share|damaged)"):
        read_share(found, 0)


def test_a_share_under_another_ones_name_is_refused(tmp_path: Path) -> None:
    write_all(tmp_path, 1)
    found = newest(tmp_path)
    assert found is not None
    os.replace(tmp_path / "update-000000001.rank-0.pt", tmp_path / "update-000000001.rank-1.pt")
    with pytest.raises(UsageError, match="is the share of rank 0 after update 1"):
        read_share(found, 1)


def test_a_newer_version_is_named_and_a_broken_seal_too(tmp_path: Path) -> None:
    write_all(tmp_path, 1)
    path = tmp_path / "update-000000001.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "version": checkpoint.VERSION + 1}))
    with pytest.raises(UsageError, match=r"update-000000001\.json: checkpoint version 2, this hetsim reads up to 1"):
        newest(tmp_path)
    run = {"version": 1, "update": 1, "world": 2, "meta": {"run": []}}
    odd = [
        json.dumps({**run, **each}) for each in ({}, {"world": 0, "meta": {}}, {"meta": 1}, {"world": "a", "meta": {}})
    ]
    for text in ("{", "[]", '{"version": 1}', '"x"', "[" * 100_000, *odd):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"update-000000001\.json: (not the seal of a checkpoint|damaged) \("):
            newest(tmp_path)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="limits of file sizes are POSIX's")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # no write gets further, as on a full disk
    try:
        with pytest.raises(
            HetsimError, match=r"rank-0\.pt: cannot be written: no space left on device, 0 bytes are free"
        ):
            checkpoint.write_share(tmp_path, 1, 0, {"parameters_P": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
