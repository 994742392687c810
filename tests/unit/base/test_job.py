"""A job leaves a log that explains it, and no half-written file."""

import logging
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.base.job import join_params, logged, run_script, split_params
from phaze.base.provenance import library_version, phaze_version
from phaze.base.store import Store


def test_a_log_begins_with_versions_and_settings(tmp_path: Path) -> None:
    """The first lines give versions, settings, and the command to repeat the job."""
    with logged(tmp_path / "logs" / "job.log", {"solver": "highs", "gap": 0}, "results/solves/a.parquet"):
        pass
    start, settings, repeat, end = (tmp_path / "logs" / "job.log").read_text().splitlines()
    assert f"phaze {phaze_version()}" in start
    assert f"numpy {library_version('numpy')}" in start
    assert settings.endswith('settings: {"gap": 0, "solver": "highs"}')
    assert repeat.endswith("snakemake --cores 1 --force results/solves/a.parquet")
    assert "done in" in end


def test_progress_goes_to_the_log_and_not_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Information messages of a stage are in the log only."""
    with logged(tmp_path / "job.log"):
        logging.getLogger("phaze.schedule").info("layer %d of %d", 7, 24)
    assert "phaze.schedule: layer 7 of 24" in (tmp_path / "job.log").read_text()
    assert capsys.readouterr() == ("", "")


def test_warnings_go_to_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning is in the log and on the terminal, whether logged or issued by a library."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with logged(tmp_path / "job.log"):
            logging.getLogger("phaze.schedule").warning("timed out")
            warnings.warn("dubious", UserWarning, stacklevel=1)
    text = (tmp_path / "job.log").read_text()
    terminal = capsys.readouterr().err
    assert ("timed out" in text, "dubious" in text) == (True, True)
    assert ("warning: timed out" in terminal, "dubious" in terminal) == (True, True)


def test_bad_input_ends_with_one_line_and_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PhazeError is a message for the user: in the log, on the terminal, without a traceback."""
    with pytest.raises(SystemExit) as end, logged(tmp_path / "job.log"):
        raise PhazeError("architecture a: hbm_gib must be > 0, got -1 (a.yaml)")
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: architecture a: hbm_gib must be > 0, got -1 (a.yaml)\n"
    text = (tmp_path / "job.log").read_text()
    assert text.rstrip().endswith("hbm_gib must be > 0, got -1 (a.yaml)")
    assert "Traceback" not in text


