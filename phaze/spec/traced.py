"""Traced models: distinct layers of a PyTorch model with their operators, written by `phaze trace`.

A transformer spec is derived from a trace's matrix products, norms and parameters. Fields that a trace cannot
show must be given. The parameter count verifies the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.counts import TokenFlops
from phaze.spec.derived import DerivedNoun
from phaze.spec.model import Model
from phaze.spec.names import ParameterGroup
from phaze.spec.noun import Noun
from phaze.spec.pattern import pattern_of
from phaze.spec.rows import Gemm
from phaze.spec.unsharded import UnshardedModel
from phaze.spec.values import Flag, Index, Label, Name, PositiveInt

Source = Annotated[int, Field(strict=True, ge=-1)]
Fields = dict[str, object]
OPTION = "--set"
_ATTENTION = 2
"""Number of matrix products without weights in a block: for the scores, and for the weighted values."""


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
    group: ParameterGroup = "dense"
    """Group of the operator's parameters."""

    @property
    def products(self) -> int:
        """Number of multiply-accumulates; 0 for operators without matrix products."""
        product = self.product
        return 0 if product is None else product.batch * product.m * product.k * product.n

    def attends(self, sequence: int) -> bool:
        """True for a matrix product of attention, which multiplies activations of all pairs of tokens."""
        product = self.product
        if product is None or len(self.inputs) != 2:
            return False
        # Scores have one column per token, weighted values contract over tokens; with grouped queries several
        # heads are in the rows.
        return product.m % sequence == 0 and sequence in (product.k, product.n)


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
        for place, operator in enumerate(self.operators):
            if any(tensor.source >= place for tensor in operator.inputs):
                raise ValueError(
                    f"layer {self.name}: operator {operator.name} reads the result of a later operator"
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

    token: ClassVar[str] = "token"  # what a message calls an element of a sample

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
    def usual_sequence(self) -> int:
        """Tokens per sample."""
        return self.sequence

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs to train on one token: 2 per multiply-accumulate, in three passes of equal work."""
        return TokenFlops(
            needed=6.0 * self._forward_products(causal=self.causal) / sequence,
            paper=6.0 * self._forward_products(causal=False) / sequence,
        )

    def _forward_products(self, *, causal: bool) -> float:
        """Number of multiply-accumulates in a forward pass; if `causal` is set, attention counts half."""
        products = {
            layer.name: sum(
                operator.products * (0.5 if causal and operator.attends(self.sequence) else 1.0)
                for operator in layer.operators
            )
            for layer in self.layers
        }
        return sum(run.count * products[run.layer] for run in self.runs)

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


@dataclass(frozen=True)
class _Block:
    """Operators of a block before and after attention, and the two matrix products of attention."""

    layer: TracedLayer
    tokens: int
    before: Sequence[TracedOperator]
    scores: TracedProduct
    context: TracedProduct
    after: Sequence[TracedOperator]

    @classmethod
    def of(cls, layer: TracedLayer, tokens: int) -> _Block:
        """Split the operators of a layer; PhazeError unless the layer has exactly one attention."""
        operators = layer.operators
        weightless = [
            (i, operator.product)
            for i, operator in enumerate(operators)
            if operator.product and not operator.parameters
        ]
        if len(weightless) != _ATTENTION:
            raise PhazeError(
                f"{layer.name}: must have one attention, which is two products without weights, "
                f"got {len(weightless)}"
            )
        (first, scores), (second, context) = weightless
        return cls(layer, tokens, operators[:first], scores, context, operators[second + 1 :])

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.layer.input_elements // self.tokens

    @property
    def is_sparse(self) -> bool:
        """True if the block has experts."""
        return any(operator.group == "expert" for operator in self.after)


def transformer_of(traced: Traced, where: str, user_fields: Mapping[str, object] | None = None) -> Model:
    """Derive the transformer spec of a traced model; `user_fields` are fields that a trace cannot show.

    Raises PhazeError for other kinds of model, and for a missing field.
    """
    user_fields = user_fields or {}
    layers = {layer.name: layer for layer in traced.layers}
    order = [layers[run.layer] for run in traced.runs for _ in range(run.count)]
    try:
        fields = _spec_fields(traced, order, user_fields)
    except PhazeError as error:
        raise error.under(where) from error
    model = Model.parse(_merge_fields(fields, user_fields), where)
    parameters = sum(
        operator.parameters for layer in order for operator in layer.operators if operator.group != "tied"
    )
    if model.parameters != parameters:
        raise PhazeError(
            f"{where}: must be a transformer: the trace has {parameters:,} parameters, a transformer of "
            f"its sizes {model.parameters:,}",
            f"write a spec of the model, or set its fields with {OPTION}",
        )
    return model


def _spec_fields(traced: Traced, order: Sequence[TracedLayer], user_fields: Mapping[str, object]) -> Fields:
    """Spec fields of the model, derived from its layers."""
    blocks = [_Block.of(layer, traced.sequence) for layer in order[1:-1]]
    if not blocks:
        raise PhazeError("must have an embedding, blocks and a head")
    fields = _end_fields(order, blocks[0].hidden)
    for block in {block.layer.name: block for block in blocks}.values():
        for name, value in (
            _attention_fields(block, user_fields) | _network_fields(block, user_fields)
        ).items():
            if fields.setdefault(name, value) != value:
                raise PhazeError(
                    f"{block.layer.name}: {name} must be the same in all blocks, {fields[name]}, got {value}"
                )
    kinds = ["attention-experts" if block.is_sparse else "attention-dense" for block in blocks]
    if len(set(kinds)) > 1:
        fields["pattern"] = pattern_of(kinds)
    return fields | {"name": traced.name, "layers": len(blocks), "hidden": blocks[0].hidden}


def _merge_fields(fields: Fields, user_fields: Mapping[str, object]) -> Fields:
    """Merge the given fields into `fields`; a dot in a name leads to a nested field."""
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    for name, value in user_fields.items():
        part, _, nested = name.partition(".")
        inner = merged.setdefault(part, {}) if nested else None
        if isinstance(inner, dict):
            inner[nested] = value
        else:
            merged[name] = value
    return merged


def _end_fields(order: Sequence[TracedLayer], hidden: int) -> Fields:
    """Spec fields read from the layers before and after the blocks."""
    # Tables of tokens, and of positions if these are learned, in rows as wide as the blocks.
    rows = [operator.parameters // hidden for operator in order[0].operators if operator.kind == "lookup"]
    rows = [count for count in rows if count]
    if not rows:
        raise PhazeError("must begin with an embedding table as wide as the blocks")
    vocabulary, head = rows[0], order[-1].operators
    logits = [operator for operator in head if operator.product and operator.product.n == vocabulary]
    if len(logits) != 1 or len(rows) > _ATTENTION:
        raise PhazeError(f"must end in one product with logits for the {vocabulary:,} rows of its table")
    learned = {"positions": "learned", "position_count": rows[1]} if len(rows) > 1 else {}
    return {
        "vocabulary": vocabulary,
        "tied_embeddings": not logits[0].parameters or logits[0].group == "tied",
        "final_norm": any(_is_norm(operator) for operator in head),
        **({"positions": "rotary"} | learned),
    }


def _attention_fields(block: _Block, user_fields: Mapping[str, object]) -> Fields:
    """Spec fields of attention and its norms."""
    hidden, projections = block.hidden, _weight_products(block.before)
    scores, context = block.scores, block.context
    shapes = _shapes(projections)
    if not shapes or any(shape.k != hidden for shape in shapes) or scores.k != context.n:
        raise PhazeError(
            f"{block.layer.name}: queries, keys and values must be products of the residual "
            "stream, one as wide as the others: latent attention and adapters cannot be read from "
            "a trace"
        )
    # Heads are in the batch, or in the rows where several share a key.
    heads, size = scores.batch * scores.m // block.tokens, scores.k
    # What the projections compute beyond queries are keys and values of equal width.
    kv_width = sum(shape.n for shape in shapes) - heads * size
    groups = _key_value_heads(block, kv_width / (2 * size), heads, user_fields)
    out = _weight_products(block.after)[:1]
    return {
        "heads": heads,
        "head_size": size,
        "key_value_heads": groups,
        "fused_qkv": len(projections) == 1 and groups == heads,
        "attention_bias": any(_has_bias(block.before, operator) for operator in projections),
        "output_bias": any(_has_bias(block.after, operator) for operator in out),
        **_norm_fields(block, heads * size, groups * size, size),
    }


def _key_value_heads(block: _Block, derived: float, heads: int, user_fields: Mapping[str, object]) -> int:
    """Number of key and value heads, from the widths of the key and value projections."""
    stated = user_fields.get("key_value_heads")
    if isinstance(stated, int):
        return stated
    if derived < 1 or derived % 1 or heads % derived:
        raise _undetermined(block, "key_value_heads", f"of {heads} heads")
    return int(derived)


def _norm_fields(block: _Block, queries: int, keys: int, size: int) -> Fields:
    """Spec fields of norms; query and key norms lie between the projections and the scores."""
    projection = block.before.index(_weight_products(block.before)[0])
    first = [operator for operator in block.before[:projection] if _is_norm(operator)]
    between = [op for op in block.before[projection:] if _is_norm(op)]
    widths = tuple(op.parameters // (2 if op.kind == "layer_norm" else 1) for op in between)
    later = [operator for operator in block.after if _is_norm(operator)]
    norm_kinds = {(): "none", (size, size): "heads", (queries, keys): "all"}
    # Numbers of norms before and after attention.
    places = {(1, 1): "pre", (1, 3): "both", (0, 2): _outer_norm_position(block, later)}
    place = (len(first), len(later))
    if widths not in norm_kinds or place not in places:
        raise PhazeError(
            f"{block.layer.name}: must have the norms of a transformer, got {len(first)} before "
            f"attention, {len(between)} of queries and keys, {len(later)} after it"
        )
    norm = "layer_norm" if any(operator.kind == "layer_norm" for operator in later) else "rms_norm"
    return {"qk_norm": norm_kinds[widths], "norm_position": places[place], "norm": norm}


def _outer_norm_position(block: _Block, norms: Sequence[TracedOperator]) -> str:
    """Position of the norms after attention: `post` if they follow the residual sum, otherwise `output`."""
    place = block.after.index(norms[0]) if norms else 0
    return "post" if any(operator.kind == "add" for operator in block.after[:place]) else "output"


def _network_fields(block: _Block, user_fields: Mapping[str, object]) -> Fields:
    """Spec fields of a dense network or of experts."""
    # The first product after attention is its output projection.
    products = _weight_products(block.after)[1:]
    activation = next((op.kind for op in block.after if op.kind in ("relu", "silu")), "gelu")
    if not block.is_sparse:
        width, gated = _network_width(block, _shapes(products))
        bias = any(_has_bias(block.after, operator) for operator in products)
        return {"feed_forward": width, "gated": gated, "feed_forward_bias": bias, "activation": activation}
    sparse = [operator for operator in products if operator.group == "expert"]
    dense = _shapes([operator for operator in products if operator.group != "expert"])
    width, gated = _network_width(block, _shapes(sparse))
    # The operator of the last product has the weights of all experts.
    last = sparse[-1].product
    assert last
    count = sparse[-1].parameters // (last.k * last.n)
    sizes = [shape.n for shape in dense]
    if count not in sizes:
        raise PhazeError(f"{block.layer.name}: must have a router for {count} experts")
    shared = [shape for shape in dense if shape.n not in (count, 1)]
    experts: Fields = {
        "count": count,
        "per_token": _per_token(block, last.batch * last.m, count, user_fields),
        "width": width,
        "gated": gated,
        "shared_width": _network_width(block, shared)[0] if shared else 0,
        "shared_gate": 1 in sizes,
    }
    return {"experts": experts, "gated": gated, "feed_forward_bias": False, "activation": activation}


def _per_token(block: _Block, rows: int, count: int, user_fields: Mapping[str, object]) -> object:
    """Number of experts per token; PhazeError if the trace sends every token to all experts.

    Such a trace does not show the number: the module may have been run that way.
    """
    derived = rows / block.tokens
    if "experts.per_token" in user_fields:
        return user_fields["experts.per_token"]
    if derived % 1 or not 0 < derived < count:
        raise _undetermined(block, "experts.per_token", f"of {count} experts")
    return int(derived)


def _network_width(block: _Block, shapes: Sequence[TracedProduct]) -> tuple[int, bool]:
    """Inner width of a feed-forward network, and True if it is gated (multiplies two projections)."""
    inner = shapes[-1].k if len(shapes) > 1 else 0
    # One projection into the network, or two if gated, possibly in one product.
    times = sum(shape.n for shape in shapes[:-1]) / inner if inner else 0
    if times not in (1, 2):
        raise PhazeError(
            f"{block.layer.name}: must have a feed-forward network of two or three matrices of one width"
        )
    return inner, times > 1


def _undetermined(block: _Block, name: str, what: str) -> PhazeError:
    return PhazeError(
        f"{block.layer.name}: the trace does not determine {name} {what}: pass {OPTION} {name}=N"
    )


def _weight_products(operators: Sequence[TracedOperator]) -> list[TracedOperator]:
    """Operators of a sequence that multiply by a weight matrix."""
    return [operator for operator in operators if operator.product and operator.parameters]


def _shapes(operators: Sequence[TracedOperator]) -> list[TracedProduct]:
    """Sizes of the matrix products among operators."""
    return [operator.product for operator in operators if operator.product]


def _has_bias(operators: Sequence[TracedOperator], projection: TracedOperator) -> bool:
    """True if a matrix product or the operator after it adds a bias."""
    assert projection.product
    following = operators[operators.index(projection) + 1 : operators.index(projection) + 2]
    apart = any(
        operator.kind == "bias" and operator.parameters == projection.product.n for operator in following
    )
    return apart or projection.parameters > projection.product.k * projection.product.n


def _is_norm(operator: TracedOperator) -> bool:
    """True if the operator is a norm, which scales by parameters."""
    return (
        bool(operator.parameters)
        and operator.product is None
        and operator.kind in ("layer_norm", "mul", "rms_norm")
    )
