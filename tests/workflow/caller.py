"""Run a program in a fork of a server (server.py).

As a program, this takes the place of Python in the jobs of a forked Snakemake. The socket of the server is in
the same folder.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOCKET, PYTHON = "socket", "python"
"""Files in the folder of a server."""
PARENT = "PHAZE_PARENT"
"""Environment variable of scripts: process of their Snakemake."""


def called(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]
) -> int:
    """Exit status of a call; the open files are its standard input, output and error."""
    call = {"arguments": list(arguments), "environment": dict(environment), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / SOCKET))
        socket.send_fds(server, [b" "], files)
        server.sendall(json.dumps(call).encode())
        server.shutdown(socket.SHUT_WR)
        return int(server.recv(16))


def main() -> None:
    """Run a script in a fork; anything else with Python itself."""
    place, *arguments = sys.argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        os.execv(sys.executable, [sys.executable, *arguments])
    environment = {**os.environ, PARENT: str(os.getppid())}
    status = called(Path(place).parent, arguments, environment, (0, 1, 2))
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
