"""A file is whole or absent, and only the present run of a folder writes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.errors import PhazeError
from phaze.files import RUN, atomic_path, name_run, write_text


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """The final name exists only after the block, with the whole content, and nothing else is left."""
    final = tmp_path / "results" / "table.json"
    with atomic_path(final) as path:
        path.write_text("{}")
        assert (path.parent, final.exists()) == (final.parent, False)
    assert [(file.name, file.read_text()) for file in final.parent.iterdir()] == [("table.json", "{}")]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """When writing fails, what was there stays and no piece of the new file remains."""
    final = tmp_path / "table.json"
    final.write_text("old")

    def write_badly() -> None:
        with atomic_path(final) as path:
            path.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(PhazeError, match=r"table\.json: cannot be written: disk full"):
        write_badly()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("table.json", "old")]


def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path) -> None:
    """Whoever may write in /dev would otherwise replace /dev/null by a file."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PhazeError, match=r"pipe: cannot be written: is no plain file"):
        write_text(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_text_is_written_as_it_is(tmp_path: Path) -> None:
    """Line ends and letters stay, on every platform."""
    write_text(tmp_path / "folder" / "page.md", "α\r\nβ\n")
    assert (tmp_path / "folder" / "page.md").read_bytes() == "α\r\nβ\n".encode()


def test_a_job_of_a_run_that_was_replaced_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an orphan would write may belong to settings that have changed since."""
    monkeypatch.delenv(RUN, raising=False)
    name_run(tmp_path / "run")
    write_text(tmp_path / "first.txt", "1")
    of_the_first = os.environ[RUN]
    name_run(tmp_path / "run")
    write_text(tmp_path / "second.txt", "2")
    monkeypatch.setenv(RUN, of_the_first)
    with pytest.raises(PhazeError, match=r"third\.txt: not written: another run has begun"):
        write_text(tmp_path / "third.txt", "3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.txt", "run", "second.txt"]


def test_a_folder_that_was_cleared_stops_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name of a run nothing says that another one has begun."""
    monkeypatch.setenv(RUN, f"abc {tmp_path / 'run'}")
    write_text(tmp_path / "table.txt", "1")
    assert (tmp_path / "table.txt").read_text() == "1"


def test_a_full_disk_is_one_message_that_names_the_file(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does, and leaves nothing behind."""
    code = (
        "import resource, signal, sys\n"
        "from phaze.errors import PhazeError\n"
        "from phaze.files import write_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_text(sys.argv[1], 'x' * 5000)\n"
        "except PhazeError as error:\n"
        "    print(error)\n"
    )
    path = tmp_path / "table.csv"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []
