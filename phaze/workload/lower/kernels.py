"""The kernels of a layer on a machine with libraries: matrix multiplications alone, elementwise chains fused.

That is what Megatron-LM runs on GPUs (Narayanan et al., SC 2021, Section 4.2): products of a library, and
kernels of its own for bias and activation, for scale, mask and softmax, and for bias, dropout and sum.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from phaze.workload.families.transformer import build_layers
from phaze.workload.lower.backward import backward_graph
from phaze.workload.lower.forward import forward_graph
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.memory import first_stashes
from phaze.workload.lower.sharding import Slice
from phaze.workload.operators import Operator
from phaze.workload.primitives import LayerGraph

ATTENTION_CORE = ("scores", "scores_scale", "scores_mask", "softmax", "softmax_dropout", "context")
"""Primitives that selective recomputation runs again (Korthikanti et al. 2023, Section 5), and that
FlashAttention fuses.
"""
Pass = Literal["forward", "backward"]


class LayerKernels(NamedTuple):
    """The kernels of a layer on one slice, and what it stores."""

    name: str
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    core: tuple[Operator, ...]
    """Those of the forward pass between queries, keys, values and what attention makes of them."""
    core_backward: tuple[Operator, ...]
    """Their counterparts in the backward pass."""
    parameters: int
    input_bytes: int
    output_bytes: int
    stashed_bytes: int
    """Kept of a microbatch for the backward pass."""
    core_bytes: int
    """What of it is inside the attention core."""


def extract_kernels(part: Slice) -> dict[str, LayerKernels]:
    """Return the kernels of every distinct layer of a slice by the layer's name."""
    return {layer.name: _kernels(layer, part.bytes_per_element) for layer in build_layers(part)}


def _kernels(layer: LayerGraph, width: int) -> LayerKernels:
    groups = fuse(layer, products=False)
    forward = forward_graph(layer, groups, width).operators
    backward = backward_graph(layer, groups, width, "paired").operators
    names = [primitive.name for primitive in layer.primitives]
    again = {names.index(name) for name in ATTENTION_CORE if name in names}
    stashes = first_stashes(layer, width)
    return LayerKernels(
        name=layer.name,
        forward=_working(forward),
        backward=_working(backward),
        core=_working(tuple(o for o, group in zip(forward, groups, strict=True) if again & set(group))),
        core_backward=_working(
            tuple(o for o, group in zip(backward, groups[::-1], strict=True) if again & set(group))
        ),
        parameters=sum(primitive.parameters for primitive in layer.primitives),
        input_bytes=layer.input_elements * width,
        output_bytes=layer.output_elements * width,
        stashed_bytes=sum(stash.nbytes for found in stashes for stash in found),
        core_bytes=sum(s.nbytes for found in stashes for s in found if s.source in again - _last(names)),
    )


def _working(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return the operators that do anything."""
    return tuple(operator for operator in operators if operator.parts)


def _last(names: list[str]) -> set[int]:
    """Return the product that ends the attention core, whose result is kept."""
    return {names.index("context")} if "context" in names else set()
