"""Files and folders are there whole or not at all, whoever else writes there and whatever a killed process has left."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hetsim.errors import UsageError
from hetsim.writing import check_file, check_folder, new_file, new_folder, write_file, write_text

posix = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and byte names of POSIX")
WRITES = "import os, signal, sys\nfrom hetsim.writing import new_folder, write_text\n"


def text_in(folder: Path) -> str:
    return (folder / "result.json").read_text(encoding="utf-8")


def write(folder: Path, text: str, force: bool = False) -> None:
    with new_folder(folder, force) as temporary:
        write_text(temporary / "result.json", text)


def child(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITES + code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@posix
def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "with new_folder(sys.argv[1]) as f:\n    write_text(f / 'a', 'a')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert child(code, tmp_path / "run").wait(60) != 0
    (tmp_path / ".run.note").write_text("not a temporary name", encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == 2
    write(tmp_path / "run", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.note", "run"]


@posix
def test_a_folder_that_a_killed_process_had_moved_aside_comes_back(tmp_path: Path) -> None:
    write(tmp_path / "run", "old")
    code = (
        "replace, calls = os.replace, []\n"
        "def dies(*paths):\n"
        "    calls.append(paths)\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if len(calls) == 2 else replace(*paths)\n"
        "os.replace = dies\n"
        "with new_folder(sys.argv[1], force=True) as f:\n    write_text(f / 'result.json', 'new')\n"
    )
    assert child(code, tmp_path / "run").wait(60) != 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="exists"):
        check_folder(tmp_path / "run", force=False)
    assert text_in(tmp_path / "run") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@posix
def test_what_a_running_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    code = (
        "with new_folder(sys.argv[1], force=True) as f:\n"
        "    write_text(f / 'result.json', 'theirs')\n    print('there', flush=True)\n    sys.stdin.read()\n"
    )
    other = child(code, tmp_path / "run")
    assert other.stdout is not None and other.stdout.readline() == "there\n"
    write(tmp_path / "run", "mine")
    assert text_in(tmp_path / "run") == "mine"
    other.communicate(timeout=60)
    assert other.returncode == 0
    assert text_in(tmp_path / "run") == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_of_two_who_write_to_one_place_the_first_stays_unless_the_second_forces(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="something else has just written it"),
        new_folder(tmp_path / "run") as slow,
    ):
        write_text(slow / "result.json", "slow")
        write(tmp_path / "run", "quick")
    assert text_in(tmp_path / "run") == "quick"
    with new_folder(tmp_path / "run", force=True) as slow:
        write_text(slow / "result.json", "slow")
        write(tmp_path / "run", "quick again", force=True)
    assert text_in(tmp_path / "run") == "slow"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_many_at_once_leave_one_whole_folder_and_nothing_else(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: write(tmp_path / "run", str(k), force=True), range(200)))
        list(pool.map(lambda k: write_file(tmp_path / "file", str(k)), range(200)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
    assert 0 <= int(text_in(tmp_path / "run")) < 200
    assert 0 <= int((tmp_path / "file").read_text(encoding="utf-8")) < 200


def test_an_interrupt_while_the_old_folder_is_moved_aside_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run", "old")
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        if str(target).endswith(".old"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run", "new", force=True)
    assert text_in(tmp_path / "run") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "run", "old")
    (tmp_path / "link").symlink_to(tmp_path / "run", target_is_directory=True)
    write(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink() and text_in(tmp_path / "run") == "new"
    (tmp_path / "file").write_text("old", encoding="utf-8")
    (tmp_path / "to-file").symlink_to(tmp_path / "file")
    write_file(tmp_path / "to-file", "new")
    assert (tmp_path / "to-file").is_symlink() and (tmp_path / "file").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("place", ["", ".", "..", "/", "../here", "a\0b", "x" * 300, "none/below"])
def test_places_where_no_folder_can_be_put(
    place: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    write(here, "mine")
    write_text(tmp_path / "result.json", "also a result's folder")
    monkeypatch.chdir(here)
    with pytest.raises(UsageError):
        check_folder(place, force)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "result.json", "result.json"]


def test_an_empty_folder_is_filled_unless_one_stands_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is where you are"):
        check_folder("", False)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "filled")
    assert text_in(tmp_path / "empty") == "filled"


def test_a_file_and_what_would_be_below_it_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="file: is a file"):
        check_folder(tmp_path / "file", True)
    with pytest.raises(UsageError, match="there is no folder"):
        check_folder(tmp_path / "file" / "below", True)


@posix
def test_a_name_that_is_not_utf_8_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        check_folder(tmp_path / os.fsdecode(b"\xff"), False)


@pytest.mark.parametrize("place", ["", ".", "/", "a\0b", "none/below"])
def test_places_where_no_file_can_be_put(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        check_file(place, force=True)


@posix
def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(UsageError, match="no file that could be replaced"):
            check_file(place, force=True)
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_is_as_it_was_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError), new_file(tmp_path / "file") as temporary:
        write_text(temporary, "half")
        raise RuntimeError
    assert (tmp_path / "file").read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
