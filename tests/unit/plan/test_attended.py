"""Fused attention kernels of context-parallel ranks: their list, and the sum of their work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.cost.kernels import KERNEL_LIMITS
from phaze.layout import CpKind, Layout
from phaze.plan.layers.costs import kernel_times
from phaze.plan.layers.kernels import attention_kernel, fused_attention, in_ring, kernels_on
from phaze.plan.machines import load_machine, slowest_device
from phaze.spec.system import Stack
from phaze.spec.systems import load_device
from phaze.workload.lower.attention import scores_of
from phaze.workload.models import library_workload
from phaze.workload.operators import Operator
from phaze.workload.primitives import Scores
from phaze.workload.workload import Layer
from tests.unit.validate.examples import SMALL, changed

LENGTH, CP = 8192, 4
OWN = LENGTH // CP
MODEL = changed(SMALL, seq=LENGTH).model
CAUSAL = Scores(1, OWN, LENGTH, LENGTH, LENGTH / 2, 8, 2, 128, 128)
HBM = KERNEL_LIMITS.index("hbm")


def layout(kind: CpKind, cp: int = CP) -> Layout:
    return Layout(cp=cp, cp_kind=kind)


def block(kind: CpKind = "all_gather", cp: int = 1) -> Layer:
    """Return the block of a model on a context-parallel rank."""
    return library_workload(MODEL, LENGTH, layout(kind, cp)).layer("block")


def pairs(kernels: tuple[Scores, ...]) -> float:
    """Query-key pairs of all heads."""
    return sum(one.samples * one.heads * one.queries * one.mean for one in kernels)


@pytest.mark.parametrize("kind", ["all_gather", "p2p", "a2a", "a2a+p2p:2"])
@pytest.mark.parametrize("stack", [Stack(), Stack(ring_attention=True)])
def test_ranks_share_the_work_of_a_sequence_evenly(kind: CpKind, stack: Stack) -> None:
    whole = pairs(kernels_on(*scores_of(block().attention("forward")), Layout(), stack))
    (scores,) = scores_of(block(kind, CP).attention("forward"))
    assert pairs(kernels_on(scores, layout(kind), stack)) * CP == pytest.approx(whole)


def test_a_ring_has_the_own_part_and_half_of_each_other_one() -> None:
    first, *others = kernels_on(CAUSAL, layout("p2p"), Stack())
    assert (first.keys, first.longest, first.mean) == (OWN, OWN, OWN / 2)
    assert len(others) == CP - 1
    assert {(one.queries, one.keys, one.longest, one.mean) for one in others} == {
        (OWN, OWN // 2, OWN // 2, OWN // 2)
    }


def test_without_a_mask_all_of_every_part_is_there() -> None:
    plain = replace(CAUSAL, mean=float(LENGTH))
    assert [one.keys for one in kernels_on(plain, layout("p2p"), Stack())] == [OWN] * CP
    assert kernels_on(plain, layout("all_gather"), Stack()) == (plain,)


def test_gathered_keys_meet_two_blocks_of_queries() -> None:
    first, last = kernels_on(CAUSAL, layout("all_gather"), Stack())
    assert (first.queries, last.queries) == (OWN // 2, OWN // 2)
    assert last.longest == LENGTH


def test_windows_and_whole_sequences_are_one_kernel() -> None:
    window = replace(CAUSAL, longest=512.0, mean=500.0)
    assert kernels_on(window, layout("p2p"), Stack()) == (window,)
    whole = replace(CAUSAL, queries=LENGTH)
    assert kernels_on(whole, layout("a2a"), Stack()) == (whole,)
    assert not in_ring(whole, layout("a2a"), Stack(ring_attention=True))


def test_merging_costs_its_bytes_for_every_part_but_the_own() -> None:
    machine = load_machine("h100", stack="megatron-core-2024", devices=8)
    core, times = block("p2p", CP).attention("forward"), kernel_times(machine, 2)
    (scores,) = scores_of(core)
    base, more = (
        fused_attention(core, layout("p2p"), Stack(merge_bytes=each), times)
        for each in ((0.0, 0.0), (10.0, 6.0))
    )
    device = slowest_device(machine)
    per_byte_s = 1 / (device.hbm_bandwidth_bytes_per_s * device.sustained_hbm)
    results = OWN * scores.heads * scores.value_size
    keys = OWN * scores.kv_heads * (scores.size + scores.value_size) / 2
    gradients = OWN * scores.heads * scores.size + keys
    for way, nbytes in (("forward", 10 * results), ("backward", 6 * gradients)):
        found = getattr(more, way).seconds - getattr(base, way).seconds
        assert found[HBM] == pytest.approx((CP - 1) * nbytes * per_byte_s)
        assert np.count_nonzero(found) == 1
    assert more.forward.launches == 2 * CP - 1


@pytest.mark.parametrize("system", ["h100", "a100-selene", "b200"])
@pytest.mark.parametrize("kind", ["all_gather", "p2p", "a2a", "a2a+p2p:2"])
def test_a_part_takes_at_least_its_share_of_the_whole_sequence(system: str, kind: CpKind) -> None:
    """Bounds of layouts by tokens per rank rely on it."""
    machine = load_machine(system, devices=8)
    times = kernel_times(machine, 2)
    whole = fused_attention(block().attention("forward"), Layout(), machine.stack, times)
    part = fused_attention(block(kind, CP).attention("forward"), layout(kind), machine.stack, times)
    for way in ("forward", "backward"):
        assert (getattr(part, way).seconds * CP >= getattr(whole, way).seconds * (1 - 1e-12)).all()


def test_a_clock_that_power_holds_down_slows_arithmetic_alone() -> None:
    machine = load_machine("h100", stack="megatron-core-2024", devices=8)
    times, core = kernel_times(machine, 2), block().attention("forward")
    full = replace(times, device=times.device.model_copy(update={"sustained_clock": 1.0}), _attention_s={})
    slow, fast = (fused_attention(core, Layout(), Stack(), one).backward.seconds for one in (times, full))
    compute = KERNEL_LIMITS.index("compute")
    assert fast[compute] / slow[compute] == pytest.approx(times.device.sustained_clock)
    assert (np.delete(slow, compute) == np.delete(fast, compute)).all()


def test_shapes_are_read_from_products_where_tables_have_no_more() -> None:
    def plain(operator: Operator) -> Operator:
        return replace(operator, scores=None)

    core = block().attention("forward")
    (found,), (known,) = scores_of([plain(one) for one in core]), scores_of(core)
    assert found == known


def test_kernels_of_inference_are_never_taken() -> None:
    device = load_device("a100-80gb")
    assert device.attention["vllm"].backward is None
    assert attention_kernel(device, Stack(attention=("vllm", "2"))) == "2"
    alone = device.model_copy(update={"attention": {"vllm": device.attention["vllm"]}})
    assert attention_kernel(alone, Stack(attention=("2",))) is None
