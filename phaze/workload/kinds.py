"""What each kind of primitive costs on a vector core, keeps for the backward pass, and fuses with.

The cycle tables of the vector cores have a fixed set of keys. Kinds that are not among them are counted as
what they are made of: a bias and a residual sum as `add`, scaling as `mul`, rotary embedding as two `mul`
and one `add` on every element, RMS norm as `layer_norm`, an attention mask as `masked_fill`. An embedding
lookup only moves data: it has an `add` of zero elements forward, for its traffic, and adds gradients into
rows of the table backward. A convolution is a matmul of its unrolled input. Max pooling compares nine
elements for each of its own, as many `relu`; average pooling adds its input up; bilinear upsampling takes
four `mul` and three `add`; a nearest neighbour and a rearrangement (windows, shifts) only move data. A clamp
compares, as `relu`.

Rows of a mixture of experts are copied to their experts (`dispatch`), weighed in the kernel of the activation
that makes them again (`weigh`), and added up (`combine`); the choice of experts compares (`top_k`, as
`relu`). Scans of state space models weigh scores by how far apart tokens are (`decay`) and pass states from
chunk to chunk (`recur`); a delta rule also solves a triangular system in each chunk (`solve`), as many `mul`
and `add` as it has elements below the diagonal. A depthwise convolution along the sequence (`convolve`) takes
one `mul` and `add` a tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["matmul", "injective", "reduction", "view", "network"]
Keeps = Literal["nothing", "inputs", "output", "mask"]


@dataclass(frozen=True)
class Kind:
    """What is the same for all primitives of a kind."""

    role: Role
    """matmul; injective: each output element from one element of each input; reduction; view: no work;
    network."""
    forward: tuple[str, ...] = ()
    """Keys of the cycle table, each on every output element."""
    backward: tuple[str, ...] = ()
    """Keys of the cycle table for the gradients, each on every output element."""
    keeps: Keeps = "nothing"
    """What the backward pass needs; a mask is one byte an element."""
    passes_gradient: bool = False
    """The gradient of every input is the gradient of the output, unchanged."""
    per_input: bool = False
    """The keys count on every element of the input instead."""
    idle: tuple[str, ...] = ()
    """Passes that only move data."""
    statistics: int = 0
    """Numbers in single precision that a fused kernel keeps of every row for the backward pass."""
    rereads: int = 0
    """How often all that a pass reads is read again, as its elements depend on sums over all of them."""


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
    "mul": Kind("injective", ("mul",), ("mul", "mul"), keeps="inputs"),
    "scale": _injective("mul"),
    "mask": _injective("masked_fill"),
    "weigh": Kind("injective", ("mul",), ("mul", "mul")),
    "clamp": _injective("relu", keeps="inputs"),
    "sigmoid": _injective("sigmoid", keeps="output"),
    "softplus": _injective("sigmoid", keeps="inputs"),
    "rotary": _injective("mul", "mul", "add"),
    "dropout": _injective("dropout", keeps="mask"),
    "gelu": _injective("gelu", keeps="inputs"),
    "silu": _injective("silu", keeps="inputs"),
    "relu": _injective("relu", keeps="output"),
    "relu2": Kind("injective", ("relu", "mul"), ("relu", "mul"), "inputs"),
    "tanh": _injective("tanh", keeps="output"),
    "softmax": _reduction("softmax", "output"),
    "log_softmax": _reduction("log_softmax", "output"),
    "nll_loss": _reduction("nll_loss", "nothing"),
    "layer_norm": Kind("reduction", ("layer_norm",), ("layer_norm",), "inputs", statistics=2),
    "rms_norm": Kind("reduction", ("layer_norm",), ("layer_norm",), "inputs", statistics=1),
    "top_k": Kind("reduction", ("relu",), ("add",), per_input=True, idle=("backward",)),
    "dispatch": Kind("reduction", ("add",), ("add",), idle=("forward",)),
    "combine": Kind("reduction", ("add",), ("add",), per_input=True, idle=("backward",)),
    "convolve": Kind("reduction", ("mul", "add"), ("mul", "mul", "add"), "inputs"),
    "decay": Kind("reduction", ("mul",), ("mul", "mul"), "inputs"),
    "recur": Kind("reduction", ("mul", "add"), ("mul", "mul", "add"), "inputs"),
    "solve": Kind("reduction", ("mul", "add"), ("mul", "add"), "output"),
    "batch_norm": Kind("reduction", ("batch_norm",), ("batch_norm",), "inputs", rereads=1),
    "max_pool": Kind("reduction", ("relu",) * 9, ("add",), "mask"),
    "average_pool": Kind("reduction", ("add",), ("mul",), per_input=True),
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
"""A fork hands one tensor to several readers and sums their gradients; a copy hands the same tensor to
all slices and all-reduces their gradients (Megatron's f); an all_reduce is its mirror image (Megatron's
g). With sequence parallelism an all_gather and a reduce_scatter take their places, each the mirror image of
the other (Korthikanti et al. 2023, Section 4.2.2)."""

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send")
"""Kinds of parts that go over the network."""
GATHERS = ("all_gather", "ring")
"""Kinds that bring together what lies apart, at once or passed around in a ring."""
BACKWARD = {"copy": "all_reduce", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather",
            "all_to_all": "all_to_all", "ring": "ring"}  # fmt: skip
"""The collective of the backward pass, by the kind of the primitive."""
