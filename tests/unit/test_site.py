"""The site has every page of the documents, and its examples are commands with what they print."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="module")
def site(project_root: Path) -> dict:
    """Return the settings of the site."""
    loaded: dict = yaml.safe_load((project_root / "mkdocs.yml").read_text())
    return loaded


def linked(nav: object) -> list[str]:
    """Return the pages of a navigation, at any depth."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in linked(part)]


def test_the_navigation_has_every_page_once(site: dict, project_root: Path) -> None:
    """A page that nobody links is not read; the map of the folder is the navigation itself."""
    pages = linked(site["nav"])
    folder = project_root / "config"
    files = (path for pattern in ("*.md", "*.ipynb") for path in folder.rglob(pattern))
    there = {str(path.relative_to(folder)) for path in files} - {"README.md"}
    assert sorted(pages) == sorted(there)


def test_the_site_has_the_four_kinds_of_documents(site: dict) -> None:
    assert [next(iter(part)) for part in site["nav"]] == ["Start", "How to", "Explanation", "Reference"]


def test_warnings_are_errors(site: dict) -> None:
    """A broken link ends the build."""
    assert site["strict"] is True


def test_the_workflow_builds_the_site_on_every_change_and_publishes_main(project_root: Path) -> None:
    workflow = yaml.safe_load((project_root / ".github/workflows/docs.yml").read_text())
    assert {"push", "pull_request"} <= set(workflow[True])
    assert "make docs PYTHON=python" in [step.get("run") for step in workflow["jobs"]["build"]["steps"]]
    publish = workflow["jobs"]["publish"]
    assert publish["if"] == "github.ref == 'refs/heads/main'"
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}


def test_every_task_shows_what_its_commands_print(project_root: Path) -> None:
    """A how-to page has an example that is run, except those that take hours or other programs."""
    apart = {"papers", "cluster-run"}
    for page in (project_root / "config/how-to").glob("*.md"):
        shown = re.search(r"```sh\n.*?```\n\n```\n.*?```\n", page.read_text(), re.DOTALL)
        assert (shown is None) == (page.stem in apart), page


def test_the_example_pages_have_all_measured_runs_and_are_linked(project_root: Path) -> None:
    shown = yaml.safe_load((project_root / ".ci/pages.yaml").read_text())["measured"]["sources"]
    assert set(shown) == set(yaml.safe_load((project_root / "config/measured.yaml").read_text())["sources"])
    written = re.findall(r"\$out/(\w+\.html)", (project_root / ".ci/pages").read_text())
    for text in ((project_root / "README.md").read_text(), (project_root / "config/index.md").read_text()):
        assert set(re.findall(r"/phaze/examples/(\w+\.html)", text)) == set(written)


def test_the_picture_of_the_readme_is_a_measurement(project_root: Path) -> None:
    picture = project_root / "config/pictures/measured.svg"
    assert f"({picture.relative_to(project_root)})" in (project_root / "README.md").read_text()
    assert picture.read_text().count("<path") > 1000  # a mark a run
    assert picture.stat().st_size < 400_000


NOTEBOOKS = sorted((Path(__file__).parents[2] / "config/notebooks").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook that are run."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_are_stored_without_outputs(notebook: Path) -> None:
    """The site runs them, so that it shows what this version prints."""
    for cell in code_cells(notebook):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_run_and_show_a_table(notebook: Path, tmp_path: Path, project_root: Path) -> None:
    out = tmp_path / "out.ipynb"
    program = [sys.executable, "-c", "from nbclient.cli import main; main()"]
    command = [*program, notebook, "--output", out, "--timeout", "1200"]
    environment = os.environ | {"PYTHONPATH": str(project_root)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in code_cells(out) for output in cell["outputs"]]
    assert any("<table" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mkdocs") is None, reason="needs the programs of the extra docs")
def test_the_site_builds_without_warnings(tmp_path: Path, project_root: Path) -> None:
    done = subprocess.run(
        ["mkdocs", "build", "--quiet", "--site-dir", tmp_path],
        cwd=project_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "llms.txt").is_file()
