"""The model noun: published sizes, defaults, and messages for invalid values."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from phaze.base.errors import PhazeError
from phaze.spec.model import Model
from phaze.spec.models import load_model, load_transformer, parse_model
from tests.oracles.parameters import training_head_parameters

SPECS = Path(__file__).parents[3] / "config" / "models"

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "opt-350m": 331_196_416,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
}

MEGATRON = {
    "megatron-bert": 0.336, "megatron-gpt-2.5b": 2.5, "megatron-gpt-8.3b": 8.3, "megatron-gpt3-175b": 175.0,
    "t-18b": 18.4, "t-39b": 39.1, "t-76b": 76.1, "t-145b": 145.6, "t-310b": 310.1, "t-530b": 529.6,
    "t-1t": 1008.0,
}  # fmt: skip
TINY = """\
layers: 2
hidden: 8
heads: 2
feed_forward: 16
vocabulary: 10
position_count: 4
"""


def spec(tmp_path: Path, text: str, name: str = "tiny.yaml") -> Path:
    """Write a spec."""
    path = tmp_path / name
    path.write_text(text)
    return path


def tiny(**changes: object) -> Model:
    """Return a small model with some fields changed."""
    return Model.parse({"name": "tiny", **yaml.safe_load(TINY), **changes}, "tiny.yaml")


def test_parameters_are_those_of_the_publications() -> None:
    """Exactly if the count is published; Megatron's models have the size that their papers round to."""
    for name, count in PUBLISHED.items():
        assert load_model(SPECS / f"{name}.yaml").parameters == count, name
    for name, billions in MEGATRON.items():
        parameters = load_model(SPECS / f"{name}.yaml").parameters
        assert parameters == pytest.approx(billions * 1e9, rel=0.005), name


def test_a_small_model_counts_by_hand() -> None:
    """A model small enough to count."""
    embedding = 10 * 8 + 4 * 8
    attention = 4 * 8 * 8 + 4 * 8
    feed_forward = 2 * 8 * 16 + 16 + 8
    norms = 2 * 2 * 8
    assert tiny().parameters == embedding + 2 * (attention + feed_forward + norms) + 2 * 8


def test_tied_embeddings_are_counted_once() -> None:
    """An untied head adds a matrix of the size of the word embedding."""
    assert tiny(tied_embeddings=False).parameters - tiny().parameters == 10 * 8


def test_grouped_heads_have_fewer_keys_and_values() -> None:
    """Grouped key-value heads shrink two of the four attention matrices."""
    assert tiny().parameters - tiny(key_value_heads=1).parameters == 2 * 2 * (8 * 4 + 4)


def test_a_projected_embedding_goes_in_and_out_without_bias() -> None:
    """A word embedding of another width is projected to the residual stream and back."""
    assert tiny(embedding_width=4).parameters - tiny().parameters == 2 * (4 * 8) - 10 * 4


def test_the_masked_lm_head_is_work_beyond_the_published_parameters() -> None:
    """Training BERT adds transform, norm, decoder bias and sentence classifier to the published base with
    pooler.
    """
    bert = load_model(SPECS / "bert-large.yaml")
    assert training_head_parameters(bert) == (1024 * 1024 + 1024) + 2 * 1024 + 30522 + 2 * 1025
    assert training_head_parameters(tiny()) == 0


def test_an_untied_masked_lm_decoder_belongs_to_the_training_head() -> None:
    """The decoder matrix of an untied masked-lm head is not among the published parameters."""
    tied, untied = tiny(head="masked-lm"), tiny(head="masked-lm", tied_embeddings=False)
    assert tied.parameters == untied.parameters
    assert training_head_parameters(untied) - training_head_parameters(tied) == 10 * 8


def test_flops_per_token_are_those_of_palm() -> None:
    """Training needs 6N + 12LHQT FLOPs per token (PaLM, Appendix B)."""
    gpt2 = load_model(SPECS / "gpt2.yaml")
    assert gpt2.flops_per_token(1024).paper == 6 * 124_439_808 + 12 * 12 * 12 * 64 * 1024


