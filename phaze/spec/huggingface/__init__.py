"""Translate published Hugging Face configurations (`config.json`) into model specs."""

from difflib import get_close_matches

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.spec.huggingface import experts, gpt, hybrid, latent, llama, relatives
from phaze.spec.huggingface.keys import Config, Family
from phaze.spec.plain import Plain

_FILES = (experts, gpt, hybrid, latent, llama, relatives)
FAMILIES: dict[str, Family] = dict(sorted(pair for file in _FILES for pair in file.FAMILIES.items()))
"""All supported model families, by the `model_type` of their configurations."""
WITHOUT_TEXT = {name.removesuffix("_text"): name for name in FAMILIES if name.endswith("_text")}
"""Text-only model type for each multimodal model type, in families with separate types."""
SAME_TEXT: dict[str, Config] = {
    "qwen2_5_vl_text": {"model_type": "qwen2"},
    "qwen2_vl_text": {"model_type": "qwen2"},
    "qwen3_omni_moe_text": {"model_type": "qwen3_moe"},
    "qwen3_vl_moe_text": {"model_type": "qwen3_moe", "tie_word_embeddings": True},
    "qwen3_vl_text": {"model_type": "qwen3"},
}
"""Text parts of vision models that are another family's decoder: its model type, and defaults that differ."""


# A text part without a type of its own gets that of the whole model, which lacks the suffix.
SAME_TEXT |= {name.removesuffix("_text"): same for name, same in SAME_TEXT.items()}


def translate(config: Plain, source: str) -> Config:
    """Translate a published configuration into fields of a model spec; errors name the published key.

    For a multimodal model this is the text model in its `text_config`.
    """
    if not isinstance(config, dict):
        raise PhazeError(f"{source}: must hold a JSON object with model_type, got {type(config).__name__}")
    text = config.get("text_config")
    if isinstance(text, dict):
        text_fields = {"model_type": config.get("model_type")} | text
        # Of a multimodal model this field may be outside of the text part; the one inside it takes
        # precedence.
        if "tie_word_embeddings" in config:
            text_fields = {"tie_word_embeddings": config["tie_word_embeddings"]} | text_fields
        return translate(text_fields, f"{source}: text_config")
    if "text_config" in config:
        raise PhazeError(f"{source}: text_config: must be a JSON object, got {short(text)}")
    kind = config.get("model_type")
    if same := SAME_TEXT.get(str(kind)):
        return translate({**same, **config, "model_type": same["model_type"]}, source)
    name = WITHOUT_TEXT.get(kind, kind) if isinstance(kind, str) else None
    if name not in FAMILIES:
        near = get_close_matches(str(kind), FAMILIES, 3, 0.0)
        raise PhazeError(
            f"{source}: model_type: must be one of the {len(FAMILIES)} known families, got "
            f"{short(kind)}; nearest: {', '.join(near)}",
            "for any other model, `phaze trace CONFIG --layers -o TRACE.json` writes a model that `model` "
            "and `plan` accept",
        )
    return FAMILIES[name].translate(config, source)


def describes_model(config: Plain) -> bool:
    """True if the JSON describes a model: a published configuration or a traced model."""
    return isinstance(config, dict) and ("model_type" in config or config.get("kind") == "traced")
