"""A small study in its own folder, run with Snakemake as by a user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp

import pandas as pd
import pytest
import yaml

from phaze.base import fork_client
from phaze.base.fork_client import SOCKET, called
from phaze.base.fork_server import start_server

ROOT = Path(__file__).resolve().parents[2]

IMPORTED = ("pandas", "smart_open", "snakemake.notebook", "snakemake.storage")
"""Modules that Snakemake imports in every call."""
JOBS = (
    "pyomo.environ",
    "phaze.__main__",
    *(f"scripts.{path.stem}" for path in sorted((ROOT / "scripts").glob("*.py"))),
)
"""Modules that jobs import."""
TINY = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "feed_forward": 256,
    "vocabulary": 512,
    "positions": "learned",
    "position_count": 64,
    "residual_dropout": 0.1,
}
STUDY = {
    "models": ["tiny"],
    "workloads": {
        "tiny": {
            "model": "./tiny.yaml",
            "sequence": 64,
            "tensor": [1],
            "expert": {"pipeline": 2, "data": 2, "tensor": 1},
        }
    },
    "architectures": {
        "named": ["tpu-v4"],
        "baseline": "tpu-v4",
        "grid": {
            "num_tc": [1, 2],
            "num_vc": [1, 4],
            "pe_x": [16, 32],
            "pe_y": [16, 32],
            "glb_mib": [2, 16],
            "minimum_area_share": None,
        },
    },
    "scenarios": {"paper": {"system": "paper", "devices": 8, "global_batch": 32, "area_limit_mm2": "tpu-v4"}},
    "measured": {"sources": []},
    # Programs for all layers: their bounds meet, and then nothing would be solved that a test could count.
    "schedule": {"programs": "all"},
    "training": {"microbatches": [2], "hbm_gib": [32], "recompute": [False, True]},
    "report": {
        "strategies": {"models": []},
        "sensitivity": {},
        "published": None,
    },
}


@dataclass(frozen=True)
class Run:
    """Output of a Snakemake call."""

    returncode: int
    output: str


def _started(command: list[str], environment: dict[str, str]) -> Run:
    """Output of a command in a new process."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
    )
    return Run(done.returncode, done.stdout + done.stderr)


