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
from phaze.spec.huggingface import FAMILIES, SAME_TEXT, WITHOUT_TEXT, translate
from phaze.spec.huggingface.keys import NAMES, STATED
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
EVERY = {
    "chunk_size_feed_forward": 0, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "output_attentions": False, "output_hidden_states": False,
    "problem_type": None, "return_dict": True, "do_sample": False, "temperature": 1.0, "top_k": 50,
    "top_p": 1.0, "num_beams": 1, "repetition_penalty": 1.0, "length_penalty": 1.0, "max_length": 20,
    "typical_p": 1.0, "torchscript": False, "pruned_heads": {}, "use_bfloat16": False, "use_cache": True,
    "add_cross_attention": False, "tie_encoder_decoder": False, "is_decoder": False,
    "num_return_sequences": 1,
}  # fmt: skip
"""Fields of `PretrainedConfig` and its `GenerationConfig` with their defaults."""
OWN_CODE = {"bailing_moe", "bailing_moe_v2"}
"""Families whose code is part of their checkpoints; they are counted by hand."""
UNCOUNTED = {"apertus": 2}
"""Parameters of a layer that no model of ours has: the two of the activation xIELU."""


def count(folder: Path, config: object) -> int:
    """Parameters of a configuration, as counted by phaze."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    model = load_model(path)
    assert isinstance(model, Model)
    return model.parameters


def whole(config: Any) -> object:
    """Blocks and parameters of a configuration."""
    model = parse_model({"name": "x", **translate(config, "x.json")}, "x.json")
    assert isinstance(model, Model)
    return model.parameter_groups(), model.runs, model.blocks, model.mtp_block


def write(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fields written by `save_pretrained` for a configuration."""
    auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    config = auto.CONFIG_MAPPING[fields["model_type"]](
        **{k: v for k, v in fields.items() if k != "model_type"}
    )
    config.save_pretrained(folder)
    written: dict[str, Any] = json.loads((folder / "config.json").read_text())
    del written["transformers_version"]
    return written


