"""Counts of every family, and of what `transformers` writes of its configurations.

tests/data/transformers-written.json has, for small models of our own with unusual sizes, the fields given,
those that `save_pretrained` of transformers 5.24.0 writes of them, and the parameters of the module on the
meta device.
`python tests/unit/spec/test_transformers.py` writes it again from the fields that are given.
"""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.huggingface import FAMILIES, WITHOUT_TEXT, translate
from phaze.spec.model import Model
from phaze.spec.models import load_model, parse_model

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "tests" / "data" / "transformers-written.json"
WRITTEN: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())
SHARED = sorted((ROOT.parent / "shared" / "data" / "huggingface").glob("*.json"))
INSTALLED = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
NEEDS = pytest.mark.skipif(not INSTALLED, reason="torch and transformers are not installed")
OTHER_TYPES = {"kimi_k2": "deepseek_v3"}
"""Families that `transformers` has under another name only."""


def count(folder: Path, config: object) -> int:
    """Parameters of a configuration, as counted by phaze."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    model = load_model(path)
    assert isinstance(model, Model)
    return model.parameters


def write(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fields written by `save_pretrained` for a configuration."""
    auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    config = auto.CONFIG_MAPPING[given["model_type"]](**{k: v for k, v in given.items() if k != "model_type"})
    config.save_pretrained(folder)
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    del found["transformers_version"]
    return found


def built(given: dict[str, Any]) -> int:
    """Parameters of the module on the meta device, shared ones counted once."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    kind = given["model_type"]
    config = transformers.AutoConfig.for_model(**given)
    auto = transformers.AutoModelForCausalLM
    if kind == "bert":  # whose pooler the model with a head has not
        auto = transformers.AutoModel
    with torch.device("meta"):
        module = auto.from_config(config)
    return sum(one.numel() for one in {id(one): one for one in module.parameters()}.values())


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("form", ["given", "written"])
def test_counts_are_those_of_the_module_on_the_meta_device(tmp_path: Path, name: str, form: str) -> None:
    """For the given fields, and for those written by `save_pretrained`, which may have other names."""
    assert count(tmp_path, WRITTEN[name][form]) == WRITTEN[name]["parameters"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_field_that_says_nothing_is_answered_or_refused_in_one_line(name: str) -> None:
    """Every field of every family, false, zero, null and absent."""
    config, said = WRITTEN[name]["written"], []
    for key in config:
        for value in (False, 0, None, ...):
            fields = (
                config | {key: value} if value is not ... else {k: v for k, v in config.items() if k != key}
            )
            try:
                parse_model({"name": "x", **translate(fields, "x.json")}, "x.json")
            except PhazeError as error:
                said.append(str(error))
    assert all(re.fullmatch(r"x\.json: \S+.*", message) for message in said), said


def test_every_family_is_counted() -> None:
    """Each has a small model, except the one that transformers does not have."""
    kinds = {one["given"]["model_type"] for one in WRITTEN.values()}
    assert set(FAMILIES) - kinds - set(OTHER_TYPES) == set()
    assert kinds <= set(FAMILIES) | set(WITHOUT_TEXT)


@NEEDS
@pytest.mark.parametrize("name", WRITTEN)
def test_the_table_is_what_the_installed_transformers_writes(tmp_path: Path, name: str) -> None:
    """Fields and parameters."""
    own = WRITTEN[name]
    assert write(own["given"], tmp_path) == own["written"]
    assert built(own["given"]) == own["parameters"]


@NEEDS
@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_a_published_configuration_counts_the_same_as_transformers_writes_it(
    tmp_path: Path, path: Path
) -> None:
    """The whole model, blocks and widths included."""
    config = json.loads(path.read_text())
    config.pop("auto_map", None)  # code of the checkpoint, which nothing here runs
    config["model_type"] = OTHER_TYPES.get(config["model_type"], config["model_type"])
    given, written = tmp_path / path.stem, tmp_path / "written" / path.stem
    given.mkdir()
    (given / "config.json").write_text(json.dumps(config))
    transformers: Any = importlib.import_module("transformers")
    transformers.AutoConfig.from_pretrained(given).save_pretrained(written)
    ours, theirs = load_model(path), load_model(written / "config.json")
    assert isinstance(ours, Model)
    assert isinstance(theirs, Model)
    assert theirs.parameter_groups() == ours.parameter_groups()
    assert (theirs.runs, theirs.blocks, theirs.mtp_block) == (ours.runs, ours.blocks, ours.mtp_block)


if __name__ == "__main__":
    import tempfile

    lines = []
    for name, own in WRITTEN.items():
        with tempfile.TemporaryDirectory() as folder:
            fields = write(own["given"], Path(folder))
        row = {"given": own["given"], "written": fields, "parameters": built(own["given"])}
        lines.append(f"{json.dumps(name)}: {json.dumps(row)}")
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