def forked(*arguments: str, own: bool = True, variables: dict[str, str] | None = None) -> Run:
    """Output of a module in a fork of a server, with changed environment variables."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors, Path(os.devnull).open() as nothing:
        files = [file.fileno() for file in (nothing, output, errors)]
        server = _server(own=own)
        jobs = {SOCKET: server} if own else {}
        status = called(server, arguments, {**os.environ, **jobs, **(variables or {})}, files)
        return Run(status, "".join(file.read() for file in (output, errors) if file.seek(0) == 0))


def forking_program(folder: Path) -> Path:
    """Folder with a program phaze that runs its commands in forks of a server, which imports modules once."""
    client = (
        f"#!{sys.executable} -IS\n"
        "import os, runpy, sys\n"
        f"server, client = {_server(own=True)!r}, runpy.run_path({fork_client.__file__!r})\n"
        "environment = os.environ | {client['SOCKET']: server}\n"
        "sys.exit(client['called'](server, ['phaze', *sys.argv[1:]], environment, (0, 1, 2)))\n"
    )
    (folder / "phaze").write_text(client)
    (folder / "phaze").chmod(0o755)
    return folder


@cache
def _server(*, own: bool) -> str:
    """Socket of a server of this test process, which ends with it, for our workflow or for any other."""
    path = Path(mkdtemp(), "socket")
    modules = (*IMPORTED, *JOBS) if own else IMPORTED
    start_server(path, "tests.workflow.server", *modules)
    return str(path)


@dataclass(frozen=True)
class Folder:
    """Folder with a study."""

    path: Path
    workflow: Path = ROOT

    def arguments(self, *arguments: str) -> list[str]:
        """Return the arguments of Snakemake in the folder."""
        study = ["--directory", str(self.path), "--configfile", str(self.path / "study.yaml")]
        return ["--snakefile", str(self.workflow / "Snakefile"), *study, *arguments]

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs Snakemake in the folder."""
        return [sys.executable, "-m", "snakemake", *self.arguments(*arguments)]

    def snakemake(self, *arguments: str, check: bool = True, variables: dict[str, str] | None = None) -> Run:
        """Run Snakemake in the folder, with changed environment variables."""
        environment = {**os.environ, **(variables or {})}
        if "PYTHONPATH" in environment:  # may change how Python starts
            run = _started(self.command(*arguments), environment)
        else:
            own = self.workflow == ROOT  # another one has its own phaze
            run = forked("snakemake", *self.arguments(*arguments), own=own, variables=variables)
        assert not check or run.returncode == 0, run.output
        return run

    def run(self, *targets: str) -> None:
        """Run the study, or the given targets."""
        self.snakemake("--cores", "2", *targets)

    def stale(self, *targets: str) -> set[str]:
        """Return the results that Snakemake would write again, by path under results/."""
        lines = self.snakemake("--summary", *targets).output.splitlines()
        rows = [line.split("\t") for line in lines if line.startswith("results/")]
        return {row[0].removeprefix("results/") for row in rows if row[-1] != "no update"}

    def solutions(self) -> int:
        """Return the number of programs that have been solved so far."""
        return sum(1 for _ in (self.path / "results" / "solutions").rglob("*.json"))

    def edit(self, change: Callable[[dict], None], file: str = "study.yaml") -> None:
        """Change a YAML file of the folder."""
        content = yaml.safe_load((self.path / file).read_text())
        change(content)
        (self.path / file).write_text(yaml.safe_dump(content, sort_keys=False))

    def copy(self, path: Path) -> Folder:
        """Copy the folder with its results."""
        shutil.copytree(self.path, path, symlinks=True)
        return Folder(path, self.workflow)

    def reported(self, table: str) -> pd.DataFrame:
        """Return a table of the report."""
        return pd.read_parquet(self.path / f"results/report/{table}.parquet")

    def checks(self, name: str) -> pd.DataFrame:
        """Return the checks of a page, all of which passed."""
        checks = self.reported(name)
        assert checks.loc[~checks["passed"], ["check", "example"]].to_numpy().tolist() == []
        return checks

    def pages(self) -> set[str]:
        """Return the names of the files of the report."""
        return {path.name for path in (self.path / "results/report").iterdir()}

    def tables(self) -> dict[str, bytes]:
        """Return the bytes of every table by path under results/."""
        results = self.path / "results"
        return {str(p.relative_to(results)): p.read_bytes() for p in sorted(results.rglob("*.parquet"))}


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    """Mount a file system, or skip the test without permission."""
    at.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(at)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


@contextmanager
def full(at: Path) -> Iterator[None]:
    """Make a folder a full disk."""
    with mounted("-t", "tmpfs", "-o", "size=4k", "tmpfs", at=at):
        (at / "filler").write_bytes(bytes(4096))
        yield


@contextmanager
def read_only(at: Path) -> Iterator[None]:
    """Make a folder read-only."""
    with mounted("--bind", str(at), at=at):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(at)], check=True)
        yield


def write_study(path: Path, files: dict[str, str] | None = None, **changes: object) -> Folder:
    """Write the small study into a folder, with changed top keys and additional files.

    Scenarios, readings and chips of the default study are left out.
    """
    path.mkdir(parents=True, exist_ok=True)
    for name, text in (files or {}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    (path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    study = STUDY | changes
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    left_out = {
        key: dict.fromkeys(default.get(key, {})) | study.get(key, {}) for key in ("scenarios", "readings")
    }
    study = {"chips": {"models": []}} | study
    (path / "study.yaml").write_text(yaml.safe_dump(study | left_out, sort_keys=False))
    return Folder(path)
