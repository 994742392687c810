"""A study on a cluster gives the same bytes as on one machine, with the profile for users."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import install_plugin
from tests.workflow.folders import ROOT, write_study
from tests.workflow.slurm.cluster import Cluster, running_cluster, why_not

pytestmark = [pytest.mark.workflow, pytest.mark.long]

PROFILE = ROOT / "config" / "profiles" / "slurm"
STUDY = {
    "architectures": {"named": ["tpu-v4", "phaze-common"], "grid": None, "baseline": "tpu-v4"},
    "training": {"microbatches": [1, 2], "hbm_gib": [32], "recompute": [False, True]},
}
TARGETS = ("placements", "results/commons/paper.parquet")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with Snakemake's Slurm plugin, which would slow down every call if installed."""
    return install_plugin(
        "slurm", tmp_path_factory.mktemp("plugin"), "snakemake-executor-plugin-slurm-jobstep<1"
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a cluster of one node, or skip the test if none can run."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: names of sockets have at most 107 letters
    folder.chmod(0o755)
    with running_cluster(folder, port) as found:
        yield found
    shutil.rmtree(folder)


def test_a_study_on_a_cluster_gives_the_same_bytes(cluster: Cluster, plugin: str, tmp_path: Path) -> None:
    here = write_study(tmp_path / "here", **STUDY)
    here.run(*TARGETS)
    there = write_study(tmp_path / "there", **STUDY)
    run = there.snakemake(
        "--profile", str(PROFILE), "--slurm-no-account", "--slurm-init-seconds-before-status-checks", "4",
        "--seconds-between-status-checks", "4", "--slurm-logdir", str(tmp_path / "logs"),
        "--default-resources", "slurm_partition=main", "mem_mb=500", "runtime=5",
        # A chain for each architecture runs at once, and a node of this machine has no more cores.
        "--cores", str(len(os.sched_getaffinity(0))), "--", *TARGETS,
        variables={**cluster.variables, "PYTHONPATH": plugin},
    )  # fmt: skip
    assert there.tables() == here.tables()
    jobs = re.findall(r"Group job .*submitted with SLURM jobid|Job \d+ has been submitted", run.output)
    states = cluster.call("scontrol", "show", "jobs").count("JobState=COMPLETED")
    print(f"{states} cluster jobs, {len(here.tables())} equal tables, {len(jobs)} submissions")  # noqa: T201
    assert states == 3, run.output
    assert there.stale(*TARGETS) == set()
