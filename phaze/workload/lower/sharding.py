"""One of t equal slices of a model, cut as Megatron-LM does (Shoeybi et al. 2020, Section 3).

Queries, keys, values, the first feed-forward matrix and the head are cut by columns, the attention output
and the second feed-forward matrix by rows, the word embedding by its vocabulary. Norms, biases after an
all-reduce, positions, projections of the word embedding, and BERT's transform and pooler are the same on
every slice.

With sequence parallelism what would be the same on every slice is cut along the sequence: a gather takes the
place of the copy, a reduce-scatter that of the all-reduce (Korthikanti et al. 2023, Section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.spec.model import Model
from phaze.workload.primitives import LayerBuilder, Tensor


@dataclass(frozen=True)
class Slice:
    """Sizes of one slice of a model for one microbatch."""

    model: Model
    tensor: int
    """TMP width t."""
    sequence: int
    """Tokens of a sample."""
    microbatch: int
    """Samples, b."""
    bytes_per_element: int
    sequence_parallel: bool = False

    @property
    def tokens(self) -> int:
        """Return the tokens of the microbatch."""
        return self.microbatch * self.sequence

    @property
    def hidden_elements(self) -> int:
        """Return the elements of the residual stream that a slice holds: all, or with sequence parallelism
        those of its tokens.
        """
        return self.own_tokens * self.model.hidden

    @property
    def own_tokens(self) -> int:
        """Return the tokens of what is not cut by t otherwise."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    @property
    def heads(self) -> int:
        """Return the query heads of the slice."""
        return self.model.heads // self.tensor

    @property
    def kv_heads(self) -> int:
        """Return the heads of keys and values of the slice."""
        return self.model.kv_heads // self.tensor

    @property
    def query_width(self) -> int:
        """Return the width of the slice's queries."""
        return self.heads * self.model.head_width

    @property
    def kv_width(self) -> int:
        """Return the width of the slice's keys, and of its values."""
        return self.kv_heads * self.model.head_width

    @property
    def feed_forward(self) -> int:
        """Return the slice's width of the feed-forward network."""
        return self.model.feed_forward // self.tensor

    @property
    def vocabulary(self) -> int:
        """Return the slice's part of the vocabulary, padded where t does not divide it."""
        return -(-self.model.vocabulary // self.tensor)

    def enter(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Hand a tensor to all slices: nothing to do forward, an all-reduce of its gradient backward (f)."""
        if self.sequence_parallel and self.tensor > 1:
            return layer.add("all_gather", f"{name}_all_gather", x, elements=x.elements * self.tensor)
        return layer.add("copy", f"{name}_copy", x) if self.tensor > 1 else x

    def leave(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Sum a tensor over the slices and cut it along the sequence where that is parallel, too."""
        if self.sequence_parallel and self.tensor > 1:
            return layer.add(
                "reduce_scatter", f"{name}_reduce_scatter", x, elements=x.elements // self.tensor
            )
        return self.sum_up(layer, name, x)

    def sum_up(self, layer: LayerBuilder, name: str, x: Tensor) -> Tensor:
        """Sum a tensor over the slices: an all-reduce forward, nothing to do backward (g)."""
        return layer.add("all_reduce", f"{name}_all_reduce", x) if self.tensor > 1 else x


def slice_model(
    model: Model,
    tensor: int,
    sequence: int,
    microbatch: int,
    bytes_per_element: int,
    *,
    sequence_parallel: bool = False,
) -> Slice:
    """Return one slice; raise PhazeError where t does not divide the heads, or the sequence where that is
    parallel, or positions are missing.
    """
    where = f"model {model.name}"
    model.check_tensor_width(tensor, where)
    model.check_sequence(sequence, where)
    if sequence_parallel and sequence % tensor:
        raise PhazeError(f"{where}: tensor: {tensor} must divide the sequence {sequence} if that is parallel")
    return Slice(model, tensor, sequence, microbatch, bytes_per_element, sequence_parallel)
