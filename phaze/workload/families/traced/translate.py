"""Translate the recorded operator calls of a PyTorch module into primitives.

Results of constants alone, such as masks and random numbers, are constants. An unknown operator is
elementwise if its result is as large as its input, a reduction if it is smaller, and an error if it is
larger. Parameters belong to the first operator that reads them. A sum with a constant is a mask. A product
with a constant as large as the tensor is a dropout, because PyTorch draws the mask separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.spec.rows import Gemm
from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Tensor, with_forks

Origin = Literal["made", "input", "parameter", "constant"]
"""Origin of a tensor: made by a call, user input, module parameter, or constant."""
# fmt: off
VIEWS = frozenset((
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "expand", "lift_fresh", "narrow",
    "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose",
    "unbind", "unsqueeze", "view", "view_as_complex", "view_as_real",
))
# fmt: on
"""PyTorch operators that return a view of existing memory."""
PRODUCTS = frozenset(("addmm", "baddbmm", "bmm", "convolution", "mm"))
# fmt: off
_REARRANGING = (
    "_to_copy", "cat", "clone", "constant_pad_nd", "copy", "flip", "gather", "index", "index_select",
    "repeat", "roll", "scatter", "stack",
)
KINDS = {
    **dict.fromkeys(_REARRANGING, "rearrange"),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), "batch_norm"),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), "layer_norm"),
    **dict.fromkeys(("mean", "sum", "avg_pool2d", "_adaptive_avg_pool2d"), "average_pool"),
    **dict.fromkeys(("hardswish", "sigmoid", "tanh"), "tanh"),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), "nll_loss"),
    "_log_softmax": "log_softmax",
    "_softmax": "softmax",
    "embedding": "lookup",
    "gelu": "gelu",
    "masked_fill": "mask",
    "max_pool2d_with_indices": "max_pool",
    "native_dropout": "dropout",
    "relu": "relu",
    "silu": "silu",
    "upsample_bilinear2d": "upsample",
    "upsample_nearest2d": "nearest",
}
"""Primitive kind of PyTorch operators whose kind does not depend on their inputs."""
# fmt: off
CREATIONS = frozenset((
    "bernoulli", "empty", "empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros",
    "ones_like", "rand_like", "zeros_like",
))
# fmt: on
"""PyTorch operators that create constants with the shape of their input."""
SUMS = frozenset(("add", "rsub", "sub"))
FACTORS = frozenset(("div", "mul"))
DETACHING = frozenset(("detach",))
"""PyTorch operators that detach a tensor from its gradient, for computations outside the model."""
SELECTIONS = ("index", "index_select")
EXPERT_DIMS = 3
"""Number of dimensions of stacked expert matrices."""
Names = frozenset[int]
"""Identifying numbers of a set of parameters."""


@dataclass(frozen=True)
class SeenTensor:
    """Tensor that a recorded call reads or writes."""

    number: int
    """Identifying number of the tensor; a call that changes a tensor in place writes the same number."""
    shape: tuple[int, ...]
    bytes_per_element: int
    origin: Origin
    floating: bool = True
    """True for floating-point tensors, which have gradients."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Call:
    """Recorded call of a PyTorch operator."""

    module: str
    """Path of the calling module; empty for the outermost module."""
    operator: str
    """Operator name without namespace and overload, such as addmm."""
    inputs: tuple[SeenTensor, ...]
    """Tensors among the arguments, in order."""
    outputs: tuple[SeenTensor, ...]


@dataclass(frozen=True)
class Trace:
    """Recorded forward pass of a module: its calls, results, parameters and FLOPs."""

    calls: tuple[Call, ...]
    results: tuple[int, ...]
    """Identifying numbers of the returned tensors."""
    parameters: int
    """Number of parameters of the module; shared parameters count once."""
    forward_flops: int
    """FLOPs of matrix multiplications and convolutions, as counted by PyTorch."""
    backward_flops: int


@dataclass
class TraceState:
    """State of the translation after some of the recorded calls."""

    primitives: list[Primitive] = field(default_factory=list)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Outputs of primitives, by tensor number."""
    weights: dict[int, Names] = field(default_factory=dict)
    """Parameters of which a tensor is a view, by tensor number."""
    owned: set[int] = field(default_factory=set)
    """Parameters already assigned to a primitive."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of elements of each parameter."""
    experts: dict[int, int] = field(default_factory=dict)
    """Number of experts whose matrices a tensor selects, one matrix per row, by tensor number."""
    names: Counter[str] = field(default_factory=Counter)


