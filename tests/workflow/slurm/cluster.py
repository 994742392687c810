"""Slurm as one node on this machine: munge, slurmctld and slurmd, started as root without systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
CONFIGURED = Path("/etc/slurm/slurm.conf")
"""Path where programs in jobs look for the cluster; the plugin removes environment variables."""
MEMORY_MB = 3000
PATIENCE_S = 30.0

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ALL
ReturnToService=2
MinJobAge=3600
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """Running cluster; its environment `variables` are for Slurm's programs."""

    variables: dict[str, str]

    def call(self, *command: str) -> str:
        """Return the output of one of Slurm's programs."""
        environment = {**os.environ, **self.variables}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout


def why_not() -> str:
    """Return why there can be no cluster here, empty if there can."""
    if os.geteuid() != 0:
        return "only root can start slurmctld and slurmd"
    if CONFIGURED.exists():
        return f"{CONFIGURED} says that this machine belongs to a cluster"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return (
        f"{', '.join(missing)} not installed; `make test` installs them where that is permitted"
        if missing
        else ""
    )


@contextmanager
def running_cluster(folder: Path, port: int) -> Iterator[Cluster]:
    """Run a cluster of one node with its files in a folder, and stop it; `port` and the next one must be
    free.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    cpus = len(os.sched_getaffinity(0))
    text = CONFIGURATION.format(folder=folder, port=port, node_port=port + 1, cpus=cpus, memory=MEMORY_MB)
    (folder / "slurm.conf").write_text(text)
    cluster = Cluster({"SLURM_CONF": str(folder / "slurm.conf")})
    CONFIGURED.parent.mkdir(exist_ok=True)
    CONFIGURED.symlink_to(folder / "slurm.conf")
    daemons = [_munged(folder)]
    try:
        daemons.append(_start(["slurmctld", "-D"], folder, cluster.variables))
        daemons.append(_start(["slurmd", "-D", "-N", "localhost"], folder, cluster.variables))
        _wait_for_node(cluster)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=PATIENCE_S)
            daemon.kill()
        CONFIGURED.unlink()


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    """Start munge with its own key, as the user that owns its files."""
    own = folder / "munge"
    own.mkdir(mode=0o700)
    key = own / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    command = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    command += [f"--pid-file={own}/pid", f"--log-file={own}/log", f"--seed-file={own}/seed"]
    daemon = _start(command, folder, {})
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "munge.socket").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return daemon


def _start(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out").open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **variables}
        )


def _wait_for_node(cluster: Cluster) -> None:
    deadline = time.monotonic() + PATIENCE_S
    state = ""
    while time.monotonic() < deadline:
        with suppress(subprocess.CalledProcessError):
            state = cluster.call("sinfo", "--noheader", "--format=%t").strip()
        if state == "idle":
            return
        time.sleep(0.5)
    raise RuntimeError(f"the node of the cluster is {state or 'unknown'} after {PATIENCE_S} s")
