"""Digest of all code that a result depends on.

Snakemake detects edits of rules and scripts, not of the library they call. A rule therefore passes
`source_digest(...)` of its stage as a param. The digest changes with any code of phaze that the stage reaches
through imports, and with the version of any numeric library or solver program that this code uses. It does
not change with comments, docstrings, blank lines, paths, other stages, or imports for annotations only. Only
import statements are followed: a module loaded by a computed name is not seen.
"""

import ast
import hashlib
import json
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains the package phaze."""

PACKAGE = "phaze"
DISTRIBUTION = "phaze-planner"
"""Name on the package index, where `phaze` is another program."""
NUMERIC_LIBRARIES = ("highspy", "networkx", "numba", "numpy", "pandas", "pyarrow", "pyomo", "scipy")
"""Libraries whose version can affect results; others (settings, command line) cannot."""

DATA_SUFFIXES = (".css", ".csv", ".html", ".j2", ".js", ".json", ".md", ".svg", ".toml", ".yaml", ".yml")
"""Suffixes of data and template files, which count as part of the package whose folder contains them."""


Analysis = tuple[str, tuple[str, ...]]
"""Digest and imports of a source text."""

MOST_ANALYSES = 5000
"""Maximum number of analyses stored on disk; the oldest are dropped."""


@dataclass(frozen=True)
class Module:
    """Contribution of one module to a digest."""

    path: Path
    digest: str
    """Digest of the module's code, without comments, docstrings and positions."""
    imports: tuple[str, ...]
    """Absolute dotted names that the module imports, `from a import b` as `a.b`."""


