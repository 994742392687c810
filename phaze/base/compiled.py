"""Compilation of inner loops, with a cache on disk that no edit can make stale.

Numba keeps a compiled function until its own file changes, although the machine code also holds what the
function calls in other files. Here it is kept under the digest of all code that it reaches: its own, that of
the functions that it calls, and the constants that they read, in whichever file. So a comment compiles
nothing again, and an edit compiles again what reaches it and nothing else.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import NamedTuple, TypeVar, cast

os.environ["NUMBA_CACHE_LOCATOR_CLASSES"] = ",".join(
    (f"{__name__}.ByReach", "UserProvidedCacheLocator", "InTreeCacheLocator", "UserWideCacheLocator")
)  # read by Numba as it is imported; the others are those that it takes by itself

import numba
from numba.core import event

from phaze.base.arrays import Floats
from phaze.base.progress import busy

PACKAGE = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("PHAZE_COMPILED") or PACKAGE / "__pycache__" / "compiled") / numba.__version__
"""Machine code of all functions. Installations of one version of Numba may share it: it is found by the code
that it is compiled from, wherever that lies."""
EVERYTHING = "*"
"""Stands for all names of a file, as of one that is imported whole."""
Function = TypeVar("Function", bound=Callable[..., object])


class Definition(NamedTuple):
    """A name that a file defines: digest of its code, and the names that this code uses."""

    digest: str
    uses: tuple[str, ...]


class ByReach:
    """Where Numba keeps a function of this package, and until when (`NUMBA_CACHE_LOCATOR_CLASSES`)."""

    def __init__(self, function: FunctionType, file: Path) -> None:
        self._function, self._file = function, file

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> ByReach | None:
        """Place of a function, None for one of another package or where nothing can be kept."""
        path = Path(file).resolve()
        if not path.is_relative_to(PACKAGE):
            return None
        place = cls(function, path)
        try:
            place.ensure_cache_path()
        except OSError:
            return None
        return place if os.access(FOLDER, os.W_OK) else None

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        FOLDER.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """Folder of all compiled functions."""
        return str(FOLDER)

    def get_source_stamp(self) -> str:
        """Digest of all code that the function reaches."""
        return reach(self._file, self._function.__qualname__.partition(".")[0], PACKAGE.parent)

    def get_disambiguator(self) -> str:
        """What tells functions of one name in files of one name apart."""
        return hashlib.sha256(str(self._file.relative_to(PACKAGE)).encode()).hexdigest()[:8]


def reach(file: Path, name: str, root: Path) -> str:
    """SHA-256 of the code behind a name of a file, and of all that this code uses in files below a root."""
    found: dict[tuple[Path, str], str] = {}
    waiting = [(file, name)]
    while waiting:
        path, used = place = waiting.pop()
        own = None if place in found else _definitions(path).get(used)
        if own is not None:
            found[place] = own.digest
            waiting += [_where(path, one, root) if ":" in one else (path, one) for one in own.uses]
    known = {place: digest for place, digest in found.items() if digest}
    lines = sorted(f"{path.relative_to(root)}:{used} {digest}" for (path, used), digest in known.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def _where(path: Path, name: str, root: Path) -> tuple[Path, str]:
    """File and name of what a file imports as `module:name`; of another package a name that is nowhere."""
    module, _, imported = name.rpartition(":")
    base = root.joinpath(*module.split("."))
    if (base / f"{imported}.py").is_file():
        return base / f"{imported}.py", EVERYTHING
    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), path), imported


@cache
def _definitions(path: Path) -> Mapping[str, Definition]:
    """What a file defines by name, parsed where its text was not seen before."""
    text = path.read_bytes()
    kept = FOLDER / "sources" / f"{hashlib.sha256(text).hexdigest()}.json"
    with suppress(OSError, ValueError):
        return {name: Definition(*own) for name, own in json.loads(kept.read_text(encoding="utf-8")).items()}
    found = dict(_defined(ast.parse(text)))
    temporary = kept.with_suffix(f".{secrets.token_hex(4)}.part")
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(kept)
    return found


def _defined(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Names that the statements of a file define; an import uses the name as the other file has it."""
    known = {name for node in tree.body for name in _bound(node)}
    yield EVERYTHING, Definition("", tuple(sorted(known)))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, Definition("", (f"{node.module}:{alias.name}",))
            continue
        if not (bound := _bound(node)):
            continue
        own = _Plain().visit(node)
        used = known.intersection(one.id for one in ast.walk(own) if isinstance(one, ast.Name))
        definition = Definition(hashlib.sha256(ast.dump(own).encode()).hexdigest(), tuple(sorted(used)))
        for name in bound:
            yield name, definition


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


class _Plain(ast.NodeTransformer):
    """Code without what Numba does not see: docstrings, and annotations of functions."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """The function without them."""
        self.generic_visit(node)
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Nothing for a text that stands alone."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)


class _Telling(event.Listener):
    """Says that kernels are compiled, which takes seconds once after an installation."""

    def __init__(self) -> None:
        self._begun: list[ExitStack] = []

    def on_start(self, _: event.Event) -> None:
        """Begin to say so; what a function calls is compiled inside."""
        self._begun.append(ExitStack())
        self._begun[-1].enter_context(busy("compiling kernels, once after an installation"))

    def on_end(self, _: event.Event) -> None:
        """End of the innermost compilation."""
        self._begun.pop().close()


event.register("numba:compile", _Telling())


def njit(function: Function) -> Function:
    """The function compiled; division by zero gives infinity or NaN, as in NumPy."""
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))


def njit_beside_others(function: Function) -> Function:
    """The same for long calls: other threads of Python run meanwhile."""
    return cast(Function, numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def njit_inlined(function: Function) -> Function:
    """The same for functions whose code becomes a part of their callers'.

    It pays for few callers. Passing many arguments takes as long as the rest; and Numba links all that a
    function calls into its machine code and optimises it again, so that every level of calls costs as much
    time to compile as everything below it.
    """
    return cast(Function, numba.njit(cache=True, error_model="numpy", inline="always")(function))


@njit
def copy_row(source: Floats, target: Floats) -> None:
    """Copy all elements, shape (n,); assigning a slice would bring the code that words errors of shape."""
    for k in range(len(source)):
        target[k] = source[k]
