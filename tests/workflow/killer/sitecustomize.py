"""Kill a job, or its Snakemake, at a moment that a test asks for; Python runs this first, from PYTHONPATH.

`PHAZE_KILL` holds a JSON object: script -> {moment, victim, seconds, nth}, and under "folder" where to note
what was done, so that nothing is killed twice. The script "snakemake" means Snakemake itself, "phaze" a
command; of rules that share a script it is the rule, whose name stands in the script that Snakemake runs.

Moments: `start`, before anything is imported; `working`, after some seconds or else at the end; `writing`,
when the nth file of the job is half written; `written`, when all are and Snakemake does not know it yet;
`recording`, when Snakemake begins to note the nth finished job.
"""

import atexit
import json
import os
import signal
import sys
import threading
from pathlib import Path

SHARED = ".report_page.py"


def _asked() -> tuple[str, dict] | None:
    asked = json.loads(os.environ.get("PHAZE_KILL", "{}"))
    words = " ".join(sys.orig_argv)
    shared = next((Path(word).read_bytes() for word in sys.orig_argv if word.endswith(SHARED)), b"")
    for script, moment in asked.get("moments", {}).items():
        module = script in ("snakemake", "phaze")
        found = (f"-m {script}" if module else f".{script}.py") in words
        if script.startswith("report_"):
            found = found or script.encode() in shared
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
            atexit.register(self.kill)
        elif kind == "written":
            atexit.register(self.kill)
        else:
            sys.addaudithook(self.hear)

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
            os.kill(os.getppid(), signal.SIGKILL)
        if victim in ("job", "all"):
            os.kill(os.getpid(), signal.SIGKILL)


if (_found := _asked()) is not None:
    _Killer(_found[1]).arm()
