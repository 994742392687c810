"""Whatever is killed, whenever: the next run finishes what was unfinished, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder, Run, write_study
from tests.workflow.studies import EVERYTHING

pytestmark = [pytest.mark.workflow, pytest.mark.long]

SEEDS = {"jobs": 20211206, "runs": 20240723}
FILES = {
    "enumerate_architectures": 1,
    "extract": 4,
    "extract_graph": 1,
    "estimate": 1,
    "screen": 1,
    "find_common": 1,
    "schedule": 2,
    "place": 2,
    "place_common": 4,
    "certify": 2,
    "choose_common": 1,
    "certify_common": 1,
    "plan": 2,
    "vary": 1,
    "audit": 1,
    "simulate": 2,
    "map_plans": 2,
    "write_input": 1,
    "plan_case": 4,
    "simulate_tiled": 3,
    "simulate_networks": 1,
    "simulate_besides": 1,
    "profile_graph": 1,
    "partition_graph": 1,
    "map_stages": 3,
    "report_cases": 14,
    "report_tiled": 18,
    "report_maps": 8,
    "report": 40,
}
"""Scripts of the study in an order in which they can run, with how many files they write."""
MOMENTS = ("writing", "working", "written", "start")
KILLER = Path(__file__).parent / "killer"
NOT_COMPARED = ("logs", "benchmarks", "solutions")
MEASURED = (".html", ".md", "durations.parquet", "durations.csv")
"""Pages and their figures tell measured times as well, and so does one table of the page of plans."""


@dataclass(frozen=True)
class Moment:
    """When and whom to kill in a script."""

    moment: str
    victim: str
    seconds: float = 0.0
    nth: int = 1


def stratified(seed: int, victims: tuple[str, ...], scripts: Sequence[str]) -> dict[str, Moment]:
    """Return a moment for each script: all kinds with all victims in turn, the rest by chance."""
    chance = random.Random(seed)
    return {
        script: Moment(
            MOMENTS[(i + i // len(MOMENTS)) % len(MOMENTS)],
            victims[i % len(victims)],
            seconds=round(chance.uniform(0.3, 1.5), 2),
            nth=chance.randint(1, FILES[script]),
        )
        for i, script in enumerate(scripts)
    }


def written(folder: Folder) -> dict[str, bytes]:
    """Return the bytes of every result at its final name, by path."""
    results = folder.path / "results"
    left_out = (".part", *MEASURED)
    found = (p for p in sorted(results.rglob("*")) if p.is_file() and not str(p).endswith(left_out))
    named = ((path.relative_to(results), path) for path in found)
    return {str(name): path.read_bytes() for name, path in named if name.parts[0] not in NOT_COMPARED}


def finished_jobs(run: Run) -> list[str]:
    """Return the rules of the jobs that Snakemake calls finished."""
    return re.findall(r"Finished jobid: \d+ \(Rule: (\w+)\)", run.output)


class Disturbed:
    """A folder in which runs are killed, with what has been finished so far."""

    def __init__(self, folder: Folder, expected: dict[str, bytes]) -> None:
        self.folder = folder
        self.expected = expected
        self.finished: Counter[str] = Counter()
        self.notes = folder.path / "killed"
        self.notes.mkdir()

    def run(self, moments: dict[str, Moment], *arguments: str, path: str = os.environ["PATH"]) -> Run:
        """Run with moments to kill at; whatever has its final name afterwards is whole."""
        asked = {"folder": str(self.notes), "moments": {name: vars(m) for name, m in moments.items()}}
        variables = {"PHAZE_KILL": json.dumps(asked), "PYTHONPATH": str(KILLER), "PATH": path}
        run = self.folder.snakemake("--cores", "1", *arguments, check=False, variables=variables)
        self.finished.update(finished_jobs(run))
        for name, content in written(self.folder).items():
            assert self.expected.get(name) == content, (name, moments)
        return run

    def kills(self) -> int:
        """Return how often something was killed."""
        return sum(1 for _ in self.notes.iterdir())

    def check_end(self, run: Run) -> None:
        """Check that all is there, each job was finished once, and nothing is left to do."""
        assert run.returncode == 0, run.output
        assert written(self.folder) == self.expected
        assert {job: n for job, n in self.finished.items() if n > 1} == {}
        assert self.folder.stale() == set()


@pytest.fixture(scope="session")
def undisturbed(prepare: Prepare) -> dict[str, bytes]:
    """Return the bytes of an undisturbed run."""
    return written(prepare("undisturbed", **EVERYTHING))


@pytest.fixture
def disturbed(undisturbed: dict[str, bytes], tmp_path: Path) -> Iterator[Disturbed]:
    """Return a folder to disturb."""
    found = Disturbed(write_study(tmp_path / "study", **EVERYTHING), undisturbed)
    yield found
    shutil.rmtree(found.folder.path)


def dying_glpsol(folder: Path, calls: set[int]) -> str:
    """Return a PATH on which glpsol is killed in some of its calls, after it has begun."""
    real = shutil.which("glpsol")
    folder.mkdir()
    program = folder / "glpsol"
    program.write_text(
        "#!/bin/bash\n"
        f'[ "$1" = --version ] && exec {real} --version\n'
        f"echo >> {folder}/calls\n"
        f"case $(wc -l < {folder}/calls) in {'|'.join(map(str, sorted(calls)))})\n"
        f'{real} "$@" >/dev/null & kill -9 $!; echo >> {folder}/killed; kill -9 $$ ;; esac\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.solver
def test_killed_jobs_and_solvers_are_tried_again(
    disturbed: Disturbed, tmp_path: Path, require_program: object
) -> None:
    """Every job of one run is killed once, the solver five times; with retries the run itself goes on."""
    require_program("glpsol")
    moments = stratified(SEEDS["jobs"], ("job",), list(FILES))
    # A solver that is killed twice in a row is passed over: every other call at most.
    calls = set(random.Random(SEEDS["jobs"]).sample(range(1, 14, 2), 5))
    path = dying_glpsol(tmp_path / "bin", calls)
    run = disturbed.run(moments, "--retries", "2", path=path)
    disturbed.check_end(run)
    assert disturbed.kills() == len(FILES), set(FILES) - {p.name for p in disturbed.notes.iterdir()}
    solver_kills = (tmp_path / "bin" / "killed").read_text().count("\n")
    assert solver_kills == len(calls)
    print(f"seed {SEEDS['jobs']}: killed {disturbed.kills()} jobs, glpsol {solver_kills} times")  # noqa: T201


def test_killed_runs_are_taken_up_by_the_next(disturbed: Disturbed) -> None:
    """Snakemake is killed in every third kind of job, alone or with the job, and while it records."""
    moments = stratified(SEEDS["runs"], ("run", "all"), list(FILES)[::3])
    moments["snakemake"] = Moment("recording", "job", nth=2)
    run = None
    while run is None or disturbed.kills() < len(moments):
        before = disturbed.kills()
        run = disturbed.run(moments)
        assert disturbed.kills() > before, run.output
        assert run.returncode == -9, run.output
    disturbed.check_end(disturbed.run({}))
    assert list((disturbed.folder.path / "results").rglob(".*.part")) == []
    print(f"seed {SEEDS['runs']}: killed Snakemake {disturbed.kills()} times")  # noqa: T201
