"""Models shared by tests of extract: phaze's own specs, and random ones."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import load_model
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.fusion import Group, fuse
from phaze.workload.lower.sharding import ModelSlice, slice_model
from phaze.workload.primitives import LayerGraph

SPECS = Path(__file__).parents[3] / "config" / "models"
MODELS = {path.stem: load_model(path) for path in sorted(SPECS.glob("*.yaml"))}
TRANSFORMERS = {
    name: model
    for name, model in MODELS.items()
    if isinstance(model, Model) and list(model.blocks) == ["block"] and not (model.experts or model.sinks)
    if model.qk_norm == "none"
}
NAMES = sorted(TRANSFORMERS)
VISION = sorted(name for name, model in MODELS.items() if not isinstance(model, Model))
WIDTHS = {
    "megatron-bert": (1, 2, 4, 8),
    "megatron-gpt-2.5b": (1, 2, 4),
    "megatron-gpt-8.3b": (1, 2, 4, 8),
    "megatron-gpt3-175b": (4, 8),
    "llama2-70b": (1, 8),
}
SEQUENCES = {
    **{f"bert-{layers}": 512 for layers in (24, 36, 48)},
    "opt-350m": 2048,
    "bert-base": 512,
    "bert-large": 512,
    "megatron-bert": 512,
    "megatron-gpt3-175b": 2048,
}
POINTS = [(name, t) for name in NAMES for t in WIDTHS.get(name, (1,))]


def model_of(name: str) -> Model:
    """Return a transformer of config/models."""
    return TRANSFORMERS[name]


def slice_of(name: str, tensor: int = 1, microbatch: int = 1) -> ModelSlice:
    """Return a shard of a model of config/models, with the default study's sequence (1024 by default)."""
    return slice_model(model_of(name), SEQUENCES.get(name, 1024), Layout(tp=tensor, microbatch=microbatch), 2)


def layer_of(part: ModelSlice, name: str) -> LayerGraph:
    """Return one layer of a shard."""
    return next(layer for layer in transformer_graph(part).layers if layer.name == name)


def named_groups(layer: LayerGraph, *, enabled: bool = True) -> list[list[str]]:
    """Return the names of the primitives of every operator."""
    return [names(layer, group) for group in fuse(layer, enabled=enabled)]


def names(layer: LayerGraph, group: Group) -> list[str]:
    """Return the names of the primitives of an operator."""
    return [layer.primitives[index].name for index in group]


def forward_flops(layer: LayerGraph) -> int:
    """Return the FLOPs of all matrix multiplications of a layer."""
    gemms = (p.gemm for p in layer.primitives if p.gemm is not None)
    return sum(2 * g.batch * g.m * g.k * g.n for g in gemms)


@st.composite
def slices(draw: st.DrawFn) -> ModelSlice:
    """Return one shard of a small random transformer."""
    tensor = draw(st.sampled_from([1, 2, 4]))
    kv_heads = tensor * draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    head_size = 2 * draw(st.integers(1, 4))
    hidden = draw(st.integers(1, 40))
    positions = draw(st.sampled_from(["learned", "sinusoidal", "rotary", "none"]))
    head = draw(st.sampled_from(["lm", "masked-lm", "none"]))
    embedding_width = draw(st.sampled_from([None, 3]))
    pooler = head != "lm" and draw(st.booleans())
    whole = head != "masked-lm" or embedding_width not in (None, hidden)
    shares = st.sampled_from([0.0, 0.1])
    fields = {
        "name": "random",
        "layers": draw(st.integers(1, 5)),
        "hidden": hidden,
        "heads": heads,
        "key_value_heads": kv_heads,
        "head_size": head_size,
        "feed_forward": tensor * draw(st.integers(1, 20)),
        "vocabulary": draw(st.integers(1, 50)),
        "embedding_width": embedding_width,
        "positions": positions,
        "position_count": 20 if positions in ("learned", "sinusoidal") else 0,
        "token_types": draw(st.integers(0, 2)),
        "activation": draw(st.sampled_from(["gelu", "relu", "silu"])),
        "gated": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "norm_position": draw(st.sampled_from(["pre", "post"])),
        "embedding_norm": draw(st.booleans()),
        "final_norm": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "feed_forward_bias": draw(st.booleans()),
        "fused_qkv": kv_heads == heads and draw(st.booleans()),
        "causal": draw(st.booleans()),
        "head": head,
        "tied_embeddings": draw(st.booleans()),
        "pooler": pooler,
        "head_transform": whole or draw(st.booleans()),
        "sentence_head": head == "masked-lm" and not pooler and draw(st.booleans()),
        "residual_dropout": draw(shares),
        "attention_dropout": draw(shares),
        "embedding_dropout": draw(shares),
    }
    model = Model.parse(fields, "random")
    return slice_model(
        model, draw(st.integers(1, 20)), Layout(tp=tensor, microbatch=draw(st.integers(1, 3))), 2
    )
