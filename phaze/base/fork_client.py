"""Run a Python script in a fork of a server that has imported its modules (fork_server.py).

A copy of this file takes the place of Python in the jobs of a study, so it imports nothing else of phaze.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

SOCKET = "PHAZE_FORKS"
"""Environment variable with the path of the server's socket."""


def called(
    server: str, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]
) -> int | None:
    """Exit status of a script or module run in a fork of a server; None if no server listens.

    The open files are its standard input, output and error. The status is -SIGKILL if the fork was killed.
    """
    call = {"arguments": list(arguments), "environment": dict(environment), "folder": os.getcwd()}  # noqa: PTH109 (pathlib is slow to import)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(server)
        except OSError:
            return None
        socket.send_fds(connection, [b" "], files)
        connection.sendall(json.dumps(call).encode() + b"\n")
        try:
            return int(connection.recv(16))
        except (OSError, ValueError):
            return -signal.SIGKILL


def main() -> None:
    """Run a job's script in a fork if a server listens; otherwise execute Python as usual."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:]
    server = os.environ.pop(SOCKET, None)  # a Snakemake inside the job may be of another phaze
    is_script = len(arguments) == 1 and arguments[0].endswith(".py")
    # Linear algebra in the server has one thread: the number is read when a library is imported.
    if server and is_script and os.environ.get("OMP_NUM_THREADS") == "1":
        status = called(server, arguments, os.environ, (0, 1, 2))
        if status is not None and status < 0:
            os.kill(os.getpid(), -status)
        if status is not None:
            sys.exit(status)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
