"""Who may import what, as far as the import linter cannot say it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STANDARD_ONLY = ("units", "errors", "provenance")
SOLVER_WORDS = ("SolverFactory", "highspy", "pyomo.contrib", "pyomo.opt")


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def scripts(root: Path) -> list[Path]:
    """Return the scripts of the workflow, of which there are some."""
    found = sorted((root / "scripts").glob("*.py"))
    assert found
    return found


def test_the_package_imports_nothing(project_root: Path) -> None:
    """Importing phaze costs nothing and couples no stage to another: it sets Python's collector alone."""
    assert set(imports(project_root / "phaze/__init__.py")) == {"atexit", "gc"}


@pytest.mark.parametrize("name", STANDARD_ONLY)
def test_the_lowest_modules_need_only_the_standard_library(project_root: Path, name: str) -> None:
    """What everything imports is light."""
    roots = {imported.partition(".")[0] for imported in imports(project_root / f"phaze/base/{name}.py")}
    assert roots - set(sys.stdlib_module_names) == set()


def test_only_the_solver_module_talks_to_solvers(project_root: Path) -> None:
    """No other package names a solver's interface."""
    named = {
        str(path.parent.relative_to(project_root))
        for path in (project_root / "phaze").rglob("*.py")
        for name in imports(path)
        if any(word in name for word in SOLVER_WORDS)
    }
    assert named == {"phaze/solver"}
