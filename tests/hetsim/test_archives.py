"""Archives from anybody: results are found in them whatever they are packed in; what would do harm is refused in a sentence."""

from __future__ import annotations

import io
import pickle
import random
import stat
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim import archives, export, load_profile, simulate
from hetsim.archives import unpacked
from hetsim.errors import UsageError

RESULT = {"result.json": b"{}", "schedule.parquet": b"rows"}


def packed(files: Mapping[str | zipfile.ZipInfo, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    pairs = files.items() if isinstance(files, Mapping) else files
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # "Duplicate name" is meant
        for name, data in pairs:
            archive.writestr(name, data)
    return out.getvalue()


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """As Unix packs it, with the kind of file in the upper half of the attributes."""
    made = zipfile.ZipInfo(name)
    made.create_system, made.external_attr = 3, mode << 16
    return made


def refused(data: bytes) -> str:
    with pytest.raises(UsageError) as told, unpacked(data, "x.zip"):
        pass
    message = str(told.value)
    assert message.startswith("x.zip: ") and "\n" not in message and len(message) < 300
    return message


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary folders are made, and looked for, in a place of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- what is opened ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("above", ["", "held/", "my results (1)/held/"])
def test_a_result_is_found_in_whatever_folder_it_was_packed(above: str, tmp_path: Path) -> None:
    inside = {"validation.json": b"v", "predicted/result.json": b"p", "measured-1/curve.parquet": b"m"}
    with unpacked(packed({above + name: data for name, data in inside.items()})) as folder:
        assert contents(folder) == inside
    assert not list(tmp_path.iterdir())


def test_a_folder_as_hetsim_writes_it_comes_back_the_same(tmp_path: Path) -> None:
    export.write_simulation(simulate(load_profile("homogeneous-4"), "s-sgd", updates=20), tmp_path / "run")
    data = packed({path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()})
    with unpacked(data) as folder:
        material = export.read_material(folder)
    assert material.document == export.read_material(tmp_path / "run").document
    assert set(material.schedules) == {"s-sgd"} and len(material.schedules["s-sgd"]) > 20


def test_only_what_a_result_is_read_from_is_unpacked() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("was unpickled",)

    more = {"model.pkl": pickle.dumps(Trap()), "weights.pt": b"x", "inner.zip": packed(RESULT), "run.sh": b"x"}
    clutter = {"__MACOSX/._result.json": b"x", ".DS_Store": b"x", "__MACOSX/result.json": b"x"}
    with unpacked(packed({**RESULT, **more, **clutter, "report.html": b"<script>"})) as folder:
        assert contents(folder) == RESULT


def test_entries_of_folders_and_of_plain_files_with_rights_are_fine() -> None:
    files = [(entry("run/", stat.S_IFDIR | 0o755), b""), (entry("run/result.json", stat.S_IFREG | 0o4777), b"{}")]
    with unpacked(packed(files)) as folder:  # type: ignore[arg-type]
        assert contents(folder) == {"result.json": b"{}"}
        assert not (folder / "result.json").stat().st_mode & 0o4000


def test_messages_about_what_is_inside_name_the_archive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^x\.zip/held/result\.json: damaged"), unpacked(
        packed({"held/result.json": b"{"}), "x.zip"
    ) as folder:  # fmt: skip
        export.read_material(folder)


def test_tables_in_an_archive_may_have_fewer_rows(tmp_path: Path) -> None:
    export.write_simulation(simulate(load_profile("homogeneous-4"), "s-sgd", updates=20), tmp_path / "run")
    data = packed({path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()})
    with pytest.raises(UsageError, match=r"^x\.zip/schedule\.parquet: .* at most 100 are read"), unpacked(
        data, "x.zip"
    ) as folder:  # fmt: skip
        export.read_material(folder, most_rows=100)


# ---- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../result.json", "leads out of the folder"),
        ("a/../../result.json", "leads out of the folder"),
        ("a/..", "leads out of the folder"),
        ("/etc/result.json", "absolute path"),
        ("\\\\server\\result.json", "absolute path"),
        ("C:/result.json", "absolute path"),
        ("c:result.json", "absolute path"),
        ("a\\..\\result.json", "no name that every system can have"),
        ("a//result.json", "no name that every system can have"),
        ("./result.json", "no name that every system can have"),
        ("a./result.json", "no name that every system can have"),
        ("result.json:stream", "no name that every system can have"),
        ("a\nb/result.json", "no name that every system can have"),
        ("/".join("abcdefgh") + "/result.json", "longer or deeper"),
        ("a" * 151 + "/result.json", "longer or deeper"),
    ],
)
def test_names_that_lead_elsewhere(name: str, why: str, tmp_path: Path) -> None:
    assert why in refused(packed({**RESULT, name: b"x"}))
    assert not list(tmp_path.iterdir())  # nothing beside, nothing above, nothing left


