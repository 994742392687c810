"""Published configurations equal our specs, and unknown fields are never ignored."""

import json
import math
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.huggingface import translate
from phaze.spec.huggingface.keys import BASE
from phaze.spec.model import Model
from phaze.spec.models import load_model
from phaze.workload.models import build_graph

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "tests" / "data" / "huggingface"
SAME = {name: name for name in ("gpt2", "gpt2-xl", "opt-350m")} | {"bert-large-uncased": "bert-large"}
SAME |= {"Llama-2-7b-hf": "llama2-7b", "Llama-2-70b-hf": "llama2-70b"}


def published(folder: str) -> dict[str, object]:
    """Return a published configuration."""
    loaded: dict[str, object] = json.loads((PUBLISHED / folder / "config.json").read_text())
    return loaded


def load(tmp_path: Path, config: object) -> Model:
    """Write a configuration, and load it."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))
    return load_model(path)


@pytest.mark.parametrize(("folder", "name"), SAME.items())
def test_a_published_configuration_is_our_spec(folder: str, name: str) -> None:
    """The published configuration and our spec of a model are equal, parameters included."""
    theirs = load_model(PUBLISHED / folder / "config.json", name)
    ours = load_model(ROOT / "config" / "models" / f"{name}.yaml")
    assert theirs == ours
    assert theirs.parameters == ours.parameters


def test_gpt2_may_have_another_inner_width(tmp_path: Path) -> None:
    """A null n_inner means four times the width; a number is used."""
    config = published("gpt2")
    assert load(tmp_path, {**config, "n_inner": None}).feed_forward == 3072
    assert load(tmp_path, {**config, "n_inner": 1000}).feed_forward == 1000


def test_opt_of_other_sizes_is_pre_norm_with_a_final_norm(tmp_path: Path) -> None:
    """Only OPT-350m normalises after the sums; the others have a final norm unless it was removed."""
    config = {**published("opt-350m"), "do_layer_norm_before": True, "word_embed_proj_dim": 1024}
    model = load(tmp_path, config)
    assert (model.norm_position, model.final_norm, model.embedding_width) == ("pre", True, None)
    assert not load(tmp_path, {**config, "_remove_final_layer_norm": True}).final_norm


def test_llama_may_set_its_heads_apart_from_its_width(tmp_path: Path) -> None:
    """Later Llamas state the head dimension, biases and tying."""
    config = {**published("Llama-2-7b-hf"), "head_dim": 64, "mlp_bias": True, "tie_word_embeddings": True}
    model = load(tmp_path, config)
    assert (model.head_width, model.query_width) == (64, 2048)
    assert (model.attention_bias, model.feed_forward_bias, model.tied_embeddings) == (False, True, True)


def test_a_llama_says_how_long_its_sequences_are(tmp_path: Path) -> None:
    """As published; without a field the default of the family's code is 2048."""
    config = published("Llama-2-7b-hf")
    assert load(tmp_path, config).usual_sequence == 4096
    assert load(tmp_path, {**config, "max_position_embeddings": 8192}).usual_sequence == 8192
    del config["max_position_embeddings"]
    assert load(tmp_path, config).usual_sequence == 2048


def test_an_absent_number_of_key_value_heads_means_all_heads(tmp_path: Path) -> None:
    """The first Llamas do not have num_key_value_heads."""
    config = published("Llama-2-7b-hf")
    del config["num_key_value_heads"]
    assert load(tmp_path, config).kv_heads == 32


def test_fields_without_cost_change_nothing(tmp_path: Path) -> None:
    """Tokens and task settings are ignored."""
    config = published("gpt2")
    costless = {**config, "bos_token_id": 7, "id2label": {"0": "no"}, "use_cache": False}
    assert load(tmp_path, costless) == load(tmp_path, config)


def test_what_is_learnt_otherwise_in_the_same_time_is_kept(tmp_path: Path) -> None:
    """Fields that do not affect prices but affect the trained model."""
    config = {**published("Llama-2-7b-hf"), "rope_theta": 5e5, "hidden_act": "gelu_pytorch_tanh"}
    untimed = load(tmp_path, config).untimed
    assert untimed["rope_theta"] == 5e5
    assert untimed["hidden_act"] == "gelu_pytorch_tanh"
    assert not untimed.keys() & {"bos_token_id", "architectures", "torch_dtype", "use_cache"}


