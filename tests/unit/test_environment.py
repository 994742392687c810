"""Project, lock file and conda environment name the same libraries at the same versions."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phaze.base.extras import EXTRAS

CONDA_NAMES = {"snakemake": "snakemake-minimal"}
"""Libraries with other names in conda's channels than on PyPI."""

ONLY_CONDA = {"python", "glpk"}
"""Packages that pip cannot install."""


@pytest.fixture(scope="module")
def project(project_root: Path) -> dict[str, list[str]]:
    """Return the requirements in pyproject.toml, by group."""
    table = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    return {"run": _run(table), "dev": table["optional-dependencies"]["dev"]}


@pytest.fixture(scope="module")
def locked(project_root: Path) -> dict[str, list[str]]:
    """Return the versions in requirements.lock, a list for each library."""
    versions: dict[str, list[str]] = {}
    for line in (project_root / "requirements.lock").read_text().splitlines():
        if pin := re.match(r"([a-z0-9-]+)==(\S+)", line):
            versions.setdefault(pin[1], []).append(pin[2])
    return versions


@pytest.fixture(scope="module")
def conda(project_root: Path) -> dict[str, str]:
    """Return the versions in the conda environment."""
    environment = yaml.safe_load((project_root / "envs/phaze.yaml").read_text())
    return dict(line.split("=") for line in environment["dependencies"])


def _run(table: dict[str, Any]) -> list[str]:
    """Return the requirements of the core and of the extras that all users of studies and pages need."""
    extras = table["optional-dependencies"]
    lines = [*table["dependencies"], *extras["studies"], *extras["pages"]]
    return [line for line in dict.fromkeys(lines) if not line.startswith(table["name"])]


def names(requirements: list[str]) -> list[str]:
    """Return the normalised names of requirements."""
    return [re.split(r"[<>=~!\[; ]", line)[0].lower().replace("_", "-") for line in requirements]


def test_every_requirement_is_locked(project: dict[str, list[str]], locked: dict[str, list[str]]) -> None:
    """The lock file has every library that the project needs, to run and to develop."""
    assert set(names(project["run"] + project["dev"])) <= set(locked)


def test_a_library_is_locked_once(locked: dict[str, list[str]]) -> None:
    """Every Python version and platform gets the same versions."""
    assert {name: pins for name, pins in locked.items() if len(pins) > 1} == {}


def test_locked_versions_satisfy_the_project(
    project: dict[str, list[str]], locked: dict[str, list[str]]
) -> None:
    """The lock file was updated after the last change of a requirement."""
    requirements = pytest.importorskip("packaging.requirements")
    stated = [requirements.Requirement(line) for line in project["run"] + project["dev"]]
    wrong = [str(line) for line in stated if not line.specifier.contains(locked[names([line.name])[0]][0])]
    assert wrong == []


def test_every_package_has_a_hash(project_root: Path) -> None:
    """Installed files are byte for byte those that were tested, from any mirror."""
    text = (project_root / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9-]+==.*(?:\n    --hash.*)*", text, flags=re.MULTILINE)
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []


def test_the_lock_names_no_registry(project_root: Path) -> None:
    """The package source is the user's configuration."""
    assert "://" not in (project_root / "requirements.lock").read_text()


def test_the_conda_environment_has_the_locked_versions(
    project: dict[str, list[str]], locked: dict[str, list[str]], conda: dict[str, str]
) -> None:
    """Conda users run the study with the same libraries as others."""
    expected = {CONDA_NAMES.get(name, name): locked[name][0] for name in names(project["run"])}
    assert {name: version for name, version in conda.items() if name not in ONLY_CONDA} == expected


def test_the_environment_with_pytorch_asks_for_what_the_project_does(project_root: Path) -> None:
    """It has the libraries of the optional group and those of phaze that tracing needs, at least as new."""
    table = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    stated = {**dict(_split(_run(table))), **dict(_split(table["optional-dependencies"]["torch"]))}
    environment = yaml.safe_load((project_root / "envs/torch.yaml").read_text())
    called = {"pytorch-cpu": "torch", **{conda: name for name, conda in CONDA_NAMES.items()}}
    asked = {called.get(name, name): least for name, least in _split(environment["dependencies"][1:])}
    assert set(names(table["optional-dependencies"]["torch"])) <= set(asked)
    assert {name: stated.get(name) for name in asked} == asked


def test_the_conda_recipe_asks_for_what_the_project_does(
    project: dict[str, list[str]], project_root: Path
) -> None:
    """A package of conda-forge has the version, commands and requirements of the wheel."""
    table = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((project_root / "envs/recipe.yaml").read_text())
    assert (recipe["package"]["name"], recipe["context"]["version"]) == (table["name"], table["version"])
    entries = dict(entry.split(" = ") for entry in recipe["build"]["python"]["entry_points"])
    assert entries == table["scripts"]
    asked = {
        line.replace(" ", "") for line in recipe["requirements"]["run"] if not line.startswith("python ")
    }
    stated = {
        re.sub(r"^[a-z0-9-]+", CONDA_NAMES.get(name, name), line)
        for line, name in zip(project["run"], names(project["run"]), strict=True)
    }
    assert asked == stated