def test_a_bug_leaves_its_traceback_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any other exception is logged with its traceback and re-raised."""
    with pytest.raises(ZeroDivisionError), logged(tmp_path / "job.log"):
        raise ZeroDivisionError("no cores")
    text = (tmp_path / "job.log").read_text()
    assert "Traceback" in text
    assert text.rstrip().endswith("ZeroDivisionError: no cores")
    assert "Traceback" not in capsys.readouterr().err


def test_a_failed_job_shows_one_traceback(tmp_path: Path, project_root: Path) -> None:
    """In a separate process a bug prints its traceback once and exits with a nonzero status."""
    code = f"from phaze.base.job import logged\nwith logged({str(tmp_path / 'job.log')!r}):\n    1 / 0\n"
    job = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=project_root,
    )
    assert (job.returncode, job.stderr.count("Traceback")) == (1, 1)


def run_on_full_disk(log: Path, body: str, allowed: int) -> subprocess.CompletedProcess[str]:
    """Run a job in a separate process; a limit on file size fails like a full disk."""
    code = (
        "import logging, resource, signal, sys\n"
        "from phaze.base.errors import PhazeError\n"
        "from phaze.base.job import logged\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({allowed}, {allowed}))\n"
        "with logged(sys.argv[1], {'solver': 'highs'}, 'results/a.parquet'):\n"
        f"    {body}\n"
    )
    return subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=False)


def test_a_log_that_cannot_be_begun_ends_its_job_with_one_line(tmp_path: Path) -> None:
    """Fail early: if the log cannot be written, results cannot either."""
    log = tmp_path / "logs/job.log"
    job = run_on_full_disk(log, "print('worked')", 20)
    assert (job.returncode, job.stdout) == (1, "")
    assert job.stderr == f"error: {log}: cannot be written: File too large\n"
    (tmp_path / "file").write_text("")
    job = run_on_full_disk(tmp_path / "file/job.log", "print('worked')", 10_000)
    assert job.returncode == 1
    assert job.stderr == f"error: {tmp_path / 'file/job.log'}: cannot be written: File exists\n"


def test_a_disk_that_fills_up_under_a_log_is_one_line(tmp_path: Path) -> None:
    """A failed job gives its reason; a job that wrote its results has succeeded."""
    many = "[logging.getLogger('phaze.x').info('layer %d', i) for i in range(500)]"
    log = tmp_path / "job.log"
    job = run_on_full_disk(log, many, 3000)
    assert (job.returncode, job.stderr) == (0, f"warning: {log}: cannot be written: File too large\n")
    job = run_on_full_disk(log, many + "; raise PhazeError('a.parquet: cannot be written')", 3000)
    assert (job.returncode, job.stderr) == (1, "error: a.parquet: cannot be written\n")


def test_a_log_ends_with_its_job(tmp_path: Path) -> None:
    """After a job its log is closed, and the next job starts a new one."""
    path = tmp_path / "job.log"
    with logged(path):
        pass
    logging.getLogger("phaze.schedule").info("late")
    assert "late" not in path.read_text()
    with logged(path):
        pass
    assert path.read_text().count("start:") == 1


def test_a_job_records_what_it_used_beside_its_log(tmp_path: Path) -> None:
    with logged(tmp_path / "results" / "logs" / "places" / "a.log"):
        sum(range(10**6))
    header, row = (tmp_path / "results" / "benchmarks" / "places" / "a.tsv").read_text().splitlines()
    used = dict(zip(header.split("\t"), map(float, row.split("\t")), strict=True))
    assert 0 < used["s"] < used["cpu_time"] + 60
    assert used["max_rss"] > 10


def test_a_failed_job_records_no_usage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), logged(tmp_path / "logs" / "a.log"):
        raise PhazeError("no")
    assert not (tmp_path / "benchmarks").exists()


def test_params_are_split_by_setting_and_joined_again() -> None:
    study = {"models": ["a"], "training": {"hbm_gib": [32.0, 64], "schedule": "1f1b"}, "readings": {}}
    assert list(split_params(**study).values()) == [
        'models: ["a"]',
        "training.hbm_gib: 32.0",
        "training.hbm_gib: 64",
        'training.schedule: "1f1b"',
        "readings: {}",
    ]
    assert join_params(split_params(**study)) == study
    unsplit = {"store": "results/a", "graph": None}
    assert join_params(split_params(**study) | unsplit) == study | unsplit
    assert join_params({"model__layers": "model.layers: 4", "model__heads": ""}) == {"model": {"layers": 4}}


CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('_a: [.{"', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("_a: [.{", max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["model", "training", "scenario"]), CONTENT))
def test_params_of_any_content_are_joined_to_the_same_content(sections: dict[str, object]) -> None:
    assert join_params(split_params(**sections)) == sections


@given(st.lists(st.integers(), min_size=1, unique=True), st.integers())
def test_one_more_number_of_a_rising_list_is_one_more_param(numbers: list[int], number: int) -> None:
    """Snakemake compares the texts of params without their names."""
    before, after = (split_params(sizes=sorted({*numbers, *more})).values() for more in ((), (number,)))
    assert set(after) - set(before) == ({f"sizes: {number}"} if number not in numbers else set())
    assert not set(before) - set(after)


def test_another_order_is_another_param() -> None:
    assert set(split_params(solver=["a", "b"]).values()) != set(split_params(solver=["b", "a"]).values())
    assert set(split_params(tries=[1, 2]).values()) != set(split_params(tries=[2, 1]).values())


class Parsed:
    """A type that says what it was made from, and where."""

    def __init__(self, content: object) -> None:
        self.content = content

    @classmethod
    def parse(cls, content: object, source: str) -> "Parsed":
        return cls((content, source))


class Whole(Parsed):
    """A type made from all params."""

    @classmethod
    def of(cls, params: Mapping[str, object]) -> "Whole":
        return cls(dict(params))


class Named(list[str]):
    """Named list of a job, such as its inputs."""

    def __init__(self, **parts: object) -> None:
        super().__init__(str(part) for part in parts.values())
        self.parts = parts

    def items(self) -> Iterable[tuple[str, object]]:
        return self.parts.items()


def test_a_script_gets_the_parts_of_its_job_by_their_names(tmp_path: Path) -> None:
    got: dict[str, object] = {}

    def main(
        files: dict[str, list[str]], layers: list[str], graph: str, out: str, *,
        model: str, training: Parsed, limit: float, whole: Whole, store: Store,
    ) -> None:  # fmt: skip
        got.update(locals())

    params = Named(
        training__b="training.b: 2", limit=3.0, model="of params", store=tmp_path / "store", code="c"
    )
    job = SimpleNamespace(
        input=Named(layers=["a", "b"], graph="g"), output=Named(table="t"), params=params,
        wildcards=Named(model="of wildcards", layout="tp1"), log=Named(log=tmp_path / "job.log"),
    )  # fmt: skip
    run_script(main, job)
    assert got["files"] == {"layers": ["a", "b"], "graph": ["g"]}
    assert (got["layers"], got["graph"], got["out"]) == (["a", "b"], "g", "t")
    assert (got["model"], got["limit"]) == ("of params", 3.0)
    assert got["training"].content == ({"b": 2}, "training")
    assert got["whole"].content["limit"] == 3.0
    assert isinstance(got["store"], Store)
    assert '"limit": 3.0' in (tmp_path / "job.log").read_text()