BAD = {
    "unknown field": ("gpt2", {"n_experts": 8}, ["n_experts", "8", "gpt2"]),
    "field of another family": ("gpt2", {"kv_lora_rank": 64}, ["kv_lora_rank", "gpt2"]),
    "two names of a size": ("gpt2", {"hidden_size": 96}, ["hidden_size", "n_embd", "768", "96"]),
    "a layer of its own": (
        "Llama-2-7b-hf",
        {"per_layer_config": {"3": {"intermediate_size": 64}}},
        ["per_layer_config.3.intermediate_size", "64"],
    ),
    "cross attention": ("gpt2", {"add_cross_attention": True}, ["add_cross_attention", "False", "True"]),
    "relative positions": ("bert-large-uncased", {"position_embedding_type": "relative_key"}, ["'absolute'"]),
    "pruned heads": ("bert-large-uncased", {"pruned_heads": {"0": [1]}}, ["pruned_heads"]),
    "part of a block": ("Llama-2-7b-hf", {"residual_multiplier": 0.2}, ["residual_multiplier", "0.2"]),
    "layer drop": ("opt-350m", {"layerdrop": 0.1}, ["layerdrop", "0.0", "0.1"]),
    "text for a size": ("gpt2", {"n_layer": "12"}, ["n_layer", "whole number", "'12'"]),
    "true for a size": ("gpt2", {"n_layer": True}, ["n_layer", "whole number", "True"]),
    "negative size": ("gpt2", {"n_embd": -768}, ["n_embd", "greater than 0", "-768"]),
    "fraction of a size": ("Llama-2-7b-hf", {"hidden_size": 4096.5}, ["hidden_size", "4096.5"]),
    "missing size": ("opt-350m", {"ffn_dim": None}, ["ffn_dim", "must be given"]),
    "unknown activation": (
        "gpt2",
        {"activation_function": "quick"},
        ["activation_function", "gelu_new", "'quick'"],
    ),
    "no number": ("gpt2", {"n_layer": math.nan}, ["n_layer", "whole number", "nan"]),
    "dropout of one": ("gpt2", {"resid_pdrop": 1}, ["resid_pdrop", "less than 1", "got 1"]),
    "text for a flag": (
        "Llama-2-7b-hf",
        {"tie_word_embeddings": "no"},
        ["tie_word_embeddings", "true or false"],
    ),
    "heads do not divide": ("gpt2", {"n_head": 7}, ["heads 7", "hidden 768"]),
    "unknown family": ("gpt2", {"model_type": "mamba"}, ["model_type", "llama", "'mamba'", "phaze trace"]),
    "no family": ("gpt2", {"model_type": None}, ["model_type", "nearest", "None"]),
}


@pytest.mark.parametrize(("folder", "changes", "words"), BAD.values(), ids=BAD)
def test_a_bad_configuration_is_refused_with_its_key_and_value(
    tmp_path: Path, folder: str, changes: dict[str, object], words: list[str]
) -> None:
    """The message gives the file, the published key, the value and what is allowed."""
    with pytest.raises(PhazeError) as error:
        load(tmp_path, {**published(folder), **changes})
    message = str(error.value)
    assert message.startswith(str(tmp_path / "model.json"))
    assert all(word in message for word in words), message


def test_a_list_is_not_a_configuration() -> None:
    """A configuration is a JSON object."""
    with pytest.raises(PhazeError, match=r"x\.json: must hold a JSON object"):
        translate([], "x.json")


SMALL = {
    "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2,
    "vocab_size": 331,
}  # fmt: skip
ROUTED = {
    "n_routed_experts": 9, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "intermediate_size": 200,
    "head_dim": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({"model_type": "glm4_moe", **ROUTED}, 740_064),
        ({"model_type": "mixtral", "intermediate_size": 72, "num_local_experts": 3}, 499_968),
        (
            {
                "model_type": "minimax_m2", "intermediate_size": 72, "num_local_experts": 5,
                "num_experts_per_tok": 2,
            },
            1_573_568,
        ),
        (
            {
                "model_type": "gemma4_text", "intermediate_size": 200, "head_dim": 20, "global_head_dim": 28,
                "hidden_size_per_layer_input": 0,
            },
            487_896,
        ),
    ],
    ids=["first layers dense", "experts of a token", "width of heads", "last layer without a window"],
)  # fmt: skip
def test_what_a_configuration_leaves_out_is_as_its_family_has_it(
    tmp_path: Path, fields: dict[str, object], parameters: int
) -> None:
    """Parameters of the modules that transformers 5.23.0 builds from the same configuration."""
    assert load(tmp_path, {**SMALL, **fields}).parameters == parameters


