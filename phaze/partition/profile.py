"""Profile of a model: its operator graph, with the time and memory of each operator on a device.

All layers are unrolled, and the graph is as in a framework that runs operators one by one, as Parmesan traces
and times them (Section VII). A matrix product with its bias is one operator. All other operators that
fusion would join are separate, including views, which take no time and no memory. Skip connections are edges.
The number format is the device's: four bytes on a Titan V or V100, on which Parmesan trains with SGD in
single precision. Times are kernel estimates (`cost.kernels`). A forward operator is one kernel. In the
backward pass the two products, the bias and all other work are separate kernels. Gradients of images, and of
other tensors that need none, are not computed.

    m_fwd   parameters, the result, and a stored mask
    m_bwd   parameters and their gradients, and the gradients of the inputs, where they are tensors of
            their own: a sum passes its gradient on

These are the bytes that an operator adds to memory, so their sum over operators (Appendix C) is the memory of
a stage that recomputes its activations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.kernels import Kernel, kernels_of, time_kernels, works_of_kernels
from phaze.cost.vector import usual_cycles
from phaze.layout import Layout
from phaze.partition.weights import sums
from phaze.spec.models import AnyModel
from phaze.spec.system import Device
from phaze.spec.systems import load_cluster
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import Group, fuse
from phaze.workload.lower.memory import MASK, stashes
from phaze.workload.models import build_graph
from phaze.workload.operator_graphs import OperatorGraph
from phaze.workload.operators import Operator
from phaze.workload.primitives import LayerGraph, Primitive


def profile_model(
    model: AnyModel, microbatch: int, system: str, *, sequence: int | None = None, compute_factor: float = 1.0
) -> OperatorGraph:
    """Operators of a model with their times on the device of a system, for one microbatch.

    `system` names a file in config/systems that specifies its device, or is a path of one. `sequence` is the
    tokens of a sample, by default the model's usual ones. `compute_factor` multiplies all times. Operators
    are named LAYER.OPERATOR. Raises PhazeError.
    """
    if microbatch < 1:
        raise PhazeError(f"profile: microbatch: must be > 0, got {microbatch}")
    _, device = load_cluster(system)
    tokens = model.usual_sequence if sequence is None else sequence
    layers = build_graph(model, tokens, Layout(microbatch=microbatch), device.number_bytes).unroll()
    graph = profile_graph(layers, device)
    return replace(
        graph,
        forward_s=graph.forward_s * compute_factor,
        backward_s=graph.backward_s * compute_factor,
        layers=tuple(name.partition(".")[0] for name in graph.names),
    )


def profile_graph(layers: LayerGraph, device: Device) -> OperatorGraph:
    """Operator graph of a whole model, with the time and memory of each operator on a device."""
    width = device.number_bytes
    groups = library_operators(layers)
    node = {index: number for number, group in enumerate(groups) for index in group}
    forward = forward_pass(layers, groups, width)
    alone = fuse(layers, enabled=False)
    backward = backward_pass(layers, alone, width, "paired").operators[::-1]
    of_primitive = np.array([node[group[-1]] for group in alone])
    members = [[layers.primitives[index] for index in group] for group in groups]
    masks = sums(of_primitive, _mask_bytes(layers, width), len(groups))
    return OperatorGraph(
        names=tuple(primitives[0].name for primitives in members),
        forward_s=_seconds([[o.parts] if o.parts else [] for o in forward.operators], device, width),
        backward_s=sums(of_primitive, _backward_s(backward, device, width), len(groups)),
        parameter_bytes=np.array(
            [width * _parameters(primitives_of_node) for primitives_of_node in members], float
        ),
        forward_bytes=masks
        + np.array([width * _made(primitives_of_node) for primitives_of_node in members], float),
        backward_bytes=np.array(
            [width * _made_backward(primitives_of_node) for primitives_of_node in members], float
        ),
        edges=np.array([(e.source, e.target) for e in forward.edges], np.int64).reshape(-1, 2),
        edge_bytes=np.array([e.nbytes for e in forward.edges], float),
        layers=tuple(primitives[0].name.partition(".")[0] for primitives in members),
    )


def library_operators(layer: LayerGraph) -> tuple[Group, ...]:
    """Group primitives into framework operators: a bias joins its GEMM, and a fork its source operator."""
    groups: dict[int, tuple[int, ...]] = {}
    readers = layer.readers
    for index, primitive in enumerate(layer.primitives):
        source = primitive.inputs[0].source if primitive.inputs else -1
        joins = source in groups and len(readers[source]) == 1 and _joins(primitive, layer.primitives[source])
        groups[index] = (*(groups.pop(source) if joins else ()), index)
    return tuple(group for _, group in sorted(groups.items()))


def _joins(primitive: Primitive, before: Primitive) -> bool:
    is_bias = primitive.kind == "bias" and before.gemm is not None and before.parameters > 0
    return is_bias or primitive.kind == "fork"


def _backward_s(operators: Iterable[Operator], device: Device, width: int) -> Floats:
    kernels = [kernels_of(operator) for operator in operators]
    return _seconds(kernels, device, width)


def _seconds(kernels: list[list[Kernel]], device: Device, width: int) -> Floats:
    """Total kernel time of each operator, (operators,)."""
    works = works_of_kernels(
        [kernel for kernels_of_node in kernels for kernel in kernels_of_node], usual_cycles()
    )
    of_kernel = np.repeat(np.arange(len(kernels)), [len(kernels_of_node) for kernels_of_node in kernels])
    return sums(of_kernel, time_kernels(works, device, width).sum(axis=1), len(kernels))


def _mask_bytes(layers: LayerGraph, width: int) -> Floats:
    """Bytes of the mask that each primitive stores, (primitives,)."""
    masks = [
        sum(stash.nbytes for stash in stashes(layers, index, width) if stash.piece == MASK)
        for index in range(len(layers.primitives))
    ]
    return np.array(masks, float)


def _parameters(members: list[Primitive]) -> int:
    return sum(primitive.parameters for primitive in members)


def _made(members: list[Primitive]) -> int:
    """Elements in memory for an operator's forward pass: parameters and result."""
    views = all(primitive.traits.role == "view" for primitive in members)
    return _parameters(members) + (0 if views else members[-1].elements)


def _made_backward(members: list[Primitive]) -> int:
    """Elements in memory for an operator's backward pass: parameters and gradients."""
    passed = (p for p in members if not p.traits.passes_gradient)
    gradients = sum(tensor.elements for p in passed for tensor in p.inputs if tensor.gradient)
    return 2 * _parameters(members) + gradients
