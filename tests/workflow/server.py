"""Run Snakemake, the scripts of its jobs, and commands in forks of one process (phaze.base.fork_server).

The arguments after the first are modules to import at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from snakemake.cli import get_argument_parser

from phaze.base.fork_client import SOCKET
from phaze.base.fork_server import get_ready, serve
from tests.workflow.killer import armed


@contextmanager
def around() -> Iterator[None]:
    """Kill at the requested moment; another workflow than ours, without this server, gets its own phaze."""
    if SOCKET not in os.environ:
        for module in [name for name in sys.modules if name.partition(".")[0] == "phaze"]:
            del sys.modules[module]
    with armed():
        yield


if __name__ == "__main__":
    get_argument_parser()  # imports plugins
    for module in sys.argv[2:]:
        import_module(module)
    get_ready()
    serve(around)
