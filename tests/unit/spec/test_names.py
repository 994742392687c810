"""Models, systems and devices are found by the names that people use."""

import re
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, model_path, read_mapping, system_path
from phaze.spec.systems import chip_path, load_device
from tests.commands import assert_refused, invoke, invoke_json

NAMES = read_mapping(FOLDER / "names.yaml")


def test_every_other_name_leads_to_a_file_and_hides_none() -> None:
    for folder, files in NAMES.items():
        assert isinstance(files, dict)
        stems = {path.stem for path in (FOLDER / folder).glob("*.yaml")}
        assert {*files} <= stems
        others = [str(other).lower() for names in files.values() for other in names]
        assert len({*others}) == len(others)
        assert not {*others} & stems


def test_a_published_configuration_is_found_by_the_id_that_its_file_cites() -> None:
    cited = {
        (match[1], path.stem)
        for path in (FOLDER / "models").glob("*.yaml")
        for match in re.finditer(r"configuration `([\w-]+/[\w.-]+)`", path.read_text().replace("\n# ", " "))
    }
    assert len(cited) > 12
    assert {(name, model_path(name).stem) for name, _ in cited} == cited


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("GPT2", "gpt2"),
        ("Llama-2-7b", "llama2-7b"),
    ],
)
def test_a_model_is_found_by_id_and_in_any_case(name: str, stem: str) -> None:
    assert model_path(name) == FOLDER / "models" / f"{stem}.yaml"


def test_an_unknown_id_says_which_file_to_give() -> None:
    with pytest.raises(PhazeError) as error:
        model_path("meta-llama/Llama-9-8B")
    assert "no model of config/models has this Hugging Face id" in error.value.wrong
    assert "config.json, from https://huggingface.co/meta-llama/Llama-9-8B" in error.value.fix


def test_a_folder_of_a_published_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_path(str(tmp_path)) == tmp_path / "config.json"
    assert model_path("none/mine.yaml") == Path("none/mine.yaml")


@pytest.mark.parametrize(
    ("name", "system", "device"),
    [
        ("A100", "a100-selene", "a100-80gb"),
        ("H100", "h100", "h100-80gb"),
        ("v100", "dgx1-ethernet", "v100-32gb"),
    ],
)
def test_a_device_names_its_system_and_its_architecture(name: str, system: str, device: str) -> None:
    assert (system_path(name).stem, chip_path(name).stem, load_device(name).name) == (system, device, device)


def test_numbers_of_devices_are_lists_and_nodes() -> None:
    plan = "plan gpt2 --gbs 16 --seq-length 64 --fix pp=1,cp=1,tp=1 --top 1 --json"
    devices = [
        [answer["question"]["devices"] for answer in invoke_json(f"{plan} {cluster}".replace(" --json", ""))]
        for cluster in ("--gpus 8,16xH100", "--system H100 --nodes 1,2", "--system h100 --devices 8,16")
    ]
    assert devices == [[8, 16]] * 3


def test_widths_are_lists_with_commas_or_repeated() -> None:
    commas = invoke("extract -m gpt2 --tensor 1,2 --microbatch 1 --json").stdout
    assert commas == invoke("extract -m gpt2 --tensor 1 --tensor 2 --microbatch 1 --json").stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("plan gpt2 --gpus 8xh100 --nodes 2", "already sets --system and --devices"),
        ("plan gpt2 --system h100 --nodes 2 --devices 8", "--nodes 2 and --devices both set the devices"),
        ("plan gpt2 --system h100 --nodes 0", "--nodes: must be whole numbers >= 1"),
        ("plan gpt2 --gpus 8,8xh100", "must be distinct whole numbers"),
    ],
)
def test_contradictions_are_refused(command: str, message: str) -> None:
    assert_refused(message, command)