def test_a_name_that_ends_early() -> None:
    data = packed({**RESULT, "result.json.exe": b"x"}).replace(b"result.json.exe", b"result.json\0exe")
    assert "no name that every system can have" in refused(data)


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices(mode: int) -> None:
    what = "is a link" if mode == stat.S_IFLNK else "is no file"
    assert what in refused(packed([("result.json", b"{}"), (entry("profile.yaml", mode | 0o777), b"/etc/passwd")]))


@pytest.mark.parametrize("name", ["result.json", "Result.JSON"])
def test_a_name_twice(name: str) -> None:
    assert "twice" in refused(packed([("result.json", b"{}"), (name, b"[]")]))


def test_a_file_that_is_also_a_folder() -> None:
    assert "both a file and a folder" in refused(
        packed({**RESULT, "profile.yaml": b"x", "profile.yaml/result.json": b"x"})
    )


def test_no_archive_an_empty_file_half_an_archive_and_a_comment() -> None:
    whole = packed(RESULT)
    assert "is empty" in refused(b"")
    for data in (b"x" * 3_000_000, b"PK", b"\x1f\x8b rest", b"{}"):
        assert "is no zip archive" in refused(data)
    for data in (whole[:-1], whole[: len(whole) // 2], whole + b"x"):
        assert "damaged archive" in refused(data)


def test_without_a_result_or_with_two() -> None:
    assert "holds no validation.json" in refused(packed({"readme.txt": b"x"}))
    assert "holds no validation.json" in refused(packed({}))
    assert "2 results (a, b)" in refused(packed({"a/result.json": b"{}", "b/comparison.json": b"{}"}))


def test_a_wrong_checksum() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("result.json", b"the real contents")
    assert "CRC" in refused(out.getvalue().replace(b"the real contents", b"the fake contents"))


def test_passwords_and_other_packings() -> None:
    whole = packed(RESULT)
    place = whole.index(b"PK\x01\x02") + 8
    assert "encrypted" in refused(whole[:place] + b"\x01\x00" + whole[place + 2 :])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("result.json", b"{}")
    assert "plain zip" in refused(out.getvalue())


def test_too_large_as_it_is() -> None:
    assert "larger than 20 MB" in refused(b"PK" + bytes(archives.MOST_PACKED_BYTES))


def test_a_bomb_is_refused_by_what_it_says_and_by_what_comes_out(tmp_path: Path) -> None:
    bomb = packed({"result.json": b"{}", "schedule.parquet": bytes(archives.MOST_BYTES)})
    assert len(bomb) < 300_000
    tracemalloc.start()
    assert "more than 200 MB" in refused(bomb)
    place = bomb.rindex(b"PK\x01\x02") + 24  # of the size in the list of contents, where it now says 1,000
    liar = bomb[:place] + struct.pack("<L", 1000) + bomb[place + 4 :]
    assert "damaged archive" in refused(liar)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert not list(tmp_path.iterdir())


def test_many_files() -> None:
    many = {f"{i}.txt": b"" for i in range(archives.MOST_FILES + 1)}
    assert "more than 2,000 files" in refused(packed({**RESULT, **many}))
    names = {f"{'n' * 120}-{i}.txt": b"" for i in range(6_000)}  # refused before the list is read
    assert "more than 2,000 files" in refused(packed(names))


@given(seed=st.integers(0, 2**32 - 1))
def test_damage_anywhere_is_told_in_a_sentence_or_does_no_harm(seed: int) -> None:
    luck = random.Random(seed)
    data = bytearray(packed({**RESULT, "a/b/profile.yaml": b"name: x\n" * 50}))
    for _ in range(luck.randint(1, 6)):
        data[luck.randrange(len(data))] = luck.randrange(256)
    try:
        with unpacked(bytes(data), "x.zip") as folder:
            assert all(path.name in archives.READ for path in folder.rglob("*") if path.is_file())
    except UsageError as error:
        assert str(error).startswith("x.zip: ")
