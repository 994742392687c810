"""Kernels that the host launches itself, as opposed to kernels captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

from phaze.spec.system import Captured
from phaze.workload.operators import Operator
from phaze.workload.primitives import Region

ATTENTION: frozenset[Region] = frozenset({"attn_norm", "qkv_linear", "core_attn", "attn_proj"})
"""Model regions that belong to a layer's attention."""


def launched(operators: Sequence[Operator], graphs: tuple[Captured, ...]) -> list[bool]:
    """Mask of the operators whose kernels are launched by the host, not by a CUDA graph.

    Norms and residual additions belong to no region; they count with the attention or the state space of
    their layer. Embedding, head and loss are captured only by a full graph.
    """
    if not graphs:
        return [True] * len(operators)
    if "full" in graphs:
        return [False] * len(operators)
    layer = frozenset[Region]().union(*(operator.regions for operator in operators))
    return [_part(operator, layer) not in graphs for operator in operators]


def _part(operator: Operator, layer: frozenset[Region]) -> Captured | None:
    """Part of a layer with which CUDA graphs capture an operator; None if only a full graph captures it."""
    if "moe" in operator.regions:
        routes = operator.name.startswith("router") or "shared_experts" in operator.regions
        return "moe_router" if routes else "moe"
    if "mlp" in operator.regions:
        return "mlp"
    if "scan" in layer:
        return "mamba"
    return "attn" if layer & ATTENTION else None
