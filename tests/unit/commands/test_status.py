"""Progress of a study from Snakemake's output and measured job times."""

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.commands import study
from phaze.commands.study import (
    RuleProgress,
    in_words,
    read_counts,
    read_summary,
    seconds_left,
    stages_of,
    study_status,
)

HEADER = "output_file\tdate\trule\tlog-file(s)\tstatus\tplan"


def summary(*rows: tuple[str, str, str, str]) -> str:
    """Return Snakemake's output for files of a rule with a log, a status and a plan."""
    return "\n".join([HEADER, *("\t".join(("x", "-", *row)) for row in rows)])


STATS = """Building DAG of jobs...
Job stats:
job         count
--------  -------
place           3
report          1
all             1
total           5

Would remove nothing.
"""


def test_the_jobs_that_are_left_are_those_of_a_dry_run() -> None:
    """Missing files do not show which of them one job makes."""
    assert read_counts(STATS) == {"place": 3, "report": 1, "all": 1, "total": 5}
    assert read_counts("Nothing to be done (all requested files are present and up to date).\n") == {}


def test_the_rest_takes_what_jobs_took_before(tmp_path: Path) -> None:
    """A rule takes as long as its measured jobs; a rule that never ran takes the mean of the others."""
    for name, seconds in {"extract": 2.0, "place": 10.0}.items():
        folder = tmp_path / "results" / "benchmarks" / name
        folder.mkdir(parents=True)
        (folder / "a.tsv").write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00:00\t1.0\n")
    files = read_summary(
        summary(
            ("report", "-", "missing", "update pending"),
            ("report", "-", "missing", "update pending"),
            ("place", "results/logs/place/a.log", "ok", "no update"),
            ("place", "results/logs/place/a.log", "ok", "no update"),
            ("place", "results/logs/place/b.log", "params changed", "update pending"),
            ("place", "results/logs/place/c.log", "ok", "update pending"),
            ("place", "-", "missing", "update pending"),
            ("extract", "results/logs/extract/a.log", "ok", "no update"),
        )
    )
    stages = stages_of(files, read_counts(STATS), tmp_path)
    expected = [("extract", 1, 0, 2.0), ("place", 1, 3, 10.0), ("report", 0, 1, None)]
    assert [(s.rule, s.done, s.left, s.job_s) for s in stages] == expected
    reasons = ("not made yet", "its settings or its code changed", "what it depends on is made again")
    assert stages[1].reasons == reasons
    assert seconds_left(stages) == pytest.approx(3 * 10.0 + 6.0)


def test_without_any_measurement_nothing_is_said_of_the_rest() -> None:
    """No estimate is better than a guess."""
    assert seconds_left([RuleProgress("extract", 0, 3, ("not made yet",), None)]) is None


@pytest.mark.parametrize(("seconds", "words"), [(7.2, "7 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_are_said_as_a_reader_says_them(seconds: float, words: str) -> None:
    """Long times are not printed in seconds."""
    assert in_words(seconds) == words


def test_an_installation_without_the_workflow_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "ROOT", tmp_path)
    message = r"^status: phaze is installed without its workflow; run .* in a checkout"
    with pytest.raises(PhazeError, match=message):
        study_status(Path(), None)


def test_a_study_with_a_mistake_is_told_in_the_lines_of_the_mistake(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("models: [{}]\nseed: x\n")
    with pytest.raises(PhazeError) as raised:
        study_status(tmp_path, file)
    first, second = raised.value.wrong.splitlines()
    assert first.startswith(f"{file}: seed: is not a known key")
    assert second.startswith(f"{file}: models.0: must be text, got a mapping, {{}}")
