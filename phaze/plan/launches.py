"""Kernels that the host launches for operators, in addition to one per product and elementwise group.

They are counted from the operations of PyTorch's autograd, apex and Megatron-LM of 2021 and 2022. They move
few bytes: their cost is the launch overhead. Views, which launch nothing, are part of the mean time of a
launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from phaze.plan.expert_kernels import primitives_of
from phaze.spec.system import Stack
from phaze.workload.operators import Operator

NORM = 4
"""Kernels of the backward pass of a norm.

Two sum the gradients of its parameters (apex, `cuComputePartGradGammaBeta`, `cuComputeGradGammaBeta`), and
two add them to those of earlier microbatches (autograd, `AccumulateGrad`).
"""
CONTEXT = 1
"""A copy that makes heads contiguous again, in either pass (Megatron-LM, `ParallelAttention`)."""
SCORES = 3
"""Scores, backward: two kernels scale the gradients of queries and keys, one joins them with the values'."""
LOSS = (20, 9)
"""Kernels of a loss in steps, forward and backward.

22 and 11 operations (Megatron-LM, `vocab_parallel_cross_entropy`, mask of the loss) less log-softmax and
selection, which are already counted. Collectives are counted separately.
"""
MASKED_LOOKUP = 7
"""Kernels of a lookup on shards of the vocabulary.

A mask takes five operations, and two apply it (Megatron-LM, `VocabParallelEmbedding`).
"""
LOOKUP_GRADIENT = 8
"""Gradient of a lookup: about six kernels sort tokens, two sum their gradients.

Source: PyTorch, `embedding_dense_backward_cuda`.
"""


def more_launches(operators: Iterable[Operator], tp: int, stack: Stack) -> int:
    """Number of further kernels that the host launches for operators on `tp` shards.

    torch.compile fuses them with others.
    """
    if stack.compiled:
        return 0
    stepwise, apart = stack.loss > 1.0, not stack.fused_gradients
    return sum(
        _more(one.name, one.core == "tensor" and not one.attention and apart, tp > 1, stepwise)
        for one in operators
    )


@cache
def _more(name: str, adds_gradient: bool, sharded: bool, stepwise: bool) -> int:
    """Further kernels of one operator, by the primitives of its name.

    `adds_gradient`: a kernel adds the weight gradient to the one of earlier microbatches.
    """
    own = primitives_of(name)
    lookups = sum(one.endswith("_lookup") for one in own)
    if not name.endswith(".backward"):
        found = (len(own) - 1 if lookups else 0) + MASKED_LOOKUP * (sharded and "word_lookup" in own)
        return found + CONTEXT * ("context" in own) + LOSS[0] * (stepwise and "log_softmax" in own)
    biases, norms = (sum(one.endswith(kind) for one in own) for kind in ("_bias", "_norm"))
    found = NORM * norms + 2 * biases - (len(own) == biases) + (LOOKUP_GRADIENT + 1) * lookups
    found += CONTEXT * ("context" in own) + SCORES * ("scores" in own) + adds_gradient
    return found + LOSS[1] * (stepwise and "log_softmax" in own)
