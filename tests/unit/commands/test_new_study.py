"""A study of one's own: a file that runs and explains itself."""

from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.commands import study as study_command
from phaze.spec.config import load_settings
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.noun import Noun
from phaze.spec.systems import flat_scenario
from phaze.spec.values import Count, Positive
from tests.commands import invoke


def written(*arguments: str) -> str:
    return invoke("new-study", *arguments).stdout


def test_the_file_has_the_model_the_accelerators_and_its_schema(tmp_path: Path, project_root: Path) -> None:
    path = tmp_path / "my.yaml"
    told = written("--model", "llama-3.1-8b", "--architecture", "h100-80gb", "-o", str(path))
    run = f".venv/bin/snakemake --cores 4 --configfile {path}"
    study = "a study of llama-3.1-8b on h100-80gb, tpu-v4-as-built, tpu-v4"
    assert told == f"{path}: {study}; run it with\n  {run}\n"
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


def test_names_are_repeated_or_separated_by_commas_and_merged() -> None:
    chips = ("-a", "tpu-v4-as-built,phaze-common", "-a", "tpu-v4")
    text = written("-m", "gpt2,bert-large", "-m", "gpt2", *chips)
    study = yaml.safe_load(text)
    assert study["models"] == ["gpt2", "bert-large"] == list(study["workloads"])
    assert study["architectures"]["named"] == ["tpu-v4-as-built", "phaze-common", "tpu-v4"]
    assert "How would gpt2, bert-large be trained on tpu-v4-as-built and phaze-common" in text


def test_widths_and_hbm_sizes_are_what_the_models_need() -> None:
    """A model whose states fit a device needs one width; of the sizes the smallest lets every model fit."""
    models = ("gpt2", "kimi-k2", "gpt2,kimi-k2")
    small, large, both = (yaml.safe_load(written("-m", names)) for names in models)
    assert small["workloads"]["gpt2"]["tensor"] == both["workloads"]["gpt2"]["tensor"] == [1]
    assert large["workloads"]["kimi-k2"]["tensor"] == [1, 2, 4, 8]
    sizes = [study["training"]["hbm_gib"] for study in (small, large, both)]
    assert sizes == [[32, 80], [80, 192], [80, 192]]


@pytest.mark.parametrize(
    ("chips", "system"),
    [("phaze-common", "tpu-v4-pod"), ("h100-80gb", "h100"), ("phaze-common,mi300x,h100-80gb", "mi300x")],
)
def test_the_cluster_is_that_of_the_first_accelerator_that_has_one(chips: str, system: str) -> None:
    """Architectures, which have no clock, keep that of the pod."""
    study = yaml.safe_load(written("-m", "gpt2", "-a", chips))
    (scenario,) = filter(None, study["scenarios"].values())
    assert scenario["system"] == system
    merged = {**read_mapping(FOLDER / "config.yaml"), **study, "readings": {}}
    merged["scenarios"] = {name: one for name, one in study["scenarios"].items() if one}
    settings = load_settings(merged, folder=FOLDER, source="x")
    (own,) = settings.scenarios.values()
    pod = flat_scenario("tpu-v4-pod")
    for name in ("devices", "clock_hz", "hbm_bandwidth_bytes_per_s"):
        assert getattr(own, name) == getattr(pod, name)


def test_an_installation_without_the_workflow_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_command, "ROOT", tmp_path)
    told = written("-m", "gpt2", "-o", str(tmp_path / "my.yaml"))
    assert "snakemake --cores 4" in told
    assert "--snakefile CHECKOUT/Snakefile  # CHECKOUT: a checkout of phaze" in told
    assert ".venv" not in told


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