def test_flops_per_token_that_are_needed_are_those_of_products_with_half_of_causal_attention() -> None:
    """Llama 3.1 8B: all matrices, and half of the scores of 8,192 tokens."""
    llama = load_transformer("llama-3.1-8b", "test")
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    attention = 32 * 2 * 4096 * 8192 / 2
    assert llama.flops_per_token(8192).needed == 6 * (matrices + attention)
    bert = load_transformer("bert-large", "test")
    assert bert.flops_per_token(512).needed == 2 * bert.trained_products_per_token(512, causal=False)


def test_a_token_is_multiplied_with_every_matrix_once_and_attends_to_others() -> None:
    """The parameters of matrices: not the embedding, nor norms (2 per block and the last one)."""
    model = load_transformer("llama-3.1-8b", "test")
    norms = (2 * model.layers + 1) * model.hidden
    matrices = model.parameters - model.embedding_parameters - norms
    for causal, attended in ((True, 4096), (False, 8192)):
        scores = 2 * model.layers * model.query_width * attended
        assert model.products_per_token(8192, causal=causal) == matrices + scores


def test_a_model_survives_json() -> None:
    """Every spec of phaze is named like its file, and stays equal when passed by value."""
    paths = sorted(SPECS.glob("*.yaml"))
    for path, model in ((path, load_model(path)) for path in paths):
        assert model.name == path.stem
        assert parse_model(json.loads(json.dumps(model.model_dump(mode="json"))), "json") == model
    assert paths


def test_a_model_cannot_be_changed() -> None:
    """A model is frozen."""
    with pytest.raises(ValidationError):
        tiny().layers = 3  # type: ignore[misc]


def test_a_spec_may_name_its_model(tmp_path: Path) -> None:
    """The spec's own name has priority over the file name, and the caller's over both."""
    path = spec(tmp_path, TINY + "name: mine\n")
    assert load_model(path).name == "mine"
    assert load_model(path, "yours").name == "yours"


@pytest.mark.parametrize(
    ("folder", "repository", "name"),
    [
        ("My_GPT 2", None, "my-gpt-2"),
        ("d", None, "gpt2"),
        ("d", "openai-community/GPT2-XL", "gpt2-xl"),
        ("My_GPT 2", "/home/me/GPT2-tuned/", "gpt2-tuned"),
        ("d", ".", "gpt2"),
    ],
)
def test_a_config_json_is_named_by_its_repository_its_folder_or_its_family(
    tmp_path: Path, folder: str, repository: str | None, name: str
) -> None:
    """The folder counts if it names the family; all in plain lower case."""
    (tmp_path / folder).mkdir()
    published = Path(__file__).parents[2] / "data" / "huggingface" / "gpt2" / "config.json"
    config = json.loads(published.read_text()) | {"_name_or_path": repository}
    (tmp_path / folder / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path / folder / "config.json").name == name


