"""Kill a job, or its Snakemake, at a moment that a test asks for; every fork of a server (server.py) asks.

`PHAZE_KILL` holds a JSON object: script -> {moment, victim, seconds, nth}, and under "folder" where to note
what was done, so that nothing is killed twice. The script "snakemake" means Snakemake itself, "phaze" a
command; of rules that share a script it is the rule, whose name stands in the script that Snakemake runs.

Moments: `start`, before the script begins; `working`, after some seconds or else at the end; `writing`,
when the nth file of the job is half written; `written`, when all are and Snakemake does not know it yet;
`recording`, when Snakemake begins to note the nth finished job.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ASKED, PARENT = "PHAZE_KILL", "PHAZE_PARENT"
"""Environment variables: what to kill, and the process of the Snakemake that runs a job."""
SHARED = ".report_page.py"


def _asked() -> tuple[str, dict] | None:
    asked = json.loads(os.environ.get(ASKED, "{}"))
    program = sys.argv[0]
    shared = Path(program).read_text() if program.endswith(SHARED) else ""
    for script, moment in asked.get("moments", {}).items():
        found = program == script or program.endswith(f".{script}.py")
        found = found or (script.startswith("report_") and script in shared)
        if found and not (Path(asked["folder"]) / script).exists():
            return script, {**moment, "done": Path(asked["folder"]) / script}
    return None


def _is_record(path: object, mode: object) -> bool:
    return "/.snakemake/metadata/" in str(path) and "w" in str(mode)


def _is_result(path: object) -> bool:
    """Caches of compiled code are written in the same way, by whoever is the first after an edit."""
    return str(path).endswith(".part") and "__pycache__" not in Path(str(path)).parts


class _Killer:
    def __init__(self, moment: dict) -> None:
        self._moment = moment
        self._seen = 0

    def arm(self) -> None:
        """Wait for the requested moment."""
        kind = self._moment["moment"]
        if kind == "start":
            self.kill()
        elif kind == "working":
            timer = threading.Timer(self._moment["seconds"], self.kill)
            timer.daemon = True
            timer.start()
        elif kind != "written":
            sys.addaudithook(self.hear)

    def end(self) -> None:
        """Kill at the end of a program, for the moments that permit it."""
        if self._moment["moment"] in ("working", "written"):
            self.kill()

    def hear(self, event: str, arguments: tuple) -> None:
        """Kill at the nth file about to be renamed, or at the nth record."""
        if self._moment["moment"] == "writing":
            if event == "os.rename" and _is_result(arguments[0]) and self._counts():
                if self._moment["victim"] != "run":  # which leaves the job alive, to write the rest
                    os.truncate(arguments[0], Path(arguments[0]).stat().st_size // 2)
                self.kill()
        elif event == "open" and _is_record(*arguments[:2]) and self._counts():
            self.kill()

    def _counts(self) -> bool:
        self._seen += 1
        return self._seen == self._moment["nth"]

    def kill(self) -> None:
        """Kill once, and record it."""
        try:
            self._moment["done"].touch(exist_ok=False)
        except FileExistsError:
            return
        victim = self._moment["victim"]
        if victim in ("run", "all"):
            os.kill(int(os.environ[PARENT]), signal.SIGKILL)
        if victim in ("job", "all"):
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def armed() -> Iterator[None]:
    """Wait for the moment that was asked for in this program."""
    if sys.argv[0] == "snakemake":
        os.environ[PARENT] = str(os.getpid())
    found = _asked()
    killer = _Killer(found[1]) if found is not None else None
    if killer is not None:
        killer.arm()
    try:
        yield
    finally:
        if killer is not None:
            killer.end()
