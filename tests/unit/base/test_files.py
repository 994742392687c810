"""A file is complete or absent, and only the current run of a folder writes it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.base import files
from phaze.base.errors import PhazeError
from phaze.base.files import MOST_READ, RUN, atomic_path, name_run, read_text, refuse_unwritable, write_text


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """The final name exists only after the block, with the complete content, and no other file is left."""
    final = tmp_path / "results" / "table.json"
    with atomic_path(final) as path:
        path.write_text("{}")
        assert (path.parent, final.exists()) == (final.parent, False)
    assert [(file.name, file.read_text()) for file in final.parent.iterdir()] == [("table.json", "{}")]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """If writing fails, the old content stays and no part of the new file remains."""
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
    """Otherwise a user who may write in /dev could replace /dev/null by a file."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PhazeError, match=r"pipe: cannot be written: not a regular file"):
        write_text(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_text_is_written_as_it_is(tmp_path: Path) -> None:
    """Line ends and characters stay unchanged on every platform."""
    write_text(tmp_path / "folder" / "page.md", "α\r\nβ\n")
    assert (tmp_path / "folder" / "page.md").read_bytes() == "α\r\nβ\n".encode()


def test_a_job_of_a_run_that_was_replaced_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of an orphan may belong to settings that have changed since."""
    monkeypatch.delenv(RUN, raising=False)
    name_run(tmp_path / "run")
    write_text(tmp_path / "first.txt", "1")
    of_the_first = os.environ[RUN]
    name_run(tmp_path / "run")
    write_text(tmp_path / "second.txt", "2")
    monkeypatch.setenv(RUN, of_the_first)
    with pytest.raises(PhazeError, match=r"third\.txt: not written: another run has started"):
        write_text(tmp_path / "third.txt", "3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.txt", "run", "second.txt"]


def test_a_folder_that_was_cleared_stops_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recorded run, a job cannot tell that another run has started."""
    monkeypatch.setenv(RUN, f"abc {tmp_path / 'run'}")
    write_text(tmp_path / "table.txt", "1")
    assert (tmp_path / "table.txt").read_text() == "1"


def test_a_full_disk_is_one_message_that_names_the_file(tmp_path: Path) -> None:
    """A limit on file size fails like a full disk, and leaves no file behind."""
    code = (
        "import resource, signal, sys\n"
        "from phaze.base.errors import PhazeError\n"
        "from phaze.base.files import write_text\n"
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


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    """Also a dangling link, and a link to a link."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/table.txt").write_text("old")
    for name, target in (("link", "there/table.txt"), ("new", "there/new.txt"), ("twice", "link")):
        (tmp_path / name).symlink_to(target)
        refuse_unwritable(tmp_path / name)
        write_text(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text() == name
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["new.txt", "table.txt"]


def test_links_in_a_circle_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (refuse_unwritable, lambda path: write_text(path, "x")):
        with pytest.raises(PhazeError, match=r"a: cannot be written: its symbolic links form a loop"):
            write(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "table.txt"
    path.write_text("old")
    path.chmod(mode)
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert stat.S_IMODE(temporary.stat().st_mode) & 0o077 == mode & 0o077, (
            "nobody else may read it either"
        )
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_has_no_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, a file beyond the limit (sparse here), and a pipe."""
    with pytest.raises(OSError, match="is a device, not a file"):
        read_text(Path("/dev/zero"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MOST_READ + 1)
    with pytest.raises(OSError, match="has 268,435,457 bytes; the limit is 268,435,456"):
        read_text(tmp_path / "large")
    monkeypatch.setattr(files, "MOST_READ", 1000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for size in (1000, 1001):
        with subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'w').write('a' * {size})"]):
            if size == 1000:
                assert read_text(pipe) == "a" * 1000
            else:
                with pytest.raises(OSError, match="has more than 1,000 characters"):
                    read_text(pipe)