def test_a_release_is_described_once(project_root: Path) -> None:
    """The version, and the date of its entry in the changelog, are those that citations name."""
    version = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((project_root / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert f"## {version} - {citation['date-released']}\n" in (project_root / "CHANGELOG.md").read_text()


def test_the_container_copies_what_exists_and_starts_phaze(project_root: Path) -> None:
    """Instructions of the container file name files of the checkout, and its entry point is the command."""
    text = (project_root / "envs/Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [
        word for word, _ in lines if word not in {"FROM", "RUN", "COPY", "WORKDIR", "ENTRYPOINT", "CMD"}
    ] == []
    copied = [source for word, rest in lines if word == "COPY" for source in rest.split()[:-1]]
    assert [source for source in copied if not (project_root / source).exists()] == []
    assert ["ENTRYPOINT", '["phaze"]'] in lines


def _split(requirements: list[str]) -> list[tuple[str, str]]:
    return [(line.split(">=")[0], line.split(">=")[1]) for line in requirements]


def test_the_conda_environment_has_glpk_and_a_supported_python(conda: dict[str, str]) -> None:
    """Conda brings what pip cannot."""
    assert ("glpk" in conda, tuple(map(int, conda["python"].split("."))) >= (3, 11)) == (True, True)


def test_a_missing_program_skips_a_test_and_fails_it_under_ci(
    require_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a solver or browser some tests are skipped; under CI a skip would hide a broken set-up."""
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        require_program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        require_program("no-such-program")


def test_a_test_that_hangs_says_where_and_ends(tmp_path: Path, project_root: Path) -> None:
    """Every test has the time limit of pyproject.toml; here it is shorter."""
    limits = tomllib.loads((project_root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert 0 < limits["faulthandler_timeout"] <= 600
    assert limits["faulthandler_exit_on_timeout"] is True
    (tmp_path / "test_hang.py").write_text("import time\n\ndef test_hang():\n    time.sleep(60)\n")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfaulthandler_timeout = 1\nfaulthandler_exit_on_timeout = true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "--max-worker-restart", "0", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert done.returncode != 0
    assert "crashed while running 'test_hang.py::test_hang'" in done.stdout
    assert "in test_hang" in done.stdout + done.stderr


def test_phaze_is_installed_from_its_folder(project_root: Path) -> None:
    """The package index has another program of this name."""
    texts = [
        *project_root.glob("*.md"),
        *project_root.glob("config/**/*.md"),
        *project_root.glob("phaze/**/*.py"),
    ]
    assert len(texts) > 100
    pattern = re.compile(r"pip install (?:-\S+ )*['\"]?phaze")
    assert [path for path in texts if pattern.search(path.read_text())] == []


CORE = (
    "plan gpt2 --gpus 8xh100 --gbs 16 --seq-length 256 --fix pp=1,cp=1,tp=1 --top 1 -o {0}/plan.json",
    "emit {0}/plan.json --for megatron -o {0}/flags.txt",
    "read {0}/flags.txt --for megatron --gpus 8xh100 -o {0}/run.csv",
    "compare {0}/flags.txt {0}/plan.json",
    "compare {0}/run.csv {0}/plan.json",
    "compare {0}/open.csv {0}/plan.json",
)
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
names = {*sys.argv[1].split(",")}
class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
del sys.argv[1]
from phaze.__main__ import main
sys.exit(main())
"""


def without(libraries: Iterable[str], command: str) -> tuple[int, str]:
    """Exit status and messages of a command without some libraries."""
    words = [sys.executable, "-c", BLOCKED, ",".join(libraries), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_the_core_needs_no_library_of_an_extra(tmp_path: Path) -> None:
    """It plans, emits, reads and compares without them."""
    # a row without a microbatch size: the fastest one is chosen
    (tmp_path / "open.csv").write_text("model,gpus,global_batch,seq\ngpt2,8,16,256\n")
    for command in CORE:
        status, told = without(EXTRAS, command.format(tmp_path))
        assert status == 0, told


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("plan gpt2 --gpus 8xh100 --page plan.html", "pages"),
        ("estimate --model gpt2", "studies"),
        ("validate", "studies"),
        ("export none.parquet", "studies"),
        ("partition gpt2 --devices 4", "studies"),
        ("trace config/torch/gpt2.yaml --run-code -o graph.json", "torch"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(command: str, extra: str) -> None:
    status, told = without(EXTRAS, command)
    error, fix = told.splitlines()
    assert status == 1
    assert re.fullmatch("error: this needs [a-z]+, which is not installed", error)
    assert fix.startswith(f"help: install the extra {extra}: pip install '.[{extra}]' in a checkout")


def test_every_extra_has_the_libraries_that_messages_name(project_root: Path) -> None:
    table = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    for library, extra in EXTRAS.items():
        distribution = {"vl_convert": "vl-convert-python"}.get(library, library)
        assert distribution in names(table["optional-dependencies"][extra])
        assert distribution not in names(table["dependencies"])
