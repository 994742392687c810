"""Which solvers are installed, and in which version."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from phaze.base.errors import PhazeError
from phaze.base.provenance import library_version


def highs_version() -> str | None:
    """Return the version of HiGHS, which is that of its wheel, or None without it."""
    version = library_version("highspy")
    return None if version == "absent" else version


def glpsol_version() -> str | None:
    """Return the version of the program glpsol, or None if there is none that works."""
    return _printed_version(shutil.which("glpsol"))


@cache
def _printed_version(program: str | None) -> str | None:
    if program is None:
        return None
    try:
        text = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = text.splitlines()[0].split() if text else []
    return words[-1] if words else None


VERSIONS: dict[str, Callable[[], str | None]] = {"glpk": glpsol_version, "highs": highs_version}
"""Versions of the solvers that a study can name, None for those that are absent."""


def solver_versions(
    preference: Sequence[str], versions: Mapping[str, Callable[[], str | None]] = VERSIONS
) -> dict[str, str]:
    """Return the installed solvers of a preference list with their versions, in the order of preference."""
    unknown = [name for name in preference if name not in versions]
    if unknown:
        raise PhazeError(f"schedule.solver: {unknown[0]!r} is not one of {', '.join(versions)}")
    found = {name: versions[name]() for name in preference}
    return {name: version for name, version in found.items() if version is not None}
