"""Context parallelism of given plans: sequences in parts, with keys and values gathered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.network.network import Levels
from phaze.layout import Group, Layout
from phaze.plan.layers.costs import Clocked, kernel_times
from phaze.plan.machines import load_machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.spec.system import Stack
from phaze.validate.rows import read_row
from phaze.validate.table import predict
from phaze.workload.models import library_workload
from phaze.workload.operators import Part
from phaze.workload.workload import Collective, Layer
from tests.unit.validate.examples import SMALL, changed, ideal_network, machine, runs

LONG = changed(SMALL, seq=4096, tp=2, pp=2, dp=2, cp=2, microbatch=1, global_batch=16)
WHOLE = changed(LONG, cp=1, dp=4)
"""Layout on the same devices, with twice the replicas instead."""


def block(run: Run, **layout: int) -> Layer:
    """Return the block of a run."""
    return library_workload(run.model, run.seq, replace(run.layout, **layout)).layer("block")


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("kv_heads", [0, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_keys_and_values_are_gathered_and_their_gradients_scattered(
    cp: int, kv_heads: int, sequence_parallel: bool
) -> None:
    """2 · width of keys / t · s · b elements forward, and twice as many backward."""
    run = changed(LONG, kv_heads=kv_heads, sequence_parallel=sequence_parallel)
    whole = run.model.kv_width // run.layout.tp * run.seq * run.layout.microbatch * 2
    found = block(run, cp=cp)
    forward, backward = (
        [one for one in found.collectives(direction) if one.axis == "cp"]
        for direction in ("forward", "backward")
    )
    assert forward == [Collective("all_gather", "cp", whole)] * 2
    assert (
        sorted(backward)
        == [Collective("all_gather", "cp", whole)] * 2 + [Collective("reduce_scatter", "cp", whole)] * 2
    )
    slices = [
        sum(one.nbytes for one in each.collectives("forward") if one.axis == "tp")
        for each in (found, block(run, cp=1))
    ]
    assert slices[0] * cp == slices[1]


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_rank_has_its_part_of_the_work_and_of_what_is_kept(cp: int) -> None:
    """Queries of one part see the keys of all parts, so the scores are a cp-th as well."""
    found, whole = block(LONG, cp=cp), block(LONG, cp=1)
    for direction in ("forward", "backward"):
        assert found.pass_of(direction).tensor_flops * cp == whole.pass_of(direction).tensor_flops
    assert found.activation_bytes * cp == whole.activation_bytes
    assert found.attention_bytes * cp == whole.attention_bytes
    assert (found.output_bytes * cp, found.parameters) == (whole.output_bytes, whole.parameters)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_and_states_are_shared_as_by_as_many_replicas(zero: int) -> None:
    parts, replicas = (
        price(plan_of_run(changed(run, zero=zero), machine()), machine()) for run in (LONG, WHOLE)
    )
    for one, other in zip(parts.pipeline.stages, replicas.pipeline.stages, strict=True):
        assert (one.sync_s, one.update_s, one.gather_s) == (other.sync_s, other.update_s, other.gather_s)
        assert one.fixed_bytes == other.fixed_bytes
    assert parts.plan.devices == replicas.plan.devices == LONG.gpus


def test_half_of_a_sequence_leaves_half_of_the_activations() -> None:
    """Twice the microbatches of half the size: the first stage stores as many, and temporarily the keys and
    values of one layer for the whole sequence.
    """
    parts, replicas = predict(LONG, machine()), predict(WHOLE, machine())
    gathered = 2 * LONG.model.kv_width // LONG.layout.tp * LONG.seq * 2
    assert parts.activation_gib == pytest.approx(replicas.activation_gib / 2 + gathered / GIB)
    assert parts.weights_gib == replicas.weights_gib
    ratio = parts.time_s / replicas.time_s
    assert parts.model_flops_per_gpu * ratio == pytest.approx(replicas.model_flops_per_gpu)


def test_the_time_of_what_is_gathered_is_the_networks() -> None:
    """Slower links between parts add three collectives of keys and of values, and no more."""
    chip, free = machine(), ideal_network(machine())
    run = changed(LONG, tp=1, pp=1, dp=1, gpus=2, global_batch=1)
    group, nbytes = run.layout.group("cp"), run.model.kv_width * run.seq * 2
    each = 2 * chip.network.seconds("all_gather", nbytes, group)
    each += chip.network.seconds("reduce_scatter", nbytes, group)
    slow, fast = (price(plan_of_run(run, one), one) for one in (chip, free))
    assert slow.timeline.time_s - fast.timeline.time_s == pytest.approx(
        run.layers * 2 * each + slow.pipeline.stages[0].sync_s, rel=1e-6
    )


def test_overlap_of_slices_hides_nothing_of_what_parts_gather() -> None:
    """Slower links between parts cost the same with overlap as without; tensor-parallel ranks are inside a
    node.
    """
    run = changed(LONG, tp=8, pp=1, dp=1, gpus=16, global_batch=1)
    chip = replace(machine(), stack=Stack())  # no host for whose kernels collectives would wait
    assert isinstance(chip.network, Levels)
    inner, outer = chip.network.tiers
    slower = replace(chip, network=Levels((inner, outer._replace(latency_s=outer.latency_s + 1e-3))))
    more = [
        sum(stage.forward_s for stage in plan_of_run(changed(run, overlap=overlap), slower).stages)
        - sum(stage.forward_s for stage in plan_of_run(changed(run, overlap=overlap), chip).stages)
        for overlap in ((), ("tp",))
    ]
    assert more == pytest.approx([run.layers * 2 * 1e-3] * 2)


@given(run=runs())
@settings(max_examples=15)
def test_any_run_can_be_cut_along_its_sequences(run: Run) -> None:
    cut = changed(run, cp=2, gpus=2 * run.gpus)
    found, whole = predict(cut, machine()), predict(run, machine())
    assert found.activation_gib < whole.activation_gib
    assert found.memory_gib < whole.memory_gib
    free = replace(ideal_network(machine()), stack=Stack())  # a host launches collectives, too
    assert predict(cut, free).time_s <= predict(run, free).time_s


def test_a_row_says_cp_and_dp_is_what_is_left() -> None:
    sizes = {"hidden": "1024", "heads": "16", "layers": "8", "seq": "512", "vocab": "50000", "gpus": "16"}
    row = read_row({**sizes, "global_batch": "64", "tp": "2", "cp": "4", "microbatch": "1"})
    assert row.runs[0].layout == Layout(tp=2, cp=4, dp=2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cp": 4}, r"tp \* cp \* pp \* dp must be gpus 16, got 32"),
        ({"seq": 4098, "cp": 2}, "2 \\* cp must divide the sequence 4098, got 4"),
        (
            {"seq": 4100, "tp": 8, "dp": 1, "pp": 1, "sequence_parallel": True},
            "tensor: 8 must divide the part 2050 of the sequence if that is parallel",
        ),
    ],
)
def test_a_sequence_that_cannot_be_cut_says_why(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(PhazeError, match=problem):
        predict(changed(LONG, **changes), machine())


def test_a_ring_over_two_nodes_goes_at_the_pace_of_the_way_between_them() -> None:
    h100 = load_machine("h100", stack="megatron-core-2024")
    part = Part("send", "forward", network_bytes=10**9, axis="cp")
    for ranks, level in ((8, 0), (16, 1)):
        clocked = Clocked(h100, Layout(cp=ranks, cp_kind="p2p"), kernel_times(h100, 2))
        farthest = Group(2, (1, 8)[level])
        assert clocked.sent_s(part) == h100.network.seconds("send", 1e9, farthest)
