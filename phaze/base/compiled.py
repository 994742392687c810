"""Compilation of inner loops, with a disk cache that is never stale.

Numba invalidates a compiled function only if its own file changes, although the machine code includes the
functions it calls in other files. This cache is keyed by the digest of all code that a function reaches: its
own, that of the functions it calls, and the constants they read, in any file. Editing a comment therefore
recompiles nothing, and any other edit recompiles exactly the functions that reach it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import NamedTuple, TypeVar, cast

os.environ["NUMBA_CACHE_LOCATOR_CLASSES"] = ",".join(
    (f"{__name__}.ByReach", "UserProvidedCacheLocator", "InTreeCacheLocator", "UserWideCacheLocator")
)  # read when Numba is imported; the first entry is ours, the others are Numba's defaults

import numba
from numba.core import event
from numba.extending import register_jitable

from phaze.base.arrays import Floats
from phaze.base.progress import busy

PACKAGE = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("PHAZE_COMPILED") or PACKAGE / "__pycache__" / "compiled") / numba.__version__
"""Folder of all machine code. Installations with the same version of Numba may share it: entries are keyed by
code, not by location.
"""
EVERYTHING = "*"
"""Pseudo-name for all definitions of a file, for modules imported as a whole."""
Function = TypeVar("Function", bound=Callable[..., object])


class Definition(NamedTuple):
    """Definition of a name in a file: digest of its code, and the names that the code uses."""

    digest: str
    uses: tuple[str, ...]


class ByReach:
    """Numba cache locator for functions of this package (`NUMBA_CACHE_LOCATOR_CLASSES`)."""

    def __init__(self, function: FunctionType, file: Path) -> None:
        self._function, self._file = function, file

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> ByReach | None:
        """Cache locator of a function; None for other packages, or if the folder is not writable."""
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
        """Create the cache folder."""
        FOLDER.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """Folder in which compiled functions are cached."""
        return str(FOLDER)

    def get_source_stamp(self) -> str:
        """Digest of all code that the function reaches; a change invalidates its cache entry."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Suffix that distinguishes functions with the same name, and the versions of their code.

        An entry stores argument types by class name. Numba cannot read an entry after a class is renamed, so
        every version of the code has its own entries. Those of older versions stay until the folder is
        removed.
        """
        return hashlib.sha256(f"{self._file.relative_to(PACKAGE)} {self._stamp}".encode()).hexdigest()[:12]

    @cached_property
    def _stamp(self) -> str:
        return reach(self._file, self._function.__qualname__.partition(".")[0], PACKAGE.parent)


def reach(file: Path, name: str, root: Path) -> str:
    """SHA-256 of the code that defines a name in a file, and of all code below `root` that it uses."""
    digests: dict[tuple[Path, str], str] = {}
    waiting = [(file, name)]
    while waiting:
        path, used = place = waiting.pop()
        definition = None if place in digests else _definitions(path).get(used)
        if definition is not None:
            digests[place] = definition.digest
            uses = definition.uses
            waiting += [_locate_import(path, use, root) if ":" in use else (path, use) for use in uses]
    # Imports and EVERYTHING have no code of their own: only the names that they lead to count.
    code = ((path.relative_to(root), name, digest) for (path, name), digest in digests.items() if digest)
    lines = sorted(f"{path}:{name} {digest}" for path, name, digest in code)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def _locate_import(path: Path, name: str, root: Path) -> tuple[Path, str]:
    """File and name that an import `module:name` refers to; `path` itself if the module is not in `root`."""
    module, _, imported = name.rpartition(":")
    base = root.joinpath(*module.split("."))
    if (base / f"{imported}.py").is_file():
        return base / f"{imported}.py", EVERYTHING
    # `from package import module` names a file; anything else is a name in the file or package.
    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), path), imported


@cache
def _definitions(path: Path) -> Mapping[str, Definition]:
    """Definitions in a file by name, cached by the file's text."""
    text = path.read_bytes()
    cached = FOLDER / "sources" / f"{hashlib.sha256(text).hexdigest()}.json"
    with suppress(OSError, ValueError):
        stored = json.loads(cached.read_text(encoding="utf-8"))
        return {name: Definition(*fields) for name, fields in stored.items()}
    definitions = dict(_parse_definitions(ast.parse(text)))
    temporary = cached.with_suffix(f".{secrets.token_hex(4)}.part")
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(definitions), encoding="utf-8")
        temporary.replace(cached)
    return definitions


def _parse_definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Yield the names that a module's statements define; an import refers to the name in the other file."""
    names = {name for node in tree.body for name in _bound_names(node)}
    yield EVERYTHING, Definition("", tuple(sorted(names)))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, Definition("", (f"{node.module}:{alias.name}",))
            continue
        if not (bound := _bound_names(node)):
            continue
        # Also the classes of annotations: machine code is cached by the types of its arguments.
        used = names.intersection(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        code = _CodeOnly().visit(node)
        definition = Definition(hashlib.sha256(ast.dump(code).encode()).hexdigest(), tuple(sorted(used)))
        for name in bound:
            yield name, definition


def _bound_names(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


class _CodeOnly(ast.NodeTransformer):
    """Transformer that removes code that Numba ignores: docstrings and function annotations."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove the annotations of a function."""
        self.generic_visit(node)
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a statement that consists of a constant only, such as a docstring."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)


class _CompileReporter(event.Listener):
    """Event listener that reports kernel compilation, which takes seconds once after an installation."""

    def __init__(self) -> None:
        self._begun: list[ExitStack] = []

    def on_start(self, _: event.Event) -> None:
        """Report the start of a compilation; compilations of called functions are nested."""
        self._begun.append(ExitStack())
        self._begun[-1].enter_context(busy("compiling kernels, once after an installation"))

    def on_end(self, _: event.Event) -> None:
        """Record the end of the innermost compilation."""
        self._begun.pop().close()


event.register("numba:compile", _CompileReporter())


def njit(function: Function) -> Function:
    """Compile a function; division by zero gives infinity or NaN, as in NumPy."""
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))


def njit_nested(function: Function) -> Function:
    """Compile a function only as part of its compiled callers, which takes half as long.

    It has no Python entry point and no cache entry, so Python code that calls it runs it uncompiled. It is
    compiled twice if both a function with a Python entry point and a nested function call it.
    """
    return register_jitable(error_model="numpy", no_cfunc_wrapper=True)(function)


def njit_nogil(function: Function) -> Function:
    """Compile like `njit`, without the GIL: for long calls, during which other Python threads run."""
    return cast(Function, numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def njit_inlined(function: Function) -> Function:
    """Compile like `njit`, and inline the function into its callers.

    This pays off for functions with few callers. Otherwise passing many arguments takes as long as the
    function itself. Numba also links all called functions into a function's machine code and optimises it
    again, so every call level takes as much compile time as everything below it.
    """
    return cast(Function, numba.njit(cache=True, error_model="numpy", inline="always")(function))


@njit_nested
def copy_row(source: Floats, target: Floats) -> None:
    """Copy all elements, shape (n,); a slice assignment would also compile code for shape error messages."""
    for k in range(len(source)):
        target[k] = source[k]
