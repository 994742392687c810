"""Granite, dense and mixture-of-experts variants."""

from phaze.spec.huggingface.experts import WITHOUT_DENSE, experts
from phaze.spec.huggingface.keys import Family
from phaze.spec.huggingface.llama import BIAS, DECODER, LLAMA, ROTARY

_MULTIPLIERS = frozenset({
    "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"
})  # fmt: skip
FAMILIES = {
    "granite": Family(keys=LLAMA.keys, constants=LLAMA.constants, costless=_MULTIPLIERS),
    "granitemoe": Family(
        keys={**WITHOUT_DENSE, **BIAS, **experts("num_local_experts", "intermediate_size", 2)},
        constants=ROTARY,
        costless=_MULTIPLIERS,
        fixed=DECODER,
    ),
}
