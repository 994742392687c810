"""Models with several kinds of blocks: exactly the published parameters."""

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Experts
from phaze.spec.model import Model
from phaze.spec.models import load_model, load_transformer

PLAIN = {
    "name": "test", "positions": "rotary", "position_count": 4096, "activation": "silu", "gated": True,
    "norm": "rms_norm", "attention_bias": False, "feed_forward_bias": False, "tied_embeddings": False,
    "layers": 4, "hidden": 64, "heads": 4, "feed_forward": 128, "vocabulary": 256,
}  # fmt: skip
EXPERTS = {"count": 8, "per_token": 2, "width": 32}


def _model(**fields: object) -> Model:
    return Model.parse(PLAIN | fields, "test")


def test_a_pattern_gives_the_kinds_in_order() -> None:
    """Groups are repeated as a whole, and consecutive equal kinds form one run."""
    model = _model(layers=7, window={"size": 8}, pattern="attention-dense (window-dense*2 attention-dense)*2")
    assert model.runs == (
        ("attention-dense", 1), ("window-dense", 2), ("attention-dense", 1), ("window-dense", 2),
        ("attention-dense", 1),
    )  # fmt: skip
    assert list(model.blocks) == ["attention-dense", "window-dense"]
    assert model.distinct().runs == (("attention-dense", 1), ("window-dense", 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "attention-dense*3"}, "pattern must have as many blocks as layers, 4, got 3"),
        ({"pattern": "dense-attention*4"}, "at most one of attention, reuse, window"),
        ({"pattern": "((attention-dense))*4"}, "must be kinds such as"),
        ({"pattern": "attention-dense*4)"}, "must be kinds such as"),
        ({"pattern": "mamba*4"}, "mamba must be given"),
        (
            {"experts": EXPERTS, "pattern": "attention-dense*4"},
            "experts must not be given: pattern .* has no such block",
        ),
        ({"feed_forward": 0}, "feed_forward must be given"),
        ({"experts": EXPERTS | {"per_token": 9}}, "per_token 9 must be at most count 8"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    """The message gives the error and what is allowed."""
    with pytest.raises(PhazeError, match=message.replace("(", r"\(")):
        _model(**fields)


def test_a_token_meets_only_its_experts() -> None:
    """Of eight experts two are active."""
    model = _model(experts=EXPERTS, feed_forward=0)
    assert model.parameters - model.active_parameters == 4 * 6 * 3 * 64 * 32


def test_windows_leave_less_to_attend_to() -> None:
    """A token at position i attends to min(i, w) tokens, in chunks of w to the earlier ones of its chunk."""
    model = _model(window={"size": 64}, chunk=64, pattern="attention-dense*2 window-dense chunk-dense")
    blocks = [model.blocks[kind].attention for kind in ("attention-dense", "window-dense", "chunk-dense")]
    reached = [attention.attended(1024, causal=True) for attention in blocks if attention is not None]
    exact = sum(min(i, 64) for i in range(1024)) / 1024
    assert reached == pytest.approx([512, exact, 32], rel=0.002)


PUBLISHED = {
    "deepseek-v2": (235_741_434_880, None, 0),
    "deepseek-v3": (671_026_404_352, 37_552_282_624, 11_610_067_968),
    "deepseek-v3.2": (671_877_929_216, None, None),
    "gemma-4-26b-a4b": (25_233_141_760, None, 0),
    "glm-5": (743_911_199_232, None, None),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912, 0),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704, 0),
    "kimi-k2": (1_026_408_209_408, None, 0),
    "llama-3.1-405b": (405_853_388_800, 405_853_388_800, 0),
    "llama-4-scout": (107_769_861_120, None, 0),
    "minimax-m2.5": (228_689_748_992, None, None),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 0),
    "nemotron-3-nano-30b-a3b": (31_577_937_344, None, 0),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520, 0),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 0),
    "qwen3-32b": (32_762_123_264, 32_762_123_264, 0),
    "qwen3-8b": (8_190_735_360, 8_190_735_360, 0),
    "qwen3.5-35b-a3b": (34_660_610_688, None, None),
}
"""All, active and multi-token prediction parameters of the models that Hugging Face's transformers 5.23
builds from the published configurations, without buffers of routing biases.
"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_model(name: str) -> None:
    """Exactly, and the groups add up to them."""
    model = load_transformer(name, "test")
    counts = model.parameters, model.active_parameters, model.mtp_parameters
    expected = PUBLISHED[name]
    assert [a for a, b in zip(counts, expected, strict=True) if b not in (None, a)] == []
    assert model.parameter_groups().total() == model.parameters


CONFIGS = {
    "gemma-4-26b-a4b": "gemma-4-26b-a4b",
    "nemotron-3-nano-30b-a3b": "nvidia-nemotron-3-nano-30b-a3b-bf16",
    "kimi-k2": "kimi-k2-instruct",
    "llama-4-scout": "llama-4-scout-17b-16e-instruct",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "llama-3.1-405b": "meta-llama-3.1-405b",
    **{
        name: name
        for name in (
            "deepseek-v3", "deepseek-v3.2", "glm-5", "gpt-oss-120b", "gpt-oss-20b", "minimax-m2.5",
            "qwen3-30b-a3b", "qwen3-32b", "qwen3-8b", "qwen3.5-35b-a3b",
        )
    },
}  # fmt: skip
FOLDER = Path(__file__).parents[4] / "shared" / "data" / "huggingface"


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is absent")
@pytest.mark.parametrize("name", CONFIGS)
def test_specs_are_the_published_configurations(name: str) -> None:
    """A configuration file and the spec with that name are equal models."""
    assert load_model(FOLDER / f"{CONFIGS[name]}.json", name) == load_transformer(name, "test")


@pytest.mark.parametrize(
    ("gated", "latent", "parameters"),
    [
        (True, None, 3 * 5 * 10 + (5 + 5) + 10),
        (False, None, 2 * 5 * 10 + 5 + 10),
        (True, 4, 3 * 5 * 4 + (5 + 5) + 4),
        (False, 4, 2 * 5 * 4 + 5 + 4),
    ],
)
def test_a_bias_of_an_expert_is_as_wide_as_what_its_matrix_gives(
    gated: bool, latent: int | None, parameters: int
) -> None:
    """Inner matrices have 5 outputs, the last one 10 of the model, or 4 of the projected tokens."""
    experts = Experts(count=3, per_token=1, width=5, gated=gated, bias=True, latent_width=latent)
    assert experts.expert_parameters(10) == parameters
    assert experts.parameters(10)["experts"] == 3 * parameters + (2 * 10 * latent if latent else 0)
