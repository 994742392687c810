"""Times of a model's layers on this machine's device, as Piper's planner reads them (`plan --layers`).

A layer runs primitive by primitive in PyTorch, as its tensor-parallel shard on one device: a forward pass,
then a backward pass by autograd. Numbers are bf16, on a CPU single precision. Attention runs as PyTorch's
fused attention. Collectives do not run: the tensors that they deliver are inputs of the layer, and their time
is the cost model's. So is the share of the forward pass that a recompute option repeats. Stored bytes are
counted from the graph.

This module imports PyTorch and is imported on demand: the default installation has no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

from phaze.base.errors import PhazeError
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.formulas.piper.requests import PiperRequest
from phaze.partition.measured import ROUNDS, default_device, timed
from phaze.plan.layers.costs import LayerCost
from phaze.spec.planner_rows import LayerTiming
from phaze.spec.rows import Gemm
from phaze.workload.models import build_graph
from phaze.workload.primitives import INDEX_BYTES, INPUT, LayerGraph, Primitive, Tensor

NETWORK = KERNEL_LIMITS.index("network")
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}
"""Numbers of the tensors by device: CPUs rarely multiply bf16 in hardware."""
DROPOUT = 0.1
"""Rate of every dropout, on which its time does not depend."""
FUSED = ("scale", "mask", "softmax", "dropout")
"""Kinds of primitives that fused attention runs between its two products."""
Operation = Callable[..., torch.Tensor]


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Tensor whose pairs of elements are rotated by a fixed angle: two products and a sum."""
    first, second = x.reshape(2, -1)
    return torch.cat([first * 0.8 - second * 0.6, second * 0.8 + first * 0.6])


ELEMENTWISE: Mapping[str, Operation] = {
    "add": torch.add,
    "mul": torch.mul,
    "scale": lambda x: x * 0.5,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "dropout": lambda x: functional.dropout(x, DROPOUT),
    "nll_loss": torch.neg,
    "rearrange": torch.clone,
    "rotary": _rotated,
}


class PassSeconds(NamedTuple):
    """Median times of the passes of a layer."""

    forward_s: float
    backward_s: float


def measured_timings(request: PiperRequest, rounds: int = ROUNDS) -> Iterator[LayerTiming]:
    """Yield the measured timings of every configuration of every layer of a planning request.

    Raises PhazeError if PyTorch cannot run a layer on this machine.
    """
    model, sequence = request.question.task.model, request.question.task.sequence
    seconds: dict[tuple[int, int, str], dict[str, PassSeconds]] = {}
    for row in request.timings:
        layout = request.splits(row.microbatch)[row.t, row.kind]
        key = row.microbatch, row.t, row.kind
        if key not in seconds:
            graph = build_graph(model, sequence, layout, layout.bytes_per_element)
            try:
                seconds[key] = {layer.name: pass_seconds(layer, rounds) for layer in graph.layers}
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise PhazeError(
                    f"measure: --layers: {row.kind} layers with microbatch {row.microbatch} on t = {row.t} "
                    f"devices: PyTorch cannot run them: {reason}"
                ) from error
        cost = request.question.lowering(layout).layers(layout).costs[row.layer]
        yield _timing(row, seconds[key][row.layer], cost)


def _timing(row: LayerTiming, measured: PassSeconds, cost: LayerCost) -> LayerTiming:
    """Measured timing of a configuration, with the cost model's communication and share of recomputation."""
    recomputed_s = cost.again_s(row.recompute)
    compute_s = float(cost.forward_s.sum() - cost.forward_s[NETWORK])
    repeated = float(recomputed_s.sum() - recomputed_s[NETWORK]) / compute_s if compute_s else 0.0
    network_s = float(cost.backward_s[NETWORK] + recomputed_s[NETWORK])
    return row.model_copy(
        update={
            "forward_s": measured.forward_s + float(cost.forward_s[NETWORK]),
            "backward_s": measured.backward_s + repeated * measured.forward_s + network_s,
        }
    )


