"""Start the jobs of a study as forks of one process, which imports their modules once.

Most jobs compute for a tenth of a second, and importing their modules takes one to two. The server imports
what a script imports before its first fork, so later jobs with that script start at once. A fork gets the
standard streams, environment and folder of its caller (fork_client.py), and ends with it. The server ends
with the process that started it.
"""

from __future__ import annotations

import ast
import fcntl
import gc
import json
import logging
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from select import select
from tempfile import mkdtemp
from typing import NoReturn

from phaze.base import fork_client
from phaze.base.files import write_text

THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
"""Libraries for which Snakemake sets <library>_NUM_THREADS in a job."""
OFF = "off"
"""Value of the environment variable that makes every job start on its own."""
LONGEST_PATH = 100
"""Longest path of a socket, and of an interpreter after `#!`; systems permit 103 and 127 characters."""

Around = Callable[[], AbstractContextManager[None]]

_servers: list[subprocess.Popen[bytes]] = []
"""Servers that this process has started; each ends when its standard input, held here, is closed."""


def fork_jobs(folder: Path) -> str:
    """Start the jobs of this Snakemake process as forks of a server, through a client written to the folder.

    Returns the reason why they start one by one instead, and otherwise an empty text. Jobs in a conda
    environment, on a cluster or with several threads start as usual.
    """
    python = folder.resolve() / "python"
    if os.environ.get(fork_client.SOCKET) == OFF:
        return f"the environment variable {fork_client.SOCKET} is {OFF}"
    if not hasattr(socket, "recv_fds"):
        return "the system cannot pass open files between processes"
    for path in (Path(sys.executable), python):
        if shlex.quote(str(path)) != str(path):
            return f"the path {path} needs quotes in a shell"
    if fork_client.SOCKET not in os.environ:
        path = Path(mkdtemp(prefix="phaze-"), "socket")
        if max(len(str(path)), len(sys.executable)) > LONGEST_PATH:
            path.parent.rmdir()
            return f"a path is longer than {LONGEST_PATH} characters: {path} or {sys.executable}"
        start_server(path, __spec__.name)
        os.environ[fork_client.SOCKET] = str(path)
    client = f"#!{sys.executable} -IS\n{Path(fork_client.__file__).read_text(encoding='utf-8')}"
    if not python.is_file() or python.read_text(encoding="utf-8") != client:
        write_text(python, client)
        python.chmod(0o755)
    if not os.access(python, os.X_OK):
        return f"the file system of {folder.resolve()} runs no programs"
    sys.executable = str(python)
    return ""


def start_server(path: Path, module: str, *arguments: str) -> None:
    """Run a module as a server that listens on the socket `path`, which has a folder of its own.

    The server ends with this process, and removes the folder.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-m", module, str(number), *arguments]
        imported = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "PYTHONPATH": os.pathsep.join(imported),
            **dict.fromkeys((f"{library}_NUM_THREADS" for library in THREADS), "1"),
        }
        _servers.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[number],
                env=os.environ | variables,
                # Python would import files of the study's folder first. In the folder of phaze, its
                # configuration would have a relative path, which is none in the folder of a job.
                cwd=path.parent,
            )
        )


def serve(around: Around = nullcontext) -> None:
    """Serve the socket whose file descriptor is the first argument; forks run in the context `around`."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    path = Path(listener.getsockname())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends forks and parent, whose end is waited for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while listener in select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        _, files, _, _ = socket.recv_fds(caller, 1, 3)
        with caller.makefile("rb") as sent:
            call = json.loads(sent.readline() or "null")
        if call is not None:  # else the caller was killed
            _import_modules_of(Path(call["folder"], call["arguments"][0]))
            if os.fork() == 0:
                listener.close()
                _enter(files, call["environment"], call["folder"])
                _run(caller, call["arguments"], around)
        for file in files:
            os.close(file)
        caller.close()
    shutil.rmtree(path.parent, ignore_errors=True)


def _import_modules_of(script: Path) -> None:
    """Import the modules that a script imports; errors are left for the script itself to report."""
    before = len(sys.modules)
    with suppress(OSError, SyntaxError):
        for node in ast.parse(script.read_bytes()).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in names:
                with suppress(Exception):  # a class or a function is not a module
                    import_module(name)
    if len(sys.modules) > before:
        get_ready()


def get_ready() -> None:
    """Warm up the compiler and freeze existing objects, so that forks start fast and share memory."""
    if "numba" in sys.modules:
        import_module("numba").njit(lambda value: value)(0)  # later functions start half a second sooner
    gc.freeze()  # a collection in a fork would copy the memory that it shares


def _enter(files: list[int], environment: dict[str, str], folder: str) -> None:
    """Give this process the standard streams, environment and folder of a caller."""
    for stream, file in enumerate(files):
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def _run(caller: socket.socket, arguments: list[str], around: Around) -> NoReturn:
    """Run a script or module, send its exit status to the caller, and end this process."""
    fcntl.fcntl(caller, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller, fcntl.F_SETFL, os.O_ASYNC)  # a signal ends this process when the caller ends
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        sys.argv = arguments
        with around():
            run = runpy.run_path if arguments[0].endswith(".py") else runpy.run_module
            run(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    finally:
        if not isinstance(sys.exception(), SystemExit | None):
            traceback.print_exc()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        caller.sendall(str(status).encode())
        os._exit(status)  # at once: freeing its objects would copy the shared memory


if __name__ == "__main__":
    serve()