def graph_of(trace: Trace) -> LayerGraph:
    """Translate all operators on which a module's results depend into one layer.

    Raises PhazeError for unknown operators, and if the FLOPs of products differ from PyTorch's count, as with
    products inside fused operators.
    """
    products = [p.gemm for p in _state(trace).primitives if p.gemm is not None]
    flops = sum(2 * gemm.batch * gemm.m * gemm.k * gemm.n for gemm in products)
    if flops != trace.forward_flops:
        raise PhazeError(
            f"trace: matrix multiplications take {flops:,} FLOPs forward, PyTorch counts "
            f"{trace.forward_flops:,}: phaze does not see into some operator; attention must not be fused "
            "(attn_implementation: eager)"
        )
    return translate(trace)


def translate(trace: Trace) -> LayerGraph:
    """Translate a trace like `graph_of`, without comparing its FLOPs with PyTorch's count."""
    return with_forks(LayerGraph("model", needed_of(trace), 0, 0))


def needed_of(trace: Trace) -> tuple[Primitive, ...]:
    """All primitives on which a module's results depend, in order; raises PhazeError."""
    state = _state(trace)
    ends = [state.outputs[number].source for number in trace.results if number in state.outputs]
    return _needed(state.primitives, ends)


def _state(trace: Trace) -> TraceState:
    state = TraceState()
    for call in trace.calls:
        _add(state, call)
    return state


def _add(state: TraceState, call: Call) -> None:
    """Add the primitive of a call, or only record its results if it needs no primitive."""
    tensors = [tensor for seen in call.inputs if (tensor := _tensor(state, seen)) is not None]
    weights = [_weights(state, seen) for seen in call.inputs]
    parameters = frozenset().union(*weights)
    # In-place variants have the operator's name with an underscore at the end.
    operator = call.operator.rstrip("_") or call.operator
    if operator in CREATIONS or not (tensors or parameters):
        return
    # Kernels do not copy the matrices that `index` selects for the rows of an expert.
    selects = operator in SELECTIONS and len(call.inputs[0].shape) == EXPERT_DIMS
    if operator in DETACHING or ((operator in VIEWS or selects) and not tensors):
        _record_alias(state, call, tensors, parameters)
        return
    # Parameters belong to the first operator that reads them, so tied weights count once.
    fresh = parameters - state.owned
    state.owned |= fresh
    kind = _kind(call, operator, tensors, parameters)
    primitive = Primitive(
        name=_name(state, call, operator),
        kind=kind,
        inputs=tuple(tensors),
        elements=sum(seen.elements for seen in _results(call, operator)),
        gemm=_gemm(state, call, operator) if operator in PRODUCTS else None,
        parameters=sum(state.sizes[number] for number in fresh),
        constant_bytes=_constant_bytes(state, call),
        group="embedding" if kind == "lookup" else "expert" if _experts(state, call) else "dense",
    )
    source = len(state.primitives)
    state.primitives.append(primitive)
    gradient = bool(parameters) or any(tensor.gradient for tensor in tensors)
    for piece, seen in enumerate(_results(call, operator)):
        state.outputs[seen.number] = Tensor(source, seen.elements, piece, gradient)
        state.weights.pop(seen.number, None)


def _tensor(state: TraceState, seen: SeenTensor) -> Tensor | None:
    if seen.number in state.outputs:
        return state.outputs[seen.number]
    if seen.origin == "input" and seen.floating:
        return Tensor(INPUT, seen.elements, gradient=False)
    return None


def _weights(state: TraceState, seen: SeenTensor) -> Names:
    if seen.origin == "parameter" and seen.number not in state.weights:
        state.weights[seen.number] = frozenset((seen.number,))
        state.sizes[seen.number] = seen.elements
    return state.weights.get(seen.number, frozenset())


def _record_alias(state: TraceState, call: Call, tensors: list[Tensor], parameters: Names) -> None:
    """Record the results of a call that needs no primitive."""
    for seen in call.outputs:
        if tensors:
            state.outputs[seen.number] = replace(tensors[0], gradient=False)
        else:
            state.weights[seen.number] = parameters
            if count := _experts(state, call):
                state.experts[seen.number] = count


def _experts(state: TraceState, call: Call) -> int:
    """Number of experts whose matrices a call reads, one matrix per row; 0 if there are none."""
    if call.operator in SELECTIONS and len(call.inputs[0].shape) == EXPERT_DIMS:
        return call.inputs[0].shape[0]
    return next((state.experts[seen.number] for seen in call.inputs if seen.number in state.experts), 0)


