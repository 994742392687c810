"""Numba, brought up without SciPy: no compiled function uses its BLAS, whose import takes 0.2 s.

Where SciPy has been imported, Pyomo imports all of it that it could ever need, which takes a second more.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Let imports find that a module is not installed, unless it has been imported before."""
    absent = module not in sys.modules
    if absent:
        sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[module]


with _without("scipy"):
    import numba
    import numba.np.arraymath

__all__ = ["numba"]
