"""Compilation of inner loops, with a cache on disk that no edit can make stale.

Numba keeps a compiled function until its own file changes, although the machine code also holds what the
function calls in other files. The cache is therefore kept in a folder named by the contents of all files
with compiled functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

PACKAGE = Path(__file__).resolve().parent.parent

Function = TypeVar("Function", bound=Callable[..., object])


def _digest() -> str:
    """Return a digest of all files with compiled functions."""
    contents = (path.read_bytes() for path in sorted(PACKAGE.rglob("*.py")))
    return hashlib.sha256(b"".join(text for text in contents if b"njit" in text)).hexdigest()[:16]


numba.config.CACHE_DIR = str(PACKAGE / "__pycache__" / f"compiled-{_digest()}")  # type: ignore[attr-defined]


def njit(function: Function) -> Function:
    """Return the function compiled; division by zero gives infinity or NaN, as in NumPy."""
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))


def njit_without_arrays(function: Function) -> Function:
    """Return the same for functions that neither make nor return arrays: references are not counted."""
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload]
    return cast(Function, compile_it(function))


def njit_inlined(function: Function) -> Function:
    """Return the same for functions with so many arguments that passing them takes as long as the rest."""
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=False, inline="always")  # type: ignore[call-overload]
    return cast(Function, compile_it(function))
