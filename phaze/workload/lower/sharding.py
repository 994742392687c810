"""Tensor-parallel shards of a model, as in Megatron-LM (Shoeybi et al. 2020, Section 3).

Queries, keys, values, the first feed-forward matrix and the head are column-parallel, the attention output
and the second feed-forward matrix row-parallel, and the word embedding vocabulary-parallel. Norms, biases
after an all-reduce, positions, projections of the word embedding, and BERT's transform and pooler are
replicated.

With sequence parallelism the replicated tensors are sharded along the sequence: an all-gather replaces the
copy, and a reduce-scatter the all-reduce (Korthikanti et al. 2023, Section 4.2.2).

With context parallelism every rank has an equal part of every sequence. Only attention needs the other parts.
Keys and values are gathered and their gradients reduce-scattered, or both pass around a ring. Or ranks
exchange parts of sequences for a share of the heads, possibly inside groups with a ring among the groups
(Megatron-Core, `--cp-comm-type` all_gather, p2p, a2a, a2a+p2p). Ranks have one part from the beginning and
one from the end of the sequence, so a causal mask leaves all of them equal work. Gathered tensors are not
stored: the backward pass gathers them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.layout import Axis, Layout
from phaze.spec.blocks import Attention, Block
from phaze.spec.model import Model
from phaze.spec.scans import DeltaNet, Mamba
from phaze.workload.primitives import LayerBuilder, Tensor


@dataclass(frozen=True)
class ModelSlice:
    """Dimensions of one shard of a model for one microbatch."""

    model: Model
    layout: Layout
    sequence: int
    """Tokens per sample."""
    bytes_per_element: int

    @property
    def microbatch(self) -> int:
        """Samples per microbatch, b."""
        return self.layout.microbatch

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch on this rank."""
        return self.microbatch * self.own_sequence

    @property
    def own_sequence(self) -> int:
        """Tokens per sample on this rank, after context parallelism."""
        return self.sequence // self.layout.cp

    @property
    def hidden_elements(self) -> int:
        """Elements of the residual stream on this rank; with sequence parallelism, of its own tokens only."""
        return self.own_tokens * self.model.hidden

    @property
    def own_tokens(self) -> int:
        """Tokens that this rank processes in the parts of the model that are not tensor-parallel."""
        return self.tokens // self.layout.tp if self.layout.cuts_sequence else self.tokens

    @property
    def repeats_tokens(self) -> bool:
        """True if the tokens between layers are replicated on all tensor-parallel ranks."""
        return self.layout.tp > 1 and not self.layout.cuts_sequence

    @property
    def shares_tokens(self) -> bool:
        """True if tensor-parallel ranks that have all tokens dispatch equal shares of them to whole experts.

        Source: `drop_tokens` of DeepSpeed (`moe/sharded_moe.py`), torchtitan (`moe_sharding.py`).
        """
        return self.repeats_tokens and self.layout.ep > 1 and self.layout.etp < self.layout.tp

    @property
    def vocabulary(self) -> int:
        """Vocabulary size of one shard, rounded up if tp does not divide the vocabulary."""
        return -(-self.model.vocabulary // self.layout.tp)

    def enter(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Enter a tensor-parallel region (f): no-op forward, all-reduce of the gradient backward.

        With sequence parallelism, an all-gather forward.
        """
        if self.layout.cuts_sequence:
            return self.gather(layer, name, x, "tp")
        return layer.add("copy", f"{name}_copy", x, axis="tp") if self.layout.tp > 1 else x

    def leave(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Leave a tensor-parallel region: sum over the ranks; sequence parallelism also shards the result."""
        if self.layout.cuts_sequence:
            elements = x.elements // self.layout.tp
            return layer.add("reduce_scatter", f"{name}_reduce_scatter", x, elements=elements, axis="tp")
        return self.sum_up(layer, name, x)

    def sum_up(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Sum a tensor over the tensor-parallel ranks (g): all-reduce forward, no-op backward."""
        return layer.add("all_reduce", f"{name}_all_reduce", x, axis="tp") if self.layout.tp > 1 else x

    def gather_width(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """All-gather a tensor's columns over the tensor-parallel ranks, and select the rank's own tokens."""
        if self.layout.tp == 1:
            return x
        y = self.gather(layer, f"{name}_columns", x, "tp")
        return layer.add("select", f"{name}_columns", y, elements=self.hidden_elements)

    def gather_context(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Collect the keys or values of the whole sequence, by all-gather or around a ring."""
        if self.layout.cp == 1:
            return x
        if self.layout.cp_kind == "p2p":
            return self.ring(layer, name, x, "cp")
        return self.gather(layer, name, x, "cp")

    def gather(self, layer: LayerBuilder, name: str, x: Tensor, axis: Axis) -> Tensor:
        """All-gather a tensor over the ranks of an axis."""
        elements = x.elements * self.layout.group(axis).ranks
        return layer.add("all_gather", f"{name}_all_gather", x, elements=elements, axis=axis)

    def ring(self, layer: LayerBuilder, name: str, x: Tensor, axis: Axis) -> Tensor:
        """Pass keys or values around a ring of ranks, so that the queries of each rank meet all keys."""
        elements = x.elements * self.layout.group(axis).ranks
        return layer.add("ring", f"{name}_ring", x, elements=elements, axis=axis)

    def exchange(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """All-to-all from partial sequences of all heads to whole sequences of some heads, or back."""
        return layer.add("all_to_all", f"{name}_all_to_all", x, axis="cp") if self.layout.cp > 1 else x


def _cut_sizes(block: Block, tp: int) -> dict[str, int]:
    """Dimensions of a block that tp must divide, by name; shared key-value heads count as divisible."""
    sizes, mixer = {}, block.mixer
    if isinstance(mixer, Attention):
        # Ranks may share key-value heads: they gather the evenly sharded projection (Megatron-Core).
        shared = tp % mixer.kv_heads == 0 and mixer.kv_width % tp == 0
        sizes = {"heads": mixer.heads, "key_value_heads": tp if shared else mixer.kv_heads}
    elif isinstance(mixer, Mamba):
        sizes = {"mamba.heads": mixer.heads, "mamba.groups": mixer.groups}
    elif isinstance(mixer, DeltaNet):
        sizes = {"delta.key_heads": mixer.key_heads}
    return sizes | ({"feed_forward": block.feed_forward.width} if block.feed_forward else {})


def _check_block(model: Model, block: Block, layout: Layout) -> None:
    """Raise PhazeError if tp or cp does not divide a sharded dimension of a block."""
    where, mixer, tp, cp = f"model {model.name}", block.mixer, layout.tp, layout.cp
    for key, size in _cut_sizes(block, tp).items():
        if tp < 1 or size % tp:
            raise PhazeError(
                f"{where}: tensor: {tp} must be > 0 and divide {key} {size} of model {model.name}"
            )
    if isinstance(mixer, Attention) and mixer.heads // tp % layout.heads_ranks:
        raise PhazeError(f"{where}: cp: {layout.heads_ranks} must divide heads / tp {mixer.heads // tp}")
    if isinstance(mixer, Mamba | DeltaNet) and not mixer.divides(tp, cp):
        raise PhazeError(f"{where}: cp: {cp} must divide the heads of its scans over tp {tp}")


def slice_model(model: Model, sequence: int, layout: Layout, bytes_per_element: int) -> ModelSlice:
    """Compute the dimensions of one shard of a model in a layout.

    PhazeError if t does not divide the heads, or the sequence with sequence parallelism, or if positions are
    missing. t may be a multiple of the key-value heads.
    """
    where = f"model {model.name}"
    for block in model.blocks.values():
        _check_block(model, block, layout)
    model.check_sequence(sequence, where)
    # Each rank has one part from the beginning and one from the end of the sequence.
    if layout.cp > 1 and sequence % (2 * layout.cp):
        raise PhazeError(f"{where}: 2 * cp must divide the sequence {sequence}, got {2 * layout.cp}")
    if layout.cuts_sequence and sequence // layout.cp % layout.tp:
        part = f"sequence {sequence}" if layout.cp == 1 else f"part {sequence // layout.cp} of the sequence"
        raise PhazeError(f"{where}: tensor: {layout.tp} must divide the {part} if that is parallel")
    return ModelSlice(model, layout, sequence, bytes_per_element)
