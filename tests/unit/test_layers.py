"""Import rules that the import linter cannot express."""

import ast
import re
import sys
import tomllib
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


def test_the_package_imports_nothing(project_root: Path) -> None:
    """Importing phaze costs nothing and couples no stages: public names load when first used."""
    names = set(imports(project_root / "phaze/__init__.py"))
    assert {name for name in names if not name.startswith("phaze.api.")} == {
        "atexit", "gc", "importlib.import_module", "typing.TYPE_CHECKING",
    }  # fmt: skip


@pytest.mark.parametrize("name", STANDARD_ONLY)
def test_the_lowest_modules_need_only_the_standard_library(project_root: Path, name: str) -> None:
    """Modules that everything imports are light."""
    roots = {imported.partition(".")[0] for imported in imports(project_root / f"phaze/base/{name}.py")}
    assert roots - set(sys.stdlib_module_names) == set()


def test_only_the_solver_module_talks_to_solvers(project_root: Path) -> None:
    """No other package uses a solver's interface."""
    named = {
        str(path.parent.relative_to(project_root))
        for path in (project_root / "phaze").rglob("*.py")
        for name in imports(path)
        if any(word in name for word in SOLVER_WORDS)
    }
    assert named == {"phaze/solver"}


def test_rules_import_what_plans_a_study_and_nothing_that_computes(project_root: Path) -> None:
    """The workflow's files are no modules, so that the contract does not see their imports."""
    files = [project_root / "Snakefile", *(project_root / "rules").glob("*.smk")]
    imported = {
        (path.name, name)
        for path in files
        for name in re.findall(r"^ *from phaze\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {name for _, name in imported} == {"base", "layout", "papers", "spec"}
    assert {path for path, name in imported if name == "papers"} == {"paths.smk"}


@pytest.fixture(scope="module")
def layers(project_root: Path) -> list[list[str]]:
    """Return the packages of every layer of the contract, the highest first, without the command line."""
    contracts = tomllib.loads((project_root / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    below = lines[lines.index("(commands)") + 1 :]
    return [re.findall(r"\((\w+)\)", line) for line in below]


def test_the_picture_of_the_rooms_is_the_contract(project_root: Path, layers: list[list[str]]) -> None:
    """The architecture page shows the layers in their order, each with its packages."""
    picture = (project_root / "config/architecture.md").read_text().split("```")[1]
    rooms = picture.partition("└───")[2].splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in rooms if line.startswith(" │ ")]
    assert [row[:-1] for row in cells] == layers
    assert all(row[-1] for row in cells)


def test_every_package_has_a_layer(project_root: Path, layers: list[list[str]]) -> None:
    """A new package must be added to the contract, and thus to the picture of the architecture page."""
    packages = {path.parent.name for path in (project_root / "phaze").glob("*/__init__.py")}
    assert packages - {"commands"} == {name for layer in layers for name in layer}


@pytest.mark.parametrize("page", ["config/architecture.md", "CONTRIBUTING.md"])
def test_every_path_on_a_page_for_developers_exists(project_root: Path, page: str) -> None:
    """Renamed files must be renamed on the pages."""
    text = (project_root / page).read_text()
    paths = re.findall(r"`((?:phaze|tests|config|rules|scripts|envs)/[\w./-]+)`", text)
    assert paths
    places = [project_root / re.sub(r"/(NAME|STAGE)\..*", "", path) for path in paths]
    assert [str(place) for place in places if not place.exists()] == []
