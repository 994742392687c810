"""Published fields that affect learning, but neither time nor memory of a step."""

from __future__ import annotations

from collections.abc import Mapping

from phaze.spec.plain import Plain

# fmt: off
BOOKKEEPING = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "classifier_dropout", "cls_token_id", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size",
    "experts_per_token", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "head_dim", "id2label", "keys_to_ignore_at_inference",
    "label2id", "language", "length_penalty", "license", "max_length", "max_position_embeddings",
    "min_length", "model_type", "n_ctx", "n_shared_experts", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_key_value_heads", "num_labels", "num_logits_to_keep", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "qk_head_dim", "quantization_config",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "sliding_window",
    "summary_activation", "summary_first_dropout", "summary_hidden_size", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "suppress_tokens", "task_specific_params", "temperature",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p",
    "unk_token_id", "use_bfloat16", "use_cache", "use_mamba_kernels", "use_return_dict", "vocab_type",
})
# fmt: on
"""Ignored fields that no training depends on: token ids, generation, files, labels, and redundant sizes."""
PLAIN_ACTIVATIONS = frozenset({"gelu", "relu", "relu2", "silu", "swish"})
"""Published activations with the same name in a spec; others are approximations with equal cost."""


def untimed(
    config: Mapping[str, Plain], costless: frozenset[str], activations: frozenset[str]
) -> dict[str, Plain]:
    """Fields of a configuration that affect training, but not its price.

    `costless` are the fields that the family ignores, `activations` those that name an activation.
    """
    kept = {key: value for key, value in config.items() if key in costless - BOOKKEEPING}
    kept |= {key: config[key] for key in activations if config.get(key) not in (None, *PLAIN_ACTIVATIONS)}
    return {key: value for key, value in kept.items() if value is not None}