def _results(call: Call, operator: str) -> tuple[SeenTensor, ...]:
    """Outputs to record for a call: all for a view, else the first (others only serve the backward pass)."""
    return call.outputs if operator in VIEWS else call.outputs[:1]


def _name(state: TraceState, call: Call, operator: str) -> str:
    name = f"{call.module or 'model'}.{operator.strip('_')}"
    state.names[name] += 1
    return name if state.names[name] == 1 else f"{name}-{state.names[name]}"


def _kind(call: Call, operator: str, tensors: list[Tensor], parameters: Names) -> str:
    """Kind of an operator; PhazeError if it is unknown and its output is larger than its inputs."""
    if operator in PRODUCTS:
        return "matmul"
    if operator in VIEWS:
        if len(call.outputs) > 1:
            return "split"
        return "reshape" if call.outputs[0].elements == tensors[0].elements else "select"
    if not tensors:
        return "lookup"
    if operator in KINDS:
        return KINDS[operator]
    if operator in SUMS | FACTORS:
        return _arithmetic(call, operator, tensors, parameters)
    largest = max(tensor.elements for tensor in tensors)
    if call.outputs and call.outputs[0].elements <= largest:
        return "scale" if call.outputs[0].elements == largest else "average_pool"
    raise PhazeError(f"{call.module or 'model'}: operator {call.operator} of PyTorch is not known to phaze")


def _arithmetic(call: Call, operator: str, tensors: list[Tensor], parameters: Names) -> str:
    if len(tensors) > 1:
        return "add" if operator in SUMS else "mul"
    if parameters:
        return "bias" if operator in SUMS else "mul"
    # A scalar only scales; the first larger input is the tensor itself.
    constants = [seen for seen in call.inputs if seen.elements > 1][1:]
    if operator in SUMS:
        return "mask" if constants else "scale"
    return "dropout" if any(seen.elements == tensors[0].elements for seen in constants) else "scale"


def _constant_bytes(state: TraceState, call: Call) -> int:
    """Bytes of the masks, indices and running statistics that a call reads."""
    traced = state.outputs.keys() | state.weights.keys()
    return sum(
        seen.elements * seen.bytes_per_element
        for seen in call.inputs
        if seen.number not in traced and not (seen.origin == "input" and seen.floating)
    )


def _gemm(state: TraceState, call: Call, operator: str) -> Gemm:
    """GEMM that a call to a matrix product or convolution performs.

    A convolution is the product of its unrolled input. Rows with the matrices of their experts give one
    product per expert, if the rows divide evenly.
    """
    if operator == "convolution":
        return _convolution(call)
    # `addmm` and `baddbmm` have the summand before the two factors.
    left_shape, right_shape = (seen.shape for seen in call.inputs[-2:])
    batch = left_shape[0] if len(left_shape) == 3 else 1
    count = _experts(state, call)
    if count and batch % count == 0:
        # The experts' matrix may be either factor; the other one is a row or a column.
        wide = max(left_shape[-2], right_shape[-1])
        return Gemm(count, batch // count, left_shape[-1], wide)
    return Gemm(batch, left_shape[-2], left_shape[-1], right_shape[-1])


def _convolution(call: Call) -> Gemm:
    """GEMM of a grouped convolution; weights are (kernels, channels per group, window)."""
    x, weight, out = call.inputs[0], call.inputs[1], call.outputs[0]
    kernels, channels = weight.shape[:2]
    # A transposed convolution has its channels in the other order.
    if out.shape[1] != kernels or x.shape[1] % channels:
        raise PhazeError(f"{call.module or 'model'}: transposed convolutions are not known to phaze")
    groups = x.shape[1] // channels
    rows, columns = out.elements // kernels, weight.elements // kernels
    return Gemm(groups, rows, columns, kernels // groups, max(0, groups * rows * columns - x.elements))


def _needed(primitives: list[Primitive], ends: Iterable[int]) -> tuple[Primitive, ...]:
    """Primitives on which the primitives at `ends` depend, including those at `ends`."""
    needed = set(ends)
    for index in reversed(range(len(primitives))):
        if index in needed:
            needed |= {tensor.source for tensor in primitives[index].inputs} - {INPUT}
    place = {index: number for number, index in enumerate(sorted(needed))}
    return tuple(primitives[index].reading(place) for index in place)