def pass_seconds(layer: LayerGraph, rounds: int = ROUNDS) -> PassSeconds:
    """Median times of the forward and the backward pass of a layer on this machine's device."""
    program = LayerProgram(layer, torch.device(default_device()))
    forward_s, _ = timed(program.forward, program.device, rounds)
    ends = program.forward()
    gradients = [torch.ones_like(end) for end in ends]
    backward_s, _ = timed(
        lambda: torch.autograd.grad(ends, program.leaves, gradients, retain_graph=True, allow_unused=True),
        program.device,
        rounds,
    )
    return PassSeconds(forward_s, backward_s)


class LayerProgram:
    """Layer as a PyTorch function, with random weights and inputs of the sizes in its graph."""

    def __init__(self, layer: LayerGraph, device: torch.device) -> None:
        self.layer, self.device = layer, device
        self.leaves: list[torch.Tensor] = []
        """Tensors with gradients: weights, and those that the previous layer and collectives deliver."""
        self.widths: dict[int, int] = {}
        """Width of the rows of tensors, by the primitive that produces them; 0 if it is unknown."""
        self.received: dict[int, torch.Tensor] = {}
        """Delivered tensors, by the collective; INPUT for the previous layer."""
        if layer.input_elements:
            self.received[INPUT] = self._leaf(layer.input_elements)
        self.reads = [_reads(layer, primitive) for primitive in layer.primitives]
        self.steps = [self._step(index, primitive) for index, primitive in enumerate(layer.primitives)]
        last_readers = {tensor.source: index for index, reads in enumerate(self.reads) for tensor in reads}
        self.unused: dict[int, list[int]] = {}
        """Tensors that no later primitive reads, by their last reader."""
        for source, index in last_readers.items():
            self.unused.setdefault(index, []).append(source)

    def forward(self) -> list[torch.Tensor]:
        """Run the forward pass; returns the tensors that collectives send, and the output of the layer."""
        tensors, ends = dict(self.received), list[torch.Tensor]()
        for index, (reads, step) in enumerate(zip(self.reads, self.steps, strict=True)):
            inputs = [_read(tensors[tensor.source], tensor) for tensor in reads]
            if step is not None:
                tensors[index] = step(*inputs)
            elif index in self.received:
                ends += inputs
            for source in self.unused.get(index, ()):
                del tensors[source]
        return [tensor for tensor in [*ends, *tensors.values()] if tensor.grad_fn is not None]

    def _leaf(self, *shape: int) -> torch.Tensor:
        tensor = torch.randn(*shape, dtype=DTYPES[self.device.type], device=self.device, requires_grad=True)
        self.leaves.append(tensor)
        return tensor

    def _step(self, index: int, primitive: Primitive) -> Operation | None:
        """Function that runs a primitive; None for collectives, and for primitives that attention fuses."""
        kind, role = primitive.kind, primitive.traits.role
        self.widths[index] = self.widths.get(primitive.inputs[0].source, 0) if primitive.inputs else 0
        if role == "network":
            self.received[index] = self._leaf(primitive.elements)
            return None
        if role == "view":
            return lambda x: x
        if not self.reads[index] and kind != "lookup":
            return None
        operation = _fused_attention(self.layer, primitive) if primitive.attention else None
        if operation is None and primitive.gemm is not None:
            operation = self._product(index, primitive, primitive.gemm)
        if operation is None and kind == "lookup":
            operation = self._lookup(primitive)
        if operation is None:
            operation = ELEMENTWISE.get(kind) or self._by_rows(index, primitive)
        if operation is None:
            raise PhazeError(
                f"measure: --layers: layer {self.layer.name}: {primitive.name}: cannot be timed: {kind} of "
                "these sizes has no counterpart in PyTorch here",
                "fill in rows of `phaze plan --write-layers` by hand",
            )
        return operation

    def _product(self, index: int, primitive: Primitive, gemm: Gemm) -> Operation | None:
        """Product with weights, or of two tensors of its sizes."""
        batch, m, k, n = gemm.batch, gemm.m, gemm.k, gemm.n
        self.widths[index] = n
        sizes = [tensor.elements for tensor in primitive.inputs]
        if sizes == [batch * m * k, batch * k * n]:
            return lambda x, y: torch.bmm(x.reshape(batch, m, k), y.reshape(batch, k, n))
        if sizes != [batch * m * k]:
            return None
        weight = self._leaf(*((n, k) if batch == 1 else (batch, k, n)))
        if batch == 1:
            return lambda x: functional.linear(x.reshape(m, k), weight)
        return lambda x: torch.bmm(x.reshape(batch, m, k), weight)

    def _lookup(self, primitive: Primitive) -> Operation:
        """Rows of a table that random indices choose."""
        rows = primitive.constant_bytes // INDEX_BYTES
        width = primitive.elements // rows
        table = self._leaf(primitive.parameters // width, width)
        indices = torch.randint(len(table), (rows,), device=self.device)
        return lambda: functional.embedding(indices, table)

    def _by_rows(self, index: int, primitive: Primitive) -> Operation | None:
        """Operation on rows: a norm, a bias, a softmax, or a step of the dispatch of tokens to experts."""
        kind, elements = primitive.kind, primitive.elements
        statistics = primitive.traits.statistics
        width = primitive.parameters // (statistics or 1) or self.widths[index]
        if not width:
            return None
        self.widths[index] = width
        if kind in ("bias", "layer_norm", "rms_norm"):
            weights = [self._leaf(width) for _ in range(statistics or 1)]
            return {
                "bias": lambda x: x.reshape(-1, width) + weights[0],
                "layer_norm": lambda x: functional.layer_norm(x.reshape(-1, width), (width,), *weights),
                "rms_norm": lambda x: functional.rms_norm(x.reshape(-1, width), (width,), *weights),
            }[kind]
        rows = primitive.inputs[0].elements // width
        if kind == "dispatch":
            chosen = torch.randint(rows, (elements // width,), device=self.device)
            return lambda x: x.reshape(-1, width).index_select(0, chosen)
        operations: Mapping[str, Operation] = {
            "softmax": lambda x: x.reshape(-1, width).softmax(-1),
            # With tensor parallelism, a second input is the largest logit of all ranks.
            "log_softmax": lambda x, *_: x.reshape(-1, width).log_softmax(-1),
            "top_k": lambda x: x.reshape(-1, width).topk(elements // rows).values,
            "combine": lambda x: x.reshape(elements // width, -1, width).sum(1),
            "weigh": lambda x, y: x.reshape(y.numel(), -1) * y.reshape(-1, 1),
        }
        return operations.get(kind)


def _reads(layer: LayerGraph, primitive: Primitive) -> tuple[Tensor, ...]:
    """Tensors that a primitive reads; fused attention reads queries, keys and values at its last product."""
    if not primitive.attention:
        return primitive.inputs
    scores = _scores(layer, primitive)
    if scores is None or primitive.kind != "matmul" or primitive.scores is not None:
        return ()
    return (*scores.inputs, primitive.inputs[1])


def _scores(layer: LayerGraph, primitive: Primitive) -> Primitive | None:
    """Product of queries and keys before a primitive of the attention core, if only fused kinds follow it."""
    while primitive.scores is None:
        source = primitive.inputs[0].source
        if source == INPUT or not layer.primitives[source].attention:
            return None
        primitive = layer.primitives[source]
        if primitive.scores is None and primitive.kind not in FUSED:
            return None
    return primitive


def _fused_attention(layer: LayerGraph, primitive: Primitive) -> Operation | None:
    """Attention of the sizes that its scores have; None for windows and chunks."""
    scores = _scores(layer, primitive)
    sizes = None if scores is None else scores.scores
    if sizes is None or sizes.windowed:
        return None
    queries = (sizes.samples, sizes.heads, sizes.queries, sizes.size)
    keys = (sizes.samples, sizes.kv_heads, sizes.keys, sizes.size)
    values = (sizes.samples, sizes.kv_heads, sizes.keys, sizes.value_size)
    causal = sizes.mean < sizes.longest

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            query.reshape(queries), key.reshape(keys), value.reshape(values), is_causal=causal,
            enable_gqa=sizes.kv_heads < sizes.heads,
        )  # fmt: skip

    return attention


def _read(tensor: torch.Tensor, read: Tensor) -> torch.Tensor:
    """Elements of a tensor that a primitive reads: all of them, or a piece."""
    start = min(read.piece * read.elements, tensor.numel() - read.elements)
    return tensor.reshape(-1).narrow(0, start, read.elements)
