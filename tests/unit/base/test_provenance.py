"""The digest of a stage's code changes exactly if code that the stage reaches changes."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from phaze.base import provenance
from phaze.base.provenance import library_version, phaze_version, program_version, source_digest

TREE = {
    "__init__.py": '"""A package."""\n',
    "units.py": "GIB = 2**30\n",
    "theory/__init__.py": "",
    "theory/arrays.py": '''
        """Cycles of an array."""

        import numpy as np


        def cycles(rows: int) -> int:
            """Return the cycles."""
            # one a row
            return int(np.int64(rows)) + 1
        ''',
    "theory/memory.py": "from phaze.units import GIB\n",
    "theory/pipeline.py": "from . import memory\nSTAGES = memory.GIB\n",
    "estimate/__init__.py": "from phaze.estimate.tensor import estimate\n",
    "estimate/tensor.py": "from phaze.theory.arrays import cycles\n\nestimate = lambda: cycles(1)\n",
    "estimate/vector.py": "WIDTH = 8\n",
    "estimate/cycles.yaml": "gelu: 4\n",
    "estimate/templates/page.html": "<p>4</p>\n",
    "place/__init__.py": "import phaze.theory.pipeline\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a small package phaze and return its parent folder."""
    for name, text in TREE.items():
        path = tmp_path / "phaze" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return tmp_path


def edit(tree: Path, name: str, old: str, new: str) -> None:
    """Replace a piece of text that occurs in a file."""
    path = tree / "phaze" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def digests(tree: Path) -> dict[str, str]:
    """Return the digests of both stages."""
    return {stage: source_digest(f"phaze.{stage}", root=tree) for stage in ("estimate", "place")}


def changed(tree: Path, name: str, old: str, new: str) -> set[str]:
    """Return the stages whose digest an edit changes."""
    before = digests(tree)
    edit(tree, name, old, new)
    after = digests(tree)
    return {stage for stage, digest in before.items() if after[stage] != digest}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# one a row", "# another comment\n    # of two lines"),
        ('"""Return the cycles."""', '"""Return something else."""'),
        ('    """Return the cycles."""\n', ""),
        ('"""Cycles of an array."""', '"""Cycles."""\n\n\n'),
        ("rows: int)", "\n    rows: int,\n)"),
    ],
)
def test_words_about_code_do_not_matter(tree: Path, old: str, new: str) -> None:
    """Comments, docstrings, blank lines and formatting leave every digest unchanged."""
    assert changed(tree, "theory/arrays.py", old, new) == set()


def test_the_docstring_of_a_field_does_not_matter(tree: Path) -> None:
    """A string under a field is documentation, like a docstring."""
    edit(tree, "units.py", "GIB = 2**30\n", 'GIB = 2**30\n"""Bytes of a GiB."""\n')
    assert changed(tree, "units.py", "Bytes of a GiB", "One GiB in bytes") == set()


def test_what_only_annotations_need_does_not_matter(tree: Path) -> None:
    """Imports for type checkers only cannot affect results."""
    needed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from phaze.theory import arrays\n"
    edit(tree, "theory/memory.py", "from phaze.units", f"{needed}\nfrom phaze.units")
    assert changed(tree, "theory/arrays.py", "+ 1", "+ 2") == {"estimate"}


@pytest.mark.parametrize(
    ("name", "old", "new", "stages"),
    [
        ("theory/arrays.py", "+ 1", "+ 2", {"estimate"}),
        ("theory/arrays.py", "+ 1", "- 1", {"estimate"}),
        ("estimate/tensor.py", "cycles(1)", 'cycles("1")', {"estimate"}),
        ("units.py", "2**30", "10**9", {"place"}),
        ("theory/memory.py", "import GIB", "import GIB\nSPARE = 1", {"place"}),
        ("__init__.py", '"""A package."""', "SEED = 1", {"estimate", "place"}),
    ],
)
def test_an_edit_reaches_exactly_the_stages_that_import_it(
    tree: Path, name: str, old: str, new: str, stages: set[str]
) -> None:
    """Code counts for the stages that import it, directly, indirectly or relatively, and for no other."""
    assert changed(tree, name, old, new) == stages


def test_every_module_of_a_stage_counts(tree: Path) -> None:
    """A module of the package counts even if it is not imported."""
    assert changed(tree, "estimate/vector.py", "8", "16") == {"estimate"}


def test_a_new_module_of_a_stage_counts(tree: Path) -> None:
    """Adding a file to a stage changes its digest."""
    before = digests(tree)
    (tree / "phaze/estimate/area.py").write_text("A = 1\n")
    after = digests(tree)
    assert (before["estimate"] == after["estimate"], before["place"] == after["place"]) == (False, True)


