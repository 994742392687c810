"""Run Snakemake in forks of one process that has imported it, as imports take most of a short call.

The arguments are further modules to import. A line of standard input is a call as JSON: arguments,
environment, and the files for its two outputs. A line of standard output is the exit status of a call.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from snakemake.cli import get_argument_parser, main


def call(arguments: list[str], environment: dict[str, str], outputs: list[str]) -> None:
    """Be the called Snakemake; this does not return."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    main(arguments)


if __name__ == "__main__":
    get_argument_parser()  # imports plugins
    for module in sys.argv[1:]:
        import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            call(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201
