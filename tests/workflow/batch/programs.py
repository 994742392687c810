#!/usr/bin/env -S python3 -IS
"""A batch system on this machine: qsub, qstat, qdel, bsub, bjobs and bkill, by the name of a link.

Options are those of PBS and of LSF, others are refused as there. `BATCH` names the folder in which the system
keeps its jobs. The job whose number the file `doomed` there holds is killed as at its time limit.
"""

import getopt
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SPOOL = Path(os.environ.get("BATCH", "."))
WRAPPER = "sh {script} >{output} 2>&1; echo $? >{status}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _start(job: str, script: Path, variable: str, output: Path) -> None:
    """Start a job in a separate session."""
    status = SPOOL / f"{job}.status"
    process = subprocess.Popen(
        ["sh", "-c", WRAPPER.format(script=script, output=output, status=status)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, variable: job},
    )
    (SPOOL / f"{job}.pid").write_text(str(process.pid))
    doomed = SPOOL / "doomed"
    if doomed.exists() and doomed.read_text() == job.partition(".")[0]:
        doomed.unlink()
        time.sleep(1.0)
        _kill(job)


def _number() -> str:
    return str(1 + sum(1 for _ in SPOOL.glob("*.pid")))


def _state(job: str) -> str:
    """Return whether a job runs, its exit status, or that it was killed; empty if unknown."""
    pid = SPOOL / f"{job}.pid"
    if not pid.exists():
        return ""
    status = SPOOL / f"{job}.status"
    for _ in range(2):  # it may end between the two questions
        if status.exists() and status.read_text():
            return status.read_text().strip()
        if Path(f"/proc/{pid.read_text()}").exists():
            return "running"
    return "271"


def _kill(job: str) -> None:
    os.killpg(int((SPOOL / f"{job}.pid").read_text()), signal.SIGKILL)


def qsub(arguments: list[str]) -> None:
    """Start the script from standard input, and print its job number."""
    options, rest = getopt.getopt(arguments, "VN:S:j:o:l:q:A:")
    given = dict(options)
    asked = [value for key, value in options if key == "-l"]
    assert rest == []
    assert "-V" in given
    assert re.fullmatch(r"select=1:ncpus=\d+:mem=\d+mb", asked[0]), asked
    assert re.fullmatch(r"walltime=\d+:00", asked[1]), asked
    job = f"{_number()}.server"
    script = SPOOL / f"{job}.sh"
    script.write_text(sys.stdin.read())
    _start(job, script, "PBS_JOBID", Path(given["-o"]) / f"{job}.OU")
    _say(job)


def qstat(arguments: list[str]) -> None:
    """Print the state of a job like `qstat -x -f`, or that it is unknown."""
    assert arguments[:2] == ["-x", "-f"]
    job = arguments[2]
    state = _state(job)
    if (SPOOL / "forgetful").exists() and state != "running":
        state = ""
    if not state:
        sys.exit(f"qstat: Unknown Job Id {job}")
    ended = f"    job_state = F\n    Exit_status = {state}\n    run_count = 1"
    _say(f"Job Id: {job}\n    Job_Name = phaze")
    _say("    job_state = R" if state == "running" else ended)


def bsub(arguments: list[str]) -> None:
    """Start a command, and print a sentence with its job number."""
    assert arguments[:2] == ["-env", "all"]
    options, command = getopt.getopt(arguments[2:], "J:n:R:M:W:o:q:P:")
    given = dict(options)
    assert re.fullmatch(r"span\[hosts=1\] rusage\[mem=\d+MB\]", given["-R"]), given
    assert re.fullmatch(r"\d+MB", given["-M"]), given
    assert given["-n"].isdigit(), given
    assert given["-W"].isdigit(), given
    job = _number()
    script = SPOOL / f"{job}.sh"
    script.write_text(" ".join(f"'{word}'" for word in command))
    _start(job, script, "LSB_JOBID", Path(given["-o"].replace("%J", job)))
    _say(f"Job <{job}> is submitted to default queue <normal>.")


def bjobs(arguments: list[str]) -> None:
    """Print the state of a job like `bjobs -noheader -o stat`, or that it is unknown."""
    assert arguments[:3] == ["-noheader", "-o", "stat"]
    state = _state(arguments[3])
    if not state:
        sys.exit(f"Job <{arguments[3]}> is not found")
    _say({"running": "RUN", "0": "DONE"}.get(state, "EXIT"))


def cancel(jobs: list[str]) -> None:
    """Kill jobs."""
    for job in jobs:
        _kill(job)


PROGRAMS = {"qsub": qsub, "qstat": qstat, "qdel": cancel, "bsub": bsub, "bjobs": bjobs, "bkill": cancel}

if __name__ == "__main__":
    with (SPOOL / "calls").open("a") as calls:
        calls.write(f"{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}\n")
    PROGRAMS[Path(sys.argv[0]).name](sys.argv[1:])
