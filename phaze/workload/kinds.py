"""Properties of each kind of primitive: vector cost, tensors stored for backward, role in fusion.

The cycle tables of the vector cores have a fixed set of keys. Other kinds count as a composition of these
keys:

- a bias and a residual sum are `add`, scaling is `mul`, and an attention mask is `masked_fill`;
- rotary embedding is two `mul` and one `add` on every element, and RMS norm is `layer_norm`;
- an embedding lookup only moves data: it has an `add` of zero elements forward, for its traffic, and adds
  gradients into rows of the table backward;
- a convolution is a matmul of its unrolled input;
- max pooling compares nine elements per output element, as `relu`; average pooling sums its input;
- bilinear upsampling is four `mul` and three `add`;
- nearest-neighbour upsampling and rearrangements (windows, shifts) only move data;
- a clamp compares, as `relu`.

Tokens of a mixture of experts are copied to their experts (`dispatch`), weighted in the kernel of the
activation, which also recomputes them (`weigh`), and summed (`combine`). The choice of experts compares
(`top_k`, as `relu`). Scans of state space models weight scores by the distance of tokens (`decay`) and pass
states from chunk to chunk (`recur`). A delta rule also solves a triangular system in each chunk (`solve`),
with one `mul` and `add` per element below the diagonal. A depthwise convolution along the sequence
(`convolve`) is one `mul` and `add` per tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["matmul", "injective", "reduction", "view", "network"]
Keeps = Literal["nothing", "inputs", "output", "mask"]
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send")
"""Kinds of parts that use the network."""
PRODUCTS = ("matmul", "attention")
"""Kinds of parts that multiply matrices: from and to HBM, or blocks of attention in the global buffer."""
GATHERS = ("all_gather", "ring")
"""Kinds that collect a sharded tensor on every rank, by all-gather or around a ring."""
BACKWARD = {"copy": "all_reduce", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather",
            "all_to_all": "all_to_all", "ring": "ring"}  # fmt: skip
"""Collective that runs in the backward pass, by the kind of the primitive."""


@dataclass(frozen=True)
class Kind:
    """Properties shared by all primitives of a kind: role in fusion, cost, and stored tensors."""

    role: Role
    """Fusion role: matmul; injective (each output element from one element of each input); reduction; view
    (no work); or network.
    """
    forward: tuple[str, ...] = ()
    """Keys into the table of vector cycles for the forward pass, each applied to every output element."""
    backward: tuple[str, ...] = ()
    """Keys into the table of vector cycles for the gradients, each applied to every output element."""
    keeps: Keeps = "nothing"
    """Data stored for the backward pass; a mask is one byte per element."""
    passes_gradient: bool = False
    """True if the gradient of every input equals the gradient of the output."""
    per_input: bool = False
    """True if the keys apply to every input element instead of every output element."""
    idle: tuple[str, ...] = ()
    """Passes in which the primitive only moves data."""
    statistics: int = 0
    """Number of single-precision values per row that a fused kernel stores for the backward pass."""
    rereads: int = 0
    """Number of times a pass rereads its input, because each element depends on sums over all of it."""


def _injective(*keys: str, keeps: Keeps = "nothing") -> Kind:
    return Kind("injective", keys, keys, keeps)


def _reduction(key: str, keeps: Keeps) -> Kind:
    return Kind("reduction", (key,), (key,), keeps)


_VIEW = Kind("view", passes_gradient=True)

KINDS: dict[str, Kind] = {
    "matmul": Kind("matmul", keeps="inputs"),
    "lookup": Kind("injective", ("add",), ("add",), idle=("forward",)),
    "rearrange": Kind("injective", ("add",), ("add",), idle=("forward", "backward")),
    "bias": Kind("injective", ("add",), ("add",), passes_gradient=True),
    "add": Kind("injective", ("add",), passes_gradient=True),
    # The gradient of each factor is a product with the other one.
    "mul": Kind("injective", ("mul",), ("mul", "mul"), keeps="inputs"),
    "scale": _injective("mul"),
    "mask": _injective("masked_fill"),
    # Stores nothing: its kernel recomputes its inputs.
    "weigh": Kind("injective", ("mul",), ("mul", "mul")),
    "clamp": _injective("relu", keeps="inputs"),
    "sigmoid": _injective("sigmoid", keeps="output"),
    "softplus": _injective("sigmoid", keeps="inputs"),
    "rotary": _injective("mul", "mul", "add"),
    "dropout": _injective("dropout", keeps="mask"),
    "gelu": _injective("gelu", keeps="inputs"),
    "silu": _injective("silu", keeps="inputs"),
    "relu": _injective("relu", keeps="output"),
    # The square of a ReLU.
    "relu2": Kind("injective", ("relu", "mul"), ("relu", "mul"), "inputs"),
    "tanh": _injective("tanh", keeps="output"),
    "softmax": _reduction("softmax", "output"),
    "log_softmax": _reduction("log_softmax", "output"),
    "nll_loss": _reduction("nll_loss", "nothing"),
    "layer_norm": Kind("reduction", ("layer_norm",), ("layer_norm",), "inputs", statistics=2),
    "rms_norm": Kind("reduction", ("layer_norm",), ("layer_norm",), "inputs", statistics=1),
    # Backward, the gradients of the chosen scores are only moved to their places.
    "top_k": Kind("reduction", ("relu",), ("add",), per_input=True, idle=("backward",)),
    # Forward copies rows, backward sums the gradients of the copies; `combine` is the reverse.
    "dispatch": Kind("reduction", ("add",), ("add",), idle=("forward",)),
    "combine": Kind("reduction", ("add",), ("add",), per_input=True, idle=("backward",)),
    "convolve": Kind("reduction", ("mul", "add"), ("mul", "mul", "add"), "inputs"),
    "decay": Kind("reduction", ("mul",), ("mul", "mul"), "inputs"),
    "recur": Kind("reduction", ("mul", "add"), ("mul", "mul", "add"), "inputs"),
    "solve": Kind("reduction", ("mul", "add"), ("mul", "add"), "output"),
    "batch_norm": Kind("reduction", ("batch_norm",), ("batch_norm",), "inputs", rereads=1),
    "max_pool": Kind("reduction", ("relu",) * 9, ("add",), "mask"),
    "average_pool": Kind("reduction", ("add",), ("mul",), per_input=True),
    # Backward, each output adds its gradient with a weight to four inputs.
    "upsample": Kind("reduction", ("mul",) * 4 + ("add",) * 3, ("mul",) * 4 + ("add",) * 4),
    "nearest": Kind("reduction", ("add",), ("add",), idle=("forward",)),
    "reshape": _VIEW,
    "transpose": _VIEW,
    "split": _VIEW,
    "select": _VIEW,
    "fork": _VIEW,
    "copy": Kind("network", passes_gradient=True),
    "all_reduce": Kind("network", ("all_reduce",), passes_gradient=True),
    "all_gather": Kind("network", ("all_gather",), passes_gradient=True),
    "reduce_scatter": Kind("network", ("reduce_scatter",), passes_gradient=True),
    "all_to_all": Kind("network", ("all_to_all",), passes_gradient=True),
    "ring": Kind("network", ("send",), passes_gradient=True),
}
"""A fork passes one tensor to several readers and sums their gradients. A copy passes one tensor to all
tensor-parallel ranks and all-reduces their gradients (Megatron's f); an all_reduce is its mirror image
(Megatron's g). With sequence parallelism an all_gather and a reduce_scatter replace them, each the mirror
image of the other (Korthikanti et al. 2023, Section 4.2.2).
"""
