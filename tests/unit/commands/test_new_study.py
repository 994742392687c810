"""A study of one's own: a file that runs and explains itself."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from phaze.spec.config import load_settings
from phaze.spec.files import read_mapping
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Positive


def written(*arguments: str) -> str:
    return CliRunner().invoke(app, ["new-study", *arguments], catch_exceptions=False).stdout


def test_the_file_has_the_model_the_accelerators_and_its_schema(tmp_path: Path, project_root: Path) -> None:
    path = tmp_path / "my.yaml"
    written("--model", "llama-3.1-8b", "--architecture", "h100-80gb", "-o", str(path))
    text = path.read_text()
    schema = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (tmp_path / schema).resolve() == (project_root / "config/schema.json").resolve()
    assert f"--configfile {path}" in text
    assert "Save this as" not in text
    assert "# Save this as my.yaml.\n" in written("--model", "gpt2")
    study = read_mapping(path)
    assert study["models"] == ["llama-3.1-8b"]
    assert study["architectures"] == {"grid": None, "named": ["h100-80gb", "tpu-v4-as-built", "tpu-v4"]}
    assert yaml.safe_load(text) == study, "Snakemake reads the same"
    with pytest.raises(PhazeError, match="exists, and may have been edited"):
        written("--model", "gpt2", "-o", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpt2", "-a", "tpu-v9"), "there is no architecture 'tpu-v9'"),
        (("--model", "semantic-fpn"), "is not a chain of layers"),
        (("--model", "gpt2", "--sequence", "4096"), "sequence: 4096"),
        (("--model", "gpt2", "-o", "my.json"), "must end in .yaml"),
    ],
)
def test_a_study_that_cannot_run_is_not_written(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        written(*arguments)


def test_studies_name_their_schema(project_root: Path) -> None:
    for path in (project_root / "config/config.yaml", *(project_root / "config/studies").glob("*.yaml")):
        first = path.read_text().splitlines()[0]
        assert (path.parent / first.removeprefix("# yaml-language-server: $schema=")).is_file(), path


class Numbers(Noun):
    count: Count
    size: Positive


@pytest.mark.parametrize(("text", "number"), [("1e1", 10), ("5e9", 5e9), ("864.0e9", 864e9), ("2E+3", 2000)])
def test_numbers_with_exponents_are_numbers(text: str, number: float, tmp_path: Path) -> None:
    """YAML 1.1 reads them as text if they have no point or no sign."""
    path = tmp_path / "numbers.yaml"
    path.write_text(f"count: 1e1\nsize: {text}\n")
    found = Numbers.from_file(path)
    assert (found.count, found.size) == (10, number)
    with pytest.raises(PhazeError, match="count"):
        Numbers.parse({"count": "ten", "size": 1.0}, "x")


def test_a_study_is_checked_against_the_default_one(project_root: Path) -> None:
    study = yaml.safe_load(written("--model", "bert-large"))
    default = read_mapping(project_root / "config/config.yaml")
    assert load_settings({**default, **study, "readings": {}}, folder=project_root / "config", source="x")