@pytest.mark.parametrize("name", ["cycles.yaml", "templates/page.html"])
def test_a_data_file_counts_for_its_package(tree: Path, name: str) -> None:
    """A table of figures or a template belongs to the code next to it."""
    assert changed(tree, f"estimate/{name}", "4", "5") == {"estimate"}


def test_a_single_module_can_be_named(tree: Path) -> None:
    """The digest of one module excludes the modules next to it."""
    before = source_digest("phaze.estimate.vector", root=tree)
    edit(tree, "estimate/vector.py", "WIDTH", "LANES")
    assert source_digest("phaze.estimate.vector", root=tree) != before


def test_where_the_package_lies_does_not_matter(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same files in another folder have the same digests."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tree / "phaze").rename(elsewhere / "phaze")
    moved = digests(elsewhere)
    (elsewhere / "phaze").rename(tree / "phaze")
    assert digests(tree) == moved


def test_the_order_of_names_does_not_matter(tree: Path) -> None:
    """The digest of two stages does not depend on their order."""
    digest = source_digest("phaze.place", "phaze.estimate", root=tree)
    assert source_digest("phaze.estimate", "phaze.place", "phaze.place", root=tree) == digest


def test_the_version_of_a_library_counts_where_it_is_imported(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A different NumPy changes the digest of the stage that imports NumPy, and no other."""
    before = digests(tree)
    monkeypatch.setattr("phaze.base.provenance.library_version", lambda name: f"another {name}")
    after = digests(tree)
    assert {stage for stage in before if before[stage] != after[stage]} == {"estimate"}


def test_the_version_of_a_program_counts(tree: Path) -> None:
    """Naming a solver program adds its version, or its absence, to the digest."""
    plain = source_digest("phaze.place", root=tree)
    assert source_digest("phaze.place", programs=("no-such-program",), root=tree) != plain


def test_an_unknown_name_is_an_error(tree: Path) -> None:
    """A misspelt stage must not have the digest of no files."""
    with pytest.raises(ModuleNotFoundError, match=r"phaze\.estimat "):
        source_digest("phaze.estimat", root=tree)


def test_versions_of_absent_things_are_words() -> None:
    """Missing programs and libraries have the version 'absent'."""
    assert (library_version("no-such-library"), program_version("no-such-program")) == ("absent", "absent")


def test_the_version_of_a_program_is_its_first_line() -> None:
    """The first line of `--version` counts."""
    assert program_version(sys.executable).startswith("Python 3.")


def test_the_version_of_phaze_is_that_of_the_project(project_root: Path) -> None:
    """The version comes from pyproject.toml, installed or not."""
    assert f'version = "{phaze_version()}"' in (project_root / "pyproject.toml").read_text()


def test_the_digest_is_the_same_in_every_process(project_root: Path) -> None:
    """Another process with another hash seed finds the same digest of the real package."""
    code = "from phaze.base.provenance import source_digest as d; print(d('phaze.base.job', 'phaze.tables'))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=project_root,
        env={"PYTHONHASHSEED": "7"},
    )
    assert other.stdout.strip() == source_digest("phaze.base.job", "phaze.tables")


def test_what_was_parsed_before_is_not_parsed_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Analyses are cached by content; an unreadable cache counts as empty."""
    parsed: list[str] = []
    parse = provenance._parse
    monkeypatch.setattr(provenance, "_parse", lambda *of: parsed.append(of[0]) or parse(*of))
    monkeypatch.setattr(provenance, "_cache_file", lambda: tmp_path / "kept" / "analysed.json")
    request.addfinalizer(provenance._cached_analyses.cache_clear)

    def next_process() -> tuple[dict[str, str], int]:
        provenance._cached_analyses.cache_clear()
        parsed.clear()
        return digests(tree), len(parsed)

    first, count = next_process()
    assert count > 5
    assert next_process() == (first, 0)
    edit(tree, "theory/arrays.py", "one a row", "one per row")
    assert next_process() == (first, 1)
    (tmp_path / "kept" / "analysed.json").write_text("{")
    assert next_process() == (first, count)


def test_only_the_standard_library_is_needed(project_root: Path) -> None:
    """Provenance is read while Snakemake plans, so it must not import heavy libraries."""
    code = "import sys, phaze.base.job; print({'numpy', 'pandas', 'pydantic'} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project_root
    )
    assert answer.stdout.strip() == "set()"
