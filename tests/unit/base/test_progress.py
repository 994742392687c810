"""Long jobs report their progress; short ones do not."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phaze.base import progress
from phaze.base.job import logged
from phaze.base.progress import CountedLoop, busy, counted
from phaze.commands.output import telling


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat jobs of a twentieth of a second as long."""
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    monkeypatch.setattr(progress, "EVERY_S", 0.05)


def test_a_count_says_which_of_how_many_what_is_known_and_what_is_left() -> None:
    """The remaining time is extrapolated from finished items, and falls while an item takes its time."""
    count = CountedLoop("layer", 3, 8, 100.0, 110.0, lambda: "largest gap 2 %")
    assert count.text(110.0) == "layer 3 of 8, largest gap 2 %, about 30 s left"
    assert count.text(114.0) == "layer 3 of 8, largest gap 2 %, about 26 s left"
    assert count.text(150.0) == "layer 3 of 8, largest gap 2 %"
    assert CountedLoop("plan", 1, 4, 100.0, 100.0, str).text(110.0) == "plan 1 of 4"


@pytest.mark.usefixtures("impatient")
def test_a_long_job_is_heard_on_the_terminal_and_in_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the job, and the current item of its loops."""
    with logged(tmp_path / "job.log", output="results/solves/a.parquet"):
        for _ in counted(["a", "b"], "layer", lambda: "no gap"):
            for _ in counted(range(3), "program"):
                time.sleep(0.06)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    pattern = r"progress: results/solves/a\.parquet: \d+ s, layer [12] of 2, no gap.* / program [123] of 3.*"
    assert all(re.fullmatch(pattern, line) for line in lines), lines
    assert "layer 2 of 2, no gap, about" in (tmp_path / "job.log").read_text()


def test_a_short_job_is_not_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Most jobs take less than a second."""
    with logged(tmp_path / "job.log"):
        assert list(counted("ab", "letter")) == ["a", "b"]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_fails_is_no_longer_counted(tmp_path: Path) -> None:
    """Later messages do not mention the failed loop."""

    def fail() -> Iterator[None]:
        for _ in counted([1, 2], "layer"):
            raise ValueError("broken")
        yield

    with pytest.raises(ValueError, match="broken"), logged(tmp_path / "job.log"):
        list(fail())
    assert progress._loops == []


def test_a_command_says_after_two_seconds_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with telling("map"):
        for _ in counted(["p2p"], "search"):
            with busy("compiling"):
                time.sleep(2.3)
    assert "progress: map: 2 s, search 1 of 1, compiling\n" in capsys.readouterr().err


def test_ctrl_c_ends_compiled_code_that_hears_of_no_interrupt() -> None:
    """A sum over a range runs in C for minutes, like a compiled search."""
    code = (
        "import signal\n"
        "from phaze.commands.output import ended_at_once\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a run in the background ignores it
        "print('begun', flush=True)\n"
        "with ended_at_once():\n"
        "    sum(range(10**11))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        try:
            assert child.wait(30) == -signal.SIGINT
        finally:
            child.kill()
