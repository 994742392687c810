"""What of a study is done, what is stale and why, and how long the rest takes, by what jobs took before."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from phaze.errors import PhazeError

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the Snakefile."""
REASONS = {
    "missing": "not made yet",
    "updated input files": "an input changed",
    "set of input files changed": "other inputs",
    "params changed": "its settings or its code changed",
    "rule implementation changed": "its script or rule changed",
    "ok": "what it depends on is made again",
}
"""Snakemake's words for why a file is made again, in ours; the first one that holds for a job counts."""


@dataclass(frozen=True)
class Job:
    """A job of the study: what Snakemake says of its files."""

    rule: str
    log: str
    reason: str
    """Why it runs again, empty if it is done."""

    @property
    def benchmark(self) -> str:
        """Return the file in which its time is measured."""
        return self.log.replace("/logs/", "/benchmarks/", 1).removesuffix(".log") + ".tsv"


@dataclass(frozen=True)
class Stage:
    """The jobs of one rule."""

    rule: str
    done: int
    stale: dict[str, int]
    """Jobs to run, by why."""
    job_s: float | None
    """Mean time of its jobs as measured, None if none was."""

    @property
    def left(self) -> int:
        """Return the number of jobs to run."""
        return sum(self.stale.values())


def study_status(folder: Path, configfile: Path | None, targets: tuple[str, ...] = ()) -> list[Stage]:
    """Return the rules of a study in the order of the workflow, as Snakemake sees them from a folder.

    Raises PhazeError with what Snakemake says where the study cannot be planned.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--summary"]
    if configfile is not None:
        command += ["--configfile", str(configfile)]
    done = subprocess.run([*command, "--", *targets], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PhazeError(f"the study cannot be planned:\n{done.stderr.strip()}")
    return stages_of(read_summary(done.stdout), folder)


def read_summary(text: str) -> list[Job]:
    """Return the jobs that `snakemake --summary` prints, one line for each of their files."""
    files: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in csv.DictReader(text.splitlines(), delimiter="\t"):
        files.setdefault((row["rule"], row["log-file(s)"]), []).append((row["status"], row["plan"]))
    return [Job(rule, log, _reason(states)) for (rule, log), states in files.items()]


def _reason(states: Iterable[tuple[str, str]]) -> str:
    """Return why a job runs, from the status and the plan of its files; empty if it does not."""
    pending = {status for status, plan in states if plan != "no update"}
    return next(
        (words for status, words in REASONS.items() if status in pending), "changed" if pending else ""
    )


def stages_of(jobs: list[Job], folder: Path) -> list[Stage]:
    """Return what is done and what is left by rule, first what runs first."""
    order = {rule: i for i, rule in enumerate(_rules())}
    rules = sorted({job.rule for job in jobs}, key=lambda rule: (order.get(rule, len(order)), rule))
    return [_stage(rule, [job for job in jobs if job.rule == rule], folder) for rule in rules]


def _rules() -> list[str]:
    """Return the rules of the workflow in the order in which they are stated, which is that of the stages."""
    included = re.findall(
        r'^include: "(.+)"$', (ROOT / "Snakefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    texts = ((ROOT / path).read_text(encoding="utf-8") for path in included)
    return [rule for text in texts for rule in re.findall(r"^rule (\w+):$", text, re.MULTILINE)]


def _stage(rule: str, jobs: list[Job], folder: Path) -> Stage:
    measured = [seconds for job in jobs if (seconds := _seconds(folder / job.benchmark)) is not None]
    return Stage(
        rule=rule,
        done=sum(not job.reason for job in jobs),
        stale=dict(Counter(job.reason for job in jobs if job.reason)),
        job_s=mean(measured) if measured else None,
    )


def _seconds(benchmark: Path) -> float | None:
    """Return the time of a job from Snakemake's measurement, None without one."""
    try:
        with benchmark.open(encoding="utf-8") as file:
            return float(next(csv.DictReader(file, delimiter="\t"))["s"])
    except (OSError, ValueError, KeyError, StopIteration):
        return None


def seconds_left(stages: list[Stage]) -> float | None:
    """Return the work that is left; a rule that never ran counts as the mean job. None if none ran."""
    known = [stage.job_s for stage in stages if stage.job_s is not None]
    if not known:
        return None
    return sum(stage.left * (mean(known) if stage.job_s is None else stage.job_s) for stage in stages)
