"""Memory in use: ranges of its parts, from constants of device and stack and counts of the layout."""

from dataclasses import replace

import pytest

from phaze.base.units import GIB, MIB
from phaze.layout import Layout
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import plan_of_run
from phaze.plan.terms.memory import (
    CONNECTION_BYTES,
    MemoryRange,
    beside_tensors,
    capacity_bytes,
    collectives_bytes,
    in_use,
    tensor_limit_bytes,
)
from phaze.spec.memory import Fragments, MemoryKind
from phaze.spec.system import Stack
from tests.unit.validate.examples import SMALL, changed, machine

STACK = Stack(fragments=Fragments(expected=0.15, most=0.33, lasting=0.02))
PIPELINE = Layout(tp=8, pp=2, dp=2)
EXPERTS = Layout(tp=1, dp=8, ep=8)


def h100(**own: object) -> Machine:
    return replace(load_machine("h100"), stack=STACK.model_copy(update=own))


def whole(tensors_gib: float, layout: Layout, on: Machine) -> MemoryRange:
    found = in_use(MemoryRange(*[tensors_gib * GIB] * 3), 0.0, layout, on, tied=False)
    return found.of("device")


def test_an_all_reduce_of_two_nodes_opens_what_nccl_was_seen_to_open() -> None:
    """16 channels for a ring and a tree: 576 MiB per communicator, where 544 and 688 are measured."""
    found = collectives_bytes(h100(), Layout(tp=8)).expected
    assert found == 2 * 576 * MIB  # all ranks, and those of a layer
    assert 544 * MIB <= found / 2 <= 688 * MIB


def test_each_group_of_several_ranks_opens_a_communicator() -> None:
    each = 3 * 16 * CONNECTION_BYTES
    counts = {
        Layout(): 0, Layout(tp=8): 2, Layout(dp=8): 2, PIPELINE: 5, Layout(tp=2, cp=2, dp=2, pp=2): 6
    }  # fmt: skip
    assert {one: collectives_bytes(h100(), one).expected / each for one in counts} == counts
    tied, apart = (collectives_bytes(h100(), PIPELINE, tied=tied).expected for tied in (True, False))
    assert tied - apart == each


def test_dispatched_tokens_connect_every_peer_of_the_nvlink_domain() -> None:
    rows, tokens = (collectives_bytes(h100(dispatch=way), EXPERTS) for way in ("rows", "tokens"))
    assert rows.expected - tokens.expected == 7 * 16 * CONNECTION_BYTES
    assert rows.high - tokens.high == 7 * 32 * CONNECTION_BYTES
    far = collectives_bytes(h100(dispatch="rows"), replace(EXPERTS, dp=64, ep=64))
    assert far == rows  # ranks beyond it share the buffers of the network


@pytest.mark.parametrize("layout", [Layout(), PIPELINE, EXPERTS])
@pytest.mark.parametrize("tensors_gib", [0.0, 10.0, 60.0, 75.0, 200.0])
def test_a_range_is_ordered_and_grows_with_the_tensors(layout: Layout, tensors_gib: float) -> None:
    found, more = (whole(gib, layout, h100()) for gib in (tensors_gib, tensors_gib + 1.0))
    assert tensors_gib * GIB <= found.low <= found.expected <= found.high
    assert found.low < more.low
    assert found.expected <= more.expected
    assert found.high <= more.high


def test_gaps_of_the_allocator_are_expected_only_where_memory_is_free_but_bounded_anywhere() -> None:
    on = h100(context_gib=(0.0, 0.0, 0.0), held_processors=0)
    roomy, tight = whole(20.0, PIPELINE, on).gib, whole(76.0, PIPELINE, on).gib
    assert roomy[1:] == pytest.approx((20 / 0.85 + 1 / 32, 20 / 0.67 + 5 / 32))
    assert tight[1:] == pytest.approx((79.2, 76 / 0.67 + 5 / 32))


@pytest.mark.parametrize("layout", [Layout(), PIPELINE, EXPERTS])
def test_the_limit_of_tensors_is_where_the_upper_end_with_lasting_gaps_fits(layout: Layout) -> None:
    lasting = h100(fragments=Fragments(expected=0.0, most=0.02, lasting=0.02))
    limit_gib = tensor_limit_bytes(h100(), layout) / GIB
    assert limit_gib == tensor_limit_bytes(lasting, layout) / GIB
    below, above = (whole(limit_gib + more, layout, lasting).high for more in (-0.01, 0.01))
    assert below <= capacity_bytes(device_of(lasting)) * (1 + 1e-12) < above


def test_each_kind_of_measurement_counts_more_than_the_one_before() -> None:
    found = price(plan_of_run(SMALL, machine()), machine()).memory.in_use
    kinds: tuple[MemoryKind, ...] = ("allocated", "reserved", "device")
    allocated, reserved, device = map(found.of, kinds)
    assert allocated.expected - found.workspaces.expected == found.tensors.expected
    assert allocated.expected <= reserved.expected < device.expected
    assert device.expected - reserved.expected == found.collectives.expected + found.context.expected


def test_memory_in_use_grows_with_the_microbatch() -> None:
    sizes = [changed(SMALL, microbatch=b, global_batch=8 * b * SMALL.layout.dp) for b in (1, 2, 4)]
    found = [price(plan_of_run(one, machine()), machine()).memory.in_use.of("device") for one in sizes]
    for end in ("low", "expected", "high"):
        ends = [getattr(one, end) for one in found]
        assert ends == sorted(ends)


def test_graphs_have_a_pool_of_their_own() -> None:
    pool = [beside_tensors(h100(cuda_graphs=own), PIPELINE, 3.0 * GIB)[1] for own in ((), ("attn",))]
    assert pool == [MemoryRange(0.0, 0.0, 0.0), MemoryRange(0.0, 3.0 * GIB, 3.0 * GIB)]