@pytest.mark.parametrize("fields", [{"model_type": "dots1"}, {"model_type": "exaone_moe", "num_experts": 9}])
def test_a_router_with_score_corrections_is_balanced_by_biases(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    """Their routers have `e_score_correction_bias` (`modeling_dots1.py`, `modular_exaone_moe.py`)."""
    routed = ROUTED if fields["model_type"] == "dots1" else {**ROUTED, "n_routed_experts": None}
    model = load(tmp_path, {**SMALL, **routed, **fields, "num_attention_heads": 6})
    assert model.experts
    assert model.experts.balancing == "biases"


HYBRID = {
    "model_type": "nemotron_h", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 20, "vocab_size": 331, "intermediate_size": 200, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 3, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56,
}  # fmt: skip
NAMES = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


@pytest.mark.parametrize(
    "fields",
    [
        {"hybrid_override_pattern": "MEM*-E", "num_hidden_layers": 6},
        {"hybrid_override_pattern": "MEM*-E"},
        {"hybrid_override_pattern": "MEM|*-E", "num_hidden_layers": None},
        {"hybrid_layer_pattern": list("MEM*-E")},
        {"layers_block_type": [NAMES[sign] for sign in "MEM*-E"], "num_hidden_layers": 6},
        {"layer_types": ["linear_attention", "moe", "linear_attention", "full_attention", "mlp", "moe"]},
    ],
)
def test_a_pattern_has_any_form_that_is_published(tmp_path: Path, fields: dict[str, object]) -> None:
    """A string or a list, of symbols or words, with or without the number of layers."""
    model = load(tmp_path, {**HYBRID, **fields})
    assert model.pattern == "mamba experts mamba attention dense experts"
    assert model.layers == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"hybrid_override_pattern": "MEM*/*-/*-"},
        {
            "hybrid_override_pattern": "MEM*", "num_nextn_predict_layers": 2,
            "mtp_hybrid_override_pattern": "*-",
        },
        {
            "layers_block_type": [NAMES[sign] for sign in "MEM*"], "num_mtp_layers": 2,
            "mtp_layers_block_type": ["attention", "mlp"],
        },
    ],
)  # fmt: skip
def test_layers_that_predict_further_tokens_may_have_a_kind_of_their_own(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    """By symbols after a slash, a string or a list: attention and a dense network, unlike earlier layers."""
    model = load(tmp_path, {**HYBRID, **fields})
    assert (model.mtp, model.mtp_kind) == (2, "attention-dense")
    attention, dense = 96 * 20 * (6 + 2 + 2 + 6), 2 * 96 * 200
    assert model.mtp_parameters == 2 * (attention + dense + 2 * 96 + 2 * 96**2 + 3 * 96)
    assert load(tmp_path, {**HYBRID, "hybrid_override_pattern": "MEM*/E"}).mtp_kind == "experts"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hybrid_override_pattern": "MXM"}, ["hybrid_override_pattern", "'X'"]),
        ({"layers_block_type": ["mamba", "conv"]}, ["layers_block_type", "'conv'"]),
        ({}, ["hybrid_override_pattern", "must be given"]),
        ({"hybrid_override_pattern": "M*", "num_hidden_layers": 3}, ["num_hidden_layers", "2", "3"]),
        ({"hybrid_override_pattern": "M*/-*"}, ["one token mixer and one feed-forward network"]),
        (
            {"hybrid_override_pattern": "ME", "num_experts_per_tok": None},
            ["num_experts_per_tok", "must be given"],
        ),
    ],
)
def test_a_bad_pattern_names_its_field(tmp_path: Path, fields: dict[str, object], words: list[str]) -> None:
    """In one line, for any error."""
    with pytest.raises(PhazeError) as error:
        load(tmp_path, {**HYBRID, **fields})
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_list_of_layers_may_have_those_that_predict_further_tokens(tmp_path: Path) -> None:
    """After the others; a list with another length or an unknown word is refused by name."""
    fields = {"model_type": "glm4_moe", **SMALL, **ROUTED, "num_nextn_predict_layers": 1}
    networks = ["dense", "sparse", "sparse", "dense", "sparse"]
    model = load(tmp_path, {**fields, "mlp_layer_types": networks})
    assert load(tmp_path, {**fields, "mlp_layer_types": [*networks, "sparse"]}) == model
    assert load(tmp_path, {**fields, "num_hidden_layers": None, "mlp_layer_types": networks}) == model
    with pytest.raises(
        PhazeError, match="mlp_layer_types: must have one entry for each of the 5 layers, got 4"
    ):
        load(tmp_path, {**fields, "mlp_layer_types": networks[1:]})
    with pytest.raises(PhazeError, match=r"mlp_layer_types: entries must be of sparse, moe, dense.*'none'"):
        load(tmp_path, {**fields, "mlp_layer_types": ["none", *networks[1:]]})


