"""Kernels launched by the host in addition to one per product and elementwise group, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze.cost.kernels import KERNEL_LIMITS, kernels_of
from phaze.layout import Layout
from phaze.plan.layers.costs import layer_costs
from phaze.plan.layers.kernels import LOOKUP_GRADIENT, LOSS, MASKED_LOOKUP, more_launches
from phaze.plan.machines import load_machine
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from phaze.workload.models import library_workload
from phaze.workload.operators import Operator
from phaze.workload.workload import Direction

HOST = KERNEL_LIMITS.index("host")
STEPS, FUSED = Stack(loss=6.5), Stack(fused_gradients=True)
"""A stack with kernels for each step of the loss and each sum of gradients, and one that fuses both."""
WAYS: tuple[Direction, ...] = get_args(Direction)


def operators(
    layer: str, way: Direction, model: str = "megatron-gpt3-175b", tp: int = 1
) -> tuple[Operator, ...]:
    workload = library_workload(load_transformer(model, "test"), 1024, Layout(tp=tp))
    return next(one for one in workload.layers if one.name == layer).pass_of(way).operators


def test_a_block_of_megatron_launches_twice_as_many_kernels_backward_as_autograd_shows() -> None:
    """Forward only the copy of the context. Backward two norms of 4, four biases of which one has its own
    operator for the sum (7), four weights, the copy of the context, and 3 kernels around scores.
    """
    assert more_launches(operators("block", "forward"), 1, STEPS) == 1
    backward = operators("block", "backward")
    assert more_launches(backward, 1, STEPS) == 2 * 4 + 7 + 4 + 1 + 3
    assert more_launches(backward, 1, FUSED) == 2 * 4 + 7 + 1 + 3
    assert more_launches(backward, 1, Stack(compiled=True)) == 0


def test_a_loss_in_steps_launches_its_operations_and_a_fused_one_none() -> None:
    for way, more, norm in zip(WAYS, LOSS, (0, 4), strict=True):
        head = operators("head", way)
        assert more_launches(head, 1, STEPS) - norm - (way == "backward") == more
        assert more_launches(head, 1, FUSED) == norm


def test_lookups_are_masked_on_shards_and_their_gradients_sorted() -> None:
    """Forward each of four operations of the embedding has a kernel. They are one operator, or two if shards
    sum their embeddings in between.
    """
    assert more_launches(operators("embedding", "forward"), 1, STEPS) == 3
    assert more_launches(operators("embedding", "forward", tp=2), 2, STEPS) == 2 + MASKED_LOOKUP
    assert more_launches(operators("embedding", "backward"), 1, STEPS) == 2 * (LOOKUP_GRADIENT + 1)


@pytest.mark.parametrize("flash", [False, True])
def test_the_host_takes_a_launch_for_each(flash: bool) -> None:
    """With fused attention no kernel is launched for scores."""
    machine = load_machine("a100-selene", stack="megatron-lm")
    machine = replace(machine, stack=machine.stack.model_copy(update={"launch_s": 1.0}))
    workload = library_workload(load_transformer("megatron-gpt3-175b", "test"), 1024, Layout())
    block = layer_costs(workload, machine, flash=flash)["block"]
    for way, seconds in (("forward", block.forward_s), ("backward", block.backward_s)):
        own = operators("block", way)  # type: ignore[arg-type]
        plain = sum(len(kernels_of(operator)) for operator in own) + more_launches(own, 1, machine.stack)
        if flash:
            assert seconds.sum() < plain
        else:
            assert seconds.sum() == pytest.approx(plain, abs=0.1)