BAD = {
    "unknown key": (TINY + "colour: 8\n", ["colour", "not a known key"]),
    "missing key": (TINY.replace("heads: 2\n", ""), ["heads", "required"]),
    "zero": (TINY.replace("vocabulary: 10", "vocabulary: 0"), ["vocabulary", "greater than 0", "got 0"]),
    "negative": (TINY.replace("feed_forward: 16", "feed_forward: -16"), ["feed_forward", "-16"]),
    "absurdly large": (TINY.replace("hidden: 8", "hidden: 80000000000"), ["hidden", "80000000000"]),
    "heads do not divide": (TINY.replace("heads: 2", "heads: 3"), ["heads 3", "divide hidden 8"]),
    "key-value heads do not divide": (TINY + "key_value_heads: 3\n", ["key_value_heads 3", "heads 2"]),
    "fused grouped": (TINY + "key_value_heads: 1\nfused_qkv: true\n", ["fused_qkv", "key_value_heads 1"]),
    "unknown choice": (TINY + "activation: swish\n", ["activation", "'gelu'", "'swish'"]),
    "no positions": (TINY.replace("count: 4", "count: 0"), ["position_count 0", "'learned'"]),
    "count of no positions": (TINY + "positions: none\n", ["position_count 4", "'none'"]),
    "offset without positions": (
        TINY.replace("position_count: 4", "positions: none\nposition_offset: 2"),
        ["position_offset 2", "learned"],
    ),
    "odd rotary head": (
        TINY.replace("position_count: 4", "positions: rotary\nhead_size: 3"),
        ["rotary", "even", "3"],
    ),
    "pooler of a language model": (TINY + "pooler: true\n", ["pooler", "masked-lm"]),
    "dropout of one": (TINY + "residual_dropout: 1.0\n", ["residual_dropout", "less than 1", "1.0"]),
    "yes for a flag": (TINY + "causal: 1\n", ["causal", "true or false", "got 1"]),
    "key given twice": (TINY + "layers: 3\n", ["'layers'", "twice"]),
    "not YAML": ("layers: [2", ["not valid YAML"]),
    "a list": ("- layers\n", ["keys and values", "list"]),
    "empty": ("", ["keys and values", "NoneType"]),
    "bad name": (TINY + "name: ../x\n", ["name", "'../x'"]),
    "code": ("layers: !!python/object/apply:os.getcwd []\n", ["not valid YAML", "python/object"]),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_bad_spec_is_refused_with_its_key_and_value(tmp_path: Path, text: str, words: list[str]) -> None:
    """The message gives the file, the key, the value and what is allowed."""
    path = spec(tmp_path, text)
    with pytest.raises(PhazeError) as error:
        load_model(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert all(word in message for word in words), message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A missing spec is a user error, not a bug."""
    with pytest.raises(PhazeError, match=r"none\.yaml: cannot be read"):
        load_model(tmp_path / "none.yaml")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Two mistakes give two lines."""
    path = spec(tmp_path, TINY.replace("layers: 2", "layers: 0").replace("hidden: 8", "hidden: -1"))
    with pytest.raises(PhazeError) as error:
        load_model(path)
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "width", "key"),
    [("gpt2-xl", 2, "heads 25"), ("llama2-70b", 16, "key_value_heads 8"), ("gpt2", 0, "must be > 0")],
)
def test_a_width_that_does_not_divide_is_refused(name: str, width: int, key: str) -> None:
    """A TMP width must divide the heads, and the message gives both."""
    with pytest.raises(PhazeError, match=f"study: tensor: {width} .*{key}|study: tensor: {width} {key}"):
        load_model(SPECS / f"{name}.yaml").check_tensor_width(width, "study")


def test_a_sequence_needs_positions() -> None:
    """Learned positions limit the sequence; rotary ones do not."""
    with pytest.raises(PhazeError, match=r"study: sequence: 1025 .*position_count .*1024"):
        load_model(SPECS / "gpt2.yaml").check_sequence(1025, "study")
    load_model(SPECS / "llama2-7b.yaml").check_sequence(1_000_000, "study")
    with pytest.raises(PhazeError, match="sequence: 0"):
        load_model(SPECS / "llama2-7b.yaml").check_sequence(0, "study")


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(PhazeError, match=r"no model 'Llama-3.1-8'; did you mean llama-3\.1-8b or .*\? all"):
        load_transformer("Llama-3.1-8", "plan")
    with pytest.raises(
        PhazeError,
        match=r"no model 'zzz'; known are .*config/models\); `phaze models` lists them, for others pass",
    ):
        load_transformer("zzz", "plan")


def test_only_a_transformer_is_one(tmp_path: Path) -> None:
    path = spec(tmp_path, (SPECS / "llama-3.1-8b.yaml").read_text(), "own.yaml")
    renamed = load_transformer("llama-3.1-8b", "plan").model_copy(update={"name": "own"})
    assert load_transformer(str(path), "plan") == renamed
    with pytest.raises(PhazeError, match="plan: swin-l must be a transformer, got Swin"):
        load_transformer("swin-l", "plan")


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("nemotron-3-nano-30b-a3b", 8192), ("llama-3.1-8b", 8192), ("llama2-7b", 4096), ("gpt2", 1024)],
)
def test_samples_have_8192_tokens_or_all_that_a_model_has(name: str, tokens: int) -> None:
    assert load_transformer(name, "test").usual_sequence == tokens


def test_a_model_with_untimed_fields_has_a_hash() -> None:
    """Runs are grouped by their models, also with additional published fields."""
    model = load_transformer("llama-3.1-8b", "test")
    other = model.model_copy(update={"untimed": {"rope_theta": 1.0, "rope_scaling": {"factor": 2.0}}})
    assert len({model, other, model.model_copy()}) == 2