def source_digest(*packages: str, programs: tuple[str, ...] = (), root: Path = ROOT) -> str:
    """SHA-256 of the code, data files, numeric libraries and programs that some packages depend on.

    `packages` are dotted names of packages (with all their modules) or of single modules. `programs` are
    executables such as `glpsol` whose version matters as well. `root` contains phaze. Raises
    ModuleNotFoundError for an unknown name.
    """
    before = len(_cached_analyses())
    modules = _closure(packages, root)
    if len(_cached_analyses()) > before:
        _save_analyses()
    lines = [f"{name} {module.digest}" for name, module in modules.items()]
    lines += [f"{name} {_file_digest(path)}" for name, path in _data_files(modules)]
    imported = {name.partition(".")[0] for module in modules.values() for name in module.imports}
    libraries = sorted(imported.intersection(NUMERIC_LIBRARIES))
    lines += [f"{name} {library_version(name)}" for name in libraries]
    lines += [f"{name} {program_version(name)}" for name in sorted(set(programs))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def phaze_version() -> str:
    """Version in the pyproject.toml next to the package, otherwise the installed version."""
    project = ROOT / "pyproject.toml"
    if not project.is_file():
        return library_version(DISTRIBUTION)
    return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


@cache
def library_version(name: str) -> str:
    """Version of an installed distribution, or 'absent'."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


@cache
def program_version(name: str) -> str:
    """First line that a program prints for `--version`; 'absent' or 'unusable' if it fails."""
    try:
        answer = subprocess.run([name, "--version"], capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        return "absent"
    except (OSError, subprocess.TimeoutExpired):
        return "unusable"
    lines = (answer.stdout or answer.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"


def _closure(packages: tuple[str, ...], root: Path) -> dict[str, Module]:
    """Modules of the packages and all modules that these import, directly or not, sorted by name."""
    modules: dict[str, Module] = {}
    seen: set[str] = set()
    # The running code does not change; a package in any other folder may.
    look_up = _loaded if root == ROOT else _read
    waiting = [name for package in packages for name in _members(package, root)]
    while waiting:
        name = waiting.pop()
        module = None if name in seen or _is_object(name, modules) else look_up(name, root)
        seen.add(name)
        if module is not None:
            modules[name] = module
            # Python runs the packages around a module before it imports the module.
            parts = name.split(".")
            waiting += [".".join(parts[:depth]) for depth in range(1, len(parts))]
            for imported in modules[name].imports:
                waiting += [imported, imported.rpartition(".")[0]]
    return dict(sorted(modules.items()))


def _is_object(name: str, modules: dict[str, Module]) -> bool:
    """True if a dotted name is an object defined in a module's file, not a module; most imports are."""
    module = modules.get(name.rpartition(".")[0])
    return module is not None and module.path.name != "__init__.py"


def _members(package: str, root: Path) -> Iterator[str]:
    """Yield the name of a module, or of a package and all modules below it."""
    path = _find(package, root)
    if path is None:
        raise ModuleNotFoundError(f"source_digest: no module {package} under {root}")
    yield package
    if path.name == "__init__.py":
        for file in path.parent.rglob("*.py"):
            relative = file.relative_to(root).with_suffix("")
            yield ".".join(part for part in relative.parts if part != "__init__")


def _find(name: str, root: Path) -> Path | None:
    """File of a module of phaze; None for any other name."""
    if name.partition(".")[0] != PACKAGE:
        return None
    base = root.joinpath(*name.split("."))
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def _read(name: str, root: Path) -> Module | None:
    """Module with the digest and imports of its current source; None if the name is not a module of phaze."""
    path = _find(name, root)
    if path is None:
        return None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return Module(path, *_analyse(path.read_text(encoding="utf-8"), package))


_loaded = cache(_read)
"""Module of the running code, read only once per process for the digests of all rules."""


def _analyse(source: str, package: str) -> Analysis:
    """Digest and imports of a source text in a package, cached."""
    key = hashlib.sha256(f"{package}\n{source}".encode()).hexdigest()
    if key not in _cached_analyses():
        _cached_analyses()[key] = _parse(source, package)
    return _cached_analyses()[key]


def _parse(source: str, package: str) -> Analysis:
    """Digest and imports of a source text, from its syntax tree."""
    words: list[str] = []
    imports: set[str] = set()
    _describe(ast.parse(source), package, words, imports)
    return hashlib.sha256("\n".join(words).encode()).hexdigest(), tuple(sorted(imports))


@cache
def _cached_analyses() -> dict[str, Analysis]:
    """Cached analyses by digest of their source.

    Without the cache every start of Snakemake would parse the whole package.
    """
    try:
        stored = json.loads(_cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: (digest, tuple(imports)) for key, (digest, imports) in stored.items()}


def _save_analyses() -> None:
    """Write the cached analyses next to Python's own cache, if the folder is writable."""
    latest = list(_cached_analyses().items())[-MOST_ANALYSES:]
    file = _cache_file()
    temporary = file.with_suffix(f".{secrets.token_hex(4)}.part")
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        temporary.write_text(json.dumps(dict(latest)), encoding="utf-8")
        temporary.replace(file)


@cache
def _cache_file() -> Path:
    """Cache file of the analyses, specific to this module's code and the Python version."""
    name = f"analysed-{_file_digest(Path(__file__))[:16]}.{sys.implementation.cache_tag}.json"
    return ROOT / PACKAGE / "__pycache__" / name


def _describe(node: object, package: str, words: list[str], imports: set[str]) -> None:
    """Append a canonical text of a syntax tree to `words`, and its imports to `imports`.

    Positions, statements without effect, load or store contexts, and empty fields are left out. Some empty
    fields exist only in newer versions of Python.
    """
    if isinstance(node, ast.AST):
        words.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if value is not None and value != [] and field != "ctx":
                words.append(field)
                _describe(value, package, words, imports)
        words.append("end")
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_imported_names(node, package))
    elif isinstance(node, list):
        for item in node:
            if not _is_idle(item):
                _describe(item, package, words, imports)
    else:
        words.append(repr(node))


def _is_idle(node: object) -> bool:
    """True if a statement has no effect: a docstring, a `pass`, or imports for annotations only."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.Pass)


def _imported_names(node: ast.Import | ast.ImportFrom, package: str) -> Iterable[str]:
    """Absolute names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = resolve_name("." * node.level + (node.module or ""), package)
    return [f"{module}.{alias.name}" for alias in node.names]


def _data_files(modules: dict[str, Module]) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every data file in the packages among `modules`."""
    for name, module in modules.items():
        folder = module.path.parent
        if module.path.name == "__init__.py":
            for file in sorted(_data_below(folder)):
                yield f"{name}/{file.relative_to(folder).as_posix()}", file


def _data_below(folder: Path) -> Iterator[Path]:
    """Yield the data files in a folder and in its subfolders that are not packages."""
    for path in folder.iterdir():
        if path.name.endswith(DATA_SUFFIXES):
            yield path
        elif _is_plain_folder(path):
            yield from _data_below(path)


def _is_plain_folder(path: Path) -> bool:
    """True if a path is a folder that is neither a package nor Python's cache."""
    is_other = "." in path.name or path.name == "__pycache__"
    return not is_other and path.is_dir() and not (path / "__init__.py").exists()


def _file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
