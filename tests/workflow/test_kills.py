"""After any kill at any time, the next run completes the unfinished jobs, with the same bytes."""

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

from tests.workflow.folders import Folder, Run, write_study
from tests.workflow.killer import ASKED
from tests.workflow.studies import EVERYTHING

pytestmark = [pytest.mark.workflow, pytest.mark.long]

SEED = 20211206
FILES = {
    "enumerate_architectures": 1,
    "extract": 4,
    "extract_graph": 1,
    "estimate": 1,
    "screen": 1,
    "find_common": 1,
    "schedule": 2,
    "place": 2,
    "place_front": 3,
    "place_common": 4,
    "certify": 2,
    "choose_common": 1,
    "certify_common": 1,
    "read": 1,
    "vary": 1,
    "audit": 1,
    "simulate": 1,
    "write_input": 1,
    "plan_case": 3,
    "simulate_tiled": 3,
    "simulate_networks": 1,
    "simulate_besides": 1,
    "profile_graph": 1,
    "partition_graph": 1,
    "map_stages": 2,
    "report": 32,
    "report_papers": 30,
}
"""Scripts of the study in a possible order, with the number of files that each writes."""
MOMENTS = ("writing", "working", "written", "start")
NOT_COMPARED = ("logs", "benchmarks", "solutions")
MEASURED = (".html", ".md")
"""Pages and figures that contain measured times."""


@dataclass(frozen=True)
class Moment:
    """Moment of a kill in a script, and its victim."""

    moment: str
    victim: str
    seconds: float = 0.0
    nth: int = 1


def stratified(seed: int, scripts: Sequence[str]) -> dict[str, Moment]:
    """Return a moment for each script: Snakemake dies in every third, alone or with its job."""
    chance = random.Random(seed)
    return {
        script: Moment(
            MOMENTS[(i + i // len(MOMENTS)) % len(MOMENTS)],
            "job" if i % 3 else ("run", "all")[i // 3 % 2],
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
    """Folder in which runs are killed, with the files finished so far."""

    def __init__(self, folder: Folder, expected: dict[str, bytes]) -> None:
        self.folder = folder
        self.expected = expected
        self.finished: Counter[str] = Counter()
        self.notes = folder.path / "killed"
        self.notes.mkdir()

    def run(self, moments: dict[str, Moment], *arguments: str) -> Run:
        """Run with moments to kill at; afterwards every file with its final name is complete."""
        asked = {"folder": str(self.notes), "moments": {name: vars(m) for name, m in moments.items()}}
        variables = {ASKED: json.dumps(asked)}
        run = self.folder.snakemake("--cores", "1", *arguments, check=False, variables=variables)
        self.finished.update(finished_jobs(run))
        for name, content in written(self.folder).items():
            assert self.expected.get(name) == content, (name, moments)
        return run

    def kills(self) -> int:
        """Return how often something was killed."""
        return sum(1 for _ in self.notes.iterdir())

    def check_end(self, run: Run) -> None:
        """Assert that all results exist, each job finished once, and no job is left."""
        assert run.returncode == 0, run.output
        assert written(self.folder) == self.expected
        assert {job: n for job, n in self.finished.items() if n > 1} == {}
        assert self.folder.stale() == set()


@pytest.fixture(scope="session")
def undisturbed(finished: Folder) -> dict[str, bytes]:
    """Return the bytes of an undisturbed run."""
    return written(finished)


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
def test_killed_solvers_are_called_again(
    undisturbed: dict[str, bytes], tmp_path: Path, require_program: object
) -> None:
    require_program("glpsol")
    # A solver that is killed twice in a row is passed over: every other call at most.
    calls = set(random.Random(SEED).sample(range(1, 12, 2), 4))
    folder = write_study(tmp_path / "study", **EVERYTHING)
    path = dying_glpsol(tmp_path / "bin", calls)
    folder.snakemake("--cores", "1", "schedules", variables={"PATH": path})
    found = written(folder)
    assert {name: undisturbed[name] for name in found} == found
    assert (tmp_path / "bin" / "killed").read_text().count("\n") == len(calls)


def test_killed_jobs_are_tried_again_and_killed_runs_taken_up_by_the_next(disturbed: Disturbed) -> None:
    """Every kind of job is killed once, or Snakemake while it runs one, and once while it records."""
    moments = stratified(SEED, list(FILES))
    moments["snakemake"] = Moment("recording", "job", nth=2)
    run = None
    while run is None or run.returncode != 0:
        before = disturbed.kills()
        run = disturbed.run(moments, "--retries", "2")
        assert run.returncode == 0 or (run.returncode == -9 and disturbed.kills() > before), run.output
    disturbed.check_end(run)
    assert disturbed.kills() == len(moments), moments.keys() - {p.name for p in disturbed.notes.iterdir()}
    disturbed.folder.snakemake("--cores", "1", "--force", "results/inputs/ours.json")
    assert list((disturbed.folder.path / "results").rglob(".*.part")) == [], "what the next run sweeps away"
