"""Compilation of inner loops, with a cache on disk that no edit can make stale.

Numba keeps a compiled function until its own file changes, although the machine code also holds what the
function calls in other files. The cache is therefore kept in a folder named by the contents of all files
with compiled functions. Processes that need the same function at the same time wait for the one that compiles
it first: compiling all takes over a minute, and jobs of one stage begin together.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

import numba
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.runtime.nrt import rtsys
from numba.core.types import unliteral

from phaze.base.arrays import Floats
from phaze.base.progress import busy

PACKAGE = Path(__file__).resolve().parent.parent

Function = TypeVar("Function", bound=Callable[..., object])


def _digest() -> str:
    """Digest of all files with compiled functions."""
    paths = sorted(f"{folder}/{name}" for folder, _, names in os.walk(PACKAGE) for name in names)
    contents = (Path(path).read_bytes() for path in paths if path.endswith(".py"))
    return hashlib.sha256(b"".join(text for text in contents if b"njit" in text)).hexdigest()[:16]


FOLDER = PACKAGE / "__pycache__" / f"compiled-{_digest()}"
numba.config.CACHE_DIR = str(FOLDER)  # type: ignore[attr-defined]


def njit(function: Function) -> Function:
    """The function compiled; division by zero gives infinity or NaN, as in NumPy.

    References are counted whatever the caller does: Numba hands a caller's options on.
    """
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=True)  # type: ignore[call-overload]
    return _with_cache(cast(Function, compile_it(function)))


def njit_without_arrays(function: Function) -> Function:
    """The same for functions that neither make nor return arrays: references are not counted."""
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload]
    return _with_cache(cast(Function, compile_it(function)))


def njit_beside_others(function: Function) -> Function:
    """The same for long calls: other threads of Python run meanwhile."""
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=True, nogil=True)  # type: ignore[call-overload]
    return _with_cache(cast(Function, compile_it(function)))


class _LoadedAtOnce(FunctionCache):
    """A cache that loads compiled functions without bringing up what compiling takes: 0.45 s of every job.

    No setting of Numba's does that, and it is 8 % of a study's time on its processors.
    """

    def load_overload(self, sig: object, target_context: BaseContext) -> object:
        """The compiled function, or None where there is none yet."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


class _ForCompiledCode(CPUDispatcher):
    """A compiled function without an entry for Python, where a call would end the process."""

    def __call__(self, *_: object) -> None:
        """Refuse a call from Python."""
        raise TypeError(f"{self.py_func.__qualname__} is for compiled code only")


def njit_inner(function: Function) -> Function:
    """The same for functions that only compiled code calls, which compiles a fifth faster."""
    compile_it = numba.njit(  # type: ignore[call-overload]
        cache=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    dispatcher = compile_it(function)
    dispatcher.__class__ = _ForCompiledCode
    return _with_cache(cast(Function, dispatcher))


def njit_inlined(function: Function) -> Function:
    """The same for functions whose code becomes a part of their callers'.

    It pays for few callers. Passing many arguments takes as long as the rest; and Numba links all that a
    function calls into its machine code and optimises it again, so that every level of calls costs as much
    time to compile as everything below it.
    """
    compile_it = numba.njit(cache=True, error_model="numpy", _nrt=True, inline="always")  # type: ignore[call-overload]
    return _with_cache(cast(Function, compile_it(function)))


def _with_cache(dispatcher: Function) -> Function:
    """Let calls with a constant share the code of calls with a variable, for which Numba would compile again;
    and let one process compile for all that need the same.
    """
    dispatcher._cache.__class__ = _LoadedAtOnce  # type: ignore[attr-defined]
    template, compile_it = dispatcher.get_call_template, dispatcher.compile  # type: ignore[attr-defined]
    name = f"{dispatcher.__module__}.{dispatcher.__qualname__}"

    def compile_once(signature: object) -> object:
        # Numba's own lock comes first: threads that took both the other way round could wait for each other.
        with global_compiler_lock, _alone_with(name), busy("compiling kernels, once after an installation"):
            return compile_it(signature)

    dispatcher.compile = compile_once  # type: ignore[attr-defined]
    dispatcher.get_call_template = lambda args, kws: template(  # type: ignore[attr-defined]
        [unliteral(kind) for kind in args], {name: unliteral(kind) for name, kind in kws.items()}
    )
    return dispatcher


_held: set[str] = set()


@contextmanager
def _alone_with(name: str) -> Iterator[None]:
    """Let other processes wait that come to the same function; where files have no locks, go on.

    A function's lock is held while those of what it calls are taken, never the other way round.
    """
    if name in _held:
        yield
        return
    with ExitStack() as held:
        with suppress(OSError):
            file = FOLDER / "locks" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(file.open("wb")), fcntl.LOCK_EX)
        _held.add(name)
        held.callback(_held.remove, name)
        yield


@njit_without_arrays
def copy_row(source: Floats, target: Floats) -> None:
    """Copy all elements, shape (n,); assigning a slice would bring the code that words errors of shape."""
    for k in range(len(source)):
        target[k] = source[k]
