"""A model as PyTorch runs it: its distinct layers operator by operator, as `phaze trace` writes them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.flops import TokenFlops
from phaze.spec.noun import Noun
from phaze.spec.uncut import Uncut
from phaze.spec.values import Count, Flag, Index, Label, Name, PositiveInt

Source = Annotated[int, Field(strict=True, ge=-1)]


class TracedTensor(Noun):
    """A tensor that an operator reads."""

    source: Source
    """Operator of the layer that makes it, by its place; -1: it arrives from the layer before."""
    elements: Index
    """Elements of it."""
    piece: Index = 0
    """Which of several results."""
    gradient: Flag = True
    """Whether a gradient goes back."""


class TracedProduct(Noun):
    """A batch of products (m x k)(k x n)."""

    batch: Count
    """Products."""
    m: Count
    """Rows of the first matrix."""
    k: Count
    """Its columns."""
    n: Count
    """Columns of the second matrix."""
    unrolled: Index = 0
    """Elements of the first matrices beyond those in memory."""


class TracedOperator(Noun):
    """An operator of a layer for one sample."""

    name: Label
    """Name, with that of its module."""
    kind: Label
    """What it does, as phaze counts operators."""
    inputs: tuple[TracedTensor, ...] = ()
    """What it reads beside parameters and constants."""
    elements: Index
    """Elements of its result."""
    product: TracedProduct | None = None
    """Of a matrix multiplication its sizes."""
    parameters: Index = 0
    """Parameters that no operator before it reads."""
    constant_bytes: Index = 0
    """Bytes of masks, tables and indices that it reads."""
    group: Literal["dense", "expert", "embedding", "tied"] = "dense"
    """Group of the parameters."""

    @property
    def products(self) -> int:
        """Multiply-accumulates, 0 of what is no product."""
        own = self.product
        return 0 if own is None else own.batch * own.m * own.k * own.n

    def attends(self, sequence: int) -> bool:
        """Whether it is a product of attention: of two activations, of each token with all others."""
        own = self.product
        return (
            own is not None and len(self.inputs) == 2 and own.m % sequence == 0 and sequence in (own.k, own.n)
        )


class TracedLayer(Noun):
    """A distinct layer."""

    name: Name
    """Name of the layer."""
    operators: tuple[TracedOperator, ...] = Field(min_length=1)
    """Its operators in order."""
    input_elements: Index
    """Elements that arrive from the layer before."""
    output_elements: Index
    """Elements handed to the next."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for place, one in enumerate(self.operators):
            if any(x.source >= place for x in one.inputs):
                raise ValueError(f"layer {self.name}: operator {one.name} reads what is made after it")
        return self


class TracedRun(Noun):
    """Equal layers, each after the other."""

    layer: Name
    """Name of the layer."""
    count: PositiveInt
    """How many."""


class Traced(Uncut):
    """A model that is a chain of layers of any kind, for samples of one length."""

    kind: Literal["traced"] = "traced"
    """Kind of the model."""
    sequence: PositiveInt
    """Tokens of a sample."""
    layers: tuple[TracedLayer, ...] = Field(min_length=1)
    """Every distinct layer."""
    runs: tuple[TracedRun, ...] = Field(min_length=1)
    """How they follow on each other."""
    causal: Flag = False
    """A token attends only to those before it, so that half of the products of attention count in MFU."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := {run.layer for run in self.runs} - {layer.name for layer in self.layers}:
            raise ValueError(f"runs: {sorted(unknown)[0]} is none of the layers")
        return self

    @property
    def token(self) -> str:
        """Word for a token of a sample."""
        return "token"

    @property
    def usual_sequence(self) -> int:
        """Tokens of a sample."""
        return self.sequence

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs that training needs for a token: two for each multiply-accumulate, three passes of each."""
        return TokenFlops(
            needed=6.0 * self._products(causal=self.causal) / sequence,
            paper=6.0 * self._products(causal=False) / sequence,
        )

    def _products(self, *, causal: bool) -> float:
        """Multiply-accumulates of a forward pass; if `causal`, of attention the half that a mask leaves."""
        each = {
            layer.name: sum(
                one.products * (0.5 if causal and one.attends(self.sequence) else 1.0)
                for one in layer.operators
            )
            for layer in self.layers
        }
        return sum(run.count * each[run.layer] for run in self.runs)

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless samples are those that were traced; `where` says who asked."""
        if sequence != self.sequence:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be {self.sequence}, for which {self.name} was traced"
            )

    def distinct(self) -> Self:
        """Model with each distinct layer once, and without K."""
        order = dict.fromkeys(run.layer for run in self.runs)
        runs = tuple(TracedRun(layer=name, count=1) for name in order)
        return self.model_copy(update={"runs": runs, "hyper_operators": None})