def built(fields: dict[str, Any]) -> int:
    """Parameters of the module on the meta device, shared ones counted once."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    kind = fields["model_type"]
    config = transformers.AutoConfig.for_model(**fields)
    auto = transformers.AutoModelForCausalLM
    if kind == "bert":  # whose pooler the model with a head has not
        auto = transformers.AutoModel
    head = 0
    with torch.device("meta"):
        if kind in SAME_TEXT:  # only the whole vision model has a head
            part = kind.removesuffix("_text")
            file = importlib.import_module(f"transformers.models.{part}.modeling_{part}")
            (name,) = [name for name in vars(file) if re.fullmatch(r"Qwen\w*?(Thinker)?TextModel", name)]
            module = getattr(file, name)(config)
            head = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        else:
            module = auto.from_config(config)
    return head + sum(
        tensor.numel() for tensor in {id(tensor): tensor for tensor in module.parameters()}.values()
    )


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("form", ["given", "written"])
def test_counts_are_those_of_the_module_on_the_meta_device(tmp_path: Path, name: str, form: str) -> None:
    """For the given fields, and for those written by `save_pretrained`, which may have other names."""
    config = WRITTEN[name][form]
    uncounted = UNCOUNTED.get(config["model_type"], 0) * config.get("num_hidden_layers", 0)
    assert count(tmp_path, config) + uncounted == WRITTEN[name]["parameters"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_field_that_says_nothing_is_answered_or_refused_in_one_line(name: str) -> None:
    """Every field of every family, false, zero, null and absent."""
    config, messages = WRITTEN[name]["written"], []
    for key in config:
        for value in (False, 0, None, ...):
            fields = (
                config | {key: value} if value is not ... else {k: v for k, v in config.items() if k != key}
            )
            try:
                parse_model({"name": "x", **translate(fields, "x.json")}, "x.json")
            except PhazeError as error:
                messages.append(str(error))
    assert all(re.fullmatch(r"x\.json: \S+.*", message) for message in messages), messages


def test_every_family_is_counted() -> None:
    """Each has a small model, except those that transformers does not have."""
    kinds = {case["given"]["model_type"] for case in WRITTEN.values()}
    assert set(FAMILIES) - kinds - set(OTHER_TYPES) - OWN_CODE == set()
    assert kinds <= {*FAMILIES, *WITHOUT_TEXT, *SAME_TEXT}
    assert {kind for kind in SAME_TEXT if kind.endswith("_text")} <= kinds


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (
            {
                "model_type": "bailing_moe", "hidden_size": 2048, "num_hidden_layers": 28,
                "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632,
                "moe_intermediate_size": 1408, "num_experts": 64, "num_experts_per_tok": 6,
                "num_shared_experts": 2, "vocab_size": 126464, "norm_head": True, "use_bias": False,
            },
            16.8,
        ),
        (
            {
                "model_type": "bailing_moe_v2", "hidden_size": 2048, "num_hidden_layers": 20,
                "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
                "intermediate_size": 5120, "first_k_dense_replace": 1, "moe_intermediate_size": 512,
                "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "n_group": 8,
                "topk_group": 4, "use_qk_norm": True, "use_qkv_bias": False, "vocab_size": 157184,
                "moe_router_enable_expert_bias": True, "score_function": "sigmoid",
            },
            16.26,
        ),
    ],
    ids=["Ling-lite", "Ling-mini-2.0"],
)  # fmt: skip
def test_families_without_a_class_have_their_published_size(
    tmp_path: Path, config: dict[str, object], billions: float
) -> None:
    """Billions of parameters of the model cards; 0.3 % of rounding."""
    assert count(tmp_path, config) / 1e9 == pytest.approx(billions, rel=3e-3)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_field_at_its_default_changes_nothing(name: str) -> None:
    """Every field that a family reads, and what any family may say of itself, added as the code has it."""
    config = WRITTEN[name]["written"]
    kind = config["model_type"]
    same = SAME_TEXT.get(kind, {})
    family = FAMILIES[str(same.get("model_type", WITHOUT_TEXT.get(kind, kind)))]
    spec, model = translate(config, "x.json"), whole(config)
    for key in (*family.keys.values(), *family.extra_keys):
        default = key.default(config) if callable(key.default) else key.default
        others = any(config.get(name) for name in NAMES.get(key.published, ()))
        is_set = config.get(key.published) is not None or others
        if not is_set and key.published not in same and default is not None:
            assert whole(config | {key.published: default}) == model, key.published
    stated = {key: says(spec, config | {key: 3}) for key, says in STATED.items() if key not in config}
    for key, value in stated.items():
        assert whole(config | {key: value}) == model, (key, value)


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_published_configurations_may_say_what_every_configuration_has(path: Path) -> None:
    """The fields of `PretrainedConfig` at their defaults, and what an official release adds (Qwen3-MoE)."""
    config = json.loads(path.read_text())
    spec, model = translate(config, path.name), whole(config)
    for key, value in EVERY.items():
        assert whole({key: value} | config) == model, key
    for key, says in STATED.items():
        if key not in config and "text_config" not in config:
            assert whole(config | {key: says(spec, config | {key: 3})}) == model, key


@NEEDS
@pytest.mark.parametrize("name", WRITTEN)
def test_the_table_is_what_the_installed_transformers_writes(tmp_path: Path, name: str) -> None:
    """Fields and parameters."""
    case = WRITTEN[name]
    assert write(case["given"], tmp_path) == case["written"]
    assert built(case["given"]) == case["parameters"]


@NEEDS
@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_a_published_configuration_counts_the_same_as_transformers_writes_it(
    tmp_path: Path, path: Path
) -> None:
    """The whole model, blocks and widths included."""
    config = json.loads(path.read_text())
    config.pop("auto_map", None)  # code of the checkpoint, which nothing here runs
    config["model_type"] = OTHER_TYPES.get(config["model_type"], config["model_type"])
    published, written = tmp_path / path.stem, tmp_path / "written" / path.stem
    published.mkdir()
    (published / "config.json").write_text(json.dumps(config))
    transformers: Any = importlib.import_module("transformers")
    transformers.AutoConfig.from_pretrained(published).save_pretrained(written)
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