def test_nothing_that_is_false_zero_or_null_is_refused(tmp_path: Path) -> None:
    """Unknown fields, and optional ones of the family."""
    config = {"model_type": "qwen3", **SMALL, "intermediate_size": 200, "head_dim": 20}
    plain = load(tmp_path, config)
    nothing = (False, 0, 0.0, None, [], {}, "")
    for value in nothing:
        assert load(tmp_path, {**config, "use_new_thing": value, "sliding_window": value}) == plain
    hybrid = {**HYBRID, "hybrid_override_pattern": "M*"}
    for value in nothing:
        none = {"n_group": value, "moe_latent_size": value, "layers_block_type": value}
        assert load(tmp_path, {**hybrid, **none}) == load(tmp_path, hybrid)


def test_fields_of_all_configurations_of_transformers_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """For any values."""
    config = {"model_type": "qwen3", **SMALL, "intermediate_size": 200, "head_dim": 20}
    plain = load(tmp_path, config)
    for key in BASE - {"model_type"}:
        for value in (True, 7, "x", [1], {"a": 1}):
            assert load(tmp_path, {**config, key: value}) == plain


def test_layers_may_take_the_choice_of_an_indexer_before(tmp_path: Path) -> None:
    """They have no indexer, and attend to the same number of tokens."""
    fields = {
        "model_type": "glm_moe_dsa", **SMALL, **ROUTED, "q_lora_rank": 48, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "index_n_heads": 3,
        "index_head_dim": 16, "index_topk": 32, "first_k_dense_replace": 0,
    }  # fmt: skip
    model = load(tmp_path, fields)
    shared = load(tmp_path, {**fields, "index_topk_pattern": "FSFSS"})
    assert shared.pattern == "attention-experts reuse-experts attention-experts reuse-experts*2"
    index = 48 * 3 * 16 + 96 * (16 + 3)
    assert model.parameters - shared.parameters == 3 * (index + 2 * 16)
    scores = 64 / 2 * 3 * 16
    saved = model.products_per_token(64, causal=True) - shared.products_per_token(64, causal=True)
    assert saved == pytest.approx(3 * (index + scores))
    with pytest.raises(PhazeError, match="reuse"):
        load(tmp_path, {**fields, "index_topk_pattern": "SSFSS"})


def test_turns_of_windows_may_be_letters(tmp_path: Path) -> None:
    """As in EXAONE 4, or a number of layers."""
    fields = {"model_type": "exaone4", **SMALL, "intermediate_size": 200, "sliding_window": 64}
    model = load(tmp_path, {**fields, "sliding_window_pattern": "LLG"})
    assert model.pattern == "window-dense*2 attention-dense window-dense*2"
    assert load(tmp_path, {**fields, "sliding_window_pattern": 3}) == model
    assert load(tmp_path, {**fields, "sliding_window": None}).window is None
    with pytest.raises(PhazeError, match=r"sliding_window_pattern: .* letters L and G, got 'LLX'"):
        load(tmp_path, {**fields, "sliding_window_pattern": "LLX"})


def test_a_size_may_be_a_list_of_equal_numbers(tmp_path: Path) -> None:
    """One per layer, as in Hunyuan; unequal ones are refused."""
    fields = {
        "model_type": "hunyuan_v1_moe", **SMALL, "intermediate_size": 72, "num_experts": 4, "moe_topk": 2,
    }  # fmt: skip
    model = load(tmp_path, {**fields, "moe_topk": [2] * 5, "moe_intermediate_size": [72] * 5})
    assert model == load(tmp_path, fields)
    with pytest.raises(PhazeError, match="moe_intermediate_size: must be intermediate_size 72, got 40"):
        load(tmp_path, {**fields, "moe_intermediate_size": 40})
    with pytest.raises(PhazeError, match=r"num_experts_per_tok: .*must be a whole number"):
        load(tmp_path, {**fields, "moe_topk": [2, 2, 1, 2, 2]})


def test_norms_of_what_comes_out_alone_are_as_many_as_those_of_what_goes_in(tmp_path: Path) -> None:
    """OLMo 2 stores the streams and the outputs, other models the streams and the normalised streams."""
    model = load(tmp_path, {"model_type": "olmo2", **SMALL, "intermediate_size": 200})
    before = model.model_copy(update={"norm_position": "pre"})
    assert model.norm_position == "output"
    assert model.parameter_groups() == before.parameter_groups()
    names = [primitive.name for primitive in build_graph(model, 64, Layout(), 2).layers[1].primitives]
    assert names.index("attention_out_norm") > names.index("attention_out")
    assert "attention_norm" not in names
