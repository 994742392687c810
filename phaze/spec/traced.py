"""Traced models: distinct layers of a PyTorch model with their operators, written by `phaze trace`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.counts import TokenFlops
from phaze.spec.derived import DerivedNoun
from phaze.spec.noun import Noun
from phaze.spec.rows import Gemm
from phaze.spec.unsharded import UnshardedModel
from phaze.spec.values import Flag, Index, Label, Name, PositiveInt

Source = Annotated[int, Field(strict=True, ge=-1)]


class TracedTensor(Noun):
    """Input tensor of an operator."""

    source: Source
    """Index of the producing operator in the layer; -1 for the previous layer."""
    elements: Index
    """Number of elements."""
    piece: Index = 0
    """Index of the result, for operators with several."""
    gradient: Flag = True
    """A gradient flows back through this tensor."""


class TracedProduct(DerivedNoun, Gemm):
    """Batch of matrix products (m x k)(k x n)."""

    unrolled: Index = 0
    """Elements that unrolling a convolution's input adds to those stored in memory."""


class TracedOperator(Noun):
    """Operator of a layer, for one sample."""

    name: Label
    """Name, including the module's."""
    kind: Label
    """Kind of operator, in phaze's classification."""
    inputs: tuple[TracedTensor, ...] = ()
    """Inputs, without parameters and constants."""
    elements: Index
    """Elements of the result."""
    product: TracedProduct | None = None
    """Sizes, for a matrix multiplication."""
    parameters: Index = 0
    """Parameters that no earlier operator reads."""
    constant_bytes: Index = 0
    """Bytes of the masks, tables and indices that the operator reads."""
    group: Literal["dense", "expert", "embedding", "tied"] = "dense"
    """Group of the operator's parameters."""

    @property
    def products(self) -> int:
        """Number of multiply-accumulates; 0 for operators without matrix products."""
        own = self.product
        return 0 if own is None else own.batch * own.m * own.k * own.n

    def attends(self, sequence: int) -> bool:
        """True for a matrix product of attention, which multiplies activations of all pairs of tokens."""
        own = self.product
        return (
            own is not None and len(self.inputs) == 2 and own.m % sequence == 0 and sequence in (own.k, own.n)
        )


class TracedLayer(Noun):
    """Distinct layer with its operators."""

    name: Name
    """Name of the layer."""
    operators: tuple[TracedOperator, ...] = Field(min_length=1)
    """Operators in order."""
    input_elements: Index
    """Elements received from the previous layer."""
    output_elements: Index
    """Elements passed to the next layer."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for place, one in enumerate(self.operators):
            if any(x.source >= place for x in one.inputs):
                raise ValueError(
                    f"layer {self.name}: operator {one.name} reads the result of a later operator"
                )
        return self


class TracedRun(Noun):
    """Run of identical consecutive layers."""

    layer: Name
    """Name of the layer."""
    count: PositiveInt
    """Number of layers."""


class Traced(UnshardedModel):
    """Model that is a chain of layers of any kind, traced for samples of one length."""

    kind: Literal["traced"] = "traced"
    """Kind of the model."""
    sequence: PositiveInt
    """Tokens per sample."""
    layers: tuple[TracedLayer, ...] = Field(min_length=1)
    """All distinct layers."""
    runs: tuple[TracedRun, ...] = Field(min_length=1)
    """Sequence of the layers."""
    causal: Flag = False
    """Causal attention: a token attends only to earlier ones, so that MFU counts half of the products of
    attention."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := {run.layer for run in self.runs} - {layer.name for layer in self.layers}:
            raise ValueError(f"runs: {sorted(unknown)[0]} is not one of the layers")
        return self

    @property
    def token(self) -> str:
        """Word for an element of a sample in user messages, such as "token"."""
        return "token"

    @property
    def usual_sequence(self) -> int:
        """Tokens per sample."""
        return self.sequence

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs to train on one token: 2 per multiply-accumulate, in three passes of equal work."""
        return TokenFlops(
            needed=6.0 * self._products(causal=self.causal) / sequence,
            paper=6.0 * self._products(causal=False) / sequence,
        )

    def _products(self, *, causal: bool) -> float:
        """Number of multiply-accumulates in a forward pass; if `causal` is set, attention counts half."""
        each = {
            layer.name: sum(
                one.products * (0.5 if causal and one.attends(self.sequence) else 1.0)
                for one in layer.operators
            )
            for layer in self.layers
        }
        return sum(run.count * each[run.layer] for run in self.runs)

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless `sequence` is the traced length; `where` names the source."""
        if sequence != self.sequence:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be {self.sequence}, for which {self.name} was traced"
            )

    def distinct(self) -> Self:
        """Smallest model with each distinct layer once; K (`hyper_operators`) is dropped."""
        order = dict.fromkeys(run.layer for run in self.runs)
        runs = tuple(TracedRun(layer=name, count=1) for name in order)
        return self.model_copy(update={"runs": runs, "hyper_operators": None})
