"""Run Snakemake, the scripts of its jobs, and commands in forks of one process: their imports take longest.

Standard input is the socket to listen on (caller.py). The arguments are modules to import. A call sends its
three standard streams, and as JSON its arguments, environment and folder. It runs a Python script or a
module. The answer is the exit status.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import runpy
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from snakemake.cli import get_argument_parser

from tests.workflow import killer
from tests.workflow.caller import PYTHON


def serve(listener: socket.socket) -> list[str]:
    """Answer calls; return only in forks, each with the arguments of its call."""
    with DefaultSelector() as selector:
        selector.register(listener, EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    caller, _ = listener.accept()
                    _, files, _, _ = socket.recv_fds(caller, 1, 3)
                    call = json.loads(b"".join(iter(lambda: caller.recv(2**16), b"")))  # noqa: B023
                    child = os.fork()
                    if child == 0:
                        return enter(files=files, **call)
                    for file in files:
                        os.close(file)
                    selector.register(os.pidfd_open(child), EVENT_READ, (child, caller))
                else:
                    child, caller = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    caller.sendall(str(status).encode())
                    caller.close()


def enter(files: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> list[str]:
    """Give this process the standard streams, environment and folder of a call; return its arguments."""
    for stream, file in enumerate(files):
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return arguments


def run() -> None:
    """Run a script or a module, whose own jobs call this server."""
    killer.arm()
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        python = Path(listener.getsockname()).with_name(PYTHON)
        sys.executable = str(python) if python.exists() else sys.executable
        runpy.run_module(sys.argv[0], run_name="__main__")


def end(status: int) -> None:
    """End this process at once: to free its objects would copy the memory that it shares with the server."""
    if killer.ASKED in os.environ:
        sys.exit(status)  # which it may wait for
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    listener = socket.socket(fileno=os.dup(0))
    get_argument_parser()  # imports plugins
    for module in sys.argv[1:]:
        import_module(module)
    if "numba" in sys.modules:
        import_module("numba").njit(lambda one: one)(0)  # gets the compiler ready
    gc.freeze()
    sys.argv = serve(listener)
    status = 1
    try:
        run()
        status = 0
    except SystemExit as asked:
        status = asked.code or 0
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    finally:
        if sys.exception():
            traceback.print_exc()
        end(status)
