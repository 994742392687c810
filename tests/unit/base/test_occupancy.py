"""Locks of dead runs are removed, locks of live ones stay, and jobs know the study of their run."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.base.occupancy import STUDY, begin_run, cancel_timers, clear_dead_lock, keep_study

CLEAR = "import sys; from pathlib import Path; from phaze.base.occupancy import clear_dead_lock; "


def clear(folder: Path, then: str = "") -> subprocess.Popen[str]:
    """Clear a folder in a separate process, which prints the result and then runs another action."""
    code = f"{CLEAR}print(clear_dead_lock(Path(sys.argv[1])), flush=True); {then}"
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def says(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def locked(folder: Path) -> Path:
    """Return the lock that Snakemake leaves behind."""
    lock = folder / "locks" / "0.input.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("results/a.parquet\n")
    return lock


def test_the_lock_of_a_killed_process_gives_way_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    """A process owns the folder until it ends, for any reason."""
    with clear(tmp_path, "sys.stdin.read()") as first:
        assert says(first) == "False"
        lock = locked(tmp_path)
        with clear(tmp_path) as second:
            assert says(second) == "False"
        assert lock.exists()
        first.kill()
    with clear(tmp_path) as third:
        assert says(third) == "True"
    assert not lock.exists()


def test_another_hosts_lock_stays(tmp_path: Path) -> None:
    """Processes of another host are not visible here."""
    with clear(tmp_path) as first:
        assert says(first) == "False"
    (tmp_path / "held").write_text("some-other-host")
    lock = locked(tmp_path)
    for _ in range(2):
        with clear(tmp_path) as second:
            assert says(second) == "False"
    assert lock.exists()


def test_a_folder_that_is_no_folder_is_one_message(tmp_path: Path) -> None:
    """The message gives the fix."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PhazeError, match=r"a study cannot run here: .*; --directory names another folder"):
        clear_dead_lock(tmp_path / "file")


def test_a_run_that_begins_removes_what_dead_ones_were_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete files stay."""
    monkeypatch.setenv("PHAZE_RUN", "")
    (tmp_path / "results" / "plans").mkdir(parents=True)
    for name in (".a.parquet.0123abcd.part", "a.parquet"):
        (tmp_path / "results" / "plans" / name).write_text("x")
    begin_run(tmp_path / "results", tmp_path / ".snakemake")
    assert [path.name for path in (tmp_path / "results" / "plans").iterdir()] == ["a.parquet"]
    assert os.environ["PHAZE_RUN"].split()[0] == (tmp_path / ".snakemake" / "run").read_text()


def test_a_run_that_begins_next_to_a_live_one_takes_its_name(tmp_path: Path) -> None:
    """Jobs of the live run go on writing, and what they write stays."""
    results, unfinished = tmp_path / "results", tmp_path / "results" / ".a.parquet.0123abcd.part"
    begin = (
        "from phaze.base.occupancy import begin_run; import os; "
        f"begin_run(Path({str(results)!r}), Path(sys.argv[1])); "
        "print(os.environ['PHAZE_RUN'].split()[0], flush=True); "
    )
    with clear(tmp_path, f"{begin}sys.stdin.read()") as live:
        assert says(live) == "False"
        name = says(live)
        unfinished.write_text("x")
        with clear(tmp_path, begin) as second:
            assert [says(second), says(second)] == ["False", name]
        assert (tmp_path / "run").read_text() == name
        assert unfinished.exists()
        live.kill()
    with clear(tmp_path, begin) as third:
        assert says(third) == "False"
        assert says(third) != name
    assert not unfinished.exists()


def test_a_job_that_finds_another_study_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a run accepts the study that it finds."""
    monkeypatch.delenv(STUDY, raising=False)
    keep_study("a", begins=False, source="study.yaml")
    monkeypatch.setenv(STUDY, "")
    keep_study("a", begins=True, source="study.yaml")
    keep_study("a", begins=False, source="study.yaml")
    with pytest.raises(PhazeError, match=r"study\.yaml: the study, or a file that it names, changed"):
        keep_study("b", begins=False, source="study.yaml")
    keep_study("b", begins=True, source="of another module of the same workflow")
    for described in ("a", "b"):
        keep_study(described, begins=False, source="study.yaml")


def test_timers_of_a_finished_run_do_not_keep_it_from_ending() -> None:
    rung = threading.Event()
    timer = threading.Timer(600, rung.set)
    timer.start()
    cancel_timers()
    timer.join(60)
    assert not timer.is_alive()
    assert not rung.is_set()
