"""Damaged files and full disks in jobs of plans, tiled accelerators and maps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.workflow.folders import Folder, Run, full

pytestmark = pytest.mark.workflow


def cut(whole: bytes) -> bytes:
    """Return the first half."""
    return whole[: len(whole) // 2]


def flipped(whole: bytes) -> bytes:
    """Return data with one bit flipped; in a text that of a digit, so that it can still be parsed."""
    digit = re.search(rb"[2-9]\d{2,}", whole) if whole.startswith(b"{") else None
    place = digit.start() + 1 if digit else len(whole) // 3
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


def older(whole: bytes) -> bytes:
    """Return a table of a version that never was."""
    return re.sub(rb'"version": "\d"', b'"version": "0"', whole)


STAGES = "tiny-full-k6-s2-r2-m4"
Damages = dict[str, tuple[Callable[[bytes], bytes], str, str]]
"""File -> damage, message, and a result whose job reads it."""
JOBS: Damages = {
    "inputs/ours.json": (flipped, "content does not match", "cases/bars/m1-n8.parquet"),
    f"stage-graphs/{STAGES}.json": (flipped, "content does not match", f"mappings/{STAGES}/mesh.parquet"),
}
PAGE = {
    "tiled_runs/table/gpt2-xl.wafer.parquet": flipped,
    f"mappings/{STAGES}/mesh.parquet": cut,
    "cases/bars/m1-n8.parquet": older,
}
"""Tables read by the page of papers, which stops at the first damaged one."""
READ: list[Damages] = [
    {table: (damage, "cannot be read as table", "report/papers.html")} for table, damage in PAGE.items()
]


def made_again(folder: Folder, *results: str) -> Run:
    """Run the jobs of some results, even if many fail, and no others."""
    paths = [f"results/{result}" for result in results]
    return folder.snakemake("--cores", "1", "--keep-going", "--force", "--", *paths, check=False)


def errors(run: Run) -> dict[str, str]:
    """Return the error messages of a run's jobs, by file under results/."""
    assert run.returncode != 0
    assert "Traceback" not in run.output, run.output
    said = [line for line in run.output.splitlines() if line.startswith("error: ")]
    files = [line.removeprefix("error: results/").partition(": ") for line in said]
    assert len({file for file, _, _ in files}) == len(files), said
    return {file: message for file, _, message in files}


@pytest.mark.parametrize("damages", [JOBS, *READ], ids=["jobs", "flipped", "cut", "older"])
def test_a_damaged_file_is_named_and_nothing_is_made_of_it(damages: Damages, folder: Folder) -> None:
    results = folder.path / "results"
    for name, (damage, _, _) in damages.items():
        whole, time_ns = (results / name).read_bytes(), (results / name).stat().st_mtime_ns
        assert damage(whole) != whole, name
        (results / name).write_bytes(damage(whole))
        os.utime(results / name, ns=(time_ns, time_ns))
    readers = [reader for _, _, reader in damages.values()]
    said = errors(made_again(folder, *readers))
    assert said.keys() == damages.keys()
    for name, (_, message, reader) in damages.items():
        assert message in said[name]
        assert "; delete it and run again" in said[name]
        assert not (results / reader).exists()


def test_a_full_disk_is_a_message_for_each_job(folder: Folder) -> None:
    results = [
        "inputs/ours.json",
        "tiled_runs/table/gpt2-xl.wafer.parquet",
        f"mappings/{STAGES}/mesh.parquet",
    ]
    with ExitStack() as disks:
        for result in results:
            disks.enter_context(full((folder.path / "results" / result).parent))
        said = errors(made_again(folder, *results))
    assert said == dict.fromkeys(results, "cannot be written: No space left on device")
